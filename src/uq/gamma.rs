//! γ, the reweighting of the nearest positions, from a model's own attention.
//!
//! A row attends most to what it has just written, whatever that says. The method discounts the C = 10 nearest positions
//! by γ so that they count as much as those farther away. Here γ is measured: the mean attention at each distance, over
//! rows and heads, first token and own position left out (as the method leaves them out), and
//! γ_i = (mean attention at distance C + 1) / (mean attention at distance i), at most 1.

use crate::backend::entropy::{GAMMA, reweighting};

/// C: how many of the nearest positions are discounted.
pub const NEAREST: usize = GAMMA.len();

/// Distances that are measured.
const SPAN: usize = 2 * NEAREST;

/// Attention by distance, summed over rows and heads.
#[derive(Clone, Debug)]
pub struct AttentionByDistance {
    /// Σ of shares at distance i + 1
    sums: [f64; SPAN],
    /// Rows times heads.
    rows: usize,
}

/// γ as measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct GammaFit {
    /// Rows times heads that were averaged.
    pub rows: usize,
    /// Mean share of a row's attention at distance i + 1.
    pub attention: Vec<f64>,
    /// Mean share at distance C + 1, the first that is not discounted.
    pub level: f64,
    /// γ_i, nearest first.
    pub gamma: Vec<f64>,
    /// The published γ_i.
    pub published: Vec<f64>,
    /// Root mean square of their difference.
    pub difference: f64,
}

impl Default for AttentionByDistance {
    fn default() -> AttentionByDistance {
        AttentionByDistance { sums: [0.0; SPAN], rows: 0 }
    }
}

impl AttentionByDistance {
    /// Adds a head's reweighted attention α' of row T, `[T + 1]`. Rows too short for all distances are left out, as are
    /// heads without attention.
    pub fn add(&mut self, reweighted: &[f32]) {
        let row = reweighted.len().saturating_sub(1);
        if row <= SPAN {
            return;
        }
        let share = |t: usize| f64::from(reweighted[t]) / f64::from(reweighting(row, t));
        let total: f64 = (1..row).map(share).sum();
        if total > 0.0 {
            for (sum, t) in self.sums.iter_mut().zip((0..row).rev()) {
                *sum += share(t) / total;
            }
            self.rows += 1;
        }
    }

    /// γ, if anything was added.
    pub fn fit(&self) -> Option<GammaFit> {
        if self.rows == 0 {
            return None;
        }
        let attention: Vec<f64> = self.sums.iter().map(|sum| sum / self.rows as f64).collect();
        let level = attention[NEAREST];
        let gamma: Vec<f64> = attention[..NEAREST].iter().map(|a| if *a > level { level / a } else { 1.0 }).collect();
        let squares: f64 = gamma.iter().zip(GAMMA).map(|(ours, theirs)| (ours - theirs).powi(2)).sum();
        let difference = (squares / NEAREST as f64).sqrt();
        Some(GammaFit { rows: self.rows, attention, level, gamma, published: GAMMA.to_vec(), difference })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// α' of a row whose attention at distance d is `attention(d)`.
    fn reweighted(row: usize, attention: impl Fn(usize) -> f64) -> Vec<f32> {
        let weights: Vec<f64> = (0..=row).map(|t| f64::from(reweighting(row, t)) * attention(row - t)).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|w| (w / total) as f32).collect()
    }

    #[test]
    fn the_attention_that_was_reweighted_comes_out() {
        // flat from distance 11 on, 1/γ before: exactly what γ undoes
        let mut attention = AttentionByDistance::default();
        for row in [25, 60, 300] {
            attention.add(&reweighted(row, |d| d.checked_sub(1).and_then(|i| GAMMA.get(i)).map_or(1.0, |g| 1.0 / g)));
        }
        let fit = attention.fit().unwrap();
        assert_eq!(fit.rows, 3);
        // α' is in f32: relative errors of 2^-24 per share and of their sum
        assert!(fit.difference < 1e-6, "{fit:?}");
    }

    #[test]
    fn rows_that_say_nothing_are_left_out() {
        let mut attention = AttentionByDistance::default();
        attention.add(&[]);
        attention.add(&[0.0; 21]);
        attention.add(&[0.0; 200]);
        assert_eq!(attention.fit(), None);
        // attention that grows with distance needs no discount
        attention.add(&reweighted(50, |d| d as f64));
        assert!(attention.fit().unwrap().gamma.iter().all(|g| *g == 1.0));
    }
}
