//! Self-consistency: majority vote over answers sampled from the same prompt.

use super::{Draw, Draws, Findings, Found, METHOD, Method, Reading, Subject};
use crate::backend::sampling::Sampling;
use crate::engine::{Engine, GenerateOptions, Generation, TracedSequence};
use crate::eval::samples::{self, probability, stream, votes};
use crate::{eval::grading, io::record::Samples, model::tokenizer::TokenizerError, uq::scores};
use serde_json::json;
use std::collections::BTreeMap;

/// Responses resampled from the same prompt, whose keys and values come from the response's own cache. Each sample's answer
/// votes with ∏ p(its tokens) / n; answers with the same normal form vote together.
pub(super) const SELF_CONSISTENCY: Method = Method {
    key: "self-consistency",
    about: "Majority vote over sampled answers",
    scores: scores::samples::SCORES,
    samples,
    run,
    ..METHOD
};

fn samples(engine: &Engine, subject: &Subject, drawn: &[&Generation]) -> Draws {
    let Subject { task, item, options, prompt_tokens, .. } = subject;
    let first = drawn.len();
    let next = match options.stop_decided {
        true => first + undecided(&sums(engine, subject, drawn)?, options.samples - first, options.samples),
        false => options.samples,
    };
    let sampling =
        Sampling { seed: options.seed, repetition_penalty: options.repetition_penalty(), ..Sampling::GREEDY };
    let (max_tokens, stop, thinking_budget) = (task.max_tokens, task.stop.clone(), options.budget());
    let own = GenerateOptions { max_tokens, stop, sampling, thinking_budget, ..GenerateOptions::default() };
    let draw = |sample| Draw {
        prompt: prompt_tokens.clone(),
        stream: stream(&task.name, item.doc_id as u64, sample),
        generate: samples::options(&own, options.temperature),
    };
    Ok((first..next).map(draw).collect())
}

fn run(traced: &mut TracedSequence, subject: &Subject, drawn: &[Generation]) -> Found {
    let Subject { item, options, .. } = subject;
    let (engine, mut texts) = (traced.engine(), Vec::new());
    let own = subject.answer().map(|answer| answer.text.as_str());
    let found = votes(drawn, own, (options.temperature, &item.target), |generation| {
        let Reading { text, answer, .. } = Reading::of(engine, generation, subject)?;
        texts.push(text.text);
        Ok::<_, TokenizerError>(answer)
    })?;
    let found = Samples { samples: options.stop_decided.then_some(options.samples), ..found };
    let correct = found.majority.as_deref().is_some_and(|answer| grading::correct_for(&item.target, answer));
    Ok(Some(Findings {
        scores: found.scores().to_vec(),
        metrics: vec![("acc_majority", f64::from(correct))],
        details: json!(found),
        drawn: Some((texts, found.majority)),
    }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::samples::tests::voted;

    /// Every way in which up to five samples can vote, each for one of three answers or for none, with p of 0, 0.5 or 1:
    /// drawing stops only if all continuations have the same majority, and when the lead exceeds what is left.
    #[test]
    fn a_vote_is_decided_when_nothing_can_change_it() {
        const SAMPLES: usize = 5;
        let votes: Vec<(&str, f64)> =
            ["1", "2", "3"].iter().flat_map(|answer| [0.5, 1.0].map(|p| (*answer, p))).chain([("", 0.0)]).collect();
        let majority_of = |picks: &[usize]| {
            let drawn = picks.iter().map(|i| (votes[*i].0, votes[*i].1 / picks.len() as f64));
            voted(&drawn.collect::<Vec<_>>(), None).majority
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
}
