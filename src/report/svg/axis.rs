//! Axes: mapping from data to picture units, and tick positions.

use super::text::{self, SMALL};

/// Scale of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    pub label: String,
    /// The two ends; `domain.0 < domain.1`, both finite.
    pub domain: (f64, f64),
    /// Ascending.
    pub ticks: Vec<(f64, String)>,
}

/// Approximate number of ticks on an axis.
const TICKS: f64 = 5.0;

impl Axis {
    /// From 0 to 1.
    pub fn unit(label: &str) -> Axis {
        let ticks = (0..=5).map(|i| (f64::from(i) / 5.0, format!("{:.1}", f64::from(i) / 5.0))).collect();
        Axis { label: label.to_owned(), domain: (0.0, 1.0), ticks }
    }

    /// Shares as percentages, from 0 to the first tick at or above `max`.
    pub fn percent(label: &str, max: f64) -> Axis {
        let axis = Axis::to(label, (max * 100.0).min(100.0));
        let ticks = axis.ticks.into_iter().map(|(at, text)| (at / 100.0, format!("{text} %"))).collect();
        Axis { label: axis.label, domain: (0.0, axis.domain.1 / 100.0), ticks }
    }

    /// From 0 to the first tick at or above `max`.
    pub fn to(label: &str, max: f64) -> Axis {
        Axis::between(label, 0.0, if max.is_finite() && max > 0.0 { max } else { 1.0 })
    }

    /// Spans the finite values.
    pub fn around(label: &str, numbers: impl IntoIterator<Item = f64>) -> Axis {
        const FURTHEST: f64 = 1e300; // keeps differences finite
        let finite = numbers.into_iter().filter(|x| x.is_finite()).map(|x| x.clamp(-FURTHEST, FURTHEST));
        let (mut low, mut high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        // (Nearly) a single value: add some room around it.
        if high - low <= low.abs().max(high.abs()) * 1e-9 {
            let room = (low.abs() * 0.1).max(0.5);
            (low, high) = (low - room, high + room);
        }
        Axis::between(label, low, high)
    }

    /// From the last tick at or below `low` to the first at or above `high`.
    fn between(label: &str, low: f64, high: f64) -> Axis {
        let step = step(high - low);
        let (first, last) = ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
        Axis { label: label.to_owned(), domain: (first, last), ticks: ticks(first, last, step) }
    }

    /// For an axis of values ≥ 0: extends it below zero, with tick labels without signs.
    pub fn mirrored(self) -> Axis {
        let half: Vec<_> = self.ticks.iter().step_by(self.ticks.len().div_ceil(4)).cloned().collect();
        let below = half.iter().skip(1).rev().map(|(at, text)| (-at, text.clone()));
        Axis { domain: (-self.domain.1, self.domain.1), ticks: below.chain(half.iter().cloned()).collect(), ..self }
    }

    /// Width of the widest tick label, in units.
    pub fn widest(&self) -> f64 {
        self.ticks.iter().map(|(_, text)| text::width(text, SMALL)).fold(0.0, f64::max)
    }

    /// Relative position of a value on the axis, in `[0, 1]`. Values outside are clamped to an end;
    /// NaN maps to 0.
    pub fn share(&self, x: f64) -> f64 {
        let (low, high) = self.domain;
        let share = (x - low) / (high - low);
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }
}

/// The step (1, 2 or 5 times a power of ten) that yields about [`TICKS`] ticks.
fn step(range: f64) -> f64 {
    let rough = range / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 5.0].into_iter().find(|nice| rough <= nice * power * (1.0 + 1e-9)).unwrap_or(10.0);
    nice * power
}

fn ticks(first: f64, last: f64, step: f64) -> Vec<(f64, String)> {
    const MAX_TICKS: f64 = 20.0;
    let count = ((last - first) / step).round().min(MAX_TICKS);
    let decimals = (-(step.log10() + 1e-9).floor()).clamp(0.0, 6.0) as usize;
    let scientific = first.abs().max(last.abs()) >= 1e6 || step < 1e-6;
    let text = |x: f64| match x {
        0.0 => "0".to_owned(),
        x if scientific => format!("{x:.1e}"),
        x => format!("{x:.decimals$}"),
    };
    let near_zero = |x: f64| if x.abs() < step * 1e-6 { 0.0 } else { x };
    (0..=count as usize).map(|i| near_zero(first + i as f64 * step)).map(|x| (x, text(x))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(texts(&Axis::unit("")), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(texts(&Axis::to("", 37.0)), ["0", "10", "20", "30", "40"]);
        assert_eq!(texts(&Axis::percent("", 0.43)), ["0 %", "10 %", "20 %", "30 %", "40 %", "50 %"]);
        assert_eq!(texts(&Axis::around("", [-0.31, 0.12])), ["-0.4", "-0.3", "-0.2", "-0.1", "0", "0.1", "0.2"]);
        assert_eq!(Axis::percent("", 1.0).domain, (0.0, 1.0));
    }

    #[test]
    fn every_input_has_an_axis() {
        let max = f64::MAX;
        let inputs: [&[f64]; 9] = [
            &[],
            &[f64::NAN],
            &[0.0],
            &[5.0, 5.0],
            &[-3e-300, 2e-300],
            &[-max, max],
            &[max],
            &[-max],
            &[1e15, 1e15 + 1.0],
        ];
        for numbers in inputs {
            let axis = Axis::around("", numbers.iter().copied());
            let (low, high) = axis.domain;
            assert!(low.is_finite() && high.is_finite() && low < high, "{numbers:?}: {:?}", axis.domain);
            assert!(axis.ticks.len() <= 21, "{numbers:?}");
            for x in numbers.iter().chain(&[f64::INFINITY, f64::NEG_INFINITY, f64::NAN]) {
                assert!((0.0..=1.0).contains(&axis.share(*x)), "{numbers:?} at {x}");
            }
        }
        for max in [0.0, f64::NAN, f64::INFINITY, 1e-300, -1.0] {
            assert!(Axis::to("", max).domain.1 > 0.0, "{max}");
        }
    }
}
