//! Outcomes for people (terminal) and for programs (JSON lines).
//!
//! ```text
//! items (JSONL in) ─ scoring ─┬─ records ─ writer (JSONL out, resumable)
//!                             └─ terminal (drawn with layout, colour and sanitize)
//! run folders ─ crate::eval::analysis ─┬─ tables (terminal, Markdown, LaTeX, CSV)
//!                                      ├─ pictures (drawn by svg)
//!                                      └─ html (both, and every item)
//! ```

pub mod colour;
pub mod draw;
pub mod html;
pub mod item;
pub mod items;
pub mod layout;
pub mod pictures;
pub mod png;
pub mod records;
pub mod sanitize;
pub mod svg;
pub mod tables;
pub mod terminal;
pub mod writer;
