//! From one row's logits to what the method keeps of them.

use super::norm;
use super::simd::Isa;
use crate::backend::{Next, Prediction, Step, TokenLogprob};

/// Alternatives with a probability above this are reported.
const MIN_PROBABILITY: f64 = 0.01;

/// At least this many of the most probable tokens are reported.
const MIN_TOP: usize = 5;

/// The step and the token that one row's logits `[vocab_size]` (softcapped) give; `None` if they are not finite.
pub fn read_logits(isa: Isa, logits: &[f32], request: &Prediction) -> Option<(Step, Option<u32>)> {
    let token = match request.next {
        Next::Given(token) => token,
        Next::Choose(choice) => Some(choice.token(logits)),
    };
    let (lse, entropy, top) = if request.detail {
        let stats = norm::softmax_stats(isa, logits);
        (stats.lse, stats.entropy, alternatives(logits, stats.lse))
    } else {
        (norm::log_sum_exp(isa, logits).1, 0.0, Vec::new())
    };
    let logprob = token.map(|t| f64::from(logits[t as usize]) - lse);
    (lse.is_finite() && entropy.is_finite()).then_some((Step { logprob, entropy, top }, token))
}

/// The most probable tokens, best first: every one above [`MIN_PROBABILITY`], and at least [`MIN_TOP`].
fn alternatives(logits: &[f32], lse: f64) -> Vec<TokenLogprob> {
    let logprob = |(token, x): (u32, f32)| TokenLogprob { token, logprob: f64::from(x) - lse };
    // fewer than 1 / MIN_PROBABILITY tokens can be that probable
    let max = (1.0 / MIN_PROBABILITY) as usize;
    let threshold = (lse + MIN_PROBABILITY.ln()) as f32;
    let likely = logits.iter().filter(|x| **x >= threshold).count();
    let mut top: Vec<TokenLogprob> = norm::top_k(logits, likely.clamp(MIN_TOP, max)).into_iter().map(logprob).collect();
    let keep = top.iter().take_while(|t| t.logprob > MIN_PROBABILITY.ln()).count().max(MIN_TOP);
    top.truncate(keep);
    top
}
