//! Risk–coverage curves.

use super::Picture;
use super::axis::Axis;
use super::drawing::{Drawing, Panel, Sign, area_class, line_class, mark};
use super::text::number;
use super::theme;

/// The curve of one method.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pub method: String,
    /// (coverage, risk): the share of items answered, most confident first, and the share of those that are wrong.
    /// Coverage ascends; points with a number that is not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// The area under it.
    pub aurc: f64,
    /// In colour and in the legend; the others are grey, for the field that it stands in.
    pub highlighted: bool,
}

/// Risk against coverage, a line a method, the best (smallest area) of the highlighted ones first in the legend.
pub fn risk_coverage(name: &str, of: &str, curves: &[Curve]) -> Picture {
    let mut drawing = Drawing::new(name, "Risk–coverage", &format!("{of} · AURC in brackets, lower is better"));
    // Colours go to the highlighted ones as they come, not by rank, so that UQAC's is the same in all pictures.
    let mut highlighted = 0;
    let mut order: Vec<(usize, &Curve)> = Vec::new();
    for curve in curves {
        order.push((highlighted, curve));
        highlighted += usize::from(curve.highlighted);
    }
    let key = |curve: &Curve| if curve.aurc.is_finite() { curve.aurc } else { f64::INFINITY };
    order.sort_by(|(_, a), (_, b)| key(a).total_cmp(&key(b)));
    let max = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).filter(|risk| risk.is_finite());
    let y = Axis::percent("risk (wrong among the answered)", max.fold(0.0, f64::max));
    let panel = drawing.panel(240.0, Axis::percent("coverage (answered)", 1.0), y);
    // The best are drawn last, over the others.
    let (shown, grey): (Vec<_>, Vec<_>) = order.iter().copied().partition(|(_, curve)| curve.highlighted);
    for &(i, curve) in grey.iter().rev().chain(shown.iter().rev()) {
        let (line, area, width, dashes) = match curve.highlighted {
            true => (line_class(i), area_class(i), "2", theme::series(i).1),
            false => ("l-axis".to_owned(), "f-axis".to_owned(), "0.7", ""),
        };
        match thinned(curve, &panel).as_slice() {
            [] => {}
            [(x, y)] => drawing.push(mark(i, panel.x(*x), panel.y(*y), &area)),
            points => {
                let path = panel.path(points).attr("class", &line).attr("stroke-width", width);
                drawing.push(path.attr("stroke-dasharray", dashes).attr("stroke-linejoin", "round"));
            }
        }
    }
    if curves.iter().all(|curve| thinned(curve, &panel).is_empty()) {
        drawing.nothing(&panel, "no items with a score");
    }
    let entry = |&(i, curve): &(usize, &Curve)| {
        let sign = Sign::Line { class: line_class(i), dashes: theme::series(i).1 };
        (sign, format!("{} ({})", curve.method, number(curve.aurc)))
    };
    let others = match grey.len() {
        0 => None,
        n => Some((Sign::Line { class: "l-axis".to_owned(), dashes: "" }, format!("{n} other methods"))),
    };
    drawing.legend(&shown.iter().map(entry).chain(others).collect::<Vec<_>>());
    let areas: Vec<String> =
        order.iter().map(|(_, curve)| format!("{} {}", curve.method, number(curve.aurc))).collect();
    drawing.finish(format!(
        "The share of wrong answers among those given, as the share of items answered grows from the most confident on. \
         Area under the curve by method, best first: {}.",
        areas.join(", ")
    ))
}

/// One point for each unit of the picture's width, the last that falls there; the ends stay.
fn thinned(curve: &Curve, panel: &Panel) -> Vec<(f64, f64)> {
    let column = |x: f64| (panel.x(x) - panel.x(0.0)).round() as i64;
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for point in curve.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()) {
        if kept.len() > 1 && kept.last().is_some_and(|last| column(last.0) == column(point.0)) {
            kept.pop();
        }
        kept.push(point);
    }
    kept
}
