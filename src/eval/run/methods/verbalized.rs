//! Verbalized confidence: the model is asked how sure it is.

use super::{Context, Findings, Method, MethodError, Score};
use crate::engine::GenerateOptions;
use crate::engine::encode::{ResponseText, encode_next_turn};
use crate::model::chat::Conversation;
use crate::uq::answer::{AnswerRule, find_answer};
use serde::{Deserialize, Serialize};

/// Tokens that the model may spend on saying how sure it is.
const MAX_TOKENS: usize = 128;

/// The question after the answer. Our own words; the scale and the box are the authors'.
const QUESTION: &str = "How likely is it that your final answer is correct? Give a whole number from 0 (certainly wrong) \
                        to 10 (certainly right), in \\boxed{}.";

/// What the model says of its own confidence when asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verbalized {
    pub response: String,
    /// In `[0, 1]`; `None` where the response has no number that can be read as one.
    pub confidence: Option<f64>,
}

/// Asks in a second turn on the response's cache; greedy.
pub struct Asked;

impl Method for Asked {
    fn key(&self) -> &'static str {
        "verbalized"
    }

    fn about(&self) -> &'static str {
        "The model is asked how sure it is"
    }

    fn scores(&self) -> &'static [Score] {
        &[Score {
            key: "verbalized",
            name: "Verbalized",
            meaning: "the confidence that the model states when asked",
            is_probability: true,
        }]
    }

    fn needs_chat_template(&self) -> bool {
        true
    }

    fn run(&self, context: &mut Context) -> Result<Option<Findings>, MethodError> {
        if context.answer.is_none() {
            return Ok(None);
        }
        let Context { traced, item, text, .. } = context;
        let conversation = Conversation::Messages(item.messages.clone());
        let prompt = encode_next_turn(traced.engine(), &conversation, text, traced.tokens().0, QUESTION)?;
        let options = GenerateOptions { max_tokens: MAX_TOKENS, trace: None, ..GenerateOptions::default() };
        let generation = traced.generate_sharing(&[prompt], &options, [0])?.remove(0);
        let response = ResponseText::new(traced.engine(), &generation.tokens[generation.prompt_len..])?.text;
        let confidence = stated_confidence(&response);
        Ok(Some(Findings {
            scores: vec![("verbalized", confidence)],
            details: serde_json::to_value(Verbalized { response, confidence })?,
            ..Findings::default()
        }))
    }
}

/// The confidence that a text states on a scale from 0 to 10, or in percent, as a number in [0, 1].
fn stated_confidence(text: &str) -> Option<f64> {
    let span = find_answer(text, AnswerRule::Number)?.bytes;
    let rest = text[span.end..].trim_start_matches(['}', ' ', '\\', '$']);
    let number: f64 = text[span].replace(',', "").parse().ok()?;
    let scale = if rest.starts_with('%') || rest.starts_with("percent") { 100.0 } else { 10.0 };
    let confidence = number / scale;
    (0.0..=1.0).contains(&confidence).then_some(confidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stated_confidences_are_read() {
        let cases = [
            ("\\boxed{8}", Some(0.8)),
            ("I am quite sure: \\boxed{10}.", Some(1.0)),
            ("\\boxed{7.5}", Some(0.75)),
            ("I would say 90%.", Some(0.9)),
            ("\\boxed{85\\%}", Some(0.85)),
            ("\\boxed{0}", Some(0.0)),
            ("\\boxed{42}", None),
            ("\\boxed{-1}", None),
            ("I am sure.", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(stated_confidence(text), expected, "{text}");
        }
    }
}
