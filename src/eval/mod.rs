//! Evaluation: a model over a benchmark, its answers graded, its confidences recorded, and what they are worth.
//!
//! ```text
//! tasks ─ items ─ generation (batched) ─ methods ─ samples_<task>.jsonl ─ metrics ─ report
//! (tasks)         (run)                  (run)     (sample)               (metrics)
//!                                      grading ┘
//! ```
//!
//! A run writes [`sample::Sample`]s, one line an item, into a folder that it can be resumed from; everything right of
//! them is recomputed from the samples alone, without a model.

pub mod analysis;
pub mod assess;
pub mod calibration;
pub mod grading;
pub mod metrics;
pub mod run;
pub mod sample;
pub mod tasks;
