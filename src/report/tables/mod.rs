//! An evaluation's results as tables.
//!
//! ```text
//! Analysis ─ facts: every number with its keys ─┬─ CSV: one row per number
//!                                               └─ build: tables as columns over facts ─ text, Markdown, LaTeX, page
//! ```

pub mod build;
mod columns;
pub mod facts;
pub mod markup;

pub use columns::{Format, heads, meaning};

use serde::Serialize;

/// A table in any output format. The first column names its rows, the others hold values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub sections: Vec<Section>,
    pub notes: Vec<String>,
}

/// Rows under a common label.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Section {
    pub label: Option<String>,
    /// One cell per column.
    pub rows: Vec<Vec<Cell>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    pub text: String,
    /// Whether this is the best of its column.
    pub best: bool,
}
