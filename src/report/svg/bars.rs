//! What the methods cost.

use super::Picture;
use super::axis::Axis;
use super::drawing::{Drawing, SMALL};
use super::text;

/// The cost of one method.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    pub method: String,
    /// Seconds an item, generation included, divided by those of plain generation: 1 for a method that costs nothing.
    pub relative: f64,
}

const ROW: f64 = 20.0;

/// A bar a method: the time of an item relative to plain generation, which is the line at 1.
pub fn overhead(name: &str, of: &str, bars: &[Bar]) -> Picture {
    let mut drawing = Drawing::new(name, "Time per item by method", &format!("{of} · plain generation = 1"));
    let finite = bars.iter().map(|bar| bar.relative).filter(|x| x.is_finite());
    let names = bars.iter().map(|bar| text::width(&bar.method, SMALL)).fold(0.0, f64::max).min(110.0);
    // Room for the value after the longest bar.
    let x = Axis::to("time relative to plain generation (×)", finite.fold(1.0, f64::max) * 1.2);
    let rows = bars.len().max(3) as f64;
    let ticks = bars.iter().enumerate().map(|(i, bar)| (rows - i as f64 - 0.5, text::cut(&bar.method, SMALL, names)));
    let y = Axis { label: "method".to_owned(), domain: (0.0, rows), ticks: ticks.collect() };
    let panel = drawing.panel(rows * ROW, x, y);
    for (i, bar) in bars.iter().enumerate() {
        let middle = rows - i as f64 - 0.5;
        if !bar.relative.is_finite() {
            drawing.write(panel.x(0.0) + 4.0, panel.y(middle) + 4.0, "start", "t-small f-dim", "not measured");
            continue;
        }
        if let Some(area) = panel.rect((0.0, bar.relative), (middle - 0.35, middle + 0.35)) {
            drawing.push(area.attr("class", "f-s0"));
        }
        let value =
            if bar.relative < 1e3 { format!("{:.2}×", bar.relative) } else { format!("{:.1e}×", bar.relative) };
        drawing.write(panel.x(bar.relative) + 4.0, panel.y(middle) + 4.0, "start", "t-small f-ink", &value);
    }
    drawing.push(
        panel
            .line((1.0, 0.0), (1.0, rows))
            .attr("class", "l-s1")
            .attr("stroke-width", "1.5")
            .attr("stroke-dasharray", "4 3"),
    );
    if bars.is_empty() {
        drawing.nothing(&panel, "no timings");
    }
    let list: Vec<String> = bars.iter().map(|bar| format!("{} {}", bar.method, text::number(bar.relative))).collect();
    drawing.finish(format!("Seconds an item relative to plain generation: {}.", list.join(", ")))
}
