//! Maps from scores to probabilities, fitted on labelled items and applied to others.

use crate::{order::sort_by, uq::scores::samples::sigmoid};
use serde::{Deserialize, Serialize};

/// Max Newton steps; a handful suffices.
const STEPS: usize = 100;

/// Platt's sigmoid (Platt 1999): σ(slope · score + intercept).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Platt {
    pub slope: f64,
    pub intercept: f64,
}

impl Platt {
    /// Maximum likelihood with Platt's targets, (n₊ + 1) / (n₊ + 2) for right answers and 1 / (n₋ + 2) for wrong ones, by
    /// Newton's method with step halving (Lin, Lin and Weng 2007). Scores must be finite; `None` without items.
    pub fn fit(scores: &[f64], labels: &[bool]) -> Option<Platt> {
        let n = scores.len() as f64;
        if scores.is_empty() {
            return None;
        }
        // standardised scores, so that one step length suits both parameters
        let centre = scores.iter().sum::<f64>() / n;
        let spread = (scores.iter().map(|score| (score - centre).powi(2)).sum::<f64>() / n).sqrt();
        // for equal scores the mean has a rounding error, and so would the spread
        let spread = if scores.iter().all(|score| *score == scores[0]) { 1.0 } else { spread };
        let right = labels.iter().filter(|label| **label).count() as f64;
        let target = |label: bool| if label { (right + 1.0) / (right + 2.0) } else { 1.0 / (n - right + 2.0) };
        let points: Vec<(f64, f64)> =
            scores.iter().zip(labels).map(|(score, label)| ((score - centre) / spread, target(*label))).collect();
        let [slope, intercept] = minimum(&points);
        Some(Platt { slope: slope / spread, intercept: intercept - slope * centre / spread })
    }

    /// The calibrated probability of a score.
    pub fn at(&self, score: f64) -> f64 {
        sigmoid(self.slope * score + self.intercept)
    }
}

/// The [slope, intercept] that minimises the cross-entropy of targets t under σ(slope · x + intercept), over points (x, t).
fn minimum(points: &[(f64, f64)]) -> [f64; 2] {
    let loss = |[a, b]: [f64; 2]| {
        let of = |(x, t): &(f64, f64)| {
            let z = a * x + b;
            z.max(0.0) - t * z + libm::log1p(libm::exp(-z.abs()))
        };
        points.iter().map(of).sum::<f64>()
    };
    let mut at = [0.0, 0.0];
    for _ in 0..STEPS {
        let step = newton_step(points, at);
        // near the minimum the loss is flat to rounding, while the gradient still has significant digits
        let most = loss(at) * (1.0 + 1e-12);
        let scaled = |halvings| [0, 1].map(|i| at[i] - step[i] * 0.5f64.powi(halvings));
        let Some(next) = (0..34).map(scaled).find(|next| loss(*next) <= most) else { break };
        let moved = (next[0] - at[0]).abs().max((next[1] - at[1]).abs());
        at = next;
        if moved <= 1e-14 {
            break;
        }
    }
    at
}

/// Hessian⁻¹ · gradient of the cross-entropy.
fn newton_step(points: &[(f64, f64)], [a, b]: [f64; 2]) -> [f64; 2] {
    // a small ridge on the diagonal: identical scores leave the slope undetermined
    let (mut haa, mut hab, mut hbb) = (1e-12, 0.0, 1e-12);
    let (mut ga, mut gb) = (0.0, 0.0);
    for (x, t) in points {
        let p = sigmoid(a * x + b);
        let curvature = p * (1.0 - p);
        haa += x * x * curvature;
        hab += x * curvature;
        hbb += curvature;
        ga += x * (p - t);
        gb += p - t;
    }
    let determinant = haa * hbb - hab * hab;
    [(hbb * ga - hab * gb) / determinant, (haa * gb - hab * ga) / determinant]
}

/// Isotonic regression (Zadrozny and Elkan 2002): the non-decreasing map with the least squared error, linear between the
/// scores it was fitted on and constant beyond them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(f64, f64)>")]
pub struct Isotonic(
    /// (score, probability), scores ascending.
    Vec<(f64, f64)>,
);

impl Isotonic {
    /// By pooling adjacent violators. Scores must be finite; `None` without items.
    pub fn fit(scores: &[f64], labels: &[bool]) -> Option<Isotonic> {
        /// Neighbouring scores mapped to one value.
        struct Pool {
            right: f64,
            items: f64,
            /// The lowest and the highest.
            scores: [f64; 2],
        }
        let mut sorted: Vec<(f64, bool)> = scores.iter().copied().zip(labels.iter().copied()).collect();
        sort_by(&mut sorted, |a, b| a.0.total_cmp(&b.0));
        let mut pools: Vec<Pool> = Vec::new();
        for equal in sorted.chunk_by(|a, b| a.0 == b.0) {
            let right = equal.iter().filter(|(_, label)| *label).count() as f64;
            let mut pool = Pool { right, items: equal.len() as f64, scores: [equal[0].0; 2] };
            while let Some(before) = pools.pop_if(|before| before.right * pool.items >= pool.right * before.items) {
                let scores = [before.scores[0], pool.scores[1]];
                pool = Pool { right: pool.right + before.right, items: pool.items + before.items, scores };
            }
            pools.push(pool);
        }
        // within a pool the map is constant, so its ends suffice
        let ends = |pool: &Pool| {
            let [low, high] = pool.scores;
            let at = pool.right / pool.items;
            if low == high { vec![(low, at)] } else { vec![(low, at), (high, at)] }
        };
        let knots: Vec<(f64, f64)> = pools.iter().flat_map(ends).collect();
        (!knots.is_empty()).then_some(Isotonic(knots))
    }

    /// The calibrated probability of a score.
    pub fn at(&self, score: f64) -> f64 {
        let above = self.0.partition_point(|(knot, _)| *knot < score);
        match (self.0.get(above.wrapping_sub(1)), self.0.get(above)) {
            (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * ((score - x0) / (x1 - x0)),
            (Some((_, y)), None) | (None, Some((_, y))) => *y,
            (None, None) => unreachable!("fitted on at least one item"),
        }
    }
}

impl TryFrom<Vec<(f64, f64)>> for Isotonic {
    type Error = &'static str;

    fn try_from(knots: Vec<(f64, f64)>) -> Result<Isotonic, &'static str> {
        let ascending = knots.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let within = knots.iter().all(|(score, p)| score.is_finite() && (0.0..=1.0).contains(p));
        let found = Some(knots).filter(|knots| ascending && within && !knots.is_empty()).map(Isotonic);
        found.ok_or("knots: expected pairs of ascending numbers, the second from 0 to 1")
    }
}

/// −ln(−ln p) from ln p, kept finite: from its value for the smallest positive f64 (unless the logarithm is lower) to that
/// for the largest f64 below 1.
pub fn log_log(log: f64) -> f64 {
    /// ln of the smallest positive f64: the best substitute for a probability of 0.
    const LEAST: f64 = -745.2;
    let log = if log.is_finite() { log } else { LEAST };
    -libm::log(-log.min(libm::log(1.0f64.next_down())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platts_gradient_vanishes() {
        let scores = [3.0, 2.5, 2.0, -1.0, 0.5, 10.0, -4.0, 1.0];
        let labels = [true, true, false, false, true, true, false, false];
        let platt = Platt::fit(&scores, &labels).unwrap();
        let target = |label: bool| if label { 5.0 / 6.0 } else { 1.0 / 6.0 };
        let errors = || scores.iter().zip(&labels).map(|(s, l)| (platt.at(*s) - target(*l), *s));
        assert!(errors().map(|(e, _)| e).sum::<f64>().abs() < 1e-9);
        assert!(errors().map(|(e, s)| e * s).sum::<f64>().abs() < 1e-9);
        assert!(platt.slope > 0.0);
    }

    /// Scores in steps of 0.1 and labels that follow them, from a linear congruential generator.
    fn made_up() -> (Vec<f64>, Vec<bool>) {
        let mut state: u64 = 12345;
        let mut uniform = || {
            state = (1_103_515_245 * state + 12345) % (1 << 31);
            state as f64 / f64::from(1u32 << 31)
        };
        let item = |_| {
            let score = ((uniform() * 4.0 - 2.0) * 10.0).round() / 10.0;
            (score, uniform() < 1.0 / (1.0 + (-1.5 * score - 0.3).exp()))
        };
        (0..60).map(item).unzip()
    }

    #[test]
    fn as_scikit_learn_fits_them() {
        let (scores, labels) = made_up();
        assert_eq!(labels.iter().filter(|label| **label).count(), 40);
        // sklearn 1.9.1: calibration._sigmoid_calibration, which stops at a gradient of 1e-6
        let platt = Platt::fit(&scores, &labels).unwrap();
        assert!((platt.slope - 1.407_856_711_285_776_7).abs() < 1e-5, "{platt:?}");
        assert!((platt.intercept - 0.858_201_923_200_857).abs() < 1e-5, "{platt:?}");
        // and isotonic.IsotonicRegression(out_of_bounds="clip")
        let isotonic = Isotonic::fit(&scores, &labels).unwrap();
        let expected = [
            (-3.0, 0.0),
            (-2.0, 0.0),
            (-1.55, 1.0 / 7.0),
            (-0.93, 0.235),
            (-0.31, 2.0 / 3.0),
            (0.0, 8.0 / 9.0),
            (0.07, 8.0 / 9.0),
            (0.5, 8.0 / 9.0),
            (1.23, 0.922_222_222_222_222_2),
            (1.9, 1.0),
            (5.0, 1.0),
        ];
        for (score, value) in expected {
            assert!((isotonic.at(score) - value).abs() < 1e-12, "{score}: {} not {value}", isotonic.at(score));
        }
    }

    #[test]
    fn platt_of_little() {
        assert_eq!(Platt::fit(&[], &[]), None);
        // identical scores: the mean target, (3·(4/5) + 1/3) / 4
        let same = Platt::fit(&[0.7; 4], &[true, true, true, false]).unwrap();
        assert!((same.at(0.7) - (3.0 * 0.8 + 1.0 / 3.0) / 4.0).abs() < 1e-9);
        let one_class = Platt::fit(&[0.1, 0.9], &[true, true]).unwrap();
        assert!((one_class.at(0.5) - 0.75).abs() < 1e-9);
        // perfectly separated: the targets keep it finite
        let apart = Platt::fit(&[0.0, 1.0, 2.0, 3.0], &[false, false, true, true]).unwrap();
        assert!(apart.slope.is_finite() && apart.at(3.0) < 1.0);
    }

    #[test]
    fn isotonic_by_hand() {
        let labels = [false, true, false, true, true];
        let fitted = Isotonic::fit(&[0.1, 0.2, 0.3, 0.4, 0.5], &labels).unwrap();
        assert_eq!([0.0, 0.1, 0.2, 0.25, 0.3, 0.4, 9.0].map(|s| fitted.at(s)), [0.0, 0.0, 0.5, 0.5, 0.5, 1.0, 1.0]);
        assert!((fitted.at(0.15) - 0.25).abs() < 1e-12);
        // equal scores merge; falling labels form one pool
        let falling = Isotonic::fit(&[0.9, 0.1, 0.9, 0.1], &[false, true, true, true]).unwrap();
        assert_eq!(falling.at(0.5), 0.75);
        assert_eq!(Isotonic::fit(&[], &[]), None);
    }

    #[test]
    fn the_scale_of_probabilities_is_finite() {
        assert!((log_log(-1.0), log_log(-f64::exp(3.0))) == (0.0, -3.0));
        // near 1 it is the log-odds: −ln p = (1 - p)(1 + (1 - p)/2 + …)
        assert!((log_log(0.999f64.ln()) - 999f64.ln()).abs() < 0.001);
        let ascending = [f64::NEG_INFINITY, -1e-3, -1e-17, 0.0].map(log_log);
        assert!(ascending.is_sorted() && ascending.iter().all(|x| x.is_finite()), "{ascending:?}");
    }
}
