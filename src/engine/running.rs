//! Running confidence of a response while it is written, and early stopping below a threshold.

use crate::{backend::Step, names::named};
use serde::{Deserialize, Serialize};

/// Default window of a running confidence, in steps: DeepConf's authors use 2,048, but nearly every response is shorter.
pub const WINDOW: usize = 64;

/// The longest window.
pub const MAX_WINDOW: usize = 1 << 20;

named! {
    /// The averaged quantity; higher is more confident. Both come from the step itself, with no further pass.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Measure {
        ///
        /// C_t = −(1/20) Σ_{k ≤ 20} ln p_t(k) over the 20 most probable tokens, so that the mean is DeepConf's group
        /// confidence (Fu et al. 2025, arXiv 2508.15260, eqs. 2 and 4). Needs a wide trace.
        #[default]
        Group = "group": "negative mean log-probability of the top 20 tokens (DeepConf)",
        ///
        /// −H_t, full vocabulary.
        Entropy = "entropy": "negative entropy of the prediction in nats",
    }
}

impl Measure {
    /// Of a step; `None` if its detail was not recorded.
    fn of(self, step: &Step) -> Option<f64> {
        match self {
            Measure::Group => step.distribution.as_ref().map(|distribution| -distribution.top_logprob),
            Measure::Entropy => Some(-step.entropy),
        }
    }
}

/// A response's running confidence: the mean of a measure over the last `window` chosen tokens; none before there are that
/// many. DeepConf's online rule (section 3.3) ends a response when it falls below a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunningConfidence {
    pub measure: Measure,
    pub window: usize,
    /// A response ends with the first token after which its running confidence is lower; `None`: only reported.
    pub stop_below: Option<f64>,
}

impl RunningConfidence {
    /// The running confidence after the last of these steps.
    pub fn after(&self, steps: &[Step]) -> Option<f64> {
        let chosen = steps.iter().rev().filter(|step| !step.forced).take(self.window);
        let last: Vec<&Step> = chosen.collect();
        let sum: Option<f64> = last.iter().rev().map(|step| self.measure.of(step)).sum();
        sum.filter(|_| last.len() == self.window).map(|sum| sum / self.window as f64)
    }

    /// Whether a response with this running confidence ends here.
    pub fn stops(&self, confidence: Option<f64>) -> bool {
        confidence.zip(self.stop_below).is_some_and(|(confidence, threshold)| confidence < threshold)
    }

    /// New minima of the running confidence over these steps: (tokens written by then, its value). A threshold ends the
    /// response at the first of them below it.
    pub fn lows(&self, steps: &[Step]) -> Vec<(usize, f64)> {
        let mut lows: Vec<(usize, f64)> = Vec::new();
        for tokens in self.window..=steps.len() {
            let confidence = self.after(&steps[..tokens]);
            if let Some(found) = confidence.filter(|found| lows.last().is_none_or(|(_, low)| found < low)) {
                lows.push((tokens, found));
            }
        }
        lows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(entropies: &[f64]) -> Vec<Step> {
        entropies.iter().map(|&entropy| Step { entropy, ..Step::default() }).collect()
    }

    #[test]
    fn it_is_the_mean_of_a_full_window() {
        let running = RunningConfidence { measure: Measure::Entropy, window: 2, stop_below: Some(-2.0) };
        let steps = steps(&[1.0, 2.0, 2.0, 3.0, 0.0, 9.0]);
        let after: Vec<Option<f64>> = (0..=6).map(|n| running.after(&steps[..n])).collect();
        assert_eq!(after, [None, None, Some(-1.5), Some(-2.0), Some(-2.5), Some(-1.5), Some(-4.5)]);
        let stops: Vec<bool> = after.iter().map(|confidence| running.stops(*confidence)).collect();
        assert_eq!(stops, [false, false, false, false, true, false, true]);
        assert_eq!(running.lows(&steps), [(2, -1.5), (3, -2.0), (4, -2.5), (6, -4.5)]);
        assert!(!RunningConfidence { stop_below: None, ..running }.stops(Some(f64::NEG_INFINITY)));
        assert_eq!(RunningConfidence { measure: Measure::Group, ..running }.after(&steps), None, "not recorded");
    }
}
