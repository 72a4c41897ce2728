//! Answering only above a threshold, with a valid bound on the share of wrong answers.
//!
//! **Guarantee.** The items the threshold is chosen on and future items are drawn independently from one distribution. With
//! probability at least 1 - δ over the former, the risk R(λ) = P(wrong | confidence above λ) of the chosen threshold is at most
//! the target r; if no threshold can be shown to satisfy this, nothing is answered.
//!
//! **Why it holds.** Let λ be the m-th highest of the n confidences, m fixed beforehand, and a the number of items strictly
//! above it. Given λ and a, these a items are independent draws from the items above λ (ties included: the number at λ carries
//! no information about the labels above it), so k, the number of wrong ones among them, is binomial: k ~ Bin(a, R(λ)). If
//! R(λ) > r, then P(Bin(a, R(λ)) ≤ k) ≤ α has probability at most α, and since that tail falls with R(λ), so has
//! P(Bin(a, r) ≤ k) ≤ α, which is equivalent to a Clopper-Pearson upper bound U(k, a, α) ≤ r. So a single λ passes this test
//! while exceeding r with probability at most α, and by Bonferroni's inequality any of [`LEVELS`] does so with at most δ for
//! α = δ / [`LEVELS`]. This is learn-then-test (Angelopoulos et al. 2021) with exact binomial p-values; of the thresholds that
//! pass, the one that answers most is chosen. Testing them in a fixed order, each with all of δ, would need thresholds that do
//! not depend on the items.

/// Candidate thresholds: the confidences at ranks n/20, 2n/20, ..., n. The Bonferroni penalty grows with the
/// logarithm of their number.
pub const LEVELS: usize = 20;

/// P(Bin(n, p) ≤ k), for 0 < p < 1.
pub fn binomial_cdf(k: usize, n: usize, p: f64) -> f64 {
    if k >= n {
        return 1.0;
    }
    // log terms by recurrence, summed relative to the largest
    let odds = libm::log(p) - libm::log1p(-p);
    let mut log = n as f64 * libm::log1p(-p);
    let mut logs = vec![log];
    for i in 0..k {
        log += libm::log((n - i) as f64 / (i + 1) as f64) + odds;
        logs.push(log);
    }
    let max = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logs.iter().map(|log| libm::exp(log - max)).sum();
    libm::exp(max + libm::log(sum)).min(1.0)
}

/// One-sided upper confidence bound of a proportion (Clopper and Pearson 1934): the p with P(Bin(n, p) ≤ k) = α, and 1 if k = n
/// (including n = 0).
pub fn clopper_pearson_upper(k: usize, n: usize, alpha: f64) -> f64 {
    if k >= n {
        return 1.0;
    }
    let (mut low, mut high) = (k as f64 / n as f64, 1.0);
    while high - low > 1e-12 {
        let middle = 0.5 * (low + high);
        if middle <= 0.0 || binomial_cdf(k, n, middle) > alpha { low = middle } else { high = middle }
    }
    high
}

/// A risk limit and the confidence with which it must hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RiskControl {
    /// r: the share of wrong answers among those given, in (0, 1).
    pub target: f64,
    /// 1 - δ, in (0, 1).
    pub confidence: f64,
}

/// A threshold that satisfies a risk limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Controlled {
    /// Items above it are answered.
    pub above: f64,
    /// Upper bound on the risk at confidence 1 - δ, simultaneous over all thresholds.
    pub bound: f64,
}

/// A candidate threshold, the number of items above it, and how many of these are wrong.
struct Level {
    above: f64,
    answered: usize,
    wrong: usize,
}

/// The candidate thresholds with items above them, from (score, whether the answer is right), the one that answers most first.
fn levels(items: &[(f64, bool)]) -> impl Iterator<Item = Level> {
    let mut sorted = items.to_vec();
    crate::order::sort_by(&mut sorted, |a, b| b.0.total_cmp(&a.0));
    let level = move |level: usize| {
        let above = sorted.get((level * sorted.len()).div_ceil(LEVELS).checked_sub(1)?)?.0;
        let answered = sorted.partition_point(|(score, _)| *score > above);
        let wrong = sorted[..answered].iter().filter(|(_, right)| !right).count();
        (answered > 0).then_some(Level { above, answered, wrong })
    };
    (1..=LEVELS).rev().filter_map(level)
}

impl RiskControl {
    /// The probability with which a single threshold may fail.
    fn alpha(&self) -> f64 {
        (1.0 - self.confidence) / LEVELS as f64
    }

    /// The lowest threshold that passes, from (score, whether the answer is right), no score NaN; `None` if none passes.
    pub fn threshold(&self, items: &[(f64, bool)]) -> Option<Controlled> {
        let passes = |level: &Level| binomial_cdf(level.wrong, level.answered, self.target) <= self.alpha();
        let found = levels(items).find(passes)?;
        let bound = clopper_pearson_upper(found.wrong, found.answered, self.alpha());
        Some(Controlled { above: found.above, bound })
    }

    /// The lowest risk that any threshold satisfies at this confidence.
    pub fn lowest_risk(&self, items: &[(f64, bool)]) -> f64 {
        levels(items).map(|of| clopper_pearson_upper(of.wrong, of.answered, self.alpha())).fold(1.0, f64::min)
    }

    /// How many more items like these a threshold would need to pass; `None` if more would not help, as the share of wrong
    /// answers is too high everywhere.
    pub fn more_needed(&self, items: &[(f64, bool)]) -> Option<usize> {
        let passes = |of: &Level, tenths: usize| {
            let (wrong, answered) = ((of.wrong * tenths).div_ceil(10), of.answered * tenths / 10);
            binomial_cdf(wrong, answered, self.target) <= self.alpha()
        };
        let least = |of: Level| {
            // up to about a thousand times the items
            let tried = std::iter::successors(Some(11), |tenths| Some(tenths + tenths / 10)).take(75);
            let low = (of.wrong as f64) < self.target * of.answered as f64;
            tried.into_iter().find(|tenths| low && passes(&of, *tenths))
        };
        levels(items).filter_map(least).min().map(|tenths| (items.len() * (tenths - 10)).div_ceil(10))
    }
}

#[cfg(test)]
mod tests {
    use super::super::mt19937::Mt19937;
    use super::*;

    #[test]
    fn tails_and_bounds_as_in_tables() {
        // by hand: (1-p)^n, and (1-p)^3 + 3p(1-p)^2
        assert!((binomial_cdf(0, 10, 0.3) - 0.7f64.powi(10)).abs() < 1e-15);
        assert!((binomial_cdf(1, 3, 0.2) - 0.896).abs() < 1e-15);
        assert_eq!(binomial_cdf(3, 3, 0.2), 1.0);
        // no failures in n: 1 - α^(1/n); scipy 1.16: beta.ppf(0.975, k + 1, n - k) of (10, 100) and (3, 20)
        assert!((clopper_pearson_upper(0, 29, 0.05) - (1.0 - 0.05f64.powf(1.0 / 29.0))).abs() < 1e-11);
        assert!((clopper_pearson_upper(10, 100, 0.025) - 0.176_222_598).abs() < 1e-8);
        assert!((clopper_pearson_upper(3, 20, 0.025) - 0.378_926_827).abs() < 1e-8);
        assert_eq!((clopper_pearson_upper(0, 0, 0.05), clopper_pearson_upper(4, 4, 0.05)), (1.0, 1.0));
        // far tails do not underflow to nonsense
        let bound = clopper_pearson_upper(500, 20_000, 1e-6);
        assert!(bound > 0.025 && bound < 0.032, "{bound}");
    }

    /// Uniform in [0, 1).
    fn uniform(random: &mut Mt19937) -> f64 {
        f64::from(random.next_u32()) / 4_294_967_296.0
    }

    /// n items with confidence u, uniform (in steps of 1/`steps`, so that there are ties), wrong with probability `wrong(u)`.
    fn items(random: &mut Mt19937, n: usize, steps: f64, wrong: impl Fn(f64) -> f64) -> Vec<(f64, bool)> {
        let item = |_| {
            let u = (uniform(random) * steps).floor() / steps;
            (u, uniform(random) >= wrong(u))
        };
        (0..n).map(item).collect()
    }

    /// Of 2,000 sets of 400 items: how many exceed a true risk of r = 0.2 above `choose`'s threshold, and how many answer.
    fn exceeded(
        steps: f64,
        wrong: impl Fn(f64) -> f64 + Copy,
        choose: impl Fn(&[(f64, bool)]) -> Option<f64>,
    ) -> (usize, usize) {
        let risk_above = |threshold: f64| {
            let above = (0..steps as u32).map(|i| f64::from(i) / steps).filter(|u| *u > threshold);
            let (n, sum) = above.fold((0.0, 0.0), |(n, sum), u| (n + 1.0, sum + wrong(u)));
            if n > 0.0 { sum / n } else { 0.0 }
        };
        let (mut too_high, mut answered) = (0, 0);
        for set in 0..SETS {
            let mut random = Mt19937::new(set as u32 + 7);
            if let Some(threshold) = choose(&items(&mut random, 400, steps, wrong)) {
                answered += 1;
                too_high += usize::from(risk_above(threshold) > TARGET + 1e-12);
            }
        }
        (too_high, answered)
    }

    const SETS: usize = 2000;
    const TARGET: f64 = 0.2;
    const DELTA: f64 = 0.1;

    /// The number of sets in which the bound fails is at most binomial with chance δ: 200 of 2,000 expected, with a standard
    /// deviation of √(2000 · 0.1 · 0.9) = 13.4; chance exceeds five of them only once in three million.
    #[test]
    fn the_risk_is_held_as_often_as_promised() {
        let control = RiskControl { target: TARGET, confidence: 1.0 - DELTA };
        let controlled = |items: &[(f64, bool)]| control.threshold(items).map(|found| found.above);
        let at_most = (SETS as f64 * DELTA + 5.0 * (SETS as f64 * DELTA * (1.0 - DELTA)).sqrt()) as usize;
        // falling risk, with few ties and with many; a risk just too high everywhere; one that rises with confidence
        let falling = |u: f64| 0.6 * (1.0 - u);
        for steps in [1000.0, 8.0] {
            let (too_high, answered) = exceeded(steps, falling, controlled);
            assert!(too_high <= at_most, "{steps}: {too_high} of {answered}");
            assert!(answered > SETS / 3, "{steps}: the bound must be of use: {answered}");
        }
        let (too_high, answered) = exceeded(1000.0, |_| TARGET + 0.001, controlled);
        assert!(too_high <= at_most, "{too_high} of {answered}");
        let (too_high, _) = exceeded(1000.0, |u| 0.1 + 0.3 * u, controlled);
        assert!(too_high <= at_most, "{too_high}");
        // the lowest threshold whose empirical share of wrong answers is at most r guarantees nothing
        let empirical = |items: &[(f64, bool)]| {
            let held = |threshold: f64| {
                let above: Vec<bool> =
                    items.iter().filter(|(score, _)| *score > threshold).map(|(_, right)| *right).collect();
                let wrong = above.iter().filter(|right| !**right).count();
                !above.is_empty() && wrong as f64 <= TARGET * above.len() as f64
            };
            items.iter().map(|(score, _)| *score).filter(|score| held(*score)).reduce(f64::min)
        };
        let (too_high, _) = exceeded(1000.0, falling, empirical);
        assert!(too_high > 2 * at_most, "the simulation must be able to fail: {too_high}");
    }

    #[test]
    fn the_threshold_that_answers_most_is_taken() {
        let control = RiskControl { target: 0.3, confidence: 0.9 };
        let ranked = |right: &dyn Fn(usize) -> bool| -> Vec<(f64, bool)> {
            (0..400).map(|i| (400.0 - i as f64, right(i))).collect()
        };
        // all correct: everything but the last is answered
        assert_eq!(control.threshold(&ranked(&|_| true)).unwrap().above, 1.0);
        // right above, wrong below: as far as the bound allows
        let found = control.threshold(&ranked(&|i| i < 200)).unwrap();
        assert!(found.above < 200.0 && found.bound <= 0.3, "{found:?}");
        assert_eq!(control.threshold(&ranked(&|_| false)), None);
        assert_eq!((control.lowest_risk(&ranked(&|_| false)), control.more_needed(&ranked(&|_| false))), (1.0, None));
        assert!((found.bound - 0.3).abs() < 0.1 && control.lowest_risk(&ranked(&|i| i < 200)) < 0.05);
        // 57 right ones of 60 above the last: 1 - α^(1/57) at α = 0.05/20
        let few: Vec<(f64, bool)> = (0..60).map(|i| (60.0 - f64::from(i), true)).collect();
        let strict = RiskControl { target: 0.05, confidence: 0.95 };
        assert_eq!(strict.threshold(&few), None);
        assert!((strict.lowest_risk(&few) - (1.0 - 0.0025f64.powf(1.0 / 59.0))).abs() < 1e-9);
        // ln α / ln 0.95 = 117 above the threshold
        let more = strict.more_needed(&few).unwrap();
        assert!((59..=72).contains(&more), "{more}");
        assert_eq!(control.threshold(&[]), None);
        // all scores equal: nothing lies above the threshold
        assert_eq!(control.threshold(&vec![(0.5, true); 100]), None);
    }
}
