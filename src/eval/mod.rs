//! Evaluation: runs a model over a benchmark, grades its answers, records its confidences and measures their quality.
//!
//! ```text
//! tasks ─ items ─ generation (batched) ─ methods ─ samples_<task>.jsonl ─ metrics ─ report
//! (tasks)         (run)                  (run)     (sample)               (metrics)
//!                                      grading ┘
//! ```
//!
//! A run writes [`sample::Sample`]s, one line per item, to a folder from which it can be resumed; everything
//! downstream is recomputed from the samples alone, without a model.

pub mod analysis;
pub mod assess;
pub mod calibration;
pub mod grading;
pub mod metrics;
pub mod run;
pub mod sample;
pub mod samples;
pub mod tasks;
