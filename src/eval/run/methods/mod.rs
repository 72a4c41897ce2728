//! Methods that need passes of their own: what such a method is, and the table of them.
//!
//! A new method is a file with an implementation of [`Method`] and a row of [`METHODS`]; `--methods`, the manifest, the
//! samples and the reports know it from there.

pub mod csl;
pub mod p_true;
pub mod pmi;
pub mod self_consistency;
pub mod verbalized;

use super::manifest::EvalOptions;
use crate::engine::encode::{EncodeError, encode_next_turn};
use crate::engine::{Engine, EngineError, GenerateOptions, Generation, TracedSequence};
use crate::eval::tasks::{Question, Task};
use crate::model::chat::Conversation;
use crate::model::tokenizer::TokenizerError;
use crate::uq::pipeline::Answer;
use serde_json::Value;

/// Every method with passes of its own, in the order in which they run.
pub static METHODS: &[&dyn Method] =
    &[&self_consistency::Drawn, &verbalized::Asked, &p_true::PTrue, &pmi::Pmi, &csl::Csl];

/// The methods with these keys.
pub fn own_passes(keys: &[String]) -> impl Iterator<Item = &'static dyn Method> + use<'_> {
    METHODS.iter().copied().filter(|method| keys.iter().any(|key| key == method.key()))
}

/// UQAC with its baselines, which always runs: in `--methods` and in the manifest beside those of the table.
pub const UQAC: &str = "uqac";

/// A method that needs passes of its own.
pub trait Method: Sync {
    /// Its name on the command line, such as `self-consistency`; with `_` for `-`, its key in a sample's `uq` and in
    /// `seconds`.
    fn key(&self) -> &'static str;

    /// What it does, in a line of help.
    fn about(&self) -> &'static str;

    /// The scores that it gives.
    fn scores(&self) -> &'static [Score];

    /// Whether it asks further turns of the model.
    fn needs_chat_template(&self) -> bool {
        false
    }

    /// Further responses to the item's prompt, which are generated while its own is: those that are needed at first, and once
    /// all that were asked for have ended (`drawn`, in the order in which they were asked for) those that it takes then.
    fn samples(&self, _source: &Source, _drawn: &[&Generation]) -> Result<Vec<Draw>, MethodError> {
        Ok(Vec::new())
    }

    /// Responses to prompts that go on from the item's own response.
    fn turns(&self, _ended: &Ended) -> Result<Vec<Draw>, MethodError> {
        Ok(Vec::new())
    }

    /// What it finds once all its responses have ended: `drawn` are its samples, then its turns. `None`: it has nothing to
    /// say of this item.
    fn run(&self, context: &mut Context, drawn: &[Generation]) -> Result<Option<Findings>, MethodError>;
}

/// What further responses to an item's prompt are drawn of.
pub struct Source<'c> {
    pub engine: &'c Engine,
    pub prompt: &'c [u32],
    pub task: &'c Task,
    pub item: &'c Question,
    pub options: &'c EvalOptions,
}

/// A response that a method needs. What its prompt has in common with the item's own response is taken from that one's cache.
pub struct Draw {
    pub prompt: Vec<u32>,
    /// Numbers it for the sampler.
    pub stream: u64,
    pub generate: GenerateOptions,
}

/// The item's own response, when it has just ended.
pub struct Ended<'c> {
    pub engine: &'c Engine,
    /// Prompt and response.
    pub tokens: &'c [u32],
    pub item: &'c Question,
    pub options: &'c EvalOptions,
    /// The response up to its first end token.
    pub text: &'c str,
    pub answer: Option<&'c Answer>,
}

/// A score of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Score {
    /// Its key in `uq.scores`.
    pub key: &'static str,
    /// Its name for people.
    pub name: &'static str,
    pub meaning: &'static str,
    /// Whether it claims to be a probability, so that calibration can be measured.
    pub is_probability: bool,
    /// Whether it scores the answer that the drawn responses agree on (`acc_majority` says whether that is right), and
    /// not the response's.
    pub of_majority: bool,
}

/// What a method may use.
pub struct Context<'c, 'e> {
    /// The response with its cache, which prompts that begin alike can share.
    pub traced: &'c mut TracedSequence<'e>,
    pub task: &'c Task,
    pub item: &'c Question,
    pub options: &'c EvalOptions,
    /// The response up to its first end token.
    pub text: &'c str,
    pub answer: Option<&'c Answer>,
}

/// The tokens of a question in a turn after an item's response, `text` and `tokens`.
fn next_turn(
    engine: &Engine,
    item: &Question,
    text: &str,
    tokens: &[u32],
    question: &str,
) -> Result<Vec<u32>, EncodeError> {
    let conversation = Conversation::Messages(item.messages.clone());
    encode_next_turn(engine, &conversation, text, tokens, question)
}

/// What a method found about one response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// By key; `None` where one could not be computed. Higher is more confident.
    pub scores: Vec<(&'static str, Option<f64>)>,
    /// What the sample's `uq` gets under the method's key.
    pub details: Value,
    /// What the sample's `metrics` get.
    pub metrics: Vec<(&'static str, f64)>,
    /// Responses drawn from the same prompt.
    pub drawn: Option<Responses>,
}

/// Further responses to a sample's prompt: one more of its requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Responses {
    pub temperature: f32,
    pub texts: Vec<String>,
    /// The answer that they give together.
    pub answer: Option<String>,
}

/// What a response's further passes can fail with.
#[derive(Debug, thiserror::Error)]
pub enum MethodError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("the method's findings cannot be serialized: {0}")]
    Json(#[from] serde_json::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_unique() {
        let keys: HashSet<&str> = METHODS.iter().map(|method| method.key()).chain([UQAC]).collect();
        assert_eq!(keys.len(), METHODS.len() + 1);
    }

    #[test]
    fn no_two_scores_have_one_key() {
        let mut seen = HashSet::new();
        for score in METHODS.iter().flat_map(|method| method.scores()) {
            assert!(seen.insert(score.key), "{}", score.key);
        }
    }
}
