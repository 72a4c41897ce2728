//! Confidence for the final answer of a reasoning language model, from the same pass that wrote it (UQAC, "Language Model
//! Uncertainty Quantification with Attention Chain", COLM 2025), on an engine made for it.
//!
//! ```text
//! prompt ─ chat template ─ tokens ─ prefill ─┬─ decode step ─ sample ─┐   every step adds to a trace   engine
//!                                            └────────<───────────────┘
//! response ─ find the answer ─ attention chain ─ similarity filter ─ ensemble ─ scores                 uq::pipeline
//! ```
//!
//! End to end in a few lines, with the model embedded in the crate:
//!
//! ```
//! use std::ops::ControlFlow;
//! use uqac::{AnswerRule, Conversation, Engine, EngineOptions, GenerateOptions, Parameters, Profile};
//!
//! let mut engine = Engine::load(&uqac::locate_model("abacus")?, EngineOptions::default())?;
//! let question = Conversation::Prompt("Tom has 3 boxes with 12 pencils each. How many pencils are there?".into());
//! let prompt = uqac::encode_prompt(&engine, &question, true)?;
//! let (_, mut response) = engine.generate_traced(&prompt, &GenerateOptions::default(), |_| ControlFlow::Continue(()))?;
//!
//! let parameters = Parameters::published(Profile::Corrected);
//! let found = uqac::assess(&mut response, AnswerRule::Auto, None, &parameters)?.expect("the response has an answer");
//! assert_eq!(found.answer.text, "36");
//! assert!((0.0..=1.0).contains(&found.outcome.scores["p"]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How to read the source
//!
//! 1. `backend/reference.rs` is the whole transformer with its trace, in scalar code, in one file.
//! 2. `uq/pipeline.rs` is the method from top to bottom; `uq/rules.rs` lists the differences between the paper, the
//!    published code and this program; `uq/scores` has every score.
//! 3. `engine` generates, keeps the trace, and runs the method's three queries on it.
//! 4. `backend` defines the device interface and the one layer loop; then `backend/cpu` and `backend/cuda`.
//! 5. `model` reads checkpoints. `io`, `eval`, `report`, `bench`, `serve` and `cli` handle files, benchmarks, tables,
//!    measurements, the server and the commands.
//!
//! Imports only point down the list `cli, bench, serve, report, eval, io, uq, engine, backend, model`; the first six are the
//! default feature `program`, without which the rest builds alone. Positions are 0-based over the whole sequence, **row T**
//! is computed with the token at position T as input, log-probabilities are natural and over the full vocabulary, and for
//! every score, higher means more confident.

mod backend;
mod cache;
mod engine;
mod files;
mod model;
mod names;
mod order;
mod units;
mod uq;

// The program.
#[cfg(feature = "program")]
mod bench;
#[cfg(feature = "program")]
mod cli;
#[cfg(feature = "program")]
mod eval;
#[cfg(feature = "program")]
mod io;
#[cfg(feature = "program")]
mod report;
#[cfg(feature = "program")]
mod serve;

// Models and generation.
pub use backend::sampling::Sampling;
pub use backend::{DType, DeviceChoice, ValueType, WeightFormat};
pub use engine::encode::{Encoding, ResponseText, encode, encode_prompt};
pub use engine::running::{Measure, RunningConfidence, WINDOW};
pub use engine::{
    BATCH_SIZE, Batch, Engine, EngineError, EngineOptions, FinishReason, GenerateOptions, Generation, LoadError,
    Progress, Response, Speculate, Ticket, TraceParts, TraceQueries, Traced, TracedSequence,
};
pub use model::chat::{ChatTemplate, Conversation, Message};
pub use model::hub::locate_model;
pub use model::reply::{Reply, Thinking};
pub use model::tokenizer::{TextStream, Tokenizer};
pub use model::{ModelSpec, Weights};
pub use names::Named;

// The method applied to a response.
pub use backend::entropy::Gamma;
pub use uq::answer::{AnswerRule, find_answer};
pub use uq::pipeline::{Assessed, assess};
pub use uq::scores::as_shown;
pub use uq::{Outcome, Parameters, Profile, Reading, Scores};

// The program: grading against references, records, and the commands.
#[cfg(feature = "program")]
pub use {
    cli::{main, main_with},
    eval::calibration::Calibration,
    eval::grading::{correct, normal_form},
    eval::tasks::Grader,
    io::item::{BadItem, Item},
    io::record::{AnswerRecord, Calibrated, Origin, Record},
};

/// Internals for the benchmarks, the fuzzer, the Python module and the program's tests. Not stable.
#[doc(hidden)]
pub mod internals {
    pub use crate::backend::TraceOptions;
    pub use crate::backend::cpu::attention::{
        AttentionRow, AttentionShape, HeadState, RowHead, accumulate_row, attend,
    };
    pub use crate::backend::cpu::cache::KvCache;
    pub use crate::backend::cpu::matmul::{Elements, Job, Matrix, Numbers, STAND_IN, matmul};
    pub use crate::backend::cpu::simd::Isa;
    pub use crate::backend::cpu::threads::ThreadPool;
    pub use crate::backend::cpu::{InputRounding, trace::Selection};
    pub use crate::backend::entropy::{EntropyRule, EntropyState, SoftmaxState};
    pub use crate::model::{tokenizer::byte_of_char, weights::range};
    pub use crate::uq::{Link, Member, Variant, chain, ensemble, similarity};
    #[cfg(feature = "program")]
    pub use crate::{
        bench::machine::MultiplyAdds,
        bench::{MedianRange, machine, roofline},
        eval::run::fingerprint::Fingerprint,
        eval::sample::{EnsembleMember, ResponseTokens, Sample, Similarity, SweepPoint, Uq},
        eval::{analysis, assess, calibration, metrics, samples, tasks},
        io::record::{Answer, Samples, Status},
        report::{finding, html, pictures, svg, tables, term},
    };
}

#[cfg(all(test, feature = "program"))]
extern crate self as uqac; // lets the tests below use the crate's public name
#[cfg(all(test, feature = "program"))]
#[path = "../tests/unit/mod.rs"]
mod unit;
