//! UQAC's own: P_attn = ∏ p(chain) ∏ p(answer), P_sim the same over the filtered chain, the mean of p over both, and P, the
//! marginal over the ensemble; and the logarithms of the products.

use super::Group::Uqac;
use super::{Found, Score};
use crate::uq::Member;
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
        compute: |found| Some(over(found, chain_rows(found)).0),
    },
    Score {
        key: "attn_mean",
        name: "P_attn, mean",
        meaning: "the same over the whole chain",
        group: Uqac,
        place: 4,
        is_probability: true,
        compute: |found| Some(over(found, chain_rows(found)).1),
    },
    Score {
        key: "p_sim",
        name: "P_sim",
        meaning: "probability of the kept chain and the answer",
        group: Uqac,
        place: 1,
        is_probability: true,
        compute: |found| Some(over(found, found.kept.iter().copied()).0),
    },
    Score {
        key: "sim_mean",
        name: "P_sim, mean",
        meaning: "mean token probability, kept chain and answer",
        group: Uqac,
        place: 3,
        is_probability: true,
        compute: |found| Some(over(found, found.kept.iter().copied()).1),
    },
    Score {
        key: "p",
        name: "UQAC P",
        meaning: "probability of the answer over all ways to it in the ensemble: the confidence",
        group: Uqac,
        place: 0,
        is_probability: true,
        compute: |found| Some(marginal(found.ensemble)),
    },
    // P_attn where that underflows.
    Score {
        key: "attn_logprob",
        name: "ln P_attn",
        meaning: "P_attn, as a logarithm",
        group: Uqac,
        place: 7,
        is_probability: false,
        compute: |found| Some(logprobs(found, chain_rows(found)).iter().sum()),
    },
    // P_sim where that underflows.
    Score {
        key: "sim_logprob",
        name: "ln P_sim",
        meaning: "P_sim, as a logarithm",
        group: Uqac,
        place: 6,
        is_probability: false,
        compute: |found| Some(logprobs(found, found.kept.iter().copied()).iter().sum()),
    },
    // ln Σ e^{ln P of a member}: P where that underflows.
    Score {
        key: "p_logprob",
        name: "ln UQAC P",
        meaning: "P, as a logarithm",
        group: Uqac,
        place: 5,
        is_probability: false,
        compute: |found| Some(log_marginal(found.ensemble)),
    },
];

fn chain_rows(found: &Found) -> impl Iterator<Item = i64> {
    found.chain.iter().map(|link| link.row)
}

/// ∏ p and the mean of p over the tokens that `rows` (relative) predict and the answer's.
fn over(found: &Found, rows: impl Iterator<Item = i64>) -> (f64, f64) {
    product_and_mean(&logprobs(found, rows))
}

/// ln p of the tokens that `rows` (relative) predict and of the answer's.
fn logprobs(found: &Found, rows: impl Iterator<Item = i64>) -> Vec<f64> {
    let positions = rows.map(|row| found.response.position_after(row)).filter(|at| !found.answer.contains(at));
    let mut logprobs: Vec<f64> = positions.map(|at| token_logprob(found.response, at, found.rules)).collect();
    logprobs.extend(found.answer_logprobs());
    logprobs
}

/// ln of [`marginal`], relative to its largest member so that it does not underflow; −∞ of no members.
fn log_marginal(members: &[Member]) -> f64 {
    let log = |member: &Member| member.log_answer + member.log_chain;
    let max = members.iter().map(log).fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return max;
    }
    (max + members.iter().map(|member| (log(member) - max).exp()).sum::<f64>().ln()).min(0.0)
}
