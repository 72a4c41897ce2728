//! The paper's evaluation sets: equal numbers of right and wrong answers, at most 500 of each.

use super::ranking::{Level, totals};
use super::{Bin, Binning, Confidence, Metric, Ranking, mt19937::permutation, reliability};
use serde::Serialize;
use std::collections::BTreeMap;

/// At most this many items of each class.
pub const MAX_PER_CLASS: usize = 500;

/// Seeds of the subsamples.
pub const SEEDS: std::ops::Range<u32> = 0..5;

/// Draws equally many indices from each class, correct and incorrect answers: min(500, correct, incorrect), each as
/// `DataFrame.sample(n, random_state=seed)` over the class's items in their order.
pub fn balanced_subsample(labels: &[bool], seed: u32) -> [Vec<usize>; 2] {
    let (correct, incorrect): (Vec<usize>, Vec<usize>) = (0..labels.len()).partition(|i| labels[*i]);
    let n = correct.len().min(incorrect.len()).min(MAX_PER_CLASS);
    let order = |class: &[usize]| permutation(seed, class.len()).into_iter().take(n);
    [correct, incorrect].map(|class| order(&class).map(|i| class[i]).collect())
}

/// The levels of every subsample; empty if a class has no items.
fn subsamples(scores: &[Confidence], labels: &[bool]) -> impl Iterator<Item = Vec<Level>> {
    let drawn = SEEDS.map(|seed| balanced_subsample(labels, seed).concat()).filter(|drawn| !drawn.is_empty());
    drawn.map(|drawn| Ranking::new(drawn.into_iter().map(|i| (i, scores[i], labels[i]))).levels())
}

/// A metric over the subsamples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeanSd {
    pub mean: f64,
    /// Population standard deviation over the seeds (divided by n, as the authors' `numpy.std`).
    pub sd: f64,
}

impl MeanSd {
    /// `None` without values.
    pub fn of(values: &[f64]) -> Option<MeanSd> {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (!values.is_empty()).then(|| MeanSd { mean, sd: (squares / n).sqrt() })
    }
}

/// Metrics on the balanced subsamples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Balanced {
    /// Items of each class.
    pub per_class: usize,
    pub seeds: Vec<u32>,
    /// `None` where a metric is not defined.
    pub metrics: BTreeMap<Metric, Option<MeanSd>>,
}

impl Balanced {
    /// From confidences (none NaN) and labels, in the data's order; `None` if a class has no items.
    pub fn of(scores: &[Confidence], labels: &[bool], probability: bool) -> Option<Balanced> {
        let levels: Vec<Vec<Level>> = subsamples(scores, labels).collect();
        let (_, per_class) = totals(levels.first()?);
        let over = |metric: Metric| -> Vec<f64> { levels.iter().filter_map(|l| metric.of(l, probability)).collect() };
        let metrics = Metric::ALL.map(|metric| (metric, MeanSd::of(&over(metric)))).into();
        Some(Balanced { per_class: per_class as usize, seeds: SEEDS.collect(), metrics })
    }

    /// The metric over the seeds; `None` where it is not defined.
    pub fn get(&self, metric: Metric) -> Option<MeanSd> {
        self.metrics.get(&metric).copied().flatten()
    }
}

/// The reliability diagram of every subsample, as the authors draw it; empty if a class has no items.
pub fn balanced_reliability(scores: &[Confidence], labels: &[bool], binning: Binning) -> Vec<Vec<Bin>> {
    subsamples(scores, labels).map(|levels| reliability(&levels, binning)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_those_of_the_subsamples() {
        // six correct at 0.92; of nine incorrect, every third at 0.22 and the rest at 0.62
        let labels: Vec<bool> = (0..15).map(|i| i < 6).collect();
        let scores: Vec<Confidence> = (0..15)
            .map(|i| {
                if i < 6 {
                    0.92
                } else if i % 3 == 0 {
                    0.22
                } else {
                    0.62
                }
                .into()
            })
            .collect();
        for bins in balanced_reliability(&scores, &labels, Binning::Left) {
            assert_eq!((bins[18].items, bins[18].accuracy), (6, Some(1.0)));
            assert_eq!((bins[4].items + bins[12].items, bins[0].accuracy), (6, None));
            assert!(bins[12].items == 0 || bins[12].accuracy == Some(0.0));
        }
        assert!(balanced_reliability(&scores[..6], &labels[..6], Binning::Left).is_empty());
    }

    #[test]
    fn classes_are_even_and_their_own() {
        let labels: Vec<bool> = (0..1700).map(|i| i % 3 == 0).collect();
        let [correct, incorrect] = balanced_subsample(&labels, 3);
        assert_eq!((correct.len(), incorrect.len()), (MAX_PER_CLASS, MAX_PER_CLASS));
        assert!(correct.iter().all(|&i| labels[i]) && incorrect.iter().all(|&i| !labels[i]));
        let mut once = correct.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), MAX_PER_CLASS);
        assert_ne!([correct, incorrect], balanced_subsample(&labels, 4));
        assert!(balanced_subsample(&[true; 9], 0).concat().is_empty());
        assert_eq!(Balanced::of(&[0.5.into(); 9], &[true; 9], true), None);
    }

    #[test]
    fn mean_and_sd_by_hand() {
        assert_eq!(MeanSd::of(&[1.0, 3.0, 5.0, 7.0]), Some(MeanSd { mean: 4.0, sd: 5f64.sqrt() }));
        assert_eq!(MeanSd::of(&[4.0]), Some(MeanSd { mean: 4.0, sd: 0.0 }));
        assert_eq!(MeanSd::of(&[]), None);
    }
}
