//! UQAC's own scores: P_attn = ∏ p(chain) ∏ p(answer), P_sim, the same over the filtered chain, the mean of p over both,
//! and P, the marginal over the ensemble; and the logarithms of the products.

use super::{Found, UQAC};
use crate::uq::predictions::{chosen, product_and_mean, token_logprob};
use crate::{backend::reference::log_sum_exp, uq::Member, uq::ensemble::marginal};

scores! {
    UQAC:
    "p_attn", "P_attn", "probability of the whole chain and the answer", rank: 2, log: Some("attn_logprob")
        => |found| Some(product_and_mean(&logprobs(found, chain_rows(found))).0);
    "attn_mean", "P_attn, mean", "mean token probability, whole chain and answer", rank: 4
        => |found| Some(product_and_mean(&logprobs(found, chain_rows(found))).1);
    "p_sim", "P_sim", "probability of the kept chain and the answer", rank: 1, log: Some("sim_logprob")
        => |found| Some(product_and_mean(&logprobs(found, found.kept.iter().copied())).0);
    "sim_mean", "P_sim, mean", "mean token probability, kept chain and answer", rank: 3
        => |found| Some(product_and_mean(&logprobs(found, found.kept.iter().copied())).1);
    "p", "UQAC P", "probability of the answer, summed over the ensemble", rank: 0, of_ensemble: true, log: Some("p_logprob")
        => |found| Some(marginal(found.ensemble));
    // For when P_attn underflows.
    "attn_logprob", "ln P_attn", "logarithm of P_attn", rank: 7, is_probability: false
        => |found| Some(logprobs(found, chain_rows(found)).iter().sum());
    // For when P_sim underflows.
    "sim_logprob", "ln P_sim", "logarithm of P_sim", rank: 6, is_probability: false
        => |found| Some(logprobs(found, found.kept.iter().copied()).iter().sum());
    // ln Σ e^{ln P of a member}, for when P underflows.
    "p_logprob", "ln UQAC P", "logarithm of UQAC P", rank: 5, is_probability: false, of_ensemble: true
        => |found| Some(log_marginal(found.ensemble));
}

fn chain_rows(found: &Found) -> impl Iterator<Item = i64> {
    found.chain.iter().map(|link| link.row)
}

/// ln p of the tokens that `rows` (relative) predict and of the answer's.
fn logprobs(found: &Found, rows: impl Iterator<Item = i64>) -> Vec<f64> {
    let positions = rows.map(|row| found.response.position_after(row)).filter(|at| !found.answer.contains(at));
    let positions = chosen(found.response, positions);
    let mut logprobs: Vec<f64> = positions.map(|at| token_logprob(found.response, at, found.rules)).collect();
    logprobs.extend(found.answer_logprobs());
    logprobs
}

/// ln of [`marginal`], without underflow; −∞ without members.
fn log_marginal(members: &[Member]) -> f64 {
    log_sum_exp(&members.iter().map(|member| member.log_answer + member.log_chain).collect::<Vec<_>>()).min(0.0)
}
