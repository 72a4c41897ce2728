//! Confidence for the final answer of a reasoning language model, from the same pass that wrote it (UQAC, "Language Model
//! Uncertainty Quantification with Attention Chain", COLM 2025), on an engine made for it.
//!
//! ```text
//! prompt ─ chat template ─ tokens ─ prefill ─┬─ decode step ─ sample ─┐   every step adds to a trace   engine
//!                                            └────────<───────────────┘
//! response ─ find the answer ─ attention chain ─ similarity filter ─ ensemble ─ scores                 uq::pipeline
//! ```
//!
//! The whole path in a few lines, with the model that is inside the crate:
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
//! # How to read this crate
//!
//! 1. [`backend::reference`] is the whole transformer with its trace, scalar, in one file.
//! 2. [`uq::pipeline`] is the method from top to bottom; [`uq::rules`] are the differences between the paper, the published code and
//!    this program; [`uq::scores`] every confidence.
//! 3. [`engine`] generates, keeps the trace, and answers the method's three queries from it.
//! 4. [`backend`] is the contract that a device fulfils, with its one layer loop; then [`backend::cpu`] and [`backend::cuda`].
//! 5. [`model`] reads what is published of a model. [`io`], [`eval`], [`report`], [`mod@bench`], [`mod@serve`] and [`cli`] are files,
//!    benchmarks, tables, measurements, the server and the commands around it.
//!
//! Imports only point down the list `cli, bench, serve, report, eval, io, uq, engine, backend, model`. Positions are 0-based over the whole
//! sequence, **row T** is what is computed when the token at position T is the input, log-probabilities are natural and under
//! the full vocabulary, and every confidence is higher for more confident.

pub mod backend;
pub mod bench;
mod cache;
pub mod cli;
pub mod engine;
pub mod eval;
mod files;
pub mod io;
pub mod model;
pub mod report;
pub mod serve;
pub mod units;
pub mod uq;

pub use backend::DeviceChoice;
pub use engine::encode::{Encoding, encode, encode_prompt};
pub use engine::running::{Measure, RunningConfidence};
pub use engine::{
    Engine, EngineOptions, FinishReason, GenerateOptions, Generation, Progress, Response, TracedSequence,
};
pub use model::chat::{Conversation, Message};
pub use model::hub::locate_model;
pub use uq::answer::AnswerRule;
pub use uq::pipeline::{Assessed, assess};
pub use uq::{Outcome, Parameters, Profile, Scores};

#[cfg(test)]
extern crate self as uqac; // the tests below name the crate as its users do
#[cfg(test)]
#[path = "../tests/unit/mod.rs"]
mod unit;
