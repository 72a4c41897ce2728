//! Self-consistency: majority vote over answers sampled from the same prompt.

use super::{Draw, Draws, Findings, Found, METHOD, Method, Reading, SCORE, Score, Subject};
use crate::backend::sampling::{Sampling, stream_of};
use crate::engine::{Engine, GenerateOptions, Generation, TracedSequence};
use crate::{
    eval::grading, eval::run::manifest::EvalOptions, eval::tasks::Question, model::tokenizer::TokenizerError,
    uq::pipeline::Answer,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Answers sampled from the same prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelfConsistency {
    pub temperature: f64,
    /// Each sample's answer as text, `None` where it has none.
    pub answers: Vec<Option<String>>,
    /// Vote weights: ∏ p of each sample's answer tokens over the number of samples, 0 without an answer.
    pub weights: Vec<f64>,
    /// ln P of each sample, the sum over its tokens; `None` where a logit was not finite.
    #[serde(default)]
    pub logprobs: Vec<Option<f64>>,
    /// The answer with the largest weight, and that weight.
    pub majority: Option<String>,
    pub majority_weight: f64,
    pub response_tokens: Vec<usize>,
    /// Under `--stop-decided`: samples that would have been drawn had the vote not been decided earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
}

/// Agreement of the samples and σ(G4), registered as R9 (`benches/EVIDENCE.md`); complete once the response's own scores are known.
pub const G4_AGREEMENT: &str = "g4_agreement";

/// Responses resampled from the same prompt, whose keys and values come from the response's own cache. Each sample's answer
/// votes with ∏ p(its tokens) / n; answers with the same normal form vote together.
pub(super) const SELF_CONSISTENCY: Method = Method {
    key: "self-consistency",
    about: "Majority vote over sampled answers",
    scores: &[
        Score {
            key: "self_consistency",
            name: "Self-consistency",
            meaning: "the weight of the samples that give the same answer",
            is_probability: true,
            ..SCORE
        },
        Score {
            key: "self_consistency_majority",
            name: "Majority weight",
            meaning: "the weight of the answer that most samples give",
            is_probability: true,
            of_majority: true,
            ..SCORE
        },
        Score {
            key: G4_AGREEMENT,
            name: "Agreement + G4",
            meaning: "the share of samples that give the same answer, plus G4 between 0 and 1",
            ..SCORE
        },
    ],
    samples,
    run,
    ..METHOD
};

fn samples(engine: &Engine, subject: &Subject, drawn: &[&Generation]) -> Draws {
    let Subject { task, item, options, prompt_tokens, .. } = subject;
    let EvalOptions { samples, temperature, seed, stop_decided, .. } = **options;
    let first = drawn.len();
    let next = match stop_decided {
        true => first + undecided(&sums(engine, subject, drawn)?, samples - first, samples),
        false => samples,
    };
    let repetition_penalty = options.repetition_penalty();
    let sampling = Sampling { temperature, seed, repetition_penalty, ..Sampling::GREEDY };
    let (max_tokens, stop) = (task.max_tokens, task.stop.clone());
    let thinking_budget = options.budget();
    let generate =
        GenerateOptions { max_tokens, stop, sampling, thinking_budget, trace: None, ..GenerateOptions::default() };
    let draw = |sample| Draw {
        prompt: prompt_tokens.clone(),
        stream: stream(&task.name, item.doc_id, sample),
        generate: generate.clone(),
    };
    Ok((first..next).map(draw).collect())
}

fn run(traced: &mut TracedSequence, subject: &Subject, drawn: &[Generation]) -> Found {
    let Subject { item, options, .. } = subject;
    let (engine, mut texts) = (traced.engine(), Vec::new());
    let mut found = SelfConsistency {
        temperature: as_written(options.temperature),
        samples: options.stop_decided.then_some(options.samples),
        ..SelfConsistency::default()
    };
    for generation in drawn {
        let Reading { text, answer, .. } = Reading::of(engine, generation, subject)?;
        texts.push(text.text);
        found.weights.push(answer.as_ref().map_or(0.0, |answer| probability(answer, generation) / drawn.len() as f64));
        found.answers.push(answer.map(|answer| answer.text));
        found.logprobs.push(generation.logprob());
        found.response_tokens.push(generation.tokens.len() - generation.prompt_len);
    }
    (found.majority, found.majority_weight) = majority(&found.answers, &found.weights, item);
    let support = subject.answer().map(|answer| support(&answer.text, &found, item));
    let correct = found.majority.as_deref().is_some_and(|answer| grading::correct_for(&item.target, answer));
    Ok(Some(Findings {
        scores: vec![
            ("self_consistency", support.map(|(weight, _)| weight)),
            (G4_AGREEMENT, support.map(|(_, share)| share)),
            ("self_consistency_majority", found.majority.is_some().then_some(found.majority_weight)),
        ],
        metrics: vec![("acc_majority", f64::from(correct))],
        details: json!(found),
        drawn: Some((texts, found.majority)),
    }))
}

/// ∏ p of an answer's tokens.
fn probability(answer: &Answer, generation: &Generation) -> f64 {
    let step = |position: usize| generation.steps.get(position - generation.prompt_len);
    let logprob = |position| step(position).and_then(|step| step.logprob).unwrap_or(f64::NEG_INFINITY);
    libm::exp(answer.tokens.clone().map(logprob).sum())
}

/// ∑ ∏ p of every answer sampled so far, by normal form.
fn sums(engine: &Engine, subject: &Subject, drawn: &[&Generation]) -> Result<BTreeMap<String, f64>, TokenizerError> {
    let mut sums = BTreeMap::new();
    for generation in drawn {
        if let Some(answer) = Reading::of(engine, generation, subject)?.answer {
            let form = grading::normal_form_for(&subject.item.target, &answer.text);
            *sums.entry(form).or_insert(0.0) += probability(&answer, generation);
        }
    }
    Ok(sums)
}

/// The fewest of the `left` remaining samples after which the vote can be decided; 0: it is decided already. A vote is a
/// probability, so the remaining samples can add at most `left` to any other answer, and the majority is final once it leads by
/// more than that; after x more, all for the leader, it leads by x more and x fewer are left.
///
/// Votes are summed in floats, each a sum of at most `samples` values ≤ 1 over their count: within `samples`² ε of the true
/// sum. A lead must exceed both errors, so that rounding cannot overturn a decided vote either.
fn undecided(sums: &BTreeMap<String, f64>, left: usize, samples: usize) -> usize {
    let mut votes: Vec<f64> = sums.values().copied().collect();
    votes.sort_by(f64::total_cmp);
    let mut best = votes.iter().rev();
    let lead = best.next().unwrap_or(&0.0) - best.next().unwrap_or(&0.0);
    let short = left as f64 - lead + 2.0 * (samples * samples) as f64 * f64::EPSILON;
    if left == 0 || short < 0.0 { 0 } else { ((short / 2.0) as usize + 1).min(left) }
}

/// The double with the same decimal digits as the float.
fn as_written(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// The answer with the largest weight (ties: the one drawn first), and that weight.
fn majority(answers: &[Option<String>], weights: &[f64], item: &Question) -> (Option<String>, f64) {
    let mut votes: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for (index, (answer, weight)) in answers.iter().zip(weights).enumerate() {
        if let Some(answer) = answer {
            votes.entry(grading::normal_form_for(&item.target, answer)).or_insert((0.0, index)).0 += weight;
        }
    }
    let best = votes.into_values().max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    best.map_or((None, 0.0), |(weight, first)| (answers[first].clone(), weight))
}

/// Total weight and share of the samples that agree with an answer.
fn support(answer: &str, samples: &SelfConsistency, item: &Question) -> (f64, f64) {
    let form = grading::normal_form_for(&item.target, answer);
    let agrees =
        |other: &Option<String>| other.as_ref().is_some_and(|o| grading::normal_form_for(&item.target, o) == form);
    let agreeing = samples.answers.iter().zip(&samples.weights).filter(|(other, _)| agrees(other));
    let (weight, count) = agreeing.fold((0.0, 0.0), |(sum, count), (_, weight)| (sum + weight, count + 1.0));
    (weight, count / samples.answers.len().max(1) as f64)
}

/// A sample's random stream: derived from the task's name, the item and the sample, so that a draw depends on nothing else.
fn stream(task: &str, doc_id: usize, sample: usize) -> u64 {
    stream_of(format!("{task}/{doc_id}/{sample}").bytes().map(u64::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::target::Target;

    fn item() -> Question {
        let target = Target::new("", "1000", crate::eval::tasks::Grader::Number);
        Question { doc_id: 0, doc: serde_json::Value::Null, prompt: String::new(), target, pattern: None }
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
            logprobs: Vec::new(),
            majority: None,
            majority_weight: 0.0,
            response_tokens: Vec::new(),
            samples: None,
        };
        assert_eq!(support("1000", &samples, &item()), (0.3, 0.4));
        assert_eq!(support("8", &samples, &item()), (0.0, 0.0));
        assert_eq!(majority(&some(&["", ""]), &[0.0, 0.0], &item()), (None, 0.0));
        // ties: the first drawn
        assert_eq!(majority(&some(&["9", "8"]), &[0.1, 0.1], &item()).0.as_deref(), Some("9"));
    }

    /// Every way in which up to five samples can vote, each for one of three answers or for none, with p of 0, 0.5 or 1:
    /// drawing stops only if all continuations have the same majority, and when the lead exceeds what is left.
    #[test]
    fn a_vote_is_decided_when_nothing_can_change_it() {
        const SAMPLES: usize = 5;
        let votes: Vec<(&str, f64)> =
            ["1", "2", "3"].iter().flat_map(|answer| [0.5, 1.0].map(|p| (*answer, p))).chain([("", 0.0)]).collect();
        let majority_of = |picks: &[usize]| {
            let weights: Vec<f64> = picks.iter().map(|i| votes[*i].1 / picks.len() as f64).collect();
            majority(&some(&picks.iter().map(|i| votes[*i].0).collect::<Vec<_>>()), &weights, &item()).0
        };
        let sums_of = |picks: &[usize]| {
            let mut sums: BTreeMap<String, f64> = BTreeMap::new();
            for (answer, p) in picks.iter().map(|i| votes[*i]).filter(|(answer, _)| !answer.is_empty()) {
                *sums.entry(answer.to_owned()).or_default() += p;
            }
            sums
        };
        let (mut decided, mut counts) = (0, [0; SAMPLES + 1]);
        for number in 0..votes.len().pow(SAMPLES as u32) {
            let picks: Vec<usize> = (0..SAMPLES).map(|i| number / votes.len().pow(i as u32) % votes.len()).collect();
            let mut drawn = 0;
            loop {
                let more = undecided(&sums_of(&picks[..drawn]), SAMPLES - drawn, SAMPLES);
                // no draw of a round could have been skipped: no prefix of the round may be decided
                let early =
                    (drawn..drawn + more).find(|n| undecided(&sums_of(&picks[..*n]), SAMPLES - n, SAMPLES) == 0);
                assert_eq!(early, None, "{picks:?} {drawn} {more}");
                if more == 0 {
                    break;
                }
                drawn += more;
            }
            counts[drawn] += 1;
            if drawn < SAMPLES {
                // this continuation is one of all
                assert_eq!(majority_of(&picks[..drawn]), majority_of(&picks), "{picks:?} {drawn}");
                decided += 1;
            }
        }
        // three of three for one answer lead by 3, which two can still make up only if the three are not all certain
        assert!(decided > 0 && counts[..3] == [0, 0, 0] && counts[3] > 0 && counts[4] > 0, "{counts:?}");
        assert_eq!(undecided(&BTreeMap::new(), 0, 0), 0);
        assert_eq!(undecided(&sums_of(&[1, 1]), 2, 4), 1, "a tie is drawn out");
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
