//! Methods that need passes of their own: what such a method is, and the table of them.
//!
//! A new method is a file with a [`Method`] and a row of [`METHODS`]; `--methods`, the manifest, the
//! samples and the reports know it from there.

pub mod csl;
pub mod p_true;
pub mod pmi;
pub mod self_consistency;
pub mod verbalized;

use super::manifest::EvalOptions;
use crate::engine::encode::{EncodeError, ResponseText, encode_next_turn};
use crate::engine::{Engine, EngineError, FinishReason, GenerateOptions, Generation, TracedSequence};
use crate::eval::tasks::{Question, Task};
use crate::model::chat::Conversation;
use crate::model::tokenizer::TokenizerError;
use crate::uq::answer::Finder;
use crate::uq::pipeline::{self, Answer};
use crate::uq::scores::{Group, SINGLE_PASS, Score};
use serde_json::Value;

/// Every method with passes of its own, in the order in which they run.
pub static METHODS: &[Method] =
    &[self_consistency::SELF_CONSISTENCY, verbalized::VERBALIZED, p_true::P_TRUE, pmi::PMI, csl::CSL];

/// The methods with these keys.
pub fn own_passes(keys: &[String]) -> impl Iterator<Item = &'static Method> + use<'_> {
    METHODS.iter().filter(|method| keys.iter().any(|key| key == method.key))
}

/// UQAC with its baselines, which always runs: in `--methods` and in the manifest beside those of the table.
pub const UQAC: &str = "uqac";

/// A method that needs passes of its own.
pub struct Method {
    /// Its name on the command line, such as `self-consistency`; with `_` for `-`, its key in a sample's `uq` and in
    /// `seconds`.
    pub key: &'static str,
    /// A line of help.
    pub about: &'static str,
    /// The scores that it gives.
    pub scores: &'static [Score],
    /// Whether it has further turns.
    pub needs_chat_template: bool,
    /// Further responses to the item's prompt, generated beside its own: the first ones, and once all requested ones have ended (given in the order of
    /// the requests) further ones.
    pub samples: fn(&Engine, &Subject, &[&Generation]) -> Draws,
    /// Responses to prompts that go on from the item's own sequence (prompt and response), which has just ended.
    pub turns: fn(&Engine, &Subject, &[u32]) -> Draws,
    /// Its findings once all its responses have ended: its samples, then its turns. The trace is that of the item's own
    /// response, with its cache, which prompts that begin alike can share. `None`: no finding for this item.
    pub run: fn(&mut TracedSequence, &Subject, &[Generation]) -> Found,
}

impl Method {
    /// Its key in `uq` and in `seconds`.
    pub fn field(&self) -> String {
        self.key.replace('-', "_")
    }
}

/// One without responses of its own.
const METHOD: Method = Method {
    key: "",
    about: "",
    scores: &[],
    needs_chat_template: false,
    samples: |_, _, _| Ok(Vec::new()),
    turns: |_, _, _| Ok(Vec::new()),
    run: |_, _, _| Ok(None),
};

/// A response that was read: why it ended, its text, and the answer that it gives.
pub struct Reading {
    pub finish: FinishReason,
    pub text: ResponseText,
    pub answer: Option<Answer>,
}

impl Reading {
    pub fn of(engine: &Engine, response: &Generation, subject: &Subject) -> Result<Reading, TokenizerError> {
        let Generation { tokens, prompt_len, .. } = response;
        let (finder, rules) = (subject.finder(), subject.options.parameters.rules());
        let text = ResponseText::new(engine, &tokens[*prompt_len..])?;
        let answer = pipeline::find_in(engine, tokens, *prompt_len, response.finish.is_cut_off(), finder, rules)?;
        Ok(Reading { finish: response.finish, text, answer })
    }
}

/// An item of a run.
pub struct Subject<'t> {
    pub task: &'t Task,
    pub item: &'t Question,
    pub options: &'t EvalOptions,
    /// As the chat template renders it.
    pub prompt: String,
    pub prompt_tokens: Vec<u32>,
    /// Its own response, once that has ended.
    pub reading: Option<Reading>,
}

impl Subject<'_> {
    /// Search for answers of the item.
    fn finder(&self) -> Finder<'_> {
        self.item.pattern.as_ref().map_or(self.task.rule.into(), Finder::Pattern)
    }

    /// The response's answer.
    pub fn answer(&self) -> Option<&Answer> {
        self.reading.as_ref()?.answer.as_ref()
    }

    /// The tokens of a question in a turn after the item's own response, which ends `sequence`.
    fn next_turn(&self, engine: &Engine, sequence: &[u32], question: &str) -> Result<Vec<u32>, EncodeError> {
        let conversation = Conversation::Prompt(self.item.prompt.clone());
        let text = self.reading.as_ref().map_or("", |reading| reading.text.text.as_str());
        encode_next_turn(engine, &conversation, text, sequence, question)
    }

    /// The reply to a question in a turn after a response that has an answer.
    fn ask(&self, engine: &Engine, sequence: &[u32], question: &str, generate: GenerateOptions) -> Draws {
        let ask = |_| Ok(Draw { prompt: self.next_turn(engine, sequence, question)?, stream: 0, generate });
        self.answer().map(ask).into_iter().collect()
    }
}

/// A response that a method needs. What its prompt has in common with the item's own response is taken from that one's cache.
pub struct Draw {
    pub prompt: Vec<u32>,
    /// Numbers it for the sampler.
    pub stream: u64,
    pub generate: GenerateOptions,
}

/// Responses that a method needs.
type Draws = Result<Vec<Draw>, MethodError>;

/// A method's findings on an item, if any.
type Found = Result<Option<Findings>, MethodError>;

/// A score of the response that claims to be no probability. With `of_majority`, `acc_majority` is whether its answer is right.
const SCORE: Score = Score { group: Group::MorePasses, ..SINGLE_PASS };

/// A method's findings on one response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// By key; `None` where one could not be computed. Higher is more confident.
    pub scores: Vec<(&'static str, Option<f64>)>,
    /// For the sample's `uq`, under the method's key.
    pub details: Value,
    /// For the sample's `metrics`.
    pub metrics: Vec<(&'static str, f64)>,
    /// Responses drawn from the same prompt, which are one more of the sample's requests, and the answer that they give
    /// together.
    pub drawn: Option<(Vec<String>, Option<String>)>,
}

/// Errors of a response's further passes.
#[derive(Debug, thiserror::Error)]
pub enum MethodError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
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
