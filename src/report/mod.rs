//! Human-readable results: one response in a terminal or notebook, an evaluation as tables, pictures and a
//! page.
//!
//! ```text
//! response, outcome ─ term (layout, colour, sanitize)
//! run folders ─ crate::eval::analysis ─┬─ tables (terminal, Markdown, LaTeX, CSV)
//!                                      ├─ pictures (drawn by svg)
//!                                      └─ html (a finding, both, and every item)
//! ```

pub mod finding;
pub mod html;
pub mod pictures;
pub mod svg;
pub mod tables;
pub mod term;
