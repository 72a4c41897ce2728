//! Whether a confidence of 0.8 is right eight times in ten.

use super::ranking::{Level, totals};
use serde::Serialize;

/// Bins of the expected calibration error.
pub const BINS: usize = 20;

/// Which end of a bin belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binning {
    /// [a, b), the last one [a, 1]: the authors' code.
    Left,
    /// (a, b], the first one [0, b]: the paper's text (in which 0 is in no bin).
    Right,
}

/// A bin of the reliability diagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bin {
    pub low: f64,
    pub high: f64,
    pub items: u32,
    /// Mean score, `None` without items.
    pub confidence: Option<f64>,
    /// Share of right answers, `None` without items.
    pub accuracy: Option<f64>,
}

/// Lower edge of a bin; 1 for [`BINS`]. Rounded like numpy's `linspace(0, 1, 21)`, which matters for scores like 0.15.
fn edge(bin: usize) -> f64 {
    if bin >= BINS { 1.0 } else { bin as f64 * (1.0 / BINS as f64) }
}

/// The bin of a probability, searching down from `bin`; values outside [0, 1] go to the outermost bin.
fn bin_of(score: f64, mut bin: usize, binning: Binning) -> usize {
    let is_past = |edge: f64| match binning {
        Binning::Left => score >= edge,
        Binning::Right => score > edge,
    };
    while bin > 0 && !is_past(edge(bin)) {
        bin -= 1;
    }
    bin
}

/// Items, correct answers and sum of scores for each of the [`BINS`] bins.
fn binned(levels: &[Level], binning: Binning) -> [(u32, u32, f64); BINS] {
    let mut bins = [(0, 0, 0.0); BINS];
    let mut bin = BINS - 1;
    for level in levels {
        bin = bin_of(level.score, bin, binning); // scores descend
        let (items, correct, sum) = &mut bins[bin];
        *items += level.items;
        *correct += level.correct;
        *sum += level.score * f64::from(level.items);
    }
    bins
}

/// The reliability diagram (Guo et al. 2017): mean confidence and accuracy in each bin.
pub fn reliability(levels: &[Level], binning: Binning) -> Vec<Bin> {
    let bin = |(i, (items, correct, sum)): (usize, (u32, u32, f64))| {
        let share = |x: f64| (items > 0).then(|| x / f64::from(items));
        Bin { low: edge(i), high: edge(i + 1), items, confidence: share(sum), accuracy: share(f64::from(correct)) }
    };
    binned(levels, binning).into_iter().enumerate().map(bin).collect()
}

/// Expected calibration error over 20 equal bins: Σ over bins of (its share of the items) · |accuracy - mean confidence|
/// (Naeini et al. 2015). `None` without items.
pub fn ece(levels: &[Level], binning: Binning) -> Option<f64> {
    let (all, _) = totals(levels);
    let gap = |(_, correct, sum): (u32, u32, f64)| (sum - f64::from(correct)).abs();
    (all > 0).then(|| binned(levels, binning).into_iter().map(gap).sum::<f64>() / all as f64)
}

/// Brier score: the mean of (score - label)² (Brier 1950). `None` without items.
pub fn brier(levels: &[Level]) -> Option<f64> {
    let (all, _) = totals(levels);
    let square = |level: &Level| {
        let (p, q) = (level.score, 1.0 - level.score);
        f64::from(level.correct) * q * q + f64::from(level.wrong()) * p * p
    };
    (all > 0).then(|| levels.iter().map(square).sum::<f64>() / all as f64)
}

#[cfg(test)]
mod tests {
    use super::super::Ranking;
    use super::*;

    #[test]
    fn edges_belong_to_one_bin() {
        // numpy's edge is 0.15000000000000002, so 0.15 lies below it
        for (score, left, right) in
            [(0.0, 0, 0), (0.05, 1, 0), (0.15, 2, 2), (0.5, 10, 9), (0.97, 19, 19), (1.0, 19, 19)]
        {
            assert_eq!(
                (bin_of(score, BINS - 1, Binning::Left), bin_of(score, BINS - 1, Binning::Right)),
                (left, right),
                "{score}"
            );
        }
        for bin in 0..=BINS {
            let e = edge(bin);
            assert_eq!(bin_of(e, BINS - 1, Binning::Left), bin.min(BINS - 1));
            assert_eq!(bin_of(e, BINS - 1, Binning::Right), bin.saturating_sub(1));
            assert_eq!(bin_of(e.next_up(), BINS - 1, Binning::Right), bin.min(BINS - 1));
            assert_eq!(bin_of(e.next_down().max(0.0), BINS - 1, Binning::Left), bin.saturating_sub(1));
        }
    }

    #[test]
    fn what_is_no_probability_does_not_panic() {
        for score in [-3.0, 7.0, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(bin_of(score, BINS - 1, Binning::Left), if score > 0.0 { BINS - 1 } else { 0 });
        }
    }

    #[test]
    fn small_cases_by_hand() {
        let levels = Ranking::of(&[0.9, 0.9, 0.2], &[true, false, false]).levels();
        assert!((ece(&levels, Binning::Left).unwrap() - (0.8 + 0.2) / 3.0).abs() < 1e-15);
        assert!((brier(&levels).unwrap() - (0.01 + 0.81 + 0.04) / 3.0).abs() < 1e-15);
        let bins = reliability(&levels, Binning::Left);
        assert_eq!((bins.len(), bins[18].items, bins[18].accuracy, bins[3].accuracy), (BINS, 2, Some(0.5), None));
        assert_eq!((ece(&[], Binning::Left), brier(&[])), (None, None));
    }
}
