//! The reliability diagram with its histogram.

use super::Picture;
use super::axis::Axis;
use super::drawing::{Drawing, Sign};
use super::text::number;

/// The items whose confidence lies in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// The interval's ends.
    pub interval: (f64, f64),
    pub items: usize,
    /// Means over the items; without items they are not looked at.
    pub confidence: f64,
    pub accuracy: f64,
    /// Standard deviation of the accuracy over subsamples; not finite: not drawn.
    pub sd: f64,
}

/// How well a confidence says how often it is right.
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

/// Confidence against accuracy, the gaps between them, and how many items have which confidence.
pub fn reliability(name: &str, method: &str, of: &str, data: &Reliability) -> Picture {
    let items: usize = data.bins.iter().map(|bin| bin.items).sum();
    let subtitle = format!("{of} · n = {items} · ECE {} ({} bins)", number(data.ece), data.bins.len());
    let mut drawing = Drawing::new(name, &format!("Reliability: {method}"), &subtitle);
    drawing.pattern("gap", "l-s1");
    accuracy_panel(&mut drawing, data);
    histogram_panel(&mut drawing, data, items);
    let line = |class: &str, dashes, text: String| (Sign::Line { class: class.to_owned(), dashes }, text);
    drawing.legend(&[
        (Sign::Area { class: "f-s0".to_owned() }, "accuracy in the bin (thin: < 10 items)".to_owned()),
        (Sign::Hatched { pattern: "gap", class: "l-s1".to_owned() }, "gap to its mean confidence".to_owned()),
        line("l-axis", "5 4", "perfectly calibrated".to_owned()),
        line("l-ink", "", format!("accuracy {}", number(data.accuracy))),
        line("l-s1", "6 3", format!("mean confidence {}", number(data.confidence))),
    ]);
    drawing.finish(describe(data, items))
}

fn accuracy_panel(drawing: &mut Drawing, data: &Reliability) {
    let panel = drawing.panel(220.0, Axis::unit("confidence"), Axis::unit("accuracy"));
    let filled = data.bins.iter().filter(|bin| bin.items > 0 && bin.confidence.is_finite() && bin.accuracy.is_finite());
    for bin in filled {
        let Bin { confidence, accuracy, items, .. } = *bin;
        let interval = thinned(bin.interval, items);
        if let Some(bar) = panel.rect(interval, (0.0, accuracy)) {
            drawing.push(bar.attr("class", "f-s0 l-paper").attr("stroke-width", "0.5"));
        }
        if let Some(gap) = panel.rect(interval, (accuracy, confidence)) {
            drawing.hatch(gap, "gap", "l-s1");
        }
        let top = panel.line((interval.0, accuracy), (interval.1, accuracy));
        drawing.push(top.attr("class", "l-ink").attr("stroke-width", "2"));
        if bin.sd.is_finite() {
            let middle = (interval.0 + interval.1) / 2.0;
            let spread = panel.line((middle, accuracy - bin.sd), (middle, accuracy + bin.sd));
            drawing.push(spread.attr("class", "l-ink").attr("stroke-width", "1"));
        }
    }
    let diagonal = panel.line((0.0, 0.0), (1.0, 1.0)).attr("class", "l-axis");
    drawing.push(diagonal.attr("stroke-width", "1.5").attr("stroke-dasharray", "5 4"));
    if data.bins.iter().all(|bin| bin.items == 0) {
        drawing.nothing(&panel, "no items with this confidence");
    }
}

/// The middle of an interval, as wide as a bin's few items are of `ENOUGH`: what says little looks thin.
fn thinned((from, to): (f64, f64), items: usize) -> (f64, f64) {
    const ENOUGH: f64 = 10.0;
    let half = (to - from) / 2.0 * (items as f64 / ENOUGH).clamp(0.2, 1.0);
    ((from + to) / 2.0 - half, (from + to) / 2.0 + half)
}

fn histogram_panel(drawing: &mut Drawing, data: &Reliability, items: usize) {
    let share = |bin: &Bin| bin.items as f64 / items.max(1) as f64;
    let max = data.bins.iter().map(share).fold(0.0, f64::max);
    let panel = drawing.panel(90.0, Axis::unit("confidence"), Axis::percent("items", max));
    for bin in &data.bins {
        if let Some(bar) = panel.rect(bin.interval, (0.0, share(bin))) {
            drawing.push(bar.attr("class", "f-s5 l-paper").attr("stroke-width", "0.5"));
        }
    }
    for (at, class, dashes) in [(data.accuracy, "l-ink", ""), (data.confidence, "l-s1", "6 3")] {
        if at.is_finite() {
            let line = panel.line((at, 0.0), (at, 1.0)).attr("class", class);
            drawing.push(line.attr("stroke-width", "2").attr("stroke-dasharray", dashes));
        }
    }
}

fn describe(data: &Reliability, items: usize) -> String {
    let mut text = format!(
        "Accuracy by confidence over {items} items. Expected calibration error {}, accuracy {}, mean confidence {}.",
        number(data.ece),
        number(data.accuracy),
        number(data.confidence),
    );
    for bin in data.bins.iter().filter(|bin| bin.items > 0) {
        let (from, to) = bin.interval;
        let spread = if bin.sd.is_finite() { format!(" ± {}", number(bin.sd)) } else { String::new() };
        text += &format!(" {from:.2} to {to:.2}: {} items, accuracy {}{spread}.", bin.items, number(bin.accuracy));
    }
    text
}
