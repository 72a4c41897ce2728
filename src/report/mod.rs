//! Outcomes for people (terminal) and for programs (JSON lines).
//!
//! ```text
//! items (JSONL in) ─ scoring ─┬─ records ─ writer (JSONL out, resumable)
//!                             └─ terminal (drawn with layout, colour and sanitize)
//! run folders ─ crate::eval::analysis ─┬─ tables (terminal, Markdown, LaTeX, CSV)
//!                                      ├─ pictures (drawn by svg)
//!                                      └─ html (both, and every item)
//! ```

pub mod html;
pub mod pictures;
pub mod png;
pub mod svg;
pub mod tables;
pub mod term;
