//! Counts a task's items, and the costs of the stages they went through.

use super::{Item, Stage, Summary};
use crate::{eval::sample::Similarity, io::record::CutOff, io::record::Status, order::sort_by};

use std::collections::BTreeSet;

/// 97.5 % quantile of the standard normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// Wilson's 95 % score interval of a proportion (Wilson 1927); `None` without items.
pub fn wilson(successes: usize, n: usize) -> Option<[f64; 2]> {
    let (k, n) = (successes as f64, n as f64);
    let centre = (k + Z * Z / 2.0) / (n + Z * Z);
    let half = Z / (n + Z * Z) * (k * (n - k) / n + Z * Z / 4.0).sqrt();
    (n > 0.0).then(|| [(centre - half).max(0.0), (centre + half).min(1.0)])
}

pub(super) fn summary(items: &[Item]) -> Summary {
    let count = |which: &dyn Fn(&Item) -> bool| items.iter().filter(|item| which(item)).count();
    let status = |wanted: Status| count(&|item| item.uq.status == wanted);
    let share = |part: usize, whole: usize| (whole > 0).then(|| part as f64 / whole as f64);
    let (graded, correct) = (count(&|item| item.correct.is_some()), count(&|item| item.correct == Some(true)));
    let twice = |item: &Item| item.correct.is_some() && item.correct_reference.is_some();
    let graded_twice = count(&twice);
    let correct_reference = count(&|item| twice(item) && item.correct_reference == Some(true));
    let several = count(&|item| item.majority_correct.is_some());
    let answered = status(Status::Ok);
    let truncated = |item: &Item| item.uq.finish.is_cut_off();
    let completed = count(&|item| item.correct.is_some() && !truncated(item));
    let completed_correct = count(&|item| item.correct == Some(true) && !truncated(item));
    let mean =
        |value: &dyn Fn(&Item) -> usize| share(items.iter().filter(|item| item.answered()).map(value).sum(), answered);
    Summary {
        items: items.len(),
        graded,
        correct,
        accuracy: share(correct, graded),
        accuracy_interval: wilson(correct, graded),
        answered,
        no_answer: status(Status::NoAnswer),
        errors: status(Status::Error),
        truncated: count(&truncated),
        truncated_in_thought: count(&|item| truncated(item) && item.uq.cut_off == Some(CutOff::Thought)),
        accuracy_completed: share(completed_correct, completed),
        accuracy_completed_interval: wilson(completed_correct, completed),
        graded_twice,
        accuracy_reference: share(correct_reference, graded_twice),
        disagreements: count(&|item| twice(item) && item.correct != item.correct_reference),
        majority_accuracy: share(count(&|item| item.majority_correct == Some(true)), several),
        response_tokens: items.iter().map(|item| item.response_tokens).sum(),
        mean_response_tokens: mean(&|item| item.response_tokens),
        mean_chain: mean(&|item| item.chain),
        mean_kept: mean(&|item| item.uq.kept.len()),
        mean_ensemble: mean(&|item| item.uq.ensemble.len()),
        mean_similarity: mean_similarity(items),
        seconds: items.iter().flat_map(|item| item.uq.seconds.values()).filter(|seconds| seconds.is_finite()).sum(),
    }
}

fn mean_similarity(items: &[Item]) -> Option<Similarity> {
    let found: Vec<Similarity> = items.iter().filter_map(|item| item.uq.similarity).collect();
    let mean = |value: fn(&Similarity) -> f64| found.iter().map(value).sum::<f64>() / found.len() as f64;
    (!found.is_empty()).then(|| Similarity { chain: mean(|s| s.chain), response: mean(|s| s.response) })
}

/// The stage that writes the response, needed even without a confidence.
const GENERATE: &str = "generate";

/// Seconds by stage: `generate` first, then the most expensive.
pub(super) fn stages(items: &[Item]) -> Vec<Stage> {
    let seconds_of = |item: &Item, name: &str| item.uq.seconds.get(name).copied().filter(|seconds| seconds.is_finite());
    let stage = |name: &str| {
        let through: Vec<&Item> = items.iter().filter(|item| seconds_of(item, name).is_some()).collect();
        let sum = |name: &str| through.iter().filter_map(|item| seconds_of(item, name)).sum::<f64>();
        let (seconds, generate) = (sum(name), sum(GENERATE));
        Stage {
            stage: name.to_owned(),
            items: through.len(),
            seconds,
            seconds_per_item: seconds / through.len().max(1) as f64,
            relative_to_generate: (generate > 0.0).then(|| seconds / generate),
        }
    };
    let names: BTreeSet<&str> = items.iter().flat_map(|item| item.uq.seconds.keys().map(String::as_str)).collect();
    let mut stages: Vec<Stage> = names.into_iter().map(stage).collect();
    let later = |stage: &Stage| stage.stage != GENERATE;
    sort_by(&mut stages, |a, b| later(a).cmp(&later(b)).then(b.seconds.total_cmp(&a.seconds)));
    stages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_by_the_published_formula() {
        // 10 of 100: 0.0552, 0.1744
        let [low, high] = wilson(10, 100).unwrap();
        assert!((low - 0.055_229_1).abs() < 1e-6 && (high - 0.174_366_4).abs() < 1e-6, "{low} {high}");
        let [low, high] = wilson(0, 3).unwrap();
        assert!(low < 1e-15 && high > 0.5 && high < 1.0);
        assert_eq!(wilson(0, 0), None);
    }

    #[test]
    fn of_nothing() {
        assert_eq!(summary(&[]), Summary::default());
    }
}
