//! Pictures as SVG: no display, no fonts, no network. By hand: no plotting crate has light and dark by the viewer's
//! setting, hatching, and a title and description for screen readers.
//!
//! ```text
//! numbers ─ chart (reliability, curves, histogram, scatter, bars, gamma) ─ drawing (title, panels, axes, legend) ─ Picture
//!                                                                   (drawing, axis, text, element)
//! ```
//!
//! A [`Picture`] is 420 units wide, so that its text can be read on a telephone; it names every colour by a class of
//! [`theme`], so that it is light or dark with its viewer. The same numbers give the same bytes.

mod axis;
mod bars;
mod curves;
mod drawing;
mod element;
mod gamma;
mod histogram;
mod reliability;
mod scatter;
mod text;
pub mod theme;

pub use bars::{Bar, overhead};
pub use curves::{Curve, risk_coverage};
pub use gamma::gamma;
pub use histogram::{ByCorrectness, Quantity, by_correctness};
pub use reliability::{Bin, Reliability, reliability};
pub use scatter::{Point, ece_accuracy, ece_auroc};

use element::Element;
pub(crate) use element::escape;

/// A finished picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Its file's name without the ending; the ids inside start with it.
    pub name: String,
    /// One line.
    pub title: String,
    /// The picture in words.
    pub description: String,
    width: u32,
    height: u32,
    body: String,
}

impl Picture {
    /// A file of its own, with the style table in it.
    pub fn standalone(&self) -> String {
        let declaration = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
        format!("{declaration}{}\n", self.svg(Some(&theme::style_sheet())))
    }

    /// For a page that has [`theme::style_sheet`] already.
    pub fn inline(&self) -> String {
        self.svg(None)
    }

    fn svg(&self, style: Option<&str>) -> String {
        let (title, description) = (format!("{}-title", self.name), format!("{}-desc", self.name));
        let style = style.map(|css| Element::new("style").text(css).into_xml()).unwrap_or_default();
        let titles = [("title", &title, &self.title), ("desc", &description, &self.description)]
            .map(|(tag, id, text)| Element::new(tag).attr("id", id).text(text).into_xml());
        let content = format!("{}{style}{}", titles.concat(), self.body);
        Element::new("svg")
            .attr("xmlns", "http://www.w3.org/2000/svg")
            .attr("class", "picture")
            .attr("viewBox", &format!("0 0 {} {}", self.width, self.height))
            .attr("width", &self.width.to_string())
            .attr("height", &self.height.to_string())
            .attr("role", "img")
            .attr("aria-labelledby", &format!("{title} {description}"))
            .content(&content)
            .into_xml()
    }
}
