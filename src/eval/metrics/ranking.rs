//! Items sorted by score.

/// The items of one rank. Metrics expect them as [`Ranking`] produces them: ranks distinct and descending, so scores
/// never increase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    pub score: f64,
    pub items: u32,
    /// Items with a correct answer.
    pub correct: u32,
}

impl Level {
    /// Items with a wrong answer.
    pub fn wrong(&self) -> u32 {
        self.items - self.correct
    }
}

/// A score and the key that items are ranked by: the score itself or, for a product of probabilities, its logarithm,
/// which still distinguishes values that underflow to 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence {
    pub score: f64,
    /// Non-decreasing in `score`.
    pub rank: f64,
}

impl From<f64> for Confidence {
    fn from(score: f64) -> Confidence {
        Confidence { score, rank: score }
    }
}

/// Totals over levels: items, correct answers.
pub(super) fn totals(levels: &[Level]) -> (u64, u64) {
    levels.iter().fold((0, 0), |(n, c), level| (n + u64::from(level.items), c + u64::from(level.correct)))
}

/// Scored items, sorted once, so that any resampling of them is counted in one pass.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    /// (item's index, confidence, whether its answer is right), most confident first; ties in the given order.
    entries: Vec<(u32, Confidence, bool)>,
}

impl Ranking {
    /// From (item's index, confidence, whether its answer is right); items with a NaN confidence are left out.
    pub fn new<C: Into<Confidence>>(items: impl IntoIterator<Item = (usize, C, bool)>) -> Ranking {
        let entry = |(item, confidence, correct): (usize, C, bool)| {
            let Confidence { score, rank } = confidence.into();
            (item as u32, Confidence { score: score + 0.0, rank: rank + 0.0 }, correct) // -0 is 0
        };
        let mut entries: Vec<_> = items.into_iter().map(entry).filter(|(_, found, _)| !found.rank.is_nan()).collect();
        entries.sort_by(|(_, a, _), (_, b, _)| b.rank.total_cmp(&a.rank));
        Ranking { entries }
    }

    /// From scores and labels of the same length.
    pub fn of(scores: &[f64], labels: &[bool]) -> Ranking {
        Ranking::new(scores.iter().zip(labels).enumerate().map(|(i, (score, label))| (i, *score, *label)))
    }

    /// Items with a score.
    pub fn items(&self) -> usize {
        self.entries.len()
    }

    /// Every item once.
    pub fn levels(&self) -> Vec<Level> {
        self.counted(|_| 1)
    }

    /// Item i `counts[i]` times.
    pub fn resampled(&self, counts: &[u16]) -> Vec<Level> {
        self.counted(|item| u32::from(counts[item as usize]))
    }

    /// Descending by rank; levels without items are left out.
    fn counted(&self, times: impl Fn(u32) -> u32) -> Vec<Level> {
        let mut levels: Vec<Level> = Vec::new();
        let mut last = f64::NAN;
        for &(item, Confidence { score, rank }, correct) in &self.entries {
            let n = times(item);
            if n == 0 {
                continue;
            }
            let right = n * u32::from(correct);
            match levels.last_mut().filter(|_| rank == last) {
                Some(level) => (level.items, level.correct) = (level.items + n, level.correct + right),
                None => levels.push(Level { score, items: n, correct: right }),
            }
            last = rank;
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_are_one_level_and_nan_is_none() {
        let scores = [0.5, f64::NAN, 0.0, 0.9, -0.0, 0.5];
        let ranking = Ranking::of(&scores, &[true, true, true, false, false, false]);
        let level = |score, items, correct| Level { score, items, correct };
        assert_eq!(ranking.levels(), [level(0.9, 1, 0), level(0.5, 2, 1), level(0.0, 2, 1)]);
        let levels = ranking.resampled(&[3, 9, 0, 0, 1, 1]);
        assert_eq!(levels, [level(0.5, 4, 3), level(0.0, 1, 0)]);
        assert_eq!(ranking.items(), 5);
    }
}
