//! Text to token ids and back, by the model's own `tokenizer.json`.
//!
//! Encoding is done by the `tokenizers` crate. So is decoding if only the text is needed; if it matters *which* token wrote
//! which part of the text ([`Tokenizer::decode_with_offsets`], [`Tokenizer::stream`]), the module `detokenize` runs the
//! decoder's steps itself and keeps the tokens apart.

mod detokenize;
mod file;

use super::boundary::{caught, on_known_stack};
use crate::files::{self, is_nothing};
use detokenize::Plan;
pub use detokenize::TextStream;
pub use detokenize::byte_of_char;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, collections::HashSet, io::ErrorKind, ops::Range, path::Path, path::PathBuf};
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
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, if present, `tokenizer_config.json` (BOS and EOS text, added tokens that `tokenizer.json` lacks, the
    /// chat template) of `folder`. As in transformers 5, the file's post-processor alone decides what is put around a text, not
    /// `add_bos_token` or `add_eos_token`, and texts of BPE keep their spaces whatever `clean_up_tokenization_spaces` says.
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
        Self::build(&bytes, TokenizerConfig::from_folder(folder)?, path)
    }

    /// One without tokens.
    pub fn empty() -> Result<Self> {
        let json = r#"{"model": {"type": "BPE", "vocab": {}, "merges": []}}"#;
        Self::build(json.as_bytes(), TokenizerConfig::default(), PathBuf::new())
    }

    fn build(json: &[u8], config: TokenizerConfig, path: PathBuf) -> Result<Self> {
        let parsed = on_known_stack(|| caught(|| file::read(json)));
        let parsed = parsed.map_err(|source| TokenizerError::Read { path: path.clone(), source })?;
        let mut inner = parsed.map_err(|message| TokenizerError::Parse { path: path.clone(), message })?;
        add_missing_tokens(&mut inner, &config, &path.with_file_name("tokenizer_config.json"))?;
        inner.set_encode_special_tokens(config.split_special_tokens == Some(true));
        let plan = Plan::new(inner.get_decoder())
            .map_err(|found| TokenizerError::UnsupportedDecoder { path: path.clone(), found })?;
        let id_of = |name: &str| inner.token_to_id(config.special_tokens.get(name)?);
        let (bos_id, eos_id) = (id_of("bos_token"), id_of("eos_token"));
        let vocab_size = inner.get_vocab_size(true);
        let id_bound = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        Ok(Self { inner, plan, config, vocab_size, id_bound, bos_id, eos_id })
    }

    /// Token ids of `text`. Special tokens written out in the text become those tokens; `add_special_tokens` adds what
    /// the tokenizer puts around a text (for most models a BOS, or nothing).
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the tokenizer's model rejects the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let encoding = caught(|| self.inner.encode_fast(text, add_special_tokens)).map_err(TokenizerError::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids` as in transformers' `decode(ids)`: special tokens kept.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        ids.iter().try_for_each(|id| self.token_text(*id).map(drop))?;
        if ids.is_empty() {
            return Ok(String::new()); // some decoders assume there is a last token
        }
        caught(|| self.inner.decode(ids, false)).map_err(TokenizerError::Decode)
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

    /// The text of `ids` and, for each id, the byte range of its text therein.
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

    /// Special tokens, which transformers' `skip_special_tokens` leaves out: ids and texts.
    pub fn special_tokens(&self) -> impl Iterator<Item = (u32, String)> {
        let added = self.inner.get_added_tokens_decoder().into_iter();
        added.filter(|(_, token)| token.special).map(|(id, token)| (id, token.content))
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

/// The bytes of a `tokenizer.json` or `tokenizer_config.json`; published ones have up to about 40 million.
fn read_json(path: &Path) -> Result<Vec<u8>> {
    files::read(path, 128 << 20).map_err(|source| TokenizerError::Read { path: path.to_path_buf(), source })
}

/// Adds what the settings have besides, or other than, `tokenizer.json`, like transformers.
fn add_missing_tokens(inner: &mut tokenizers::Tokenizer, config: &TokenizerConfig, path: &Path) -> Result<()> {
    let added = config.added(&Vec::from_iter(inner.get_added_tokens_decoder()));
    let is_new = |token: &AddedToken| inner.token_to_id(&token.content).is_none();
    let new: HashSet<String> = added.iter().filter(|token| is_new(token)).map(|token| token.content.clone()).collect();
    if !added.is_empty() {
        caught(|| file::add_tokens(inner, added))
            .map_err(|message| TokenizerError::Parse { path: path.to_path_buf(), message })?;
    }
    for (&expected, Token { token, .. }) in config.added_tokens_decoder.iter().flatten().chain(&config.older_tokens) {
        let found = inner.token_to_id(&token.content).filter(|&found| found != expected);
        if let Some(found) = found.filter(|_| new.contains(&token.content)) {
            let (path, token) = (path.to_path_buf(), token.content.clone());
            return Err(TokenizerError::AddedTokenId { path, token, expected, found });
        }
    }
    Ok(())
}

// `tokenizer_config.json`: transformers' settings of a tokenizer beyond `tokenizer.json`.

/// The fields of `tokenizer_config.json` that change text or ids. All empty if the file is missing.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct TokenizerConfig {
    /// Every `..._token` field that is set (`pad_token`, `unk_token` ..., BOS and EOS too): chat templates see them.
    #[serde(skip)]
    pub special_tokens: BTreeMap<String, String>,
    /// All special tokens in transformers' order, those without a name last.
    #[serde(skip)]
    in_order: Vec<Token>,
    /// Of `added_tokens.json`, by id.
    #[serde(skip)]
    older_tokens: BTreeMap<u32, Token>,
    /// Special tokens written out in a text are not those tokens, but text.
    split_special_tokens: Option<bool>,
    /// By id.
    pub added_tokens_decoder: Option<BTreeMap<u32, Token>>,
    /// A string, or a list of named ones.
    pub chat_template: Option<Value>,
}

/// A token: its text, or an object with the text in `content`, as each entry of `added_tokens_decoder`.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Token {
    /// Whether it is special if it is not a named one is as written; a text always is.
    token: AddedToken,
    /// As written; otherwise tokens that are not special are.
    normalized: Option<bool>,
    is_text: bool,
}

impl TryFrom<Value> for Token {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let content = value.as_str().or_else(|| value.get("content")?.as_str());
        let content = content.ok_or_else(|| {
            format!("expected a string, or an object with the text in \"content\", found {}", shortened(&value))
        })?;
        let flag = |flag: &str| value.get(flag).and_then(Value::as_bool);
        let token = AddedToken {
            content: content.to_owned(),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
            single_word: flag("single_word").unwrap_or(false),
            normalized: false,
            special: flag("special").unwrap_or(value.is_string()),
        };
        Ok(Token { token, normalized: flag("normalized"), is_text: value.is_string() })
    }
}

impl Token {
    fn added(&self, is_named: bool) -> AddedToken {
        let special = self.token.special || is_named;
        AddedToken { special, normalized: self.normalized.unwrap_or(!special), ..self.token.clone() }
    }
}

impl TokenizerConfig {
    /// Reads `tokenizer_config.json` and, unless it lists all added tokens, the older `special_tokens_map.json`, which then takes
    /// precedence, and `added_tokens.json`; the default if there is none of them.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer_config.json");
        let tree = read_object(&path)?;
        let mut config: TokenizerConfig = serde_path_to_error::deserialize(Value::Object(tree.clone()))
            .map_err(|e| wrong(&path, &e.path().to_string(), e.inner().to_string()))?;
        let older = folder.join("special_tokens_map.json");
        let old = if config.added_tokens_decoder.is_some() { Map::new() } else { read_object(&older)? };
        let (named, list) = special_tokens((&path, &tree), (&older, &old))?;
        config.special_tokens = named.iter().map(|(name, token)| (name.clone(), token.token.content.clone())).collect();
        // an object in tokenizer_config.json does not make a token of added_tokens.json special
        let counts = |name: &str, token: &Token| token.is_text || old.contains_key(name);
        let standard = named.iter().filter(|(name, token)| STANDARD.contains(&name.as_str()) && counts(name, token));
        let listed = list.iter().filter(|token| counts("extra_special_tokens", token));
        let special = standard.map(|(_, token)| token).chain(listed).map(|token| token.token.content.clone());
        let special: HashSet<String> = special.collect();
        config.in_order = named.into_iter().map(|(_, token)| token).chain(list).collect();
        if config.added_tokens_decoder.is_none() {
            let path = folder.join("added_tokens.json");
            let token = |(text, id): (String, Value)| {
                let id = id.as_u64().and_then(|id| id.try_into().ok());
                let id = id.ok_or_else(|| wrong(&path, &text, "expected an id".to_owned()))?;
                let special = special.contains(&text);
                Ok((id, Token { token: AddedToken::from(text, special), normalized: Some(!special), is_text: false }))
            };
            config.older_tokens = read_object(&path)?.into_iter().map(token).collect::<Result<_>>()?;
        }
        Ok(config)
    }

    /// The tokens that transformers adds to those `known` from `tokenizer.json`, in its order: the listed ones by id, which may have
    /// other flags, then special ones that are in neither place. Named tokens are special whatever the lists say.
    fn added(&self, known: &[(u32, AddedToken)]) -> Vec<AddedToken> {
        let own = |(id, token): &(u32, AddedToken)| {
            (*id, Token { token: token.clone(), normalized: Some(token.normalized), is_text: false })
        };
        let older = || self.older_tokens.clone().into_iter().chain(known.iter().map(own)).collect();
        let listed: BTreeMap<u32, Token> = self.added_tokens_decoder.clone().unwrap_or_else(older);
        let texts = known.iter().map(|(_, token)| &token.content);
        let have: HashSet<&String> = texts.chain(listed.values().map(|token| &token.token.content)).collect();
        let mut added: Vec<&Token> = listed.values().collect();
        for token in self.in_order.iter().filter(|token| !have.contains(&token.token.content)) {
            // the last of several with other flags counts
            if !added.iter().any(|other| other.is_text == token.is_text && other.added(false) == token.added(false)) {
                added.push(token);
            }
        }
        let is_named = |text: &str| self.special_tokens.values().any(|named| named == text);
        added.into_iter().map(|token| token.added(is_named(&token.token.content))).collect()
    }
}

/// The object in a file, empty if there is no file.
pub(super) fn read_object(path: &Path) -> Result<Map<String, Value>> {
    match read_json(path) {
        Err(TokenizerError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(Map::new()),
        bytes => {
            let mut bytes = bytes?;
            files::replace_non_numbers(&mut bytes);
            serde_json::from_slice(&bytes)
                .map_err(|e| TokenizerError::Parse { path: path.to_owned(), message: e.to_string() })
        }
    }
}

/// The names of special tokens that every model may have.
const STANDARD: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Special tokens with names, and those without.
type SpecialTokens = (Vec<(String, Token)>, Vec<Token>);

/// All special tokens of `tokenizer_config.json` and `special_tokens_map.json`, in transformers' order: the standard names, the
/// model's own (`…_token`, and a map in `extra_special_tokens`), and a list in `extra_special_tokens` or, as it was called,
/// `additional_special_tokens`.
fn special_tokens(
    (path, tree): (&Path, &Map<String, Value>),
    (older, old): (&Path, &Map<String, Value>),
) -> Result<SpecialTokens> {
    const EXTRA: &str = "extra_special_tokens";
    const ADDITIONAL: &str = "additional_special_tokens";
    let token = |name: &str, value: &Value| {
        let path = if old.contains_key(name) { older } else { path };
        Token::try_from(value.clone()).map_err(|message| wrong(path, name, message))
    };
    let mut fields = tree.clone();
    if fields.get(EXTRA).is_none_or(is_nothing)
        && let Some(list) = fields.remove(ADDITIONAL)
    {
        fields.insert(EXTRA.to_owned(), list);
    }
    // those that are texts come after those of the older file
    let is_own = |name: &str| name.ends_with("_token") && !STANDARD.contains(&name);
    let mut own: Map<String, Value> = tree.clone();
    own.retain(|name, value| is_own(name) && value.is_string());
    fields.retain(|name, _| !own.contains_key(name));
    let move_map = |fields: &mut Map<String, Value>, own: &mut Map<String, Value>| {
        if let Some(Value::Object(_)) = fields.get(EXTRA)
            && let Some(Value::Object(tokens)) = fields.remove(EXTRA)
        {
            own.extend(tokens);
        }
    };
    move_map(&mut fields, &mut own);
    for (name, value) in old {
        match (value.clone(), fields.get_mut(name)) {
            (Value::Array(more), Some(Value::Array(list))) if name == EXTRA => {
                more.into_iter().for_each(|token| {
                    if !list.contains(&token) {
                        list.push(token)
                    }
                });
            }
            (mut value, _) => {
                if let Some(token) = value.as_object_mut().filter(|_| name != EXTRA) {
                    token.extend([("__type".to_owned(), "AddedToken".into()), ("special".to_owned(), true.into())]);
                }
                fields.insert(name.clone(), value);
            }
        }
    }
    move_map(&mut fields, &mut own);
    let list = fields.get(EXTRA).or(fields.get(ADDITIONAL)).filter(|value| !value.is_null());
    let list = list.map_or(Some(&[][..]), |list| list.as_array().map(Vec::as_slice));
    let list = list.ok_or_else(|| wrong(path, EXTRA, "expected a list or an object of tokens".to_owned()))?;
    let list = list.iter().map(|value| token(EXTRA, value)).collect::<Result<Vec<_>>>()?;
    let mut named: Vec<(String, Token)> = Vec::new();
    let standard = STANDARD.iter().filter_map(|name| fields.get_key_value(*name));
    // `add_bos_token` ends the same way but is a switch; an object is a token only if it says so
    let others =
        fields.iter().filter(|(name, value)| is_own(name) && (value.is_string() || value.get("__type").is_some()));
    for (name, value) in standard.filter(|(_, value)| !value.is_null()).chain(others).chain(&own) {
        match named.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = token(name, value)?,
            None => named.push((name.clone(), token(name, value)?)),
        }
    }
    Ok((named, list))
}

fn wrong(path: &Path, field: &str, message: String) -> TokenizerError {
    TokenizerError::Field { path: path.to_owned(), field: field.to_owned(), message }
}

/// The beginning of an unexpected value, for error messages.
pub(crate) fn shortened(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}
