//! `tokenizer_config.json`: what transformers knows about a tokenizer beyond `tokenizer.json`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{TokenizerError, read_json};

/// The fields of `tokenizer_config.json` that change text or ids. All empty if the file is not there.
#[derive(Debug, Default)]
pub(crate) struct TokenizerConfig {
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
    /// Every `..._token` field that is set (`pad_token`, `unk_token` ..., BOS and EOS too): chat templates see them.
    pub special_tokens: BTreeMap<String, String>,
    /// None where the file does not say.
    pub add_bos_token: Option<bool>,
    pub clean_up_spaces: bool,
    /// `added_tokens_decoder`, by id.
    pub added_tokens: BTreeMap<u32, AddedTokenSpec>,
    /// `chat_template` as it stands: a string, or a list of named ones.
    pub chat_template: Option<Value>,
}

/// A token: its text, or an object with the text in `content`, as each entry of `added_tokens_decoder`.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct AddedTokenSpec {
    pub content: String,
    pub lstrip: bool,
    pub rstrip: bool,
    pub single_word: bool,
    pub normalized: bool,
    pub special: bool,
}

impl TryFrom<Value> for AddedTokenSpec {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let content = value.as_str().or_else(|| value.get("content")?.as_str());
        let content = content.ok_or_else(|| {
            format!("expected a string, or an object with the text in \"content\", found {}", shortened(&value))
        })?;
        let flag = |flag: &str| value.get(flag).and_then(Value::as_bool);
        let special = flag("special").unwrap_or(false);
        Ok(Self {
            content: content.to_owned(),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
            single_word: flag("single_word").unwrap_or(false),
            normalized: flag("normalized").unwrap_or(!special),
            special,
        })
    }
}

/// The fields with fixed names.
#[derive(Deserialize)]
struct Fields {
    add_bos_token: Option<bool>,
    clean_up_tokenization_spaces: Option<bool>,
    added_tokens_decoder: Option<BTreeMap<u32, AddedTokenSpec>>,
    chat_template: Option<Value>,
}

impl TokenizerConfig {
    /// Reads `folder/tokenizer_config.json`; the default if there is none.
    pub fn from_folder(folder: &Path) -> Result<Self, TokenizerError> {
        let path = folder.join("tokenizer_config.json");
        let bytes = match read_json(&path) {
            Err(TokenizerError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            read => read?,
        };
        let tree: Map<String, Value> = serde_json::from_slice(&bytes)
            .map_err(|e| TokenizerError::Parse { path: path.clone(), message: e.to_string() })?;
        let wrong = |field: &str, message| TokenizerError::Field { path: path.clone(), field: field.into(), message };
        let mut special_tokens = BTreeMap::new();
        for (name, value) in &tree {
            // `add_bos_token` ends the same way but is a switch.
            if name.ends_with("_token") && !value.is_boolean() && !value.is_null() {
                let token = AddedTokenSpec::try_from(value.clone()).map_err(|message| wrong(name, message))?;
                special_tokens.insert(name.clone(), token.content);
            }
        }
        let fields: Fields = serde_path_to_error::deserialize(Value::Object(tree))
            .map_err(|e| wrong(&e.path().to_string(), e.inner().to_string()))?;
        Ok(Self {
            bos_token: special_tokens.get("bos_token").cloned(),
            eos_token: special_tokens.get("eos_token").cloned(),
            special_tokens,
            add_bos_token: fields.add_bos_token,
            clean_up_spaces: fields.clean_up_tokenization_spaces.unwrap_or(false),
            added_tokens: fields.added_tokens_decoder.unwrap_or_default(),
            chat_template: fields.chat_template,
        })
    }
}

/// The beginning of a value that should not be there, for error messages.
pub(crate) fn shortened(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}
