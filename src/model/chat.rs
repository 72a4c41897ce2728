//! Chat templates: from messages to the text a model was trained on, as transformers' `apply_chat_template` renders it.

mod clock;
mod jinja;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use jinja::{Fault, Input, Parsed, SyntaxError, Value};

use super::boundary::on_known_stack;
use super::tokenizer::{Tokenizer, TokenizerError, shortened};
use crate::files;

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
    /// The template fails without tools, and not with one.
    #[error("the model's chat template needs tools, which this program does not have; without them it says: {message}")]
    NeedsTools { message: String },
    /// The template takes more steps, memory or stack than any template should.
    #[error("the model's chat template was stopped: {message}; templates of published models need far less")]
    Limit { message: String },
    /// No thread could be started to render on.
    #[error("no thread can be started for the chat template: {0}")]
    Thread(std::io::Error),
    /// The rendered text could not be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// A model's chat template, ready to render.
pub struct ChatTemplate {
    parsed: Parsed,
    source: String,
    /// `bos_token`, `eos_token` ... as the template sees them; those the model lacks are undefined in it.
    special_tokens: BTreeMap<String, String>,
}

/// What a template is called in messages, before its line: "(in chat template:12)".
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
        let parsed = on_known_stack(|| jinja::parse(&source)).map_err(ChatError::Thread)?;
        let parsed = parsed.map_err(|SyntaxError { message, line }| {
            let message = format!("{message} (in {NAME}:{line})");
            ChatError::Syntax { origin, message }
        })?;
        Ok(Self { parsed, source, special_tokens })
    }

    /// The text of `messages`; with `add_generation_prompt`, also what comes before the assistant's next answer.
    ///
    /// As in transformers, `tools` and `documents` are `none`. `strftime_now` is in UTC.
    ///
    /// # Errors
    /// [`ChatError::Template`] with the template's own words if it raises, [`ChatError::NeedsTools`] if it would not with
    /// tools, [`ChatError::Limit`] if it takes too much time, memory or stack, [`ChatError::Render`] if it fails
    /// otherwise.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        let run = |tools: Value| {
            let texts = self.special_tokens.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            let messages = messages.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
            jinja::render(&self.parsed, Input { texts, messages, add_generation_prompt, tools })
        };
        let rendered = on_known_stack(|| {
            run(Value::None).map_err(|(fault, line)| match fault {
                Fault::Limit(message) => ChatError::Limit { message: format!("{message} (in {NAME}:{line})") },
                Fault::Error(message) | Fault::Raised(message) if jinja::a_tool().is_ok_and(|t| run(t).is_ok()) => {
                    ChatError::NeedsTools { message }
                }
                Fault::Raised(message) => ChatError::Template { message },
                Fault::Error(message) => ChatError::Render { message: format!("{message} (in {NAME}:{line})") },
            })
        });
        rendered.map_err(ChatError::Thread)?
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
    match files::read_to_string(&path, jinja::MAX_SOURCE as u64) {
        Ok(source) => Ok(Some((source, path))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
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
