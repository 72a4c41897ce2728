//! DeepConf (Fu et al. 2025, "Deep Think with Confidence", arXiv 2508.15260, section 3; facebookresearch/deepconf): token
//! confidence C_t = −(1/20) Σ_{k ≤ 20} ln p_t(k) over the 20 most probable tokens, full vocabulary (eq. 2), and groups of w
//! consecutive tokens with their mean C (eq. 4). A response of fewer than w tokens is one group. w = 2,048 is what the
//! authors use; nearly every response is shorter, so w = 64 is here too. They round C_t and means to three digits, and their
//! engine lists the token drawn beside the 20 where it is not among them: neither is done here. Inputs: a wide trace.

use super::{Found, SINGLE_PASS, Score, mean};
use std::ops::Range;

/// The authors' group size, and one for responses of usual length.
const LONG: usize = 2048;
const SHORT: usize = 64;

pub(super) const SCORES: &[Score] = &[
    // (1/n) Σ C_t (eq. 3).
    Score {
        key: "deepconf",
        name: "DeepConf",
        meaning: "minus the mean log-probability of the top 20 tokens",
        compute: |found| Some(mean(&confidences(found, found.span())?)),
        ..SINGLE_PASS
    },
    // The mean over the answer.
    Score {
        key: "deepconf_answer",
        name: "DeepConf, answer",
        meaning: "DeepConf over the answer's tokens",
        compute: |found| Some(mean(&confidences(found, found.answer.clone())?)),
        of_answer: true,
        ..SINGLE_PASS
    },
    // The mean over the last w tokens (eq. 7).
    Score {
        key: "deepconf_tail",
        name: "DeepConf, tail",
        meaning: "DeepConf over the last 2,048 tokens",
        compute: |found| Some(tail(&confidences(found, found.span())?, LONG)),
        ..SINGLE_PASS
    },
    // The mean over the ⌊m/10⌋, at least 1, of m groups with the lowest mean (eq. 5).
    Score {
        key: "deepconf_bottom",
        name: "DeepConf, bottom 10 %",
        meaning: "DeepConf over the least confident tenth of 2,048-token groups",
        compute: |found| Some(bottom(&confidences(found, found.span())?, LONG)),
        ..SINGLE_PASS
    },
    // The lowest mean of a group (eq. 6).
    Score {
        key: "deepconf_lowest",
        name: "DeepConf, lowest",
        meaning: "DeepConf of the least confident 2,048-token group",
        compute: |found| groups(&confidences(found, found.span())?, LONG).into_iter().reduce(f64::min),
        ..SINGLE_PASS
    },
    // The same with w = 64.
    Score {
        key: "deepconf_tail_64",
        name: "DeepConf, tail (64)",
        meaning: "DeepConf over the last 64 tokens",
        compute: |found| Some(tail(&confidences(found, found.span())?, SHORT)),
        ..SINGLE_PASS
    },
    // The same with w = 64.
    Score {
        key: "deepconf_bottom_64",
        name: "DeepConf, bottom 10 % (64)",
        meaning: "DeepConf over the least confident tenth of 64-token groups",
        compute: |found| Some(bottom(&confidences(found, found.span())?, SHORT)),
        ..SINGLE_PASS
    },
    // The same with w = 64.
    Score {
        key: "deepconf_lowest_64",
        name: "DeepConf, lowest (64)",
        meaning: "DeepConf of the least confident 64-token group",
        compute: |found| groups(&confidences(found, found.span())?, SHORT).into_iter().reduce(f64::min),
        ..SINGLE_PASS
    },
];

/// C_t of the tokens at `positions` (absolute); `None` without a wide trace.
fn confidences(found: &Found, positions: Range<usize>) -> Option<Vec<f64>> {
    Some(found.distributions(positions)?.iter().map(|d| -d.top_logprob).collect())
}

/// Means of all groups of `length` consecutive values; of all where there are fewer.
fn groups(values: &[f64], length: usize) -> Vec<f64> {
    let length = length.min(values.len()).max(1);
    values.windows(length).map(mean).collect()
}

fn tail(values: &[f64], length: usize) -> f64 {
    mean(&values[values.len().saturating_sub(length)..])
}

fn bottom(values: &[f64], length: usize) -> f64 {
    let mut groups = groups(values, length);
    groups.sort_by(f64::total_cmp);
    mean(&groups[..(groups.len() / 10).max(1).min(groups.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_slide_by_one_token() {
        let values: Vec<f64> = (0..23).map(f64::from).collect();
        assert_eq!(groups(&values, 4)[..2], [1.5, 2.5]);
        assert_eq!(groups(&values, 30), [11.0]);
        assert_eq!((tail(&values, 3), tail(&values, 30)), (21.0, 11.0));
        // 20 groups, the two lowest
        assert_eq!((bottom(&values, 4), bottom(&values, 30)), (2.0, 11.0));
        assert_eq!((groups(&[], 4), bottom(&[], 4)), (vec![], 0.0));
    }
}
