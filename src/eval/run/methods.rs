//! Methods that need passes of their own: self-consistency and verbalized confidence.

use super::manifest::EvalOptions;
use crate::backend::sampling::Sampling;
use crate::engine::encode::{EncodeError, ResponseText, encode_next_turn};
use crate::engine::{EngineError, GenerateOptions, TracedSequence};
use crate::eval::grading;
use crate::eval::sample::{SelfConsistency, Verbalized};
use crate::eval::tasks::{Item, Task};
use crate::model::chat::Conversation;
use crate::uq::answer::{AnswerRule, find_answer};
use crate::uq::pipeline;
use std::collections::BTreeMap;

/// What a response's further passes can fail with.
#[derive(Debug, thiserror::Error)]
pub enum MethodError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Tokenizer(#[from] crate::model::tokenizer::TokenizerError),
}

/// Tokens that the model may spend on saying how sure it is.
const VERBALIZED_TOKENS: usize = 128;

/// The question behind the answer. Our own words; the scale and the box are the authors'.
const HOW_SURE: &str = "How likely is it that your final answer is correct? Give a whole number from 0 (certainly wrong) \
                        to 10 (certainly right), in \\boxed{}.";

/// Responses drawn again from the same prompt, whose keys and values are taken from the response's own cache: the texts,
/// and what they answer. Each sample's answer votes with ∏ p(its tokens) / n; answers of one normal form vote together.
pub fn self_consistency(
    traced: &mut TracedSequence,
    task: &Task,
    item: &Item,
    options: &EvalOptions,
) -> Result<(Vec<String>, SelfConsistency), MethodError> {
    let EvalOptions { samples, temperature, seed, max_tokens, .. } = *options;
    let (tokens, prompt_len) = traced.tokens();
    let prompts = vec![tokens[..prompt_len].to_vec(); samples];
    let sampling = Sampling { temperature, seed, ..Sampling::GREEDY };
    let generate = GenerateOptions { max_tokens, sampling, trace: None, ..GenerateOptions::default() };
    let streams = (0..samples).map(|sample| stream(&task.name, item.doc_id, sample));
    let generations = traced.generate_sharing(&prompts, &generate, streams)?;

    let (engine, rules) = (traced.engine(), options.parameters.rules());
    let (mut texts, mut answers, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    let mut response_tokens = Vec::new();
    for generation in &generations {
        let response = &generation.tokens[prompt_len..];
        let answer = pipeline::find_in(engine, &generation.tokens, prompt_len, task.rule, rules)?;
        let logprob = |position: usize| generation.steps.get(position - prompt_len).and_then(|step| step.logprob);
        let weight = answer.as_ref().map_or(0.0, |answer| {
            let sum: f64 = answer.tokens.clone().map(|p| logprob(p).unwrap_or(f64::NEG_INFINITY)).sum();
            sum.exp() / samples as f64
        });
        texts.push(ResponseText::new(engine, response)?.text);
        answers.push(answer.map(|answer| answer.text));
        weights.push(weight);
        response_tokens.push(response.len());
    }
    let (majority, majority_weight) = majority(&answers, &weights, item);
    let outcome = SelfConsistency { temperature, answers, weights, majority, majority_weight, response_tokens };
    Ok((texts, outcome))
}

/// The answer with the most weight (of equals the one drawn first), and that weight.
fn majority(answers: &[Option<String>], weights: &[f64], item: &Item) -> (Option<String>, f64) {
    let mut votes: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for (index, (answer, weight)) in answers.iter().zip(weights).enumerate() {
        if let Some(answer) = answer {
            votes.entry(grading::normal_form_for(item, answer)).or_insert((0.0, index)).0 += weight;
        }
    }
    let best = votes.into_values().max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    best.map_or((None, 0.0), |(weight, first)| (answers[first].clone(), weight))
}

/// The weight of the samples that agree with an answer.
pub fn support(answer: &str, samples: &SelfConsistency, item: &Item) -> f64 {
    let form = grading::normal_form_for(item, answer);
    let agrees = |other: &Option<String>| other.as_ref().is_some_and(|o| grading::normal_form_for(item, o) == form);
    let agreeing = samples.answers.iter().zip(&samples.weights).filter(|(other, _)| agrees(other));
    agreeing.fold(0.0, |sum, (_, weight)| sum + weight) // sum() of nothing is -0.0
}

/// Asks the model how sure it is, in a second turn on the response's cache; greedy.
pub fn verbalized(traced: &mut TracedSequence, item: &Item, response: &str) -> Result<Verbalized, MethodError> {
    let conversation = Conversation::Messages(item.messages.clone());
    let prompt = encode_next_turn(traced.engine(), &conversation, response, traced.tokens().0, HOW_SURE)?;
    let options = GenerateOptions { max_tokens: VERBALIZED_TOKENS, trace: None, ..GenerateOptions::default() };
    let generation = traced.generate_sharing(&[prompt], &options, [0])?.remove(0);
    let text = ResponseText::new(traced.engine(), &generation.tokens[generation.prompt_len..])?.text;
    Ok(Verbalized { confidence: stated_confidence(&text), response: text })
}

/// The confidence that a text states on a scale from 0 to 10, or in percent, as a number in [0, 1].
fn stated_confidence(text: &str) -> Option<f64> {
    let span = find_answer(text, AnswerRule::Number)?.bytes;
    let behind = text[span.end..].trim_start_matches(['}', ' ', '\\', '$']);
    let number: f64 = text[span].replace(',', "").parse().ok()?;
    let scale = if behind.starts_with('%') || behind.starts_with("percent") { 100.0 } else { 10.0 };
    let confidence = number / scale;
    (0.0..=1.0).contains(&confidence).then_some(confidence)
}

/// The sampler's stream of a sample: FNV-1a of the task's name, the item and the sample, so that a draw depends on
/// nothing else.
fn stream(task: &str, doc_id: usize, sample: usize) -> u64 {
    let name = format!("{task}/{doc_id}/{sample}");
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> Item {
        let doc = serde_json::Value::Null;
        Item { doc_id: 0, doc, messages: Vec::new(), target: "1000".into(), grader: crate::eval::tasks::Grader::Number }
    }

    fn some(answers: &[&str]) -> Vec<Option<String>> {
        answers.iter().map(|a| (!a.is_empty()).then(|| (*a).to_owned())).collect()
    }

    #[test]
    fn answers_of_one_value_vote_together() {
        let answers = some(&["7", "1,000", "", "1000.0", "7"]);
        let weights = [0.2, 0.15, 0.0, 0.15, 0.05];
        let (answer, weight) = majority(&answers, &weights, &item());
        assert_eq!((answer.as_deref(), weight), (Some("1,000"), 0.3));
        let samples = SelfConsistency {
            temperature: 0.5,
            answers,
            weights: weights.to_vec(),
            majority: None,
            majority_weight: 0.0,
            response_tokens: Vec::new(),
        };
        assert_eq!(support("1000", &samples, &item()), 0.3);
        assert_eq!(support("8", &samples, &item()), 0.0);
        assert_eq!(majority(&some(&["", ""]), &[0.0, 0.0], &item()), (None, 0.0));
        // of equals the first drawn
        assert_eq!(majority(&some(&["9", "8"]), &[0.1, 0.1], &item()).0.as_deref(), Some("9"));
    }

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

    #[test]
    fn streams_differ() {
        let streams: std::collections::HashSet<u64> =
            (0..50).flat_map(|d| (0..5).map(move |s| stream("gsm8k", d, s))).collect();
        assert_eq!(streams.len(), 250);
        assert_ne!(stream("gsm8k", 1, 2), stream("math", 1, 2));
    }
}
