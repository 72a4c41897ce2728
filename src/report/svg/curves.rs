//! Pictures of lines and points: risk against coverage, calibration error against accuracy or ranking.

use super::{Picture, axis::Axis, drawing::Drawing, drawing::Look, theme};
use crate::{eval::analysis::Estimate, report::term::number};

/// The curve of one method.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pub method: String,
    /// (coverage, risk): the share of items answered, most confident first, and the share of incorrect ones among them.
    /// Sorted by coverage; points with a non-finite coordinate are left out.
    pub points: Vec<(f64, f64)>,
    /// The area under the curve.
    pub aurc: f64,
}

/// Risk against coverage, one line per method, best (smallest area) first in the legend.
pub fn risk_coverage(name: &str, of: &str, curves: &[Curve]) -> Picture {
    // Colours are assigned in input order, not by rank, so that UQAC has the same colour in all pictures.
    let looks = (0..).map(theme::series).map(|(colour, dashes)| Look::Line(colour, 2.0, dashes));
    let mut order: Vec<(Look, &Curve)> = looks.zip(curves).collect();
    crate::order::sort_by(&mut order, |(_, a), (_, b)| a.aurc.total_cmp(&b.aurc));
    let mut drawing = Drawing::new(name, "Risk–coverage", &format!("{of} · AURC in brackets, lower is better"));
    let max = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(0.0, f64::max);
    let (x, y) = (Axis::percent("coverage (answered)", 1.0), Axis::percent("risk (wrong among the answered)", max));
    let mut panel = drawing.panel(240.0, x, y);
    // The best are drawn last, on top of the others.
    for (look, curve) in order.iter().rev() {
        panel.draw(*look, &curve.points);
    }
    let drawn = curves.iter().flat_map(|curve| &curve.points).any(|(x, y)| x.is_finite() && y.is_finite());
    panel.note_if(!drawn, "no items with a score");
    let entry = |(look, curve): &(Look, &Curve)| (*look, format!("{} ({})", curve.method, number(curve.aurc)));
    drawing.legend(&order.iter().map(entry).collect::<Vec<_>>());
    let named = |(_, curve): &(Look, &Curve)| format!("{} {}", curve.method, number(curve.aurc));
    drawing.finish(format!(
        "The share of wrong answers among those given, as the share of items answered grows from the most confident on. \
         Area under the curve by method, best first: {}.",
        order.iter().map(named).collect::<Vec<_>>().join(", ")
    ))
}

/// A score at growing cost: for one of samples, a spot for each number of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub spots: Vec<Spot>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Spot {
    /// Tokens generated over those of the response.
    pub passes: f64,
    pub auroc: Estimate,
    /// Shown on hovering.
    pub note: String,
}

/// AUROC against passes, with the intervals: a mark per score, a line through those of a series. Other scores of the same cost stand
/// side by side.
pub fn frontier(name: &str, of: &str, series: &[Series]) -> Picture {
    /// Of the axis, between scores of the same cost.
    const APART: f64 = 0.022;
    let spots = || series.iter().flat_map(|series| &series.spots);
    let ends = |spot: &Spot| spot.auroc.interval.into_iter().flatten().chain([spot.auroc.value]);
    let mut drawing = Drawing::new(name, "What ranking costs", of);
    let passes = spots().map(|spot| spot.passes).chain([0.5, 2.0]);
    let x = Axis::around("passes (tokens generated / the response's)", passes);
    let apart = APART * (x.domain.1 - x.domain.0);
    let alike = |among: &[Series], passes: f64| {
        let near = |other: &&Series| other.spots.len() == 1 && (other.spots[0].passes - passes).abs() < apart;
        among.iter().filter(near).count() as f64
    };
    let mut panel = drawing.panel(240.0, x, Axis::around("AUROC", spots().flat_map(ends)));
    let mut legend = Vec::new();
    for (i, Series { name, spots }) in series.iter().enumerate() {
        // shapes and colours have the same period, and each pair of them is used once
        let (colour, dashes) = (theme::colour(i + i / theme::SERIES), theme::series(i).1);
        let mark = Look::Mark(i, colour);
        let side = |passes| alike(&series[..i], passes) - (alike(series, passes) - 1.0) / 2.0;
        let place = |spot: &Spot| spot.passes + if spots.len() == 1 { apart * side(spot.passes) } else { 0.0 };
        if spots.len() > 1 {
            let points: Vec<(f64, f64)> = spots.iter().map(|spot| (place(spot), spot.auroc.value)).collect();
            panel.draw(Look::Line(colour, 1.5, dashes), &points);
        }
        for spot in spots {
            panel.titled(&spot.note, |panel| {
                let ends = spot.auroc.interval.map_or(Vec::new(), |ends| ends.map(|end| (place(spot), end)).to_vec());
                panel.draw(Look::Line(colour, 1.0, ""), &ends);
                panel.draw(mark, &[(place(spot), spot.auroc.value)]);
            });
        }
        legend.push((mark, name.clone()));
    }
    panel.note_if(series.is_empty(), "no scores");
    drawing.legend(&legend);
    let notes: Vec<&str> = spots().map(|spot| spot.note.as_str()).collect();
    drawing.finish(format!("AUROC against cost. {}.", notes.join(". ")))
}

/// One model on one task, or under one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Mapped to colour.
    pub model: String,
    /// Mapped to shape.
    pub task: String,
    pub accuracy: f64,
    pub auroc: f64,
    pub ece: f64,
}

/// One point per model and task: colour is the model, shape the task.
pub fn ece_accuracy(name: &str, method: &str, points: &[Point]) -> Picture {
    let (title, axis) = ("Calibration error against accuracy", Axis::percent("accuracy", 1.0));
    scatter(name, title, method, points, axis, |point| point.accuracy)
}

/// The same against AUROC.
pub fn ece_auroc(name: &str, method: &str, points: &[Point]) -> Picture {
    let (title, axis) = ("Calibration error against ranking", Axis::around("AUROC", points.iter().map(|p| p.auroc)));
    scatter(name, title, method, points, axis, |point| point.auroc)
}

/// ECE against the value `x` of each point.
fn scatter(name: &str, title: &str, method: &str, points: &[Point], axis: Axis, x: fn(&Point) -> f64) -> Picture {
    let what = axis.label.clone();
    let shown: Vec<&Point> = points.iter().filter(|p| x(p).is_finite() && p.ece.is_finite()).collect();
    let pairs: Vec<(f64, f64)> = shown.iter().map(|point| (x(point), point.ece)).collect();
    let correlation = pearson(&pairs).map(|r| format!(" · Pearson r = {r:.2} over {} points", pairs.len()));
    let correlation = correlation.unwrap_or_default();
    let subtitle = format!("score: {method} · lower right is better{correlation}");
    let mut drawing = Drawing::new(name, title, &subtitle);
    let max = pairs.iter().map(|pair| pair.1).fold(0.0, f64::max);
    let mut panel = drawing.panel(240.0, axis, Axis::to("ECE", max * 1.05));
    let (models, tasks) = (distinct(points, |p| &p.model), distinct(points, |p| &p.task));
    for (point, pair) in shown.iter().zip(&pairs) {
        let place = |among: &[&str], name: &str| among.iter().position(|other| *other == name).unwrap_or(0);
        let colour = theme::colour(place(&models, &point.model));
        panel.draw(Look::Mark(place(&tasks, &point.task), colour), &[*pair]);
    }
    panel.note_if(shown.is_empty(), "nothing to compare");
    let model = |(i, model): (usize, &&str)| (Look::Area(theme::colour(i)), model.to_string());
    let task = |(i, task): (usize, &&str)| (Look::Mark(i, "dim"), task.to_string());
    drawing.legend(&models.iter().enumerate().map(model).collect::<Vec<_>>());
    drawing.legend(&tasks.iter().enumerate().map(task).collect::<Vec<_>>());
    let sentence = |p: &Point| format!(" {} on {}: {what} {}, ECE {}.", p.model, p.task, number(x(p)), number(p.ece));
    let sentences: String = points.iter().map(sentence).collect();
    drawing.finish(format!("Expected calibration error of {method} against {what}{correlation}.{sentences}"))
}

/// Distinct names in order of first appearance.
fn distinct(points: &[Point], name: fn(&Point) -> &String) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for name in points.iter().map(name) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// Pearson's r of pairs of finite values; `None` for fewer than three pairs, or if either variable is constant.
fn pearson(pairs: &[(f64, f64)]) -> Option<f64> {
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
        // deviations (-1, 0, 1) and (-1, 2, -1): uncorrelated
        assert!(pearson(&[(0.0, 0.0), (1.0, 3.0), (2.0, 0.0)]).unwrap().abs() < 1e-15);
        // deviations (-1, 0, 1) and (-4/3, -1/3, 5/3): 3 / √(2 · 42/9)
        assert!((pearson(&[(0.0, 0.0), (1.0, 1.0), (2.0, 3.0)]).unwrap() - 3.0 / (84.0f64 / 9.0).sqrt()).abs() < 1e-15);
        assert_eq!((pearson(&rising[..2]), pearson(&[(1.0, 2.0); 5])), (None, None));
    }
}
