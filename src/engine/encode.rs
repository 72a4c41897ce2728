//! Encodes a prompt and a response as tokens, and decodes tokens to the text shown to readers.

use super::Engine;
use crate::model::chat::{Arguments, ChatError, ChatTemplate, Conversation, Message, encode_plain};
use crate::model::reply::{Reply, Thinking};
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use crate::names::named;
use std::ops::Range;

/// A conversation cannot be made into tokens.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("the model has no chat template; for a base model, use --no-chat-template")]
    NoChatTemplate,
    #[error("{0} cannot be used with --no-chat-template; give the text as a prompt")]
    NeedsChatTemplate(&'static str),
    #[error(
        "the text has {bytes} bytes: it cannot fit into the model's context of {context} tokens (max_position_embeddings)"
    )]
    TooLong { bytes: usize, context: usize },
}

/// Max bytes of text per token of the model's context: text that fits has about a tenth of that, so longer text is rejected
/// without tokenizing it.
pub const MAX_BYTES_PER_TOKEN: usize = 64;

/// Whether a text may be short enough to be tokenized.
fn check_length(engine: &Engine, bytes: usize) -> Result<(), EncodeError> {
    let context = engine.spec().max_position_embeddings;
    match bytes > context.saturating_mul(MAX_BYTES_PER_TOKEN) {
        true => Err(EncodeError::TooLong { bytes, context }),
        false => Ok(()),
    }
}

named! {
    /// Encoding of a prompt and an existing response.
    pub enum Encoding {
        Separate = "separate": "Each on its own, as in generation.",
        Joint = "joint": "The rendered conversation as one text, as the authors do.",
    }
}

/// The tokens of a prompt, up to the start of the response; `chat`: through the model's chat template.
pub fn encode_prompt(engine: &Engine, conversation: &Conversation, chat: bool) -> Result<Vec<u32>, EncodeError> {
    encode_prompt_with(engine, conversation, chat, !chat, &Arguments::new())
}

/// [`encode_prompt`] with further arguments of the chat template; `special`: with the tokenizer's own special tokens, which a
/// template writes itself.
pub fn encode_prompt_with(
    engine: &Engine,
    conversation: &Conversation,
    chat: bool,
    special: bool,
    arguments: &Arguments,
) -> Result<Vec<u32>, EncodeError> {
    let tokenizer = engine.tokenizer();
    let encode = |text: &str| if special { encode_plain(tokenizer, text) } else { tokenizer.encode(text, false) };
    let bytes = match conversation {
        Conversation::Prompt(text) => text.len(),
        Conversation::Messages(messages) => messages.iter().map(Message::bytes).sum(),
    };
    check_length(engine, bytes)?;
    match conversation {
        Conversation::Prompt(text) if !chat => Ok(encode(text)?),
        Conversation::Messages(_) if !chat => Err(EncodeError::NeedsChatTemplate("messages")),
        conversation => {
            let template = engine.chat_template().ok_or(EncodeError::NoChatTemplate)?;
            let text = template.render_with(&conversation.to_messages(), true, arguments)?;
            check_length(engine, text.len())?;
            Ok(encode(&text)?)
        }
    }
}

/// The tokens of a prompt and its response, and where the response starts. With a template, whatever it puts after a response
/// is appended, as if the model had written it; only the end token if the template changes the response.
pub fn encode(
    engine: &Engine,
    conversation: &Conversation,
    response: &str,
    chat: bool,
    encoding: Encoding,
) -> Result<(Vec<u32>, usize), EncodeError> {
    check_length(engine, response.len())?;
    let mut tokens = encode_prompt(engine, conversation, chat)?;
    let (prompt_len, tokenizer) = (tokens.len(), engine.tokenizer());
    let template = engine.chat_template().filter(|_| chat);
    let turn = Message::new("assistant", response);
    let rendered = template.and_then(|template| rendered(template, conversation, [turn], false).ok());
    // a template may change the response: many drop the thoughts of earlier turns
    let after = rendered.as_ref().and_then(|(prompt, whole)| whole.strip_prefix(prompt.as_str()));
    if let (Encoding::Joint, Some((_, whole)), Some(_)) = (encoding, &rendered, after) {
        return Ok((tokenizer.encode(whole, false)?, prompt_len));
    }
    let end = after.and_then(|after| after.strip_prefix(response));
    let eos = || tokenizer.eos_token().filter(|eos| chat && !response.ends_with(eos));
    let text = format!("{response}{}", end.or_else(eos).unwrap_or_default());
    tokens.extend(tokenizer.encode(&text, false)?);
    Ok((tokens, prompt_len))
}

/// A conversation rendered by the template: as a prompt, and with the turns after it.
fn rendered(
    template: &ChatTemplate,
    conversation: &Conversation,
    next: impl IntoIterator<Item = Message>,
    add_generation_prompt: bool,
) -> Result<(String, String), ChatError> {
    let mut turns = conversation.to_messages();
    let prompt = template.render(&turns, true)?;
    turns.extend(next);
    Ok((prompt, template.render(&turns, add_generation_prompt)?))
}

/// The tokens of a conversation, its response and the user's next turn, up to the start of the model's next response. `tokens`
/// are the conversation's and the response's as they were generated; they are kept if the template does not change the
/// response, so that their cache can be used.
pub fn encode_next_turn(
    engine: &Engine,
    conversation: &Conversation,
    response: &str,
    tokens: &[u32],
    next: &str,
) -> Result<Vec<u32>, EncodeError> {
    let template = engine.chat_template().ok_or(EncodeError::NoChatTemplate)?;
    let tokenizer = engine.tokenizer();
    let next = [Message::new("assistant", response), Message::new("user", next)];
    let (prompt, whole) = rendered(template, conversation, next, true)?;
    let Some(after) = whole.strip_prefix(&prompt).and_then(|rest| rest.strip_prefix(response)) else {
        return Ok(tokenizer.encode(&whole, false)?);
    };
    let mut after = tokenizer.encode(after, false)?;
    let ends = &engine.spec().eos_token_ids;
    // the end token written by the model and the template's are the same one
    if after.first().is_some_and(|first| tokens.last() == Some(first) && ends.contains(first)) {
        after.remove(0);
    }
    Ok([tokens, &after].concat())
}

/// The end of a prompt's text, which may open a thought.
pub fn prompt_end(tokenizer: &Tokenizer, prompt: &[u32]) -> Result<String, TokenizerError> {
    /// In tokens; more than a marker and its line breaks take.
    const LENGTH: usize = 32;
    tokenizer.decode(&prompt[prompt.len().saturating_sub(LENGTH)..])
}

/// The response as shown to readers: up to the first end token that is not inside a thought, where a format's own marks may be one.
pub struct ResponseText {
    pub text: String,
    /// Byte range of each token in `text`.
    pub ranges: Vec<Range<usize>>,
}

impl ResponseText {
    pub fn new(engine: &Engine, response: &[u32]) -> Result<ResponseText, TokenizerError> {
        let ends = &engine.spec().eos_token_ids;
        let up_to = |len: usize| engine.tokenizer().decode_with_offsets(&response[..len]);
        let is_open = |text: &str| Thinking::Auto.split("", text).is_open();
        let is_end = |at: &usize| ends.contains(&response[*at]);
        let first = (0..response.len()).find(is_end).unwrap_or(response.len());
        let (mut text, mut ranges) = up_to(first)?;
        // mostly nothing follows; a thought that nothing closes ends at the first one
        if first + 1 < response.len() && is_open(&text) {
            for later in (first + 1..response.len()).filter(is_end).chain([response.len()]) {
                let whole = up_to(later)?;
                if !is_open(&whole.0) {
                    (text, ranges) = whole;
                    break;
                }
            }
        }
        Ok(ResponseText { text, ranges })
    }

    /// The response's thought and reply; `prompt` are the tokens before it, whose end may open the thought.
    pub fn reply(&self, engine: &Engine, prompt: &[u32], thinking: &Thinking) -> Result<Reply, TokenizerError> {
        Ok(thinking.split(&prompt_end(engine.tokenizer(), prompt)?, &self.text))
    }

    /// Number of tokens before the reply, if there is a thought.
    pub fn thought(&self, reply: &Reply) -> usize {
        let before = self.ranges.iter().take_while(|range| range.end <= reply.start);
        if reply.thought.is_empty() { 0 } else { before.count() }
    }
}
