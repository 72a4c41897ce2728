//! Confidence for the final answer of a reasoning language model, from the same pass that wrote it.
//!
//! ```text
//! prompt ─ chat template ─ tokens ─ prefill ─┬─ decode step ─ sample ─┐   every step leaves a trace
//!                                            └────────<───────────────┘
//! response ─ answer span ─ attention chain ─ similarity filter ─ ensemble ─ confidence ─ report
//!            (answer)      (chain)           (similarity)        (ensemble) (confidence)
//! ```
//!
//! [`model`] turns a Hugging Face folder into a [`model::ModelSpec`] and memory-mapped weights; [`backend`] holds the
//! few fused operations of a transformer pass; [`engine`] puts them in order and keeps the trace; [`uq`] is the method
//! itself (UQAC, "Language Model Uncertainty Quantification with Attention Chain", COLM 2025), code over the trace and
//! two engine calls; [`report`] shows the outcome to a person or a program.

pub mod backend;
pub mod bench;
mod cache;
pub mod engine;
pub mod eval;
pub mod io;
pub mod model;
pub mod report;
pub mod units;
pub mod uq;
