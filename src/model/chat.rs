//! Chat templates: from messages to the text a model was trained on, as transformers' `apply_chat_template` renders it.

mod jinja;
mod python;

use std::{collections::BTreeMap, fmt::Formatter, io::ErrorKind, path::Path, path::PathBuf};

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as Json, json};

use super::{boundary::on_known_stack, tokenizer::Tokenizer, tokenizer::TokenizerError, tokenizer::shortened};
use crate::files::{self, is_nothing};
pub use python::is_space;

/// The prompt of a response.
#[derive(Clone, Debug, PartialEq)]
pub enum Conversation {
    /// Not empty.
    Messages(Vec<Message>),
    /// One user message.
    Prompt(String),
}

impl Conversation {
    /// The messages; a prompt becomes one user message.
    pub fn to_messages(&self) -> Vec<Message> {
        match self {
            Conversation::Messages(messages) => messages.clone(),
            Conversation::Prompt(text) => vec![Message::new("user", text)],
        }
    }
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Fields")]
pub struct Message {
    /// `system`, `user` or `assistant`, and any other that the template supports.
    pub role: String,
    /// A text or, as OpenAI's clients write it, a list of `{"type": "text", "text": …}`, whose texts are joined. `None` (`null`)
    /// only beside other content, such as `tool_calls`.
    pub content: Option<String>,
    /// All other fields, for the template: `name`, `reasoning_content`, `tool_calls`, …
    #[serde(flatten)]
    pub more: Map<String, Json>,
}

/// A message as it is written.
#[derive(Deserialize)]
#[serde(expecting = "a message with a role and a content")]
struct Fields {
    role: String,
    #[serde(default, deserialize_with = "text_or_parts")]
    content: Option<String>,
    #[serde(flatten)]
    more: Map<String, Json>,
}

impl TryFrom<Fields> for Message {
    type Error = &'static str;

    fn try_from(Fields { role, content, more }: Fields) -> Result<Message, Self::Error> {
        if content.is_none() && more.values().all(is_nothing) {
            return Err("missing field `content`");
        }
        Ok(Message { role, content, more })
    }
}

fn text_or_parts<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    struct Part {
        #[serde(rename = "type")]
        _kind: Kind,
        text: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        Text,
    }
    struct Content;
    impl<'de> Visitor<'de> for Content {
        type Value = Option<String>;

        fn expecting(&self, f: &mut Formatter) -> std::fmt::Result {
            f.write_str("a string or a list of {\"type\": \"text\", \"text\": \"…\"}")
        }

        fn visit_unit<E>(self) -> Result<Option<String>, E> {
            Ok(None)
        }

        fn visit_str<E>(self, text: &str) -> Result<Option<String>, E> {
            Ok(Some(text.to_owned()))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Option<String>, A::Error> {
            let mut text = String::new();
            while let Some(part) = parts.next_element::<Part>()? {
                text += &part.text;
            }
            Ok(Some(text))
        }
    }
    from.deserialize_any(Content)
}

impl Message {
    /// A message of `role` saying `content`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(content.into()), more: Map::new() }
    }

    /// Bytes of text in it.
    pub fn bytes(&self) -> usize {
        let more: usize = self.more.iter().map(|(name, value)| name.len() + value.to_string().len()).sum();
        self.role.len() + self.content.as_ref().map_or(0, String::len) + more
    }
}

/// Why a chat template could not be read or rendered.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The file is there but cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Json(#[from] TokenizerError),
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
    /// A role that neither other models nor this template know.
    #[error(
        "{field}: expected system, user, assistant or another role that the model's chat template reads, found {found:?}"
    )]
    Role { field: String, found: String },
    /// The template itself refused the conversation (`raise_exception`).
    #[error("the model's chat template rejects this conversation: {message}")]
    Template { message: String },
    /// A message has a field that the template does not read.
    #[error("{field}: the model's chat template does not read it")]
    Unread { field: String },
    /// The template failed while rendering.
    #[error("the model's chat template cannot be rendered: {message}")]
    Render { message: String },
    /// The template fails without tools, but not with one.
    #[error("the model's chat template requires tools, which are not supported; without them: {message}")]
    NeedsTools { message: String },
    /// The template takes more steps, memory or stack than any template should.
    #[error("the model's chat template was stopped: {message}; templates of published models need far less")]
    Limit { message: String },
    /// No thread could be started to render on.
    #[error("no thread can be started for the chat template: {0}")]
    Thread(std::io::Error),
}

/// A model's chat template, ready to render.
pub struct ChatTemplate {
    template: jinja::Template,
    source: String,
    /// `bos_token`, `eos_token` ... as the template sees them; those the model lacks are undefined in it.
    special_tokens: BTreeMap<String, String>,
    /// The user's variables for every conversation, such as `enable_thinking`.
    pub arguments: Arguments,
}

/// Additional variables of a chat template; they may replace special tokens.
pub type Arguments = Map<String, Json>;

/// Whether a variable is set by the conversation, and not by an argument.
pub fn is_reserved(name: &str) -> bool {
    ["messages", "add_generation_prompt", "tools", "documents"].contains(&name)
}

/// Max bytes of a template; published ones have up to 40 thousand.
const MAX_SOURCE: usize = 512 << 10;

/// Max operators in a source. minijinja folds constants again at each operator of a chain, and fuel does not bound this
/// quadratic time (20,000 operators: 5 s in a debug build, 8,000: 0.8 s). Published templates have up to 1,700.
const MAX_OPERATORS: usize = 8_000;

impl ChatTemplate {
    /// The template of a model folder: `chat_template.jinja` (or `default.jinja` among `additional_chat_templates`), else
    /// `chat_template` of `tokenizer_config.json` or of a processor's `chat_template.json` (from a list of named ones, the one
    /// named `default`). `None` if the model has none, like most base models.
    ///
    /// # Errors
    /// An unreadable file, or a part of the template that is not supported.
    pub fn from_folder(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>, ChatError> {
        let special_tokens = tokenizer.config.special_tokens.clone();
        let build =
            |source, path: &Path| Self::build(source, path.display().to_string(), special_tokens.clone()).map(Some);
        let more = folder.join("additional_chat_templates");
        for path in [more.join("default.jinja"), folder.join("chat_template.jinja")] {
            match files::read_to_string(&path, MAX_SOURCE as u64) {
                Ok(source) => return build(source, &path),
                Err(source) if source.kind() != ErrorKind::NotFound => return Err(ChatError::Read { path, source }),
                Err(_) => {}
            }
        }
        let name = |path: &PathBuf| Some(files::name(path).strip_suffix(".jinja")?.to_owned());
        let names: Vec<String> = files::entries(&more).unwrap_or_default().iter().filter_map(name).collect();
        if !names.is_empty() {
            return Err(ChatError::NoDefault { path: more, names });
        }
        if let Some(field) = &tokenizer.config.chat_template {
            let path = folder.join("tokenizer_config.json");
            return build(default_template(field, &path)?, &path);
        }
        let path = folder.join("chat_template.json");
        match super::tokenizer::read_object(&path)?.get("chat_template") {
            Some(field) => build(default_template(field, &path)?, &path),
            None => Ok(None),
        }
    }

    /// A template from its text. `bos` and `eos` become `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`ChatError::Syntax`] with the line at fault.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, ChatError> {
        let tokens = [("bos_token", bos), ("eos_token", eos)];
        let tokens =
            tokens.into_iter().filter_map(|(name, text)| Some((name.to_string(), text?.to_string()))).collect();
        Self::build(source.to_string(), "chat template".to_string(), tokens)
    }

    fn build(source: String, origin: String, special_tokens: BTreeMap<String, String>) -> Result<Self, ChatError> {
        if source.len() > MAX_SOURCE {
            let message = format!("expected at most {MAX_SOURCE} bytes, found {}", source.len());
            return Err(ChatError::Syntax { origin, message });
        }
        // counted in text too, so that no quote or brace can hide one
        let words: usize = ["and", "or", "not"].iter().map(|word| source.matches(word).count()).sum();
        let operators = words + source.matches(['+', '-', '*', '/', '%', '~']).count();
        if operators > MAX_OPERATORS {
            let message = format!("{operators} operators: expected at most {MAX_OPERATORS}");
            return Err(ChatError::Syntax { origin, message });
        }
        let template = on_known_stack(|| jinja::Template::parse(&source)).map_err(ChatError::Thread)?;
        let template = template.map_err(|message| ChatError::Syntax { origin, message })?;
        Ok(Self { template, source, special_tokens, arguments: Arguments::new() })
    }

    /// The text of `messages`; with `add_generation_prompt`, also what comes before the assistant's next answer.
    ///
    /// As in transformers, `tools` and `documents` are `none`. `strftime_now` is in UTC.
    ///
    /// # Errors
    /// [`ChatError::Unread`] if a message's field would be dropped, [`ChatError::Template`] with the template's own words if it raises, [`ChatError::NeedsTools`] if it would not with
    /// tools, [`ChatError::Limit`] if it takes too much time, memory or stack, [`ChatError::Render`] if it fails
    /// otherwise.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        self.render_with(messages, add_generation_prompt, &Arguments::new())
    }

    /// [`Self::render`] with further arguments, which take precedence.
    ///
    /// # Errors
    /// As [`Self::render`].
    pub fn render_with(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        arguments: &Arguments,
    ) -> Result<String, ChatError> {
        let turns: Vec<Json> =
            messages.iter().enumerate().map(|(i, message)| self.turn(i, message)).collect::<Result<_, _>>()?;
        let mut variables = json!({"messages": turns, "add_generation_prompt": add_generation_prompt,
                                   "tools": null, "documents": null});
        let mut input_len: usize = messages.iter().map(Message::bytes).sum();
        for (name, text) in &self.special_tokens {
            input_len += text.len();
            variables[name] = json!(text);
        }
        for (name, value) in self.arguments.iter().chain(arguments) {
            input_len += value.to_string().len();
            variables[name] = value.clone();
        }
        let rendered = on_known_stack(|| {
            self.template.render(&variables, input_len).map_err(|fault| match fault {
                ChatError::Render { message } | ChatError::Template { message }
                    if self.needs_tools(&mut variables, input_len) =>
                {
                    ChatError::NeedsTools { message }
                }
                other => other,
            })
        });
        rendered.map_err(ChatError::Thread)?
    }

    /// Whether a name occurs in the template.
    pub fn reads(&self, name: &str) -> bool {
        let mut words = self.source.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word == name && !name.is_empty())
    }

    /// Message `i` as the template reads it.
    fn turn(&self, i: usize, message: &Message) -> Result<Json, ChatError> {
        /// Two names of the same field.
        const THOUGHTS: [&str; 2] = ["reasoning", "reasoning_content"];
        const ROLES: [&str; 6] = ["system", "user", "assistant", "developer", "tool", "function"];
        let role = message.role.as_str();
        if !ROLES.contains(&role) && !self.reads(role) {
            return Err(ChatError::Role { field: format!("messages[{i}].role"), found: role.to_owned() });
        }
        let mut turn = json!(message);
        if message.role == "developer" && !self.reads("developer") {
            turn["role"] = json!("system");
        }
        for (name, value) in message.more.iter().filter(|(name, value)| !is_nothing(value) && !self.reads(name)) {
            let other = THOUGHTS.iter().find(|other| THOUGHTS.contains(&&**name) && self.reads(other));
            let other = other.ok_or_else(|| ChatError::Unread { field: format!("messages[{i}].{name}") })?;
            turn[*other] = value.clone();
        }
        Ok(turn)
    }

    /// Whether a conversation that fails without tools renders with one parameterless function.
    fn needs_tools(&self, variables: &mut Json, input_len: usize) -> bool {
        let function = json!({"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}});
        variables["tools"] = json!([{"type": "function", "function": function}]);
        self.template.render(variables, input_len).is_ok()
    }

    /// The template's text as published.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// Token ids of a plain text, for base models: with the tokenizer's own special tokens, and only one BOS if the tokenizer
/// adds one although the text already begins with it.
///
/// # Errors
/// Those of [`Tokenizer::encode`].
pub fn encode_plain(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, TokenizerError> {
    let mut ids = tokenizer.encode(text, true)?;
    if tokenizer.bos_token_id().is_some_and(|bos| ids.starts_with(&[bos, bos])) {
        ids.remove(0);
    }
    Ok(ids)
}

/// The template in `chat_template` of `tokenizer_config.json`.
fn default_template(field: &Json, path: &Path) -> Result<String, ChatError> {
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
