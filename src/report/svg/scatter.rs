//! Calibration error against accuracy or ranking, a point a model and task.

use super::Picture;
use super::axis::Axis;
use super::drawing::{Drawing, Sign, area_class, mark};
use super::text::number;
use crate::eval::metrics::pearson;

/// One model on one task, or under one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// What the colour says.
    pub model: String,
    /// What the shape says.
    pub task: String,
    pub accuracy: f64,
    pub auroc: f64,
    pub ece: f64,
}

/// A point a model and task: the model is the colour, the task the shape.
pub fn ece_accuracy(name: &str, method: &str, points: &[Point]) -> Picture {
    let (title, axis) = ("Calibration error against accuracy", Axis::percent("accuracy", 1.0));
    scatter(name, title, method, points, (axis, "accuracy", |point| point.accuracy))
}

/// The same against AUROC.
pub fn ece_auroc(name: &str, method: &str, points: &[Point]) -> Picture {
    let (title, axis) = ("Calibration error against ranking", Axis::around("AUROC", points.iter().map(|p| p.auroc)));
    scatter(name, title, method, points, (axis, "AUROC", |point| point.auroc))
}

/// ECE against what the axis has of each point.
fn scatter(
    name: &str,
    title: &str,
    method: &str,
    points: &[Point],
    (axis, what, x): (Axis, &str, fn(&Point) -> f64),
) -> Picture {
    let shown: Vec<&Point> = points.iter().filter(|p| x(p).is_finite() && p.ece.is_finite()).collect();
    let pairs: Vec<(f64, f64)> = shown.iter().map(|point| (x(point), point.ece)).collect();
    let correlation = pearson(&pairs).map(|r| format!("Pearson r = {r:.2} over {} points", pairs.len()));
    let correlation = correlation.map_or(String::new(), |text| format!(" · {text}"));
    let subtitle = format!("confidence: {method} · lower right is better{correlation}");
    let mut drawing = Drawing::new(name, title, &subtitle);
    let max = shown.iter().map(|point| point.ece).fold(0.0, f64::max);
    let panel = drawing.panel(240.0, axis, Axis::to("ECE", max * 1.05));
    let (models, tasks) = (distinct(points, |p| &p.model), distinct(points, |p| &p.task));
    let place = |among: &[&str], name: &str| among.iter().position(|other| *other == name).unwrap_or(0);
    for point in &shown {
        let class = area_class(place(&models, &point.model));
        drawing.push(mark(place(&tasks, &point.task), panel.x(x(point)), panel.y(point.ece), &class));
    }
    if shown.is_empty() {
        drawing.nothing(&panel, "nothing to compare");
    }
    let model = |(i, model): (usize, &&str)| (Sign::Area { class: area_class(i) }, model.to_string());
    let task = |(i, task): (usize, &&str)| (Sign::Mark { shape: i, class: "f-dim".to_owned() }, task.to_string());
    drawing.legend(&models.iter().enumerate().map(model).collect::<Vec<_>>());
    drawing.legend(&tasks.iter().enumerate().map(task).collect::<Vec<_>>());
    let sentence = |p: &Point| format!(" {} on {}: {what} {}, ECE {}.", p.model, p.task, number(x(p)), number(p.ece));
    let sentences: String = points.iter().map(sentence).collect();
    drawing.finish(format!("Expected calibration error of {method} against {what}{correlation}.{sentences}"))
}

/// In the order of their first appearance.
fn distinct<'a>(points: &'a [Point], name: impl Fn(&'a Point) -> &'a String) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in points.iter().map(name) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}
