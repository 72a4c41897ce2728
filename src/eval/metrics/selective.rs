//! Selective answering: risk by coverage, most confident first.

use super::ranking::{Level, totals};
use serde::Serialize;

/// Maximum share rejected in [`prr`].
pub const MAX_REJECTED: f64 = 0.5;

/// A point of the risk-coverage curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The lowest score that is answered.
    pub threshold: f64,
    /// Share of the items that are answered.
    pub coverage: f64,
    /// Share of wrong answers among them.
    pub risk: f64,
}

/// The risk-coverage curve (El-Yaniv and Wiener 2010): one point for each distinct score, from the highest down.
pub fn risk_coverage(levels: &[Level]) -> Vec<CurvePoint> {
    let (all, _) = totals(levels);
    let (mut items, mut wrong) = (0u64, 0u64);
    let point = |level: &Level| {
        items += u64::from(level.items);
        wrong += u64::from(level.wrong());
        CurvePoint { threshold: level.score, coverage: items as f64 / all as f64, risk: wrong as f64 / items as f64 }
    };
    levels.iter().map(point).collect()
}

/// Area under the risk-coverage curve: the mean over k = 1..=n of the share of wrong answers among the k most confident
/// (Geifman, Uziel and El-Yaniv 2019). Lower is better. `None` without items.
pub fn aurc(levels: &[Level]) -> Option<f64> {
    let (all, _) = totals(levels);
    (all > 0).then(|| risks_from(levels, 1) / all as f64)
}

/// Prediction rejection ratio: the share of an oracle's gain over chance that the scores achieve by rejecting the least
/// confident half, in the area under accuracy against rejection (Malinin and Gales 2021; in the form of Vashurin et al.
/// 2025: accuracy of the answers kept, up to half rejected. Over all rejections and all items, the first form equals
/// 2 AUROC - 1 and would add nothing). 1 is perfect, 0 chance. `None` for a single class or fewer than two items.
pub fn prr(levels: &[Level]) -> Option<f64> {
    let (all, right) = totals(levels);
    let rejections = (MAX_REJECTED * all as f64) as u64;
    if rejections == 0 || right == 0 || right == all {
        return None;
    }
    let first = all - rejections + 1;
    let chance = rejections as f64 * (all - right) as f64 / all as f64;
    let oracle: f64 = (first.max(right + 1)..=all).map(|kept| (kept - right) as f64 / kept as f64).sum();
    Some((chance - risks_from(levels, first)) / (chance - oracle))
}

/// Σ over k = first..=n of the expected share of wrong answers among the k most confident; tied items in random order.
fn risks_from(levels: &[Level], first: u64) -> f64 {
    let (mut above, mut wrong_above, mut sum) = (0u64, 0.0, 0.0);
    for level in levels {
        let wrong = f64::from(level.wrong());
        let each = wrong / f64::from(level.items);
        for within in first.saturating_sub(above).max(1)..=u64::from(level.items) {
            sum += (wrong_above + each * within as f64) / (above + within) as f64;
        }
        above += u64::from(level.items);
        wrong_above += wrong;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::Ranking;
    use super::*;

    fn levels(scores: &[f64], labels: &[bool]) -> Vec<Level> {
        Ranking::of(scores, labels).levels()
    }

    #[test]
    fn small_cases_by_hand() {
        let mixed = levels(&[0.9, 0.8, 0.7, 0.6], &[true, false, true, false]);
        // risks 0, 1/2, 1/3, 1/2
        assert!((aurc(&mixed).unwrap() - (0.5 + 1.0 / 3.0 + 0.5) / 4.0).abs() < 1e-15);
        // two rejections, 4 and 3 kept: chance 1/2 + 1/2, oracle 1/2 + 1/3, this 1/2 + 1/3
        assert!((prr(&mixed).unwrap() - 1.0).abs() < 1e-15);
        let curve = risk_coverage(&mixed);
        assert_eq!(curve.iter().map(|p| p.coverage).collect::<Vec<_>>(), [0.25, 0.5, 0.75, 1.0]);
        assert_eq!(curve[2], CurvePoint { threshold: 0.7, coverage: 0.75, risk: 1.0 / 3.0 });
    }

    #[test]
    fn perfect_reversed_and_constant_scores() {
        let labels: Vec<bool> = (0..10).map(|i| i < 6).collect();
        let ascending: Vec<f64> = (0..10).map(f64::from).collect();
        let descending: Vec<f64> = ascending.iter().map(|s| -s).collect();
        assert!((prr(&levels(&descending, &labels)).unwrap() - 1.0).abs() < 1e-12);
        assert!(prr(&levels(&ascending, &labels)).unwrap() < 0.0);
        let constant = levels(&[0.5; 10], &labels);
        assert!(prr(&constant).unwrap().abs() < 1e-12);
        assert!((aurc(&constant).unwrap() - 0.4).abs() < 1e-12);
        assert_eq!(risk_coverage(&constant).len(), 1);
    }

    #[test]
    fn ties_are_the_mean_over_their_orders() {
        let labels = [true, false, true];
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let broken =
            orders.map(|order| aurc(&levels(&order.map(|rank| 0.5 - 0.01 * f64::from(rank)), &labels)).unwrap());
        let tied = aurc(&levels(&[0.5; 3], &labels)).unwrap();
        assert!((tied - broken.iter().sum::<f64>() / 6.0).abs() < 1e-15);
    }

    #[test]
    fn undefined_of_one_class_and_of_too_few() {
        assert_eq!((aurc(&[]), prr(&[])), (None, None));
        let one = levels(&[0.5], &[false]);
        assert_eq!((aurc(&one), prr(&one)), (Some(1.0), None));
        assert_eq!(prr(&levels(&[0.5, 0.6], &[true, true])), None);
        assert!(risk_coverage(&[]).is_empty());
    }
}
