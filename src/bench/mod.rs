//! The cost of the method, measured: each stage of an answer next to the hardware limits, measured in the same run.
//!
//! ```text
//! machine  ─ read bandwidth, arithmetic peak, memory in use ─┐
//! measure  ─ rounds of every stage, interleaved ─────────────┴─ Report: JSON, tables, picture   (uqac bench)
//! roofline ─ bytes and operations that a stage needs at least
//! shapes, checkpoint ─ random weights in published shapes
//! ```

pub mod checkpoint;
pub mod machine;
mod measure;
mod report;
pub mod roofline;
pub mod shapes;

pub use measure::run;
pub use report::{MedianRange, Report, Settings, Stage, SweepRow};

use crate::engine::EngineError;
use crate::model::tokenizer::TokenizerError;

/// Why a benchmark has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Machine(#[from] machine::MachineError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("{needed} tokens exceed the model's context of {context}: use a shorter prompt, response or sweep")]
    Context { needed: usize, context: usize },
    #[error("ln p of a response token is {logprob}: expected a finite number")]
    NotFinite { logprob: f64 },
}
