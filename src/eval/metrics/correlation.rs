//! Correlation of two series.

/// Pearson's r of pairs of finite numbers; `None` of fewer than three, or where one of the two does not vary.
pub fn pearson(pairs: &[(f64, f64)]) -> Option<f64> {
    let n = pairs.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| pairs.iter().map(value).sum::<f64>() / n;
    let (x, y) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let sum = |value: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|(a, b)| value(a - x, b - y)).sum::<f64>();
    let (xx, yy, xy) = (sum(&|a, _| a * a), sum(&|_, b| b * b), sum(&|a, b| a * b));
    (pairs.len() > 2 && xx > 0.0 && yy > 0.0).then(|| xy / (xx.sqrt() * yy.sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_a_case_by_hand() {
        let rising = [(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)];
        assert!((pearson(&rising).unwrap() - 1.0).abs() < 1e-15);
        assert!((pearson(&rising.map(|(x, y)| (x, -y))).unwrap() + 1.0).abs() < 1e-15);
        // deviations (-1, 0, 1) and (-1, 2, -1): no common part
        assert!(pearson(&[(0.0, 0.0), (1.0, 3.0), (2.0, 0.0)]).unwrap().abs() < 1e-15);
        // deviations (-1, 0, 1) and (-4/3, -1/3, 5/3): 3 / √(2 · 42/9)
        assert!((pearson(&[(0.0, 0.0), (1.0, 1.0), (2.0, 3.0)]).unwrap() - 3.0 / (84.0f64 / 9.0).sqrt()).abs() < 1e-15);
        assert_eq!((pearson(&rising[..2]), pearson(&[(1.0, 2.0); 5])), (None, None));
    }
}
