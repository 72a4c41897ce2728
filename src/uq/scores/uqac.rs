//! UQAC's own: P_attn = ∏ p(chain) ∏ p(answer), P_sim the same over the filtered chain, the mean of p over both, and P, the
//! marginal over the ensemble.

use super::Group::Uqac;
use super::{Found, Score};
use crate::uq::ensemble::marginal;
use crate::uq::predictions::{product_and_mean, token_logprob};

pub(super) const SCORES: &[Score] = &[
    Score {
        key: "p_attn",
        name: "P_attn",
        meaning: "the same over the whole chain",
        group: Uqac,
        place: 2,
        is_probability: true,
        compute: |found| over(found, chain_rows(found)).0,
    },
    Score {
        key: "attn_mean",
        name: "P_attn, mean",
        meaning: "the same over the whole chain",
        group: Uqac,
        place: 4,
        is_probability: true,
        compute: |found| over(found, chain_rows(found)).1,
    },
    Score {
        key: "p_sim",
        name: "P_sim",
        meaning: "probability of the kept chain and the answer",
        group: Uqac,
        place: 1,
        is_probability: true,
        compute: |found| over(found, found.kept.iter().copied()).0,
    },
    Score {
        key: "sim_mean",
        name: "P_sim, mean",
        meaning: "mean token probability, kept chain and answer",
        group: Uqac,
        place: 3,
        is_probability: true,
        compute: |found| over(found, found.kept.iter().copied()).1,
    },
    Score {
        key: "p",
        name: "UQAC P",
        meaning: "probability of the answer over all ways to it in the ensemble: the confidence",
        group: Uqac,
        place: 0,
        is_probability: true,
        compute: |found| marginal(found.ensemble),
    },
];

fn chain_rows(found: &Found) -> impl Iterator<Item = i64> {
    found.chain.iter().map(|link| link.row)
}

/// ∏ p and the mean of p over the tokens that `rows` (relative) predict and the answer's.
fn over(found: &Found, rows: impl Iterator<Item = i64>) -> (f64, f64) {
    let positions = rows.map(|row| found.response.position_after(row)).filter(|at| !found.answer.contains(at));
    let mut logprobs: Vec<f64> = positions.map(|at| token_logprob(found.response, at, found.rules)).collect();
    logprobs.extend(found.answer_logprobs());
    product_and_mean(&logprobs)
}
