//! Area charts: the reliability diagram, distributions over correct and incorrect answers, and the forest plot of
//! the methods' intervals.

use super::text::{self, SMALL};
use super::{Picture, axis::Axis, drawing::Drawing, drawing::Look};
use crate::{eval::analysis::Estimate, report::term::number};

/// The items whose score falls into one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// The interval's bounds.
    pub interval: (f64, f64),
    pub items: usize,
    /// Means over the items; ignored without items.
    pub confidence: f64,
    pub accuracy: f64,
    /// Standard deviation of the accuracy over subsamples; not drawn if not finite.
    pub sd: f64,
}

/// How well a score, read as a probability, predicts accuracy.
#[derive(Clone, Debug, PartialEq)]
pub struct Reliability {
    /// Ascending.
    pub bins: Vec<Bin>,
    /// Expected calibration error, in `[0, 1]`.
    pub ece: f64,
    /// Means over all items.
    pub accuracy: f64,
    pub confidence: f64,
}

/// A score, read as a probability, against accuracy, with the gaps between them and the distribution of the items over
/// the score.
pub fn reliability(name: &str, method: &str, of: &str, data: &Reliability) -> Picture {
    const ACCURACY: Look = Look::Area("s0");
    const PERFECT: Look = Look::Line("axis", 1.5, "5 4");
    const MEAN_ACCURACY: Look = Look::Line("ink", 2.0, "");
    const MEAN_CONFIDENCE: Look = Look::Line("s1", 2.0, "6 3");
    /// A bin with fewer items is drawn narrower.
    const ENOUGH: f64 = 10.0;
    let items: usize = data.bins.iter().map(|bin| bin.items).sum();
    let [ece, accuracy, confidence] = [data.ece, data.accuracy, data.confidence].map(number);
    let mut description = format!(
        "Accuracy by score over {items} items. Expected calibration error {ece}, accuracy {accuracy}, mean score \
         {confidence}."
    );
    let subtitle = format!("{of} · n = {items} · ECE {ece} ({} bins)", data.bins.len());
    let mut drawing = Drawing::new(name, &format!("Reliability: {method}"), &subtitle);
    let mut panel = drawing.panel(220.0, Axis::unit("score"), Axis::unit("accuracy"));
    for bin in data.bins.iter().filter(|bin| bin.items > 0) {
        let Bin { interval: (from, to), items, confidence, accuracy, sd } = *bin;
        let middle = (from + to) / 2.0;
        let half = (to - from) / 2.0 * (items as f64 / ENOUGH).clamp(0.2, 1.0);
        let (left, right) = (middle - half, middle + half);
        panel.draw(ACCURACY, &[(left, 0.0), (right, accuracy)]);
        panel.draw(Look::Hatched, &[(left, accuracy), (right, confidence)]);
        panel.draw(Look::Line("ink", 2.0, ""), &[(left, accuracy), (right, accuracy)]);
        panel.draw(Look::Line("ink", 1.0, ""), &[(middle, accuracy - sd), (middle, accuracy + sd)]);
        let spread = if sd.is_finite() { format!(" ± {}", number(sd)) } else { String::new() };
        description += &format!(" {from:.2} to {to:.2}: {items} items, accuracy {}{spread}.", number(accuracy));
    }
    panel.draw(PERFECT, &[(0.0, 0.0), (1.0, 1.0)]);
    panel.note_if(items == 0, "no items with this score");
    let share = |bin: &Bin| bin.items as f64 / items.max(1) as f64;
    let max = data.bins.iter().map(share).fold(0.0, f64::max);
    let mut panel = drawing.panel(90.0, Axis::unit("score"), Axis::percent("items", max));
    for bin in &data.bins {
        panel.draw(Look::Area("s5"), &[(bin.interval.0, 0.0), (bin.interval.1, share(bin))]);
    }
    panel.draw(MEAN_ACCURACY, &[(data.accuracy, 0.0), (data.accuracy, 1.0)]);
    panel.draw(MEAN_CONFIDENCE, &[(data.confidence, 0.0), (data.confidence, 1.0)]);
    drawing.legend(&[
        (ACCURACY, "accuracy in the bin (thin: < 10 items)".to_owned()),
        (Look::Hatched, "gap to its mean score".to_owned()),
        (PERFECT, "perfectly calibrated".to_owned()),
        (MEAN_ACCURACY, format!("accuracy {accuracy}")),
        (MEAN_CONFIDENCE, format!("mean score {confidence}")),
    ]);
    drawing.finish(description)
}

/// Values per item, split by whether its answer is correct. Non-finite values are counted but not drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantity {
    /// Name of the values with its unit, also the axis label: `tokens`.
    pub label: String,
    /// Whether the values lie in `[0, 1]`.
    pub unit_interval: bool,
    pub correct: Vec<f64>,
    pub incorrect: Vec<f64>,
}

const BINS: usize = 24;

/// One panel per quantity: the histogram of correct answers upwards, that of incorrect ones downwards, each as shares
/// of its own group, so that their shapes can be compared whatever the group sizes; lines at the medians.
pub fn by_correctness(name: &str, title: &str, of: &str, quantities: &[Quantity]) -> Picture {
    const CORRECT: Look = Look::Area("s0");
    const INCORRECT: Look = Look::Hatched;
    const MEDIANS: [Look; 2] = [Look::Line("ink", 2.0, "4 3"), Look::Line("s1", 2.0, "4 3")];
    let (right, wrong) = quantities.first().map_or((0, 0), |q| (q.correct.len(), q.incorrect.len()));
    let subtitle = format!("{of} · {right} correct, {wrong} incorrect");
    let mut drawing = Drawing::new(name, title, &subtitle);
    let mut description = subtitle + ".";
    for Quantity { label, unit_interval, correct, incorrect } in quantities {
        let x = match unit_interval {
            true => Axis::unit(label),
            false => Axis::around(label, correct.iter().chain(incorrect).copied()),
        };
        let (up, down) = (shares(correct, &x), shares(incorrect, &x));
        let max = up.iter().chain(&down).copied().fold(0.0, f64::max);
        let (low, high) = x.domain;
        let edge = |i: usize| low + (high - low) * i as f64 / BINS as f64;
        let mut panel = drawing.panel(150.0, x, Axis::percent("share of group", max).mirrored());
        for (i, (up, down)) in up.iter().zip(&down).enumerate() {
            panel.draw(CORRECT, &[(edge(i), 0.0), (edge(i + 1), *up)]);
            panel.draw(INCORRECT, &[(edge(i), 0.0), (edge(i + 1), -down)]);
        }
        panel.draw(Look::Line("axis", 1.0, ""), &[(low, 0.0), (high, 0.0)]);
        let medians = [median(correct), median(incorrect)];
        for ((look, at), end) in MEDIANS.into_iter().zip(medians).zip([max, -max]) {
            panel.draw(look, &[(at, 0.0), (at, end)]);
        }
        panel.note_if(max == 0.0, "no numbers");
        let [of_correct, of_incorrect] = [(correct, medians[0]), (incorrect, medians[1])].map(|(numbers, median)| {
            let missing = numbers.iter().filter(|x| !x.is_finite()).count();
            number(median) + &if missing > 0 { format!(", {missing} without") } else { String::new() }
        });
        description += &format!(" Median {label}: correct {of_correct}; incorrect {of_incorrect}.");
    }
    drawing.legend(&[
        (CORRECT, "correct (upwards)".to_owned()),
        (INCORRECT, "incorrect (downwards)".to_owned()),
        (MEDIANS[0], "median, correct".to_owned()),
        (MEDIANS[1], "median, incorrect".to_owned()),
    ]);
    drawing.finish(description)
}

/// The share of the finite values in each of [`BINS`] equal parts of the axis.
fn shares(numbers: &[f64], axis: &Axis) -> [f64; BINS] {
    let mut counts = [0usize; BINS];
    for x in numbers.iter().filter(|x| x.is_finite()) {
        counts[((axis.share(*x) * BINS as f64) as usize).min(BINS - 1)] += 1;
    }
    let all = counts.iter().sum::<usize>().max(1);
    counts.map(|count| count as f64 / all as f64)
}

/// Median of the finite values; NaN if there are none.
fn median(numbers: &[f64]) -> f64 {
    let mut finite: Vec<f64> = numbers.iter().copied().filter(|x| x.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    let half = |i: usize| finite.get(i).map_or(f64::NAN, |x| x / 2.0);
    half(finite.len() / 2) + half(finite.len().saturating_sub(1) / 2)
}

/// A method's place in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The method that the others are compared with.
    Main,
    /// The score based on response length alone.
    Control,
    Other,
}

/// One method.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub method: String,
    pub role: Role,
    pub auroc: Option<Estimate>,
    /// Only for probabilities.
    pub ece: Option<Estimate>,
}

/// The forest plot: AUROC and calibration error of every method. Rows from top to bottom in the given order: a band spanning the interval, and a line at the value.
pub fn forest(name: &str, of: &str, rows: &[Row]) -> Picture {
    const HEIGHT: f64 = 16.0;
    let look = |role| match role {
        Role::Main => Look::Hatched,
        Role::Control => Look::Area("axis"),
        Role::Other => Look::Area("s5"),
    };
    let mut drawing = Drawing::new(name, "AUROC and ECE by method", of);
    let height = rows.len().max(3) as f64;
    let middle = |i: usize| height - i as f64 - 0.5;
    let ticks = rows.iter().enumerate().map(|(i, row)| (middle(i), text::cut(&row.method, SMALL, 156.0))).collect();
    let names = Axis { label: String::new(), domain: (0.0, height), ticks };
    let ends = |estimate: Estimate| estimate.interval.into_iter().flatten().chain([estimate.value]);
    let auroc = rows.iter().filter_map(|row| row.auroc).flat_map(ends);
    let highest = rows.iter().filter_map(|row| row.ece).flat_map(ends).fold(0.0, f64::max);
    let axes = [Axis::around("AUROC ↑", auroc.chain([0.5])), Axis::to("ECE ↓", highest)];
    drawing.rows(height * HEIGHT, names, axes, |measure, panel| {
        for (i, row) in rows.iter().enumerate() {
            let Some(Estimate { value, interval }) = [row.auroc, row.ece][measure] else { continue };
            if let Some([low, high]) = interval {
                panel.draw(look(row.role), &[(low, middle(i) - 0.3), (high, middle(i) + 0.3)]);
            }
            panel.draw(Look::Line("ink", 2.0, ""), &[(value, middle(i) - 0.35), (value, middle(i) + 0.35)]);
        }
        if measure == 0 {
            panel.draw(Look::Line("axis", 1.5, "4 3"), &[(0.5, 0.0), (0.5, height)]);
        }
    });
    let named = |role: Role| Some((look(role), rows.iter().find(|row| row.role == role)?.method.clone()));
    let others = Some((look(Role::Other), "other methods".to_owned()));
    drawing.legend(&[named(Role::Main), named(Role::Control), others].into_iter().flatten().collect::<Vec<_>>());
    let value = |estimate: Option<Estimate>| number(estimate.map_or(f64::NAN, |estimate| estimate.value));
    let sentence = |row: &Row| format!(" {}: AUROC {}, ECE {}.", row.method, value(row.auroc), value(row.ece));
    drawing.finish(format!("By method, best AUROC first.{}", rows.iter().map(sentence).collect::<String>()))
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
        assert_eq!([median(&[f64::NAN, 3.0]), median(&[4.0, 1.0])], [3.0, 2.5]);
        assert!(median(&[]).is_nan());
    }
}
