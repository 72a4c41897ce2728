//! The forest plot: AUROC and calibration error of every method with their intervals, one row per method.

use super::Picture;
use super::axis::Axis;
use super::drawing::{Drawing, Look};
use super::text::{self, SMALL};
use crate::eval::analysis::Estimate;
use crate::report::term::number;

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

/// Rows from top to bottom in the given order: a band spanning the interval, and a line at the value.
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
