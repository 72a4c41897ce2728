//! A model's attention by distance, and the γ that it gives.

use super::Picture;
use super::axis::Axis;
use super::drawing::{Drawing, Panel, Sign, mark};
use super::text::number;
use crate::uq::gamma::GammaFit;

/// The mean attention at each distance with the line that the nearest are measured against; below, γ by distance beside the
/// published one.
pub fn gamma(name: &str, of: &str, fit: &GammaFit) -> Picture {
    let subtitle = format!("{of} · mean of {} rows and heads", fit.rows);
    let mut drawing = Drawing::new(name, "Attention by distance, and γ", &subtitle);
    let end = fit.attention.len() as f64 + 0.5;
    let max = fit.attention.iter().chain(&fit.line).copied().fold(0.0, f64::max);
    let panel = drawing.panel(150.0, Axis::to("distance (tokens)", end), Axis::to("share of attention", max));
    for (i, share) in fit.attention.iter().enumerate() {
        let middle = i as f64 + 1.0;
        if let Some(bar) = panel.rect((middle - 0.4, middle + 0.4), (0.0, *share)) {
            drawing.push(bar.attr("class", "f-s0"));
        }
    }
    let line: Vec<(f64, f64)> = fit.line.iter().zip(1..).map(|(y, i)| (f64::from(i), *y)).collect();
    drawing.push(panel.path(&line).attr("class", "l-s1").attr("stroke-width", "2").attr("stroke-dasharray", "6 3"));
    let panel = drawing.panel(120.0, Axis::to("distance (tokens)", end), Axis::unit("γ"));
    series(&mut drawing, &panel, &fit.published, (1, "f-s5"));
    series(&mut drawing, &panel, &fit.gamma, (0, "f-s0"));
    let here = format!("γ here, rms difference {}", number(fit.difference));
    drawing.legend(&[
        (Sign::Area { class: "f-s0".to_owned() }, "attention".to_owned()),
        (
            Sign::Line { class: "l-s1".to_owned(), dashes: "6 3" },
            format!("line through {} and {}", fit.gamma.len() + 1, fit.attention.len()),
        ),
        (Sign::Mark { shape: 0, class: "f-s0".to_owned() }, here),
        (Sign::Mark { shape: 1, class: "f-s5".to_owned() }, "γ as published".to_owned()),
    ]);
    let list = |values: &[f64]| values.iter().map(|x| number(*x)).collect::<Vec<_>>().join(", ");
    drawing.finish(format!(
        "Mean share of a row's attention by distance: {}. γ, nearest first: {}; as published: {}.",
        list(&fit.attention),
        list(&fit.gamma),
        list(&fit.published)
    ))
}

fn series(drawing: &mut Drawing, panel: &Panel, values: &[f64], (shape, class): (usize, &str)) {
    for (i, value) in values.iter().enumerate() {
        drawing.push(mark(shape, panel.x(i as f64 + 1.0), panel.y(*value), class));
    }
}
