//! An evaluation's numbers as tables: for a terminal, Markdown, LaTeX, and tidy CSV.
//!
//! ```text
//! Analysis ─┬─ tables: what is in each table ─┬─ text (terminal)
//!           │                                 ├─ markdown
//!           │                                 └─ latex
//!           └─ csv: one row a number
//! ```

pub mod build;
pub(super) mod columns;
pub mod csv;
pub mod early;
pub mod holdout;
pub mod latex;
pub mod markdown;
pub mod text;

pub use super::term::layout::Align;

use serde::Serialize;
use std::borrow::Cow;

/// A table, whatever it is written as.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    pub title: String,
    /// Head and alignment.
    pub columns: Vec<(Cow<'static, str>, Align)>,
    pub sections: Vec<Section>,
    /// What the reader must know to read it.
    pub notes: Vec<String>,
}

/// Rows that belong together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Section {
    pub label: Option<String>,
    /// As many fields as there are columns.
    pub rows: Vec<Vec<Field>>,
}

/// A cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Field {
    pub text: String,
    /// The best of its column.
    pub best: bool,
}

impl Field {
    /// A cell that is not the best.
    pub fn new(text: impl Into<String>) -> Field {
        Field { text: text.into(), best: false }
    }
}

impl From<&str> for Field {
    fn from(text: &str) -> Field {
        Field::new(text)
    }
}

/// Shown where there is no number.
pub const NONE: &str = "—";
