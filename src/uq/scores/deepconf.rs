//! DeepConf (Fu et al. 2025, "Deep Think with Confidence", arXiv 2508.15260, section 3; facebookresearch/deepconf): token
//! confidence C_t = −(1/20) Σ_{k ≤ 20} ln p_t(k) over the 20 most probable tokens, full vocabulary (eq. 2), and groups of w
//! consecutive tokens with their mean C (eq. 4). A response of fewer than w tokens is one group. The authors use w = 2,048;
//! nearly every response is shorter, so w = 64 is included too. They round C_t and means to three digits, and their engine
//! adds the sampled token to the 20 if it is not among them; neither is done here. Inputs: a wide trace.

use super::{Found, SINGLE_PASS, mean, window_means};

/// The authors' group size, and one for responses of typical length.
const LONG: usize = 2048;
const SHORT: usize = 64;

scores! {
    SINGLE_PASS:
    // (1/n) Σ C_t (eq. 3).
    "deepconf", "DeepConf", "minus the mean log-probability of the top 20 tokens"
        => |found| Some(mean(&confidences(found, found.span())?));
    // The mean over the answer.
    "deepconf_answer", "DeepConf, answer", "DeepConf over the answer's tokens", of_answer: true
        => |found| Some(mean(&confidences(found, found.answer.clone())?));
    // The mean over the last w tokens (eq. 7).
    "deepconf_tail", "DeepConf, tail", "DeepConf over the last 2,048 tokens"
        => |found| Some(tail(&confidences(found, found.span())?, LONG));
    // The mean over the ⌊m/10⌋ (at least 1) of m groups with the lowest mean (eq. 5).
    "deepconf_bottom", "DeepConf, bottom 10 %", "DeepConf over the least confident tenth of 2,048-token groups"
        => |found| Some(bottom(&confidences(found, found.span())?, LONG));
    // The lowest mean of a group (eq. 6).
    "deepconf_lowest", "DeepConf, lowest", "DeepConf of the least confident 2,048-token group"
        => |found| window_means(&confidences(found, found.span())?, LONG).into_iter().reduce(f64::min);
    // `deepconf_tail` with w = 64.
    "deepconf_tail_64", "DeepConf, tail (64)", "DeepConf over the last 64 tokens"
        => |found| Some(tail(&confidences(found, found.span())?, SHORT));
    // `deepconf_bottom` with w = 64.
    "deepconf_bottom_64", "DeepConf, bottom 10 % (64)", "DeepConf over the least confident tenth of 64-token groups"
        => |found| Some(bottom(&confidences(found, found.span())?, SHORT));
    // `deepconf_lowest` with w = 64.
    "deepconf_lowest_64", "DeepConf, lowest (64)", "DeepConf of the least confident 64-token group"
        => |found| window_means(&confidences(found, found.span())?, SHORT).into_iter().reduce(f64::min);
}

/// C_t of the tokens at `positions` (absolute); `None` without a wide trace.
fn confidences(found: &Found, positions: impl Iterator<Item = usize>) -> Option<Vec<f64>> {
    Some(found.distributions(positions)?.iter().map(|d| -d.top_logprob).collect())
}

fn tail(values: &[f64], length: usize) -> f64 {
    mean(&values[values.len().saturating_sub(length)..])
}

fn bottom(values: &[f64], length: usize) -> f64 {
    let mut groups = window_means(values, length);
    groups.sort_by(f64::total_cmp);
    mean(&groups[..(groups.len() / 10).max(1).min(groups.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_slide_by_one_token() {
        let values: Vec<f64> = (0..23).map(f64::from).collect();
        assert_eq!(window_means(&values, 4)[..2], [1.5, 2.5]);
        assert_eq!(window_means(&values, 30), [11.0]);
        assert_eq!((tail(&values, 3), tail(&values, 30)), (21.0, 11.0));
        // 20 groups, the two lowest
        assert_eq!((bottom(&values, 4), bottom(&values, 30)), (2.0, 11.0));
        assert_eq!((window_means(&[], 4), bottom(&[], 4)), (vec![], 0.0));
    }
}
