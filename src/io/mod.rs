//! Files of items and of results: JSON lines in, JSON lines out.
//!
//! [`item`] is what is scored, [`items`] reads a file of them, [`record`] is a result, [`writer`] a resumable file of them.

pub mod item;
pub mod items;
pub mod record;
pub mod writer;
