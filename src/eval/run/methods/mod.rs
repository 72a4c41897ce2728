//! Methods that need forward passes of their own: their interface, and the table of them.
//!
//! To add a method, write a file with a [`Method`] and add a row to [`METHODS`]; `--methods`, the manifest, the samples and the
//! reports pick it up from there.

pub mod p_true;
pub mod pmi;
pub mod self_consistency;
pub mod verbalized;

use super::manifest::EvalOptions;
use crate::engine::encode::{EncodeError, ResponseText, encode_next_turn};
use crate::engine::{Engine, EngineError, FinishReason, GenerateOptions, Generation, TracedSequence};
use crate::eval::tasks::{Question, Task};
use crate::uq::pipeline::{self, Answer};
use crate::uq::scores::{Score, samples::MORE_PASSES as SCORE};
use crate::{model::chat::Conversation, model::reply::Reply, model::tokenizer::TokenizerError, uq::answer::Finder};
use serde_json::Value;

/// Every method with its own passes, in execution order.
pub static METHODS: &[Method] =
    &[self_consistency::SELF_CONSISTENCY, verbalized::VERBALIZED, p_true::P_TRUE, pmi::PMI, p_true::CSL];

/// The methods with these keys.
pub fn own_passes(keys: &[String]) -> impl Iterator<Item = &'static Method> + use<'_> {
    METHODS.iter().filter(|method| keys.iter().any(|key| key == method.key))
}

/// UQAC with its baselines, which always runs: listed in `--methods` and in the manifest alongside those of the table.
pub const UQAC: &str = "uqac";

/// A method that needs its own passes.
pub struct Method {
    /// Its name on the command line, such as `self-consistency`; with `_` for `-`, its key in a sample's `uq` and in
    /// `seconds`.
    pub key: &'static str,
    /// A line of help.
    pub about: &'static str,
    /// The scores it produces.
    pub scores: &'static [Score],
    /// Whether it adds turns to the conversation.
    pub needs_chat_template: bool,
    /// Further responses to the item's prompt, generated alongside its own.
    pub samples: fn(&Engine, &Subject) -> Draws,
    /// Responses to prompts that continue the item's own sequence (prompt and response), which has just ended.
    pub turns: fn(&Engine, &Subject, &[u32]) -> Draws,
    /// Its findings once all its responses have ended: samples first, then turns. The trace is that of the item's own response,
    /// with its cache, which prompts with a common prefix can share. `None`: no finding for this item.
    pub run: fn(&mut TracedSequence, &Subject, &[Generation]) -> Found,
}

impl Method {
    /// Its key in `uq` and in `seconds`.
    pub fn field(&self) -> String {
        self.key.replace('-', "_")
    }
}

/// A method without responses of its own.
const METHOD: Method = Method {
    key: "",
    about: "",
    scores: &[],
    needs_chat_template: false,
    samples: |_, _| Ok(Vec::new()),
    turns: |_, _, _| Ok(Vec::new()),
    run: |_, _, _| Ok(None),
};

/// A response that has been read: finish reason, text, its reply, and answer.
pub struct Reading {
    pub finish: FinishReason,
    pub text: ResponseText,
    pub reply: Reply,
    pub answer: Option<Answer>,
}

impl Reading {
    pub fn of(engine: &Engine, response: &Generation, subject: &Subject) -> Result<Reading, TokenizerError> {
        let Generation { tokens, prompt_len, .. } = response;
        let (finder, parameters) = (subject.finder(), &subject.options.parameters);
        let text = ResponseText::new(engine, &tokens[*prompt_len..])?;
        let reply = text.reply(engine, &tokens[..*prompt_len], &parameters.thinking)?;
        let answer = pipeline::find_in(engine, tokens, *prompt_len, response.finish.is_cut_off(), finder, parameters)?;
        Ok(Reading { finish: response.finish, text, reply, answer })
    }
}

/// An item of a run.
pub struct Subject<'t> {
    pub task: &'t Task,
    pub item: &'t Question,
    pub options: &'t EvalOptions,
    /// As rendered by the chat template.
    pub prompt: String,
    pub prompt_tokens: Vec<u32>,
    /// Its own response, once it has ended.
    pub reading: Option<Reading>,
}

impl Subject<'_> {
    /// How the item's answers are found.
    fn finder(&self) -> Finder<'_> {
        let rule = self.task.rule.unwrap_or(self.item.target.grader.rule());
        self.item.pattern.as_ref().map_or(rule.into(), Finder::Pattern)
    }

    /// The response's answer.
    pub fn answer(&self) -> Option<&Answer> {
        self.reading.as_ref()?.answer.as_ref()
    }

    /// The tokens of a question asked in a turn after the item's own response, which ends `sequence`.
    fn next_turn(&self, engine: &Engine, sequence: &[u32], question: &str) -> Result<Vec<u32>, EncodeError> {
        let conversation = Conversation::Prompt(self.item.prompt.clone());
        let text = self.reading.as_ref().map_or("", |reading| reading.text.text.as_str());
        encode_next_turn(engine, &conversation, text, sequence, question)
    }

    /// [`Self::next_turn`] up to the reply: a thought that the template opens is closed, empty.
    fn next_reply(&self, engine: &Engine, sequence: &[u32], question: &str) -> Result<Vec<u32>, EncodeError> {
        let mut tokens = self.next_turn(engine, sequence, question)?;
        let nothing = ResponseText { text: String::new(), ranges: Vec::new() };
        if let Some(close) = nothing.reply(engine, &tokens, &self.options.parameters.thinking)?.open {
            tokens.extend(engine.tokenizer().encode(&format!("{close}\n\n"), false)?);
        }
        Ok(tokens)
    }

    /// Requests the reply to a question asked in a turn after a response that has an answer.
    fn ask(&self, engine: &Engine, sequence: &[u32], question: &str, generate: GenerateOptions) -> Draws {
        let ask = |_| Ok(Draw { prompt: self.next_turn(engine, sequence, question)?, stream: 0, generate });
        self.answer().map(ask).into_iter().collect()
    }
}

/// A response that a method needs. The prefix its prompt shares with the item's own response is taken from that one's cache.
pub struct Draw {
    pub prompt: Vec<u32>,
    /// Its random stream in the sampler.
    pub stream: u64,
    pub generate: GenerateOptions,
}

/// Responses that a method needs.
type Draws = Result<Vec<Draw>, MethodError>;

/// A method's findings on an item, if any.
type Found = Result<Option<Findings>, MethodError>;

/// A method's findings on one response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// By key; `None` where one could not be computed. Higher is more confident.
    pub scores: Vec<(&'static str, Option<f64>)>,
    /// For the sample's `uq`, under the method's key.
    pub details: Value,
    /// For the sample's `metrics`.
    pub metrics: Vec<(&'static str, f64)>,
    /// Responses drawn from the same prompt, which form another request of the sample, and their joint answer.
    pub drawn: Option<(Vec<String>, Option<String>)>,
}

/// Errors in a response's further passes.
#[derive(Debug, thiserror::Error)]
pub enum MethodError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl MethodError {
    /// Its text, if it is the item's own.
    ///
    /// # Errors
    /// The engine is lost.
    pub fn of_item(self) -> Result<String, EngineError> {
        match self {
            MethodError::Engine(error) if error.is_lost() => Err(error),
            own => Ok(own.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_unique() {
        let keys: HashSet<&str> = METHODS.iter().map(|method| method.key).chain([UQAC]).collect();
        assert_eq!(keys.len(), METHODS.len() + 1);
    }

    #[test]
    fn no_two_scores_have_one_key() {
        let mut seen = HashSet::new();
        for score in METHODS.iter().flat_map(|method| method.scores) {
            assert!(seen.insert(score.key), "{}", score.key);
        }
    }
}
