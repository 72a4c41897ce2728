//! Self-consistency: answers drawn again from the same prompt, and counted.

use super::{Context, Draw, Findings, Method, MethodError, Responses, Score};
use crate::backend::sampling::{Sampling, stream_of};
use crate::engine::encode::ResponseText;
use crate::engine::{GenerateOptions, Generation};
use crate::eval::grading;
use crate::eval::run::manifest::EvalOptions;
use crate::eval::tasks::{Question, Task};
use crate::uq::pipeline;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Answers of samples drawn from the same prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfConsistency {
    pub temperature: f64,
    /// Each sample's answer as text, `None` where it has none.
    pub answers: Vec<Option<String>>,
    /// ∏ p of each sample's answer tokens over the number of samples: its vote's weight, 0 without an answer.
    pub weights: Vec<f64>,
    /// The answer with the most weight, and that weight.
    pub majority: Option<String>,
    pub majority_weight: f64,
    pub response_tokens: Vec<usize>,
}

/// Responses drawn again from the same prompt, whose keys and values are taken from the response's own cache. Each
/// sample's answer votes with ∏ p(its tokens) / n; answers of one normal form vote together.
pub struct Drawn;

impl Method for Drawn {
    fn key(&self) -> &'static str {
        "self-consistency"
    }

    fn about(&self) -> &'static str {
        "Answers drawn again and counted"
    }

    fn scores(&self) -> &'static [Score] {
        &[
            Score {
                key: "self_consistency",
                name: "Self-consistency",
                meaning: "the weight of the samples that give the same answer",
                is_probability: true,
                of_majority: false,
            },
            Score {
                key: "self_consistency_majority",
                name: "Majority weight",
                meaning: "the weight of the answer that most samples give",
                is_probability: true,
                of_majority: true,
            },
        ]
    }

    fn samples(&self, prompt: &[u32], task: &Task, item: &Question, options: &EvalOptions) -> Vec<Draw> {
        let EvalOptions { samples, temperature, seed, .. } = *options;
        let sampling = Sampling { temperature, seed, ..Sampling::GREEDY };
        let (max_tokens, stop) = (task.max_tokens, task.stop.clone());
        let generate = GenerateOptions { max_tokens, stop, sampling, trace: None, ..GenerateOptions::default() };
        let draw = |sample| Draw {
            prompt: prompt.to_vec(),
            stream: stream(&task.name, item.doc_id, sample),
            generate: generate.clone(),
        };
        (0..samples).map(draw).collect()
    }

    fn run(&self, context: &mut Context, drawn: &[Generation]) -> Result<Option<Findings>, MethodError> {
        let (texts, drawn) = read(context, drawn)?;
        let Context { item, answer, .. } = context;
        let support = answer.map(|answer| support(&answer.text, &drawn, item));
        let correct = drawn.majority.as_deref().is_some_and(|answer| grading::correct_for(item, answer));
        Ok(Some(Findings {
            scores: vec![
                ("self_consistency", support),
                ("self_consistency_majority", drawn.majority.is_some().then_some(drawn.majority_weight)),
            ],
            metrics: vec![("acc_majority", f64::from(u8::from(correct)))],
            details: serde_json::to_value(&drawn)?,
            drawn: Some(Responses { temperature: context.options.temperature, texts, answer: drawn.majority }),
        }))
    }
}

/// The samples' texts, and what they answer.
fn read(context: &Context, generations: &[Generation]) -> Result<(Vec<String>, SelfConsistency), MethodError> {
    let Context { traced, task, item, options, .. } = context;
    let (engine, rules) = (traced.engine(), options.parameters.rules());
    let (mut texts, mut answers, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    let mut response_tokens = Vec::new();
    for generation in generations {
        let prompt_len = generation.prompt_len;
        let response = &generation.tokens[prompt_len..];
        let answer =
            pipeline::find_in(engine, &generation.tokens, prompt_len, generation.is_cut_off(), task.rule, rules)?;
        let logprob = |position: usize| generation.steps.get(position - prompt_len).and_then(|step| step.logprob);
        let weight = answer.as_ref().map_or(0.0, |answer| {
            let sum: f64 = answer.tokens.clone().map(|p| logprob(p).unwrap_or(f64::NEG_INFINITY)).sum();
            sum.exp() / generations.len() as f64
        });
        texts.push(ResponseText::new(engine, response)?.text);
        answers.push(answer.map(|answer| answer.text));
        weights.push(weight);
        response_tokens.push(response.len());
    }
    let (majority, majority_weight) = majority(&answers, &weights, item);
    let temperature = as_written(options.temperature);
    Ok((texts, SelfConsistency { temperature, answers, weights, majority, majority_weight, response_tokens }))
}

/// The double that is written with the same digits as the float.
fn as_written(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// The answer with the most weight (of equals the one drawn first), and that weight.
fn majority(answers: &[Option<String>], weights: &[f64], item: &Question) -> (Option<String>, f64) {
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
fn support(answer: &str, samples: &SelfConsistency, item: &Question) -> f64 {
    let form = grading::normal_form_for(item, answer);
    let agrees = |other: &Option<String>| other.as_ref().is_some_and(|o| grading::normal_form_for(item, o) == form);
    let agreeing = samples.answers.iter().zip(&samples.weights).filter(|(other, _)| agrees(other));
    agreeing.fold(0.0, |sum, (_, weight)| sum + weight) // sum() of nothing is -0.0
}

/// The sampler's stream of a sample: of the task's name, the item and the sample, so that a draw depends on nothing else.
fn stream(task: &str, doc_id: usize, sample: usize) -> u64 {
    stream_of(format!("{task}/{doc_id}/{sample}").bytes().map(u64::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> Question {
        let doc = serde_json::Value::Null;
        Question {
            doc_id: 0,
            doc,
            messages: Vec::new(),
            target: "1000".into(),
            grader: crate::eval::tasks::Grader::Number,
        }
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
    fn a_float_keeps_its_digits() {
        assert_eq!([0.7, 0.5, 1e-3].map(as_written), [0.7, 0.5, 1e-3]);
    }

    #[test]
    fn streams_differ() {
        let streams: std::collections::HashSet<u64> =
            (0..50).flat_map(|d| (0..5).map(move |s| stream("gsm8k", d, s))).collect();
        assert_eq!(streams.len(), 250);
        assert_ne!(stream("gsm8k", 1, 2), stream("math", 1, 2));
    }
}
