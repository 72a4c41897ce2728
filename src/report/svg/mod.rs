//! Pictures as SVG, without a display, fonts or network. Hand-written: no plotting crate offers light and dark
//! themes by the viewer's setting, hatching, and a title and description for screen readers.
//!
//! ```text
//! numbers ─ chart (bars, curves) ─ drawing (title, panels, legend; by axis, text, theme) ─ Picture
//! ```
//!
//! A [`Picture`] is 420 units wide, so that its text is legible on a phone; it names every colour by a class of
//! [`theme`], so that it follows the viewer's light or dark theme. The same data produces the same bytes.

mod axis;
mod bars;
mod curves;
mod drawing;
mod text;
pub mod theme;

pub use bars::{Bin, Quantity, Reliability, Role, Row, by_correctness, forest, reliability};
pub use curves::{Curve, Point, Series, Spot, ece_accuracy, ece_auroc, frontier, risk_coverage};
pub(crate) use text::escape;

/// A finished picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// File name without the extension; also the prefix of the ids inside.
    pub name: String,
    /// A single line.
    pub title: String,
    /// Text alternative.
    pub description: String,
    height: u32,
    body: String,
}

impl Picture {
    /// A standalone file with an embedded style sheet.
    pub fn standalone(&self) -> String {
        let style = format!("<style>{}</style>", escape(&theme::style_sheet()));
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", self.svg(&style))
    }

    /// For a page that already contains [`theme::style_sheet`].
    pub fn inline(&self) -> String {
        self.svg("")
    }

    fn svg(&self, style: &str) -> String {
        let Picture { name, height, body, .. } = self;
        let (width, title, description) = (drawing::WIDTH, escape(&self.title), escape(&self.description));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"picture\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-labelledby=\"{name}-title {name}-desc\">\
             <title id=\"{name}-title\">{title}</title><desc id=\"{name}-desc\">{description}</desc>{style}{body}</svg>"
        )
    }
}
