//! The attention that the cases' answers are held to: one row and head in f64, over a cache as it is stored.

use super::data::{U, bound};
use crate::backend::entropy::reweighting;

/// A row's attention with one head, in f64.
pub struct Attended {
    pub out: Vec<f64>,
    /// Σ α |v|, for each of `out`.
    pub magnitudes: Vec<f64>,
    pub scores: Vec<f64>,
    /// The first position that the row attends to.
    pub first: usize,
    pub row: usize,
    /// The largest Σ |q k|.
    pub products: f64,
}

impl Attended {
    pub fn log_sum(&self, weight: impl Fn(usize) -> f64) -> f64 {
        let positions = || self.scores.iter().enumerate().map(|(i, s)| (s, weight(self.first + i)));
        let max = positions().filter(|(_, w)| *w > 0.0).map(|(s, _)| *s).fold(f64::NEG_INFINITY, f64::max);
        max + positions().map(|(s, w)| w * (s - max).exp()).sum::<f64>().ln()
    }

    /// ln Σ e^s
    pub fn lse(&self) -> f64 {
        self.log_sum(|_| 1.0)
    }

    /// α'_t, 0 outside the window.
    pub fn reweighted(&self, t: usize) -> f64 {
        let weight = |t| f64::from(reweighting(self.row, t));
        let score = t.checked_sub(self.first).and_then(|i| self.scores.get(i)).copied();
        score.map_or(0.0, |s| weight(t) * (s - self.log_sum(weight)).exp())
    }

    pub fn entropy(&self) -> f64 {
        let alpha = (self.first..=self.row).map(|t| self.reweighted(t)).filter(|a| *a > 0.0);
        -alpha.map(|a| a * a.ln()).sum::<f64>()
    }

    /// What a score may lose: three products of terms for each 16 dimensions, and the product of two second terms, 2^-22,
    /// which is left out; as much again where a query's terms lose it.
    pub fn score_bound(&self, head_dim: usize) -> f64 {
        self.products * (bound(3 * head_dim.div_ceil(16), head_dim / 8 + 8) + 8.0 * U)
    }
}
