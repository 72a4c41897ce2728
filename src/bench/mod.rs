//! What the method costs, measured: the engine's stages beside the limits of the machine, which are measured in the
//! same run.
//!
//! ```text
//! machine ─ read bandwidth, arithmetic peak ────┐
//! engine ── rounds of every stage, interleaved ──┴─ Report ─ table, JSON, picture   (uqac bench)
//! shapes ── random checkpoints of published shapes
//! predict ─ what a GPU would take, by counting: never a measurement
//! ```

pub mod checkpoint;
mod decoding;
pub mod device;
mod interleave;
pub mod machine;
mod measure;
pub mod predict;
mod report;
pub mod roofline;
mod settings;
pub mod shapes;
mod sweep;

pub use interleave::interleave;
pub use measure::run;
pub use report::{MedianRange, Report, Stage, SweepRow};
pub use settings::Settings;

use crate::engine::EngineError;
use crate::model::tokenizer::TokenizerError;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Machine(#[from] machine::MachineError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("{what} is {found}: expected {expected}")]
    Setting { what: &'static str, found: usize, expected: String },
    #[error("ln p of response token {index} is {logprob}")]
    NotFinite { index: usize, logprob: f64 },
}
