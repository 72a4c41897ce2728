//! Calibration error against accuracy, a point a model and task.

use super::Picture;
use super::axis::Axis;
use super::drawing::{Drawing, Sign, area_class, mark};
use super::text::number;

/// One model on one task.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub model: String,
    pub task: String,
    pub accuracy: f64,
    pub ece: f64,
}

/// A point a model and task: the model is the colour, the task the shape.
pub fn ece_accuracy(name: &str, method: &str, points: &[Point]) -> Picture {
    let subtitle = format!("confidence: {method} · lower right is better");
    let mut drawing = Drawing::new(name, "Calibration error against accuracy", &subtitle);
    let shown: Vec<&Point> = points.iter().filter(|p| p.accuracy.is_finite() && p.ece.is_finite()).collect();
    let max = shown.iter().map(|point| point.ece).fold(0.0, f64::max);
    let panel = drawing.panel(240.0, Axis::percent("accuracy", 1.0), Axis::to("ECE", max * 1.05));
    let (models, tasks) = (distinct(points, |p| &p.model), distinct(points, |p| &p.task));
    let place = |among: &[&str], name: &str| among.iter().position(|other| *other == name).unwrap_or(0);
    for point in &shown {
        let class = area_class(place(&models, &point.model));
        drawing.push(mark(place(&tasks, &point.task), panel.x(point.accuracy), panel.y(point.ece), &class));
    }
    if shown.is_empty() {
        drawing.nothing(&panel, "nothing to compare");
    }
    let model = |(i, model): (usize, &&str)| (Sign::Area { class: area_class(i) }, model.to_string());
    let task = |(i, task): (usize, &&str)| (Sign::Mark { shape: i, class: "f-dim".to_owned() }, task.to_string());
    drawing.legend(&models.iter().enumerate().map(model).collect::<Vec<_>>());
    drawing.legend(&tasks.iter().enumerate().map(task).collect::<Vec<_>>());
    let sentence =
        |p: &Point| format!(" {} on {}: accuracy {}, ECE {}.", p.model, p.task, number(p.accuracy), number(p.ece));
    let sentences: String = points.iter().map(sentence).collect();
    drawing.finish(format!("Expected calibration error of {method} against accuracy.{sentences}"))
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
