//! How a quantity is distributed over right and wrong answers.

use super::Picture;
use super::axis::Axis;
use super::drawing::{Drawing, Sign};
use super::text::number;

/// Numbers of items, by whether their answers are right. What is not finite is counted and left out.
#[derive(Clone, Debug, PartialEq)]
pub struct ByCorrectness {
    pub correct: Vec<f64>,
    pub incorrect: Vec<f64>,
}

/// What the numbers are, and what their axis shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantity {
    /// With its unit: `tokens`.
    pub label: String,
    /// The numbers lie in `[0, 1]`.
    pub unit_interval: bool,
    pub numbers: ByCorrectness,
}

const BINS: usize = 24;

/// A panel a quantity: the right answers' histogram upwards, the wrong ones' downwards, each as shares of its own
/// group, so that their forms can be compared however many there are; lines at the medians.
pub fn by_correctness(name: &str, title: &str, of: &str, quantities: &[Quantity]) -> Picture {
    let first = quantities.first().map_or((0, 0), |q| (q.numbers.correct.len(), q.numbers.incorrect.len()));
    let subtitle = format!("{of} · {} correct, {} incorrect", first.0, first.1);
    let mut drawing = Drawing::new(name, title, &subtitle);
    drawing.pattern("wrong", "l-s1");
    let mut description = subtitle.clone() + ".";
    for quantity in quantities {
        panel(&mut drawing, quantity);
        description += &describe(quantity);
    }
    let median =
        |class: &str, group| (Sign::Line { class: class.to_owned(), dashes: "4 3" }, format!("median, {group}"));
    drawing.legend(&[
        (Sign::Area { class: "f-s0".to_owned() }, "correct (upwards)".to_owned()),
        (Sign::Hatched { pattern: "wrong", class: "l-s1".to_owned() }, "incorrect (downwards)".to_owned()),
        median("l-ink", "correct"),
        median("l-s1", "incorrect"),
    ]);
    drawing.finish(description)
}

fn panel(drawing: &mut Drawing, quantity: &Quantity) {
    let ByCorrectness { correct, incorrect } = &quantity.numbers;
    let x = match quantity.unit_interval {
        true => Axis::unit(&quantity.label),
        false => Axis::around(&quantity.label, correct.iter().chain(incorrect).copied()),
    };
    let (up, down) = (shares(correct, &x), shares(incorrect, &x));
    let max = up.iter().chain(&down).copied().fold(0.0, f64::max);
    let domain = x.domain;
    let panel = drawing.panel(150.0, x, mirrored(Axis::percent("share of group", max)));
    let width = (domain.1 - domain.0) / BINS as f64;
    let interval = |i: usize| (domain.0 + i as f64 * width, domain.0 + (i + 1) as f64 * width);
    for (i, share) in up.iter().enumerate() {
        if let Some(bar) = panel.rect(interval(i), (0.0, *share)) {
            drawing.push(bar.attr("class", "f-s0 l-paper").attr("stroke-width", "0.5"));
        }
    }
    for (i, share) in down.iter().enumerate() {
        if let Some(bar) = panel.rect(interval(i), (0.0, -share)) {
            drawing.hatch(bar, "wrong", "l-s1");
        }
    }
    drawing.push(panel.line((domain.0, 0.0), (domain.1, 0.0)).attr("class", "l-axis"));
    for (numbers, end, class) in [(correct, max, "l-ink"), (incorrect, -max, "l-s1")] {
        if let Some(at) = median(numbers) {
            let line = panel.line((at, 0.0), (at, end)).attr("class", class);
            drawing.push(line.attr("stroke-width", "2").attr("stroke-dasharray", "4 3"));
        }
    }
    if max == 0.0 {
        drawing.nothing(&panel, "no numbers");
    }
}

/// An axis of numbers ≥ 0, continued downwards without signs.
fn mirrored(axis: Axis) -> Axis {
    let half: Vec<_> = axis.ticks.iter().step_by(axis.ticks.len().div_ceil(4)).cloned().collect();
    let below = half.iter().skip(1).rev().map(|(at, text)| (-at, text.clone()));
    let ticks = below.chain(half.iter().cloned()).collect();
    Axis { domain: (-axis.domain.1, axis.domain.1), ticks, ..axis }
}

/// The share of the finite numbers in each of [`BINS`] equal parts of the axis.
fn shares(numbers: &[f64], axis: &Axis) -> Vec<f64> {
    let mut counts = [0usize; BINS];
    let finite: Vec<f64> = numbers.iter().copied().filter(|x| x.is_finite()).collect();
    for x in &finite {
        counts[((axis.share(*x) * BINS as f64) as usize).min(BINS - 1)] += 1;
    }
    counts.iter().map(|count| *count as f64 / finite.len().max(1) as f64).collect()
}

fn median(numbers: &[f64]) -> Option<f64> {
    let mut finite: Vec<f64> = numbers.iter().copied().filter(|x| x.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    let upper = *finite.get(finite.len() / 2)?;
    Some(if finite.len() % 2 == 1 { upper } else { finite[finite.len() / 2 - 1] / 2.0 + upper / 2.0 })
}

fn describe(quantity: &Quantity) -> String {
    let group = |numbers: &[f64]| {
        let missing = numbers.iter().filter(|x| !x.is_finite()).count();
        let note = if missing > 0 { format!(", {missing} without") } else { String::new() };
        format!("{}{note}", median(numbers).map_or("–".to_owned(), number))
    };
    let ByCorrectness { correct, incorrect } = &quantity.numbers;
    format!(" Median {}: correct {}; incorrect {}.", quantity.label, group(correct), group(incorrect))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_group_add_up_and_medians_skip_what_is_not_finite() {
        let axis = Axis::unit("");
        let of = shares(&[0.0, 0.01, 1.0, f64::NAN], &axis);
        assert_eq!((of[0], of[BINS - 1]), (2.0 / 3.0, 1.0 / 3.0));
        assert!(shares(&[], &axis).iter().all(|share| *share == 0.0));
        assert_eq!([median(&[]), median(&[f64::NAN, 3.0]), median(&[4.0, 1.0])], [None, Some(3.0), Some(2.5)]);
    }
}
