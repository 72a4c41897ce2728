//! Text to token ids and back, by the model's own `tokenizer.json`.
//!
//! Encoding is done by the `tokenizers` crate. So is decoding if only the text is needed; if it matters *which* token wrote
//! which part of the text ([`Tokenizer::decode_with_offsets`], [`Tokenizer::stream`]), the module `detokenize` runs the
//! decoder's steps itself and keeps the tokens apart.

mod detokenize;
mod file;

use super::boundary::{caught, on_known_stack};
use crate::files;
use detokenize::Plan;
pub use detokenize::TextStream;
pub(crate) use detokenize::byte_of_char;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::{collections::BTreeMap, io::ErrorKind, ops::Range};
use tokenizers::AddedToken;

pub type Result<T, E = TokenizerError> = std::result::Result<T, E>;

/// Why a tokenizer could not be read or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// No `tokenizer.json`. `slow`: the older `tokenizer.model` is there.
    #[error(
        "{path} is missing{slow_hint}; save a fast tokenizer into the folder with: python -c \"from transformers import \
         AutoTokenizer as T; T.from_pretrained('{folder}').save_pretrained('{folder}')\"",
        path = folder.join("tokenizer.json").display(),
        folder = folder.display(),
        slow_hint = if *slow { " (the slow tokenizer.model that is there must be converted)" } else { "" }
    )]
    Missing { folder: PathBuf, slow: bool },
    /// The file is there but cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not JSON, or not a tokenizer.
    #[error("{}: not a tokenizer file this program understands: {message}", path.display())]
    Parse { path: PathBuf, message: String },
    /// A field of `tokenizer_config.json` has the wrong type.
    #[error("{}: \"{field}\": {message}", path.display())]
    Field { path: PathBuf, field: String, message: String },
    /// `tokenizer_config.json` adds a token whose id does not follow from `tokenizer.json`.
    #[error(
        "{}: the added token \"{token}\" should have id {expected}, but after the vocabulary of tokenizer.json it gets \
         {found}; the two files do not belong together, download the folder again",
        path.display()
    )]
    AddedTokenId { path: PathBuf, token: String, expected: u32, found: u32 },
    /// A decoder that does not separate the texts of single tokens.
    #[error(
        "{}: the decoder {found} is not supported; expected ByteLevel, Metaspace, WordPiece, or a sequence of Replace, \
         ByteFallback, Fuse and a Strip of leading characters",
        path.display()
    )]
    UnsupportedDecoder { path: PathBuf, found: String },
    /// An id the vocabulary has no token for.
    #[error("token id {id} is not in the tokenizer's vocabulary of {vocab_size}; the ids belong to another model")]
    UnknownId { id: u32, vocab_size: usize },
    /// The tokenizer refused the text.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    /// The tokenizer refused the ids.
    #[error("the tokens cannot be decoded: {0}")]
    Decode(String),
}

/// A model's tokenizer: `tokenizer.json` with what `tokenizer_config.json` adds to it.
///
/// Truncation and padding that a training script left in `tokenizer.json` are switched off.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    plan: Plan,
    /// From `tokenizer_config.json`.
    pub(crate) config: TokenizerConfig,
    vocab_size: usize,
    id_bound: usize,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
    /// The BOS, and `add_bos_token` of `tokenizer_config.json`, if the post-processor of `tokenizer.json` does otherwise.
    bos_rule: Option<(u32, bool)>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, if present, `tokenizer_config.json` (BOS and EOS text, `add_bos_token`,
    /// `clean_up_tokenization_spaces`, added tokens that `tokenizer.json` lacks, the chat template) of `folder`.
    ///
    /// # Errors
    /// A file that is missing, unreadable or inconsistent, and the remedy.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        if !path.exists() {
            let slow = folder.join("tokenizer.model").is_file();
            return Err(TokenizerError::Missing { folder: folder.to_path_buf(), slow });
        }
        let bytes = read_json(&path)?;
        let config = TokenizerConfig::from_folder(folder)?;
        let parsed = on_known_stack(|| caught(|| file::read(&bytes)));
        let parsed = parsed.map_err(|source| TokenizerError::Read { path: path.clone(), source })?;
        let mut inner = parsed.map_err(|message| TokenizerError::Parse { path: path.clone(), message })?;
        add_missing_tokens(&mut inner, &config, &folder.join("tokenizer_config.json"))?;
        let plan = Plan::new(inner.get_decoder())
            .map_err(|found| TokenizerError::UnsupportedDecoder { path: path.clone(), found })?;
        let id_of = |name: &str| inner.token_to_id(config.special_tokens.get(name)?);
        let (bos_id, eos_id) = (id_of("bos_token"), id_of("eos_token"));
        let bos_rule = bos_rule(&inner, &config, bos_id)?;
        let vocab_size = inner.get_vocab_size(true);
        let id_bound = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        Ok(Self { inner, plan, config, vocab_size, id_bound, bos_id, eos_id, bos_rule })
    }

    /// Token ids of `text`. Special tokens written out in the text become those tokens; `add_special_tokens` adds what
    /// the tokenizer puts around a text (for most models a BOS, or nothing).
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the tokenizer's model rejects the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let mut ids = encode_raw(&self.inner, text, add_special_tokens)?;
        match self.bos_rule {
            Some((bos, true)) if add_special_tokens => ids.insert(0, bos),
            Some((bos, false)) if add_special_tokens && ids.first() == Some(&bos) => {
                ids.remove(0);
            }
            _ => {}
        }
        Ok(ids)
    }

    /// The text of `ids` as in transformers' `decode(ids)`: special tokens kept, `clean_up_tokenization_spaces` respected.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        for &id in ids {
            self.token_text(id)?;
        }
        if ids.is_empty() {
            return Ok(String::new()); // some decoders assume there is a last token
        }
        let text = caught(|| self.inner.decode(ids, false)).map_err(TokenizerError::Decode)?;
        Ok(if self.config.clean_up_tokenization_spaces == Some(true) { detokenize::clean_up(&text) } else { text })
    }

    /// The text of one id on its own, as transformers' `decode([id])`; part of a multi-byte character is U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] for an id outside the vocabulary.
    pub fn decode_token(&self, id: u32) -> Result<String> {
        self.decode(&[id])
    }

    /// The bytes that one id adds to a text, at its `start` or after other tokens. Concatenated over consecutive ids, they
    /// form the text.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32, start: bool) -> Result<Vec<u8>> {
        self.plan.bytes(&self.token_text(id)?, start)
    }

    /// The text of `ids` (without clean-up) and, for each id, the byte range of its text therein.
    ///
    /// Ranges start in order, lie on character boundaries, and together cover the text. They overlap only if a character is
    /// formed by several tokens: each of these gets the whole character. Time is linear in the number of ids.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] for an id outside the vocabulary.
    pub fn decode_with_offsets(&self, ids: &[u32]) -> Result<(String, Vec<Range<usize>>)> {
        let tokens = ids.iter().map(|&id| self.token_text(id)).collect::<Result<Vec<_>, _>>()?;
        self.plan.text_with_ranges(&tokens)
    }

    /// A decoder fed one id at a time; see [`TextStream`].
    pub fn stream(&self) -> TextStream<&Tokenizer> {
        TextStream::new(self)
    }

    /// Number of tokens, added ones included. Ids may be sparse: see [`Self::id_bound`].
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The largest id plus one. A model's logits may be wider: embeddings are often padded.
    pub fn id_bound(&self) -> usize {
        self.id_bound
    }

    /// Text of the token that ends a sequence, if the model has one.
    pub fn eos_token(&self) -> Option<&str> {
        self.config.special_tokens.get("eos_token").map(String::as_str)
    }

    /// Id of the token that begins a sequence; none if the model or its vocabulary does not have one.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// Id of [`Self::eos_token`]; none if the vocabulary does not have it. Models may end on more ids than this one:
    /// `generation_config.json` lists them.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.eos_id
    }

    /// The token as the vocabulary writes it (not as text); empty for an unused id below the largest one.
    fn token_text(&self, id: u32) -> Result<String> {
        let unused = || ((id as usize) < self.id_bound).then(String::new);
        let unknown = TokenizerError::UnknownId { id, vocab_size: self.vocab_size };
        self.inner.id_to_token(id).or_else(unused).ok_or(unknown)
    }
}

fn encode_raw(inner: &tokenizers::Tokenizer, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
    let encoding = caught(|| inner.encode_fast(text, add_special_tokens)).map_err(TokenizerError::Encode)?;
    Ok(encoding.get_ids().to_vec())
}

/// The bytes of a `tokenizer.json` or `tokenizer_config.json`; published ones have up to about 40 million.
fn read_json(path: &Path) -> Result<Vec<u8>> {
    files::read(path, 128 << 20).map_err(|source| TokenizerError::Read { path: path.to_path_buf(), source })
}

/// Adds the tokens that only `tokenizer_config.json` lists (`added_tokens_decoder`), in id order, like transformers.
fn add_missing_tokens(inner: &mut tokenizers::Tokenizer, config: &TokenizerConfig, path: &Path) -> Result<()> {
    let listed = config.added_tokens_decoder.iter().flatten();
    let missing: Vec<_> = listed.filter(|(_, token)| inner.token_to_id(&token.0.content).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let added = missing.iter().map(|(_, token)| token.0.clone()).collect();
    caught(|| file::add_tokens(inner, added))
        .map_err(|message| TokenizerError::Parse { path: path.to_path_buf(), message })?;
    for (&expected, Token(AddedToken { content, .. })) in missing {
        if let Some(found) = inner.token_to_id(content).filter(|&found| found != expected) {
            let (path, token) = (path.to_path_buf(), content.clone());
            return Err(TokenizerError::AddedTokenId { path, token, expected, found });
        }
    }
    Ok(())
}

/// Compares `tokenizer.json` with `add_bos_token` on an arbitrary text; see [`Tokenizer::bos_rule`].
fn bos_rule(inner: &tokenizers::Tokenizer, config: &TokenizerConfig, bos: Option<u32>) -> Result<Option<(u32, bool)>> {
    let (Some(bos), Some(wanted)) = (bos, config.add_bos_token) else { return Ok(None) };
    let added = encode_raw(inner, "a", true)?.first() == Some(&bos);
    Ok((added != wanted).then_some((bos, wanted)))
}

// `tokenizer_config.json`: transformers' settings of a tokenizer beyond `tokenizer.json`.

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
