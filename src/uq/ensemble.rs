//! The ensemble: the response and its copies with one filtered chain token replaced.

use super::predictions::{TOP, step_of};
use super::{Member, Parameters, Response, TokenLogprob, Traced, Variant, rules::Candidates};
use crate::order::sort_by;
use std::ops::Range;

/// Rounding tolerance beyond P's bounds: the members come from two ways of computing the same model.
const ROUNDING: f64 = 1e-3;

/// The variants: copies of the response with **one** filtered token replaced by an alternative with p > τ.
///
/// `kept` are rows relative to `prompt_len`, ascending. Alternatives are limited to those in [`super::Step::top`] (p > 0.01),
/// so a smaller τ finds no more. Ordered by position and then p, best first; [`Candidates::MostProbable`] by p alone.
pub fn candidates(response: &Response, kept: &[i64], parameters: &Parameters) -> Vec<Variant> {
    match parameters.rules().candidates {
        Candidates::MostProbable => most_probable(response, kept, parameters),
        Candidates::AboveTau => kept.iter().flat_map(|&row| alternatives(response, row, parameters)).collect(),
    }
}

/// Every alternative with p > τ to the token that `row` predicts, best first.
fn alternatives(response: &Response, row: i64, parameters: &Parameters) -> Vec<Variant> {
    let position = response.position_after(row);
    let original = response.tokens.get(position).copied();
    let top = step_of(response, position, parameters.rules()).top.iter();
    let others =
        top.filter(|top| Some(top.token) != original && libm::exp(top.logprob) > parameters.values().min_alternative);
    others.map(|top| Variant { position, token: top.token }).collect()
}

/// [`Candidates::MostProbable`]: the 10 + n most probable (position, token) pairs over all n filtered positions together,
/// originals included, then originals removed. A position's pairs are its top five; if the original is not among them, its
/// row's most probable pair is removed in its place.
fn most_probable(response: &Response, kept: &[i64], parameters: &Parameters) -> Vec<Variant> {
    struct Pair {
        variant: Variant,
        probability: f64,
        original: bool,
    }
    let mut pairs: Vec<Pair> = Vec::new();
    for &row in kept {
        let position = response.position_after(row);
        let predicted = step_of(response, position, parameters.rules());
        let top: Vec<TokenLogprob> = predicted.top.iter().copied().take(TOP).collect();
        let is_original = |top: &TokenLogprob| response.tokens.get(position) == Some(&top.token);
        let original = top.iter().position(is_original).unwrap_or(0);
        pairs.extend(top.iter().enumerate().map(|(column, top)| Pair {
            variant: Variant { position, token: top.token },
            probability: libm::exp(top.logprob),
            original: column == original,
        }));
    }
    pairs.retain(|pair| pair.probability > parameters.values().min_alternative);
    sort_by(&mut pairs, |a, b| b.probability.total_cmp(&a.probability));
    pairs.truncate(parameters.values().max_alternatives + kept.len());
    pairs.iter().filter(|pair| !pair.original).map(|pair| pair.variant).collect()
}

/// ln ∏ p(answer tokens) and ln ∏ p(filtered chain tokens) of every member, over the full vocabulary: first the response itself
/// (its probabilities are known), then `variants` in order, whose later text is kept, not regenerated, and re-scored: one
/// engine call, none without variants.
pub fn score<T: Traced>(
    response: &Response,
    answer: Range<usize>,
    kept: &[i64],
    variants: &[Variant],
    parameters: &Parameters,
    traced: &mut T,
) -> Result<Vec<Member>, T::Error> {
    let mut positions: Vec<usize> = kept.iter().map(|&row| response.position_after(row)).collect();
    positions.extend(answer.clone());
    positions.sort_unstable();
    positions.dedup();

    let floor = parameters.rules().member_floor.ln();
    let member = |variant: Option<&Variant>, logprobs: &[f64]| {
        // an answer without tokens has probability 0
        let (mut log_answer, mut log_chain) = (if answer.is_empty() { f64::NEG_INFINITY } else { 0.0 }, 0.0);
        for (position, logprob) in positions.iter().zip(logprobs) {
            let sum = if answer.contains(position) { &mut log_answer } else { &mut log_chain };
            *sum += logprob.max(floor);
        }
        let (position, token) = variant.map(|variant| (variant.position, variant.token)).unzip();
        Member { position, token, log_answer, log_chain }
    };
    let own: Vec<f64> = positions.iter().map(|&position| response.logprob_at(position)).collect();
    let mut members = vec![member(None, &own)];
    if !variants.is_empty() {
        let rescored = traced.score_variants(variants, &positions)?;
        members.extend(variants.iter().zip(&rescored).map(|(variant, logprobs)| member(Some(variant), logprobs)));
    }
    Ok(members)
}

/// P = Σ over variants of ∏ p(filtered chain tokens) ∏ p(answer tokens). The variants are disjoint, so P_sim ≤ P ≤ 1 up to
/// rounding, which is removed; P_sim is the response's own term, so the sum is never below it.
pub fn marginal(members: &[Member]) -> f64 {
    let sum: f64 = members.iter().map(|member| libm::exp(member.log_answer + member.log_chain)).sum();
    debug_assert!(sum <= 1.0 + ROUNDING, "the ensemble is not disjoint: P = {sum}");
    if sum <= 1.0 + ROUNDING { sum.min(1.0) } else { sum }
}
