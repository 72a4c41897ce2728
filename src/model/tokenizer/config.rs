//! `tokenizer_config.json`: transformers' settings of a tokenizer beyond `tokenizer.json`.

use std::{collections::BTreeMap, io::ErrorKind, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::{Result, TokenizerError, read_json};

/// The fields of `tokenizer_config.json` that change text or ids. All empty if the file is missing.
#[derive(Debug, Deserialize)]
pub(crate) struct TokenizerConfig {
    /// Every `..._token` field that is set (`pad_token`, `unk_token` ..., BOS and EOS too): chat templates see them.
    #[serde(skip)]
    pub special_tokens: BTreeMap<String, String>,
    pub add_bos_token: Option<bool>,
    pub clean_up_tokenization_spaces: Option<bool>,
    /// By id.
    pub added_tokens_decoder: Option<BTreeMap<u32, Token>>,
    /// A string, or a list of named ones.
    pub chat_template: Option<Value>,
}

/// A token: its text, or an object with the text in `content`, as each entry of `added_tokens_decoder`.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Token(pub AddedToken);

impl TryFrom<Value> for Token {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let content = value.as_str().or_else(|| value.get("content")?.as_str());
        let content = content.ok_or_else(|| {
            format!("expected a string, or an object with the text in \"content\", found {}", shortened(&value))
        })?;
        let flag = |flag: &str| value.get(flag).and_then(Value::as_bool);
        let special = flag("special").unwrap_or(false);
        Ok(Self(AddedToken {
            content: content.to_owned(),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
            single_word: flag("single_word").unwrap_or(false),
            normalized: flag("normalized").unwrap_or(!special),
            special,
        }))
    }
}

impl TokenizerConfig {
    /// Reads `tokenizer_config.json` and the older `special_tokens_map.json`; the default if there is neither. For tokens in
    /// both, the older file takes precedence, as in transformers, unless the newer one lists all added tokens.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let (path, older) = (folder.join("tokenizer_config.json"), folder.join("special_tokens_map.json"));
        let tree = read_object(&path)?;
        let special = special_tokens(&path, &tree)?;
        let mut config: TokenizerConfig = serde_path_to_error::deserialize(Value::Object(tree))
            .map_err(|e| wrong(&path, &e.path().to_string(), e.inner().to_string()))?;
        let old = special_tokens(&older, &read_object(&older)?)?;
        let (first, last) = if config.added_tokens_decoder.is_some() { (old, special) } else { (special, old) };
        config.special_tokens = first.into_iter().chain(last).collect();
        Ok(config)
    }
}

/// The object in a file, empty if there is no file.
fn read_object(path: &Path) -> Result<Map<String, Value>> {
    match read_json(path) {
        Err(TokenizerError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(Map::new()),
        bytes => serde_json::from_slice(&bytes?)
            .map_err(|e| TokenizerError::Parse { path: path.to_owned(), message: e.to_string() }),
    }
}

/// The texts of all `..._token` entries.
fn special_tokens(path: &Path, tree: &Map<String, Value>) -> Result<BTreeMap<String, String>> {
    // `add_bos_token` ends the same way but is a switch
    let is_token =
        |(name, value): &(&String, &Value)| name.ends_with("_token") && !value.is_boolean() && !value.is_null();
    let token = |(name, value): (&String, &Value)| {
        let token = Token::try_from(value.clone()).map_err(|message| wrong(path, name, message))?;
        Ok((name.clone(), token.0.content))
    };
    tree.iter().filter(is_token).map(token).collect()
}

fn wrong(path: &Path, field: &str, message: String) -> TokenizerError {
    TokenizerError::Field { path: path.to_owned(), field: field.to_owned(), message }
}

/// The beginning of an unexpected value, for error messages.
pub(crate) fn shortened(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}
