//! Scores from every head's attention, and from the hidden states of every layer.
//!
//! α_t(l, h) is the weight that head h of layer l assigns, in the row that predicts the
//! response's token t, to the token before it, the row's own. Tokens t = 0..n. Inputs: log-probabilities and a head trace.

use super::{Found, SINGLE_PASS, mean};
use crate::backend::HeadAttention;

scores! {
    SINGLE_PASS:
    // RAUQ (Vazhentsev et al. 2025, arXiv 2505.20045, equations 2 to 5): per layer, the head h with the largest mean α;
    // c_0 = p_0, c_t = a p_t + (1 − a) α_t(l, h) c_{t−1} with a = 0.2; min over the middle third of the layers of (1/n) Σ ln c_t − 1.
    // LM-Polygraph's RAUQ with the sign flipped.
    "rauq", "RAUQ", "token probabilities propagated along the attention to the previous token"
        => rauq;
    // The attention score of LLM-Check (Sriramanan et al. 2024, section 3.2), generated tokens only: mean over the heads of
    // layer ⌊L/2⌋ of Σ_{1 ≤ t < n} ln α_t. LM-Polygraph's AttentionScore with gen_only, sign flipped.
    "attention_score", "Attention score", "log of each token's attention to itself, middle layer"
        => attention_score;
    // The lookback ratio of Lookback Lens (Chuang et al. 2024, arXiv 2407.07071, equations 1 to 3): A(context) / (A(context) +
    // A(new)), the mean weights of a prompt token and of a response token; here averaged over heads, layers and tokens, whereas
    // they train a classifier on it. The first token is left out, since no new token precedes it.
    "lookback_ratio", "Lookback ratio", "share of the attention on the prompt, per token"
        => lookback_ratio;

    // The chain of embeddings (Wang et al. 2025, arXiv 2410.13640): h_l is the hidden state at depth l = 0..=L, from the embedding
    // to the final norm, averaged over the rows that predict the response's tokens. With ‖h_{l+1} − h_l‖ / ‖h_L − h_0‖ = M_l and
    // ∠(h_{l+1}, h_l) / ∠(h_L, h_0) = A_l, l < L, as in the authors' code, except for the first row, where theirs uses the
    // prompt's first token. Always over the whole response, whatever the rules. Input: `--trace layers`.

    // CoE-R: (1/L) Σ M_l − (1/L) Σ A_l
    "coe_r", "Chain of embeddings, real", "layer-to-layer movement of the mean hidden state, minus its turning"
        => |found| {
            let (magnitudes, angles) = chain(found)?;
            Some(mean(&magnitudes) - mean(&angles))
        };
    // CoE-C: |(1/L) Σ M_l e^{i A_l}|
    "coe_c", "Chain of embeddings, complex",
        "layer-to-layer movement and turning of the mean hidden state, as complex numbers"
        => |found| {
            let (magnitudes, angles) = chain(found)?;
            let part = |f: fn(f64) -> f64| magnitudes.iter().zip(&angles).map(|(m, a)| m * f(*a)).collect::<Vec<_>>();
            Some(libm::hypot(mean(&part(libm::cos)), mean(&part(libm::sin))))
        };
}

/// RAUQ's weight of a token's own probability.
const OWN_SHARE: f64 = 0.2;

/// Added to a weight before taking its logarithm, as in LM-Polygraph.
const FLOOR: f64 = 1e-12;

/// For each of the response's tokens, the heads of the row that predicts it, `[layers][heads]`; `None` without a head trace or
/// without tokens.
fn rows<'a>(found: &Found<'a>) -> Option<Vec<&'a [Vec<HeadAttention>]>> {
    let heads = |position: usize| Some(&*found.response.step(position.checked_sub(1)?).heads);
    let rows: Option<Vec<&[Vec<HeadAttention>]>> = found.span().map(heads).collect();
    rows.filter(|rows| !rows.is_empty() && rows.iter().all(|row| !row.is_empty()))
}

fn rauq(found: &Found) -> Option<f64> {
    let rows = rows(found)?;
    let p: Vec<f64> = found.exact_logprobs(found.span()).iter().map(|logprob| libm::exp(*logprob)).collect();
    let layers = rows[0].len();
    let middle = layers / 3..((2 * layers).div_ceil(3) + 1).min(layers);
    middle.map(|layer| mean_confidence(&rows, layer, &p) - 1.0).reduce(f64::min)
}

/// (1/n) Σ ln c_t of one layer.
fn mean_confidence(rows: &[&[Vec<HeadAttention>]], layer: usize, p: &[f64]) -> f64 {
    let own = |head: usize| rows.iter().skip(1).map(move |row| f64::from(row[layer][head].own));
    let total = |head: usize| own(head).sum::<f64>();
    // ties: the lower head
    let head = (1..rows[0][layer].len()).fold(0, |best, head| if total(head) > total(best) { head } else { best });
    let mut confidence = p[0];
    let mut logs = vec![libm::log(confidence)];
    for (p, own) in p[1..].iter().zip(own(head)) {
        confidence = OWN_SHARE * p + (1.0 - OWN_SHARE) * own * confidence;
        logs.push(libm::log(confidence));
    }
    mean(&logs)
}

fn attention_score(found: &Found) -> Option<f64> {
    let rows = rows(found)?;
    let log = |row: &&[Vec<HeadAttention>]| {
        let logs = row[row.len() / 2].iter().map(|head| libm::log(f64::from(head.own) + FLOOR));
        mean(&logs.collect::<Vec<_>>())
    };
    Some(0.0 + rows.iter().skip(1).map(log).sum::<f64>())
}

fn lookback_ratio(found: &Found) -> Option<f64> {
    let (rows, context) = (rows(found)?, found.response.prompt_len as f64);
    let ratio = |(new, head): (f64, &HeadAttention)| {
        let (of_context, of_new) = (f64::from(head.prompt) / context, (1.0 - f64::from(head.prompt)).max(0.0) / new);
        if of_context + of_new > 0.0 { of_context / (of_context + of_new) } else { 0.0 }
    };
    let all = rows.iter().enumerate().skip(1).flat_map(|(new, row)| row.iter().flatten().map(move |h| (new as f64, h)));
    let ratios: Vec<f64> = all.map(ratio).collect();
    (!ratios.is_empty()).then(|| mean(&ratios))
}

/// M_l and A_l; `None` if the means were not recorded, or neither move nor turn.
fn chain(found: &Found) -> Option<(Vec<f64>, Vec<f64>)> {
    let layers = found.response.layer_means;
    let (first, last) = (layers.first()?, layers.last()?);
    let (whole_way, whole_turn) = (distance(first, last), angle(first, last));
    let magnitudes: Vec<f64> = layers.windows(2).map(|pair| distance(&pair[0], &pair[1]) / whole_way).collect();
    let angles: Vec<f64> = layers.windows(2).map(|pair| angle(&pair[0], &pair[1]) / whole_turn).collect();
    magnitudes.iter().chain(&angles).all(|x| x.is_finite()).then_some((magnitudes, angles))
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

fn angle(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    libm::acos((dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()).clamp(-1.0, 1.0))
}
