//! Pictures as SVG: no display, no fonts, no network. By hand: no plotting crate has light and dark by the viewer's
//! setting, hatching, and a title and description for screen readers.
//!
//! ```text
//! numbers ─ chart (bars, curves, forest) ─ drawing (title, panels, legend; by axis, text, theme) ─ Picture
//! ```
//!
//! A [`Picture`] is 420 units wide, so that its text can be read on a telephone; it names every colour by a class of
//! [`theme`], so that it is light or dark with its viewer. The same numbers give the same bytes.

mod axis;
mod bars;
mod curves;
mod drawing;
mod forest;
mod text;
pub mod theme;

pub use bars::{Bin, Quantity, Reliability, by_correctness, overhead, reliability};
pub use curves::{Curve, Point, ece_accuracy, ece_auroc, gamma, risk_coverage};
pub use forest::{Role, Row, forest};
pub(crate) use text::escape;

/// A finished picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Its file's name without the ending; the ids inside start with it.
    pub name: String,
    /// One line.
    pub title: String,
    /// The picture in words.
    pub description: String,
    height: u32,
    body: String,
}

impl Picture {
    /// A file of its own, with the style table in it.
    pub fn standalone(&self) -> String {
        let style = format!("<style>{}</style>", escape(&theme::style_sheet()));
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", self.svg(&style))
    }

    /// For a page that has [`theme::style_sheet`] already.
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
