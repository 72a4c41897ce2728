//! Files in and out, as JSON lines: responses to score, and their records.
//!
//! [`jsonl`] is the one reader and the one resumable writer of every `.jsonl` file; [`item`] is a line of `score`'s input,
//! [`record`] a line of its output; [`target`] is a correct answer.

pub mod item;
pub mod jsonl;
pub mod record;
pub mod target;
