//! `report.html`: tables, pictures and every item of one or several runs in one file that loads nothing.
//!
//! ```text
//! tables, pictures ─────────────────────────┐
//! samples ─ items as JSON (data, tokens) ───┼─ page ─ report.html
//! page.css, items.js, view.js, arcs.js ─────┘
//! ```
//!
//! Items are drawn by the script when they are opened, so that a run of a thousand stays light. Everything that comes
//! from outside is text: escaped here, and set as text there; a content security policy forbids the page to load
//! anything.

mod data;
mod page;
mod tokens;

pub use page::{Gallery, Page, Run, Table};
