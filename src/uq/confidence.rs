//! From a traced response to its confidences; the whole method is [`assess`], read from top to bottom.

use super::{Link, Member, Outcome, Parameters, Profile, Response, Scores, Traced};
use super::{baselines, chain, ensemble, similarity};
use std::ops::Range;

/// UQAC: response → attention chain → similarity filter → ensemble → confidence.
///
/// `answer` are the positions (absolute) of the answer's tokens, inside the response; what lies outside is cut off, and
/// an answer without tokens has confidence 0. Fails only where the engine does.
pub fn assess<T: Traced>(
    response: &Response,
    answer: Range<usize>,
    parameters: &Parameters,
    traced: &mut T,
) -> Result<Outcome, T::Error> {
    let answer = inside_response(response, answer);
    let chain = chain::attention_chain(response, answer.clone(), parameters, traced)?;
    assess_with_chain(response, answer, chain, parameters, traced)
}

/// [`assess`] from a given chain on, for ablations: random tokens, all tokens, the chain of another profile. Its rows may
/// come in any order; those outside the response are dropped, a repeated one counts once. Similarities are measured here.
pub fn assess_with_chain<T: Traced>(
    response: &Response,
    answer: Range<usize>,
    mut chain: Vec<Link>,
    parameters: &Parameters,
    traced: &mut T,
) -> Result<Outcome, T::Error> {
    let answer = inside_response(response, answer);
    let last = response.relative_row(response.tokens.len());
    chain.retain(|link| (-1..last).contains(&link.row));
    chain.sort_by_key(|link| link.row);
    chain.dedup_by_key(|link| link.row);
    similarity::measure(response, answer.clone(), &mut chain, traced)?;
    let kept = similarity::filter(response, answer.clone(), &chain, parameters);
    let variants = ensemble::candidates(response, &kept, parameters);
    let members = ensemble::score(response, answer.clone(), &kept, &variants, parameters, traced)?;
    let scores = scores(response, &answer, &chain, &kept, &members, parameters.profile);
    Ok(Outcome { answer, chain, kept, ensemble: members, scores })
}

/// The part of `answer` inside the response; the sequence's very first token has no row that predicts it.
fn inside_response(response: &Response, answer: Range<usize>) -> Range<usize> {
    let end = answer.end.min(response.tokens.len());
    let start = answer.start.max(response.prompt_len).max(1).min(end.max(1));
    start..end.max(start)
}

/// Every confidence: what [`Scores`] says of each, over the probabilities that the profile reads.
fn scores(
    response: &Response,
    answer: &Range<usize>,
    chain: &[Link],
    kept: &[i64],
    members: &[Member],
    profile: Profile,
) -> Scores {
    let logprob = |position: usize| baselines::token_logprob(response, position, profile);
    let of_answer: Vec<f64> =
        if answer.is_empty() { vec![f64::NEG_INFINITY] } else { answer.clone().map(logprob).collect() };
    let with_answer = |rows: &[i64]| -> (f64, f64) {
        let positions = rows.iter().map(|&row| response.position_after(row)).filter(|at| !answer.contains(at));
        let mut logprobs: Vec<f64> = positions.map(logprob).collect();
        logprobs.extend(&of_answer);
        baselines::product_and_mean(&logprobs)
    };
    let (answer_prob, answer_mean) = baselines::product_and_mean(&of_answer);
    let (p_attn, attn_mean) = with_answer(&chain.iter().map(|link| link.row).collect::<Vec<_>>());
    let (p_sim, sim_mean) = with_answer(kept);

    let of_response: Vec<f64> = baselines::response_positions(response, answer, profile).map(logprob).collect();
    let (response_prob, response_mean) = baselines::product_and_mean(&of_response);
    let (predictive_entropy, ln_predictive_entropy) =
        baselines::predictive_entropy(&baselines::response_entropies(response, answer, profile));
    let (answer_entropy, ln_answer_entropy) =
        baselines::predictive_entropy(&baselines::entropies(response, answer.clone(), profile));

    // The cheap rivals are not the authors': they read exact probabilities under every profile.
    let counted = match profile {
        Profile::Corrected => response.prompt_len..answer.end,
        Profile::Reference | Profile::Paper => response.prompt_len..response.tokens.len(),
    };
    let exact: Vec<f64> = counted.map(|position| response.logprob_at(position)).collect();

    Scores {
        answer_prob,
        answer_mean,
        response_prob,
        response_mean,
        p_attn,
        attn_mean,
        p_sim,
        sim_mean,
        p: ensemble::marginal(members),
        predictive_entropy,
        ln_predictive_entropy,
        answer_entropy,
        ln_answer_entropy,
        trace_length: -(exact.len() as f64),
        min_token_prob: baselines::min_token_prob(&exact),
        lowest_window: baselines::lowest_window(&exact),
    }
}
