//! How well scores discriminate correct from incorrect answers.

use super::ranking::{Level, Ranking, totals};

/// Area under the ROC curve: the probability that a right answer has a higher score than a wrong one, ties counting half
/// (Mann-Whitney U over the number of pairs; Hanley and McNeil 1982). `None` for a single class.
pub fn auroc(levels: &[Level]) -> Option<f64> {
    let (won, pairs) = pairs_won(levels);
    (pairs > 0).then(|| won as f64 / (2 * pairs) as f64)
}

/// Twice the number of correctly ordered (right, wrong) pairs, ties counting half; and the number of pairs.
fn pairs_won(levels: &[Level]) -> (u64, u64) {
    let (mut right_above, mut won, mut wrong) = (0, 0, 0);
    for level in levels {
        let below = u64::from(level.wrong());
        won += below * (2 * right_above + u64::from(level.correct));
        right_above += u64::from(level.correct);
        wrong += below;
    }
    (won, right_above * wrong)
}

/// Average precision: Σ (R_i - R_(i-1)) P_i over the distinct scores from the highest down, a right answer being the
/// positive class (area under the precision-recall curve without interpolation, like scikit-learn's
/// `average_precision_score`). `None` without a right answer.
pub fn auprc(levels: &[Level]) -> Option<f64> {
    let (_, all_right) = totals(levels);
    let (mut items, mut right, mut sum) = (0u64, 0u64, 0.0);
    for level in levels {
        items += u64::from(level.items);
        right += u64::from(level.correct);
        sum += f64::from(level.correct) * (right as f64 / items as f64);
    }
    (all_right > 0).then(|| sum / all_right as f64)
}

/// Number of response-length strata in [`length_controlled_auroc`].
pub const LENGTH_STRATA: usize = 5;

/// AUROC among responses of similar length: over (right, wrong) pairs whose responses lie in the same length quintile. It
/// is the mean of the quintiles' AUROCs weighted by their pair counts (the stratified Mann-Whitney statistic, van Elteren
/// 1960, with pair-count weights), so length alone contributes only through its variation within a quintile. Responses of
/// equal length share a quintile. Items: (score, length, whether the answer is right). `None` if no quintile has both
/// classes.
pub fn length_controlled_auroc(items: &[(f64, usize, bool)]) -> Option<f64> {
    let mut sorted: Vec<&(f64, usize, bool)> = items.iter().filter(|(score, ..)| !score.is_nan()).collect();
    sorted.sort_by_key(|(_, length, _)| *length);
    let mut strata: [Vec<(usize, f64, bool)>; LENGTH_STRATA] = Default::default();
    let mut seen = 0;
    for run in sorted.chunk_by(|a, b| a.1 == b.1) {
        let stratum = &mut strata[LENGTH_STRATA * seen / sorted.len()];
        stratum.extend(run.iter().map(|(score, _, correct)| (0, *score, *correct)));
        seen += run.len();
    }
    let each = strata.into_iter().map(|stratum| pairs_won(&Ranking::new(stratum).levels()));
    let (won, pairs) = each.fold((0, 0), |sum, stratum| (sum.0 + stratum.0, sum.1 + stratum.1));
    (pairs > 0).then(|| won as f64 / (2 * pairs) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(scores: &[f64], labels: &[bool]) -> Vec<Level> {
        Ranking::of(scores, labels).levels()
    }

    #[test]
    fn small_cases_by_hand() {
        // right: 0.9, 0.5; wrong: 0.5, 0.1: pairs 1, 1, 1/2, 1
        let two = levels(&[0.9, 0.5, 0.5, 0.1], &[true, true, false, false]);
        assert_eq!(auroc(&two), Some(0.875));
        // recall 1/2 at precision 1, then 1 at 2/3
        assert_eq!(auprc(&two), Some(0.5 + 0.5 * (2.0 / 3.0)));
        let same = levels(&[0.3; 4], &[true, false, false, false]);
        assert_eq!((auroc(&same), auprc(&same)), (Some(0.5), Some(0.25)));
    }

    #[test]
    fn one_class_or_nothing_has_no_auroc() {
        let right = levels(&[0.1, 0.2], &[true, true]);
        let wrong = levels(&[0.1], &[false]);
        assert_eq!([auroc(&right), auroc(&wrong), auroc(&[])], [None; 3]);
        assert_eq!([auprc(&right), auprc(&wrong), auprc(&[])], [Some(1.0), None, None]);
    }

    #[test]
    fn a_score_that_is_only_length_is_worth_nothing_among_equal_lengths() {
        // longer is wrong more often, the score is the length, and each fifth has one length
        let item = |i: usize| (-((i / 40) as f64), i / 40, i % 40 < 40 - 8 * (i / 40));
        let items: Vec<_> = (0..200).map(item).collect();
        let plain: Vec<_> = items.iter().enumerate().map(|(i, item)| (i, item.0, item.2)).collect();
        assert!(auroc(&Ranking::new(plain).levels()).unwrap() > 0.7);
        assert_eq!(length_controlled_auroc(&items), Some(0.5));
        // a single length: plain AUROC
        let one: Vec<_> = items.iter().map(|item| (item.0, 7, item.2)).collect();
        let plain: Vec<_> = items.iter().enumerate().map(|(i, item)| (i, item.0, item.2)).collect();
        assert_eq!(length_controlled_auroc(&one), auroc(&Ranking::new(plain).levels()));
        assert_eq!(length_controlled_auroc(&[]), None);
    }
}
