//! Chat templates: from messages to the text a model was trained on, as transformers' `apply_chat_template` renders it.

mod clock;
mod json;
mod python;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::tokenizer::{Tokenizer, TokenizerError, shortened};

/// What the response answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Conversation {
    /// Not empty.
    Messages(Vec<Message>),
    /// One user message.
    Prompt(String),
}

impl Conversation {
    /// The messages; a prompt is one of the user.
    pub fn to_messages(&self) -> Vec<Message> {
        match self {
            Conversation::Messages(messages) => messages.clone(),
            Conversation::Prompt(text) => vec![Message::new("user", text)],
        }
    }
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`, and whatever else the template knows.
    pub role: String,
    pub content: String,
}

impl Message {
    /// A message of `role` saying `content`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// Why a chat template could not be read or rendered.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The file is there but cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// `chat_template` is neither a text nor a list of named texts.
    #[error(
        "{}: \"chat_template\" should be a string or a list of objects with \"name\" and \"template\", found {found}",
        path.display()
    )]
    Field { path: PathBuf, found: String },
    /// Several templates, none of them the default.
    #[error(
        "{}: the model has several chat templates ({}) and none is named \"default\"; \
         save the one to use as chat_template.jinja in the same folder",
        path.display(),
        names.join(", ")
    )]
    NoDefault { path: PathBuf, names: Vec<String> },
    /// The template is not valid Jinja, or uses what is not supported.
    #[error("{origin}: not a template this program understands: {message}")]
    Syntax { origin: String, message: String },
    /// The template itself refused the conversation (`raise_exception`).
    #[error("the model's chat template refuses this conversation: {message}")]
    Template { message: String },
    /// The template broke off while it was rendered.
    #[error("the model's chat template cannot be rendered: {message}")]
    Render { message: String },
    /// The rendered text could not be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// A model's chat template, ready to render.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// `bos_token`, `eos_token` ... as the template sees them; those the model lacks are undefined in it.
    special_tokens: BTreeMap<String, String>,
}

/// The name under which the environment holds the template; seen in messages as "(in chat template:12)".
const NAME: &str = "chat template";

impl ChatTemplate {
    /// The template of a model folder: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json` (of a
    /// list of named ones, the one named `default`). `None` if the model has none, as most base models.
    ///
    /// # Errors
    /// Says which file is unreadable or what in the template is not understood.
    pub fn from_folder(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>, ChatError> {
        let (source, path) = match read_jinja(folder)? {
            Some(found) => found,
            None => {
                let path = folder.join("tokenizer_config.json");
                match &tokenizer.config().chat_template {
                    Some(field) => (default_template(field, &path)?, path),
                    None => return Ok(None),
                }
            }
        };
        let special_tokens = tokenizer.config().special_tokens.clone();
        Self::build(source, path.display().to_string(), special_tokens).map(Some)
    }

    /// A template from its text. `bos` and `eos` become `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`ChatError::Syntax`] with the line at fault.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, ChatError> {
        let tokens = [("bos_token", bos), ("eos_token", eos)];
        let tokens =
            tokens.into_iter().filter_map(|(name, text)| Some((name.to_string(), text?.to_string()))).collect();
        Self::build(source.to_string(), NAME.to_string(), tokens)
    }

    fn build(source: String, origin: String, special_tokens: BTreeMap<String, String>) -> Result<Self, ChatError> {
        let syntax_error = |e: Error| ChatError::Syntax { origin: origin.clone(), message: e.to_string() };
        let mut environment = environment().map_err(syntax_error)?;
        environment.add_template_owned(NAME, without_generation_tags(&source)).map_err(syntax_error)?;
        Ok(Self { environment, source, special_tokens })
    }

    /// The text of `messages`; with `add_generation_prompt`, also what comes before the assistant's next answer.
    ///
    /// As in transformers, `tools` and `documents` are `none`. `strftime_now` is in UTC.
    ///
    /// # Errors
    /// [`ChatError::Template`] with the template's own words if it raises, [`ChatError::Render`] if it fails otherwise.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        let tokens = self.special_tokens.iter().map(|(name, text)| (name.as_str(), Value::from(text.as_str())));
        let context = Value::from_pairs(tokens.chain([
            ("messages", Value::from(Serde(messages))),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ]));
        let template = self.environment.get_template(NAME).map_err(render_error)?;
        template.render(context).map_err(render_error)
    }

    /// The template's text as published.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The token ids of the rendered `messages`. The tokenizer adds nothing: a template that wants a BOS writes it, as
    /// in transformers' `apply_chat_template(tokenize=True)`.
    ///
    /// # Errors
    /// Those of [`Self::render`] and [`Tokenizer::encode`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>, ChatError> {
        Ok(tokenizer.encode(&self.render(messages, add_generation_prompt)?, false)?)
    }
}

/// Token ids of a plain text, for base models: with the tokenizer's own special tokens, and one BOS where the tokenizer
/// adds one although the text begins with it already.
///
/// # Errors
/// Those of [`Tokenizer::encode`].
pub fn encode_plain(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, TokenizerError> {
    let mut ids = tokenizer.encode(text, true)?;
    if let (Some(bos), [first, second, ..]) = (tokenizer.bos_token_id(), ids.as_slice())
        && *first == bos
        && *second == bos
    {
        ids.remove(0);
    }
    Ok(ids)
}

/// `chat_template.jinja` and its path, if the folder has it.
fn read_jinja(folder: &Path) -> Result<Option<(String, PathBuf)>, ChatError> {
    let path = folder.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(source) => Ok(Some((source, path))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ChatError::Read { path, source }),
    }
}

/// The template in `chat_template` of `tokenizer_config.json`.
fn default_template(field: &serde_json::Value, path: &Path) -> Result<String, ChatError> {
    if let Some(source) = field.as_str() {
        return Ok(source.to_string());
    }
    let wrong = || ChatError::Field { path: path.to_path_buf(), found: shortened(field) };
    let mut names = Vec::new();
    for entry in field.as_array().ok_or_else(wrong)? {
        let part = |name: &str| entry.get(name).and_then(|v| v.as_str()).ok_or_else(wrong);
        let (name, source) = (part("name")?, part("template")?);
        if name == "default" {
            return Ok(source.to_string());
        }
        names.push(name.to_string());
    }
    Err(ChatError::NoDefault { path: path.to_path_buf(), names })
}

/// transformers marks the assistant's text with `{% generation %}` to train on it. For rendering the tags only open a
/// scope, so they become `with`, which does just that and leaves whitespace control as it was written.
fn without_generation_tags(source: &str) -> String {
    static TAG: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"\{%([-+]?\s*)(end)?generation(\s*[-+]?)%\}").ok());
    match &*TAG {
        Some(tag) => tag.replace_all(source, "{%${1}${2}with${3}%}").into_owned(),
        None => source.to_string(),
    }
}

/// Jinja as transformers sets it up, with Python's ways where minijinja has its own.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("trim", python::trim);
    environment.add_test("sequence", python::is_sequence);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", clock::strftime_now);
    Ok(environment)
}

/// Marks an error as the template's own, to distinguish it from a failure of the engine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(Raised(message.to_string())))
}

fn render_error(error: Error) -> ChatError {
    let mut source = std::error::Error::source(&error);
    let mut message = error.to_string();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
            return ChatError::Template { message: message.clone() };
        }
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    ChatError::Render { message }
}
