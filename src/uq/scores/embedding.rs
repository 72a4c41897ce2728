//! The chain of embeddings (Wang et al. 2025, arXiv 2410.13640): h_l is the hidden state at depth l = 0..=L, from the embedding
//! to the final norm, averaged over the rows that predict the response's tokens. With ‖h_{l+1} − h_l‖ / ‖h_L − h_0‖ = M_l and
//! ∠(h_{l+1}, h_l) / ∠(h_L, h_0) = A_l, l < L, as in the authors' code, except for the first row, where theirs uses the
//! prompt's first token. Always over the whole response, whatever the rules. Input: `--trace layers`.

use super::{Found, SINGLE_PASS, mean};

scores! {
    SINGLE_PASS:
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
            Some(mean(&part(f64::cos)).hypot(mean(&part(f64::sin))))
        };
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
    (dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()).clamp(-1.0, 1.0).acos()
}
