//! From one row's logits to the values the method keeps of them.

use super::norm::{self, LogitStats};
use super::simd::Isa;
use crate::backend::distribution::{DOMINANT_AMONG, DOMINANT_DROP, Distribution, TOP_LOGPROBS};
use crate::backend::{MIN_TOP, Next, Prediction, Step, TokenLogprob};

/// Alternatives with a probability above this are reported.
const MIN_PROBABILITY: f64 = 0.01;

/// The step and the token from one row's logits `[vocab_size]` (softcapped); `None` if they are not finite. `wide`:
/// whether a detailed step has [`Step::distribution`].
pub fn read_logits(isa: Isa, logits: &[f32], request: &Prediction, wide: bool) -> Option<(Step, Option<u32>)> {
    let token = match request.next {
        Next::Given(token) => token,
        Next::Choose(choice) => Some(choice.token(logits)),
    };
    let mut step = Step::default();
    let stats = norm::softmax_stats(isa, logits);
    let lse = stats.lse;
    if request.detail {
        (step.entropy, step.top) = (stats.entropy, alternatives(logits, lse));
        step.distribution = wide.then(|| distribution(isa, logits, &stats));
    }
    step.logprob = token.map(|t| f64::from(logits[t as usize]) - lse);
    (lse.is_finite() && step.entropy.is_finite()).then_some((step, token))
}

/// The most probable tokens, best first: every one above [`MIN_PROBABILITY`], and at least [`MIN_TOP`].
fn alternatives(logits: &[f32], lse: f64) -> Vec<TokenLogprob> {
    let logprob = |(token, x): (u32, f32)| TokenLogprob { token, logprob: f64::from(x) - lse };
    // fewer than 1 / MIN_PROBABILITY tokens can be that probable
    let max = (1.0 / MIN_PROBABILITY) as usize;
    let likely = count_above(logits, lse + libm::log(MIN_PROBABILITY));
    let mut top: Vec<TokenLogprob> = norm::top_k(logits, likely.clamp(MIN_TOP, max)).into_iter().map(logprob).collect();
    let keep = top.iter().take_while(|t| t.logprob > libm::log(MIN_PROBABILITY)).count().max(MIN_TOP);
    top.truncate(keep);
    top
}

/// Logits that are at least `threshold`.
fn count_above(logits: &[f32], threshold: f64) -> usize {
    let threshold = threshold as f32;
    logits.iter().filter(|x| **x >= threshold).count()
}

fn distribution(isa: Isa, logits: &[f32], stats: &LogitStats) -> Distribution {
    let max = logits[stats.argmax];
    // one more for the drop after the last of them, and one for the threshold's rounding
    let listed = (count_above(logits, stats.lse + libm::log(DOMINANT_DROP)) + 2).clamp(TOP_LOGPROBS, DOMINANT_AMONG);
    let top: Vec<f64> = norm::top_k(logits, listed).into_iter().map(|(_, x)| f64::from(x) - stats.lse).collect();
    Distribution::new(&top, f64::from(max) - stats.lse, &norm::logit_sums(isa, logits, max), logits.len())
}
