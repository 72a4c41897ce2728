//! The bootstrap (Efron 1979): how much a metric varies when the items are resampled.

use super::mt19937::{Mt19937, up_to};
use rayon::prelude::*;

/// Draws `items` of `items` with replacement, `resamples` times, and returns the values of `evaluate`, in order.
/// `evaluate` is called with each item's draw count; quantities to be compared must be evaluated on the same draw.
/// Each resample has its own random stream, so the result does not depend on the number of threads.
pub fn resampled<T: Send>(
    items: usize,
    (resamples, seed): (usize, u32),
    evaluate: impl Fn(&[u16]) -> T + Sync,
) -> Vec<T> {
    let one = |counts: &mut Vec<u16>, resample: usize| {
        counts.fill(0);
        let mut random = Mt19937::new(seed ^ (resample as u32 + 1).wrapping_mul(0x9E37_79B9));
        for _ in 0..items {
            let drawn = &mut counts[up_to(&mut random, items as u32 - 1) as usize];
            *drawn = drawn.saturating_add(1);
        }
        evaluate(counts)
    };
    let resamples = if items == 0 { 0 } else { resamples };
    (0..resamples).into_par_iter().map_init(|| vec![0; items], one).collect()
}

/// The 95 % percentile interval: quantiles 0.025 and 0.975, interpolated linearly. `None` unless at least half of the
/// resamples produced a value (single-class ones do not), since the remainder would not be representative.
pub fn interval(values: &[Option<f64>]) -> Option<[f64; 2]> {
    let mut sorted: Vec<f64> = values.iter().copied().flatten().filter(|value| !value.is_nan()).collect();
    if sorted.is_empty() || 2 * sorted.len() < values.len() {
        return None;
    }
    sorted.sort_unstable_by(f64::total_cmp);
    Some([quantile(&sorted, 0.025), quantile(&sorted, 0.975)])
}

/// `sorted` must be ascending and non-empty.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let below = at.floor();
    let low = sorted[below as usize];
    let high = sorted[at.ceil() as usize];
    low + (at - below) * (high - low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_repeatable_whole_and_differ() {
        let draws = resampled(50, (7, 3), <[u16]>::to_vec);
        assert_eq!(draws.len(), 7);
        assert!(draws.iter().all(|counts| counts.iter().map(|&n| u32::from(n)).sum::<u32>() == 50));
        assert_eq!(draws, resampled(50, (7, 3), <[u16]>::to_vec));
        assert!((1..7).all(|i| draws[i] != draws[0]));
        let other = resampled(50, (7, 4), <[u16]>::to_vec);
        assert!(other.iter().all(|counts| !draws.contains(counts)));
        assert!(resampled(0, (7, 3), |_| ()).is_empty());
    }

    #[test]
    fn percentiles_by_hand() {
        let values: Vec<Option<f64>> = (0..=40).rev().map(|i| Some(f64::from(i))).collect();
        assert_eq!(interval(&values), Some([1.0, 39.0]));
        assert_eq!(interval(&[Some(2.0)]), Some([2.0, 2.0]));
        assert_eq!(interval(&[Some(2.0), None, None]), None);
        assert_eq!(interval(&[]), None);
    }

    /// The mean of n uniform values has standard deviation 1/√(12 n): the interval is ±1.96 of it or so.
    #[test]
    fn the_interval_of_a_mean_is_as_wide_as_theory_says() {
        let n = 2000;
        let items: Vec<f64> = (0..n).map(|i| (i as f64 + 0.5) / n as f64).collect();
        let mean =
            |counts: &[u16]| Some(items.iter().zip(counts).map(|(x, c)| x * f64::from(*c)).sum::<f64>() / n as f64);
        let [low, high] = interval(&resampled(n, (1000, 0), mean)).unwrap();
        let expected = 2.0 * 1.96 / (12.0 * n as f64).sqrt();
        // a quantile at 2.5 % from 1000 values has a standard error of about 4 % of the width
        assert!(((high - low) / expected - 1.0).abs() < 0.15, "{low} {high}");
        assert!((low + high - 1.0).abs() < 0.2 * expected);
    }
}
