//! The Python module `uqac._uqac`: a thin layer over the library; its Python side is `python/uqac`.
//!
//! Requests and results cross the boundary as JSON, the same as the command line's; arrays cross as bytes with a dtype
//! and a shape. A model lives on its own thread, so that no caller holds the interpreter lock while the engine runs.

mod arrays;
mod events;
mod jobs;
mod metrics;
mod model;
mod options;
mod results;

use std::ffi::OsString;
use std::process::ExitCode;

use pyo3::prelude::*;
use uqac::Thinking;

pyo3::create_exception!(
    _uqac,
    Error,
    pyo3::exceptions::PyRuntimeError,
    "What the engine cannot do, and what to do about it."
);

/// Runs the command line with these arguments, program name first, and returns its exit code.
#[pyfunction]
fn main(python: Python, arguments: Vec<OsString>) -> u8 {
    let code = python.detach(|| uqac::main_with(arguments));
    (0..=u8::MAX).find(|&number| ExitCode::from(number) == code).unwrap_or(u8::MAX)
}

/// A response without its thought; empty if that is still open. `prompt` is the text before it.
#[pyfunction]
fn reply(prompt: &str, response: &str, thinking: &str) -> PyResult<String> {
    let thinking: Thinking = thinking.parse().map_err(options::invalid)?;
    Ok(thinking.split(prompt, response).text)
}

/// The keys of the program's own scores.
#[pyfunction]
fn score_keys() -> Vec<&'static str> {
    uqac::internals::analysis::methods::known().map(|score| score.key).collect()
}

/// The Hugging Face repository and revision of a model that is not on this machine, and the error from loading it.
#[pyfunction]
fn downloadable(name: &str) -> Option<(String, String, String)> {
    let error = uqac::locate_model(name).err()?;
    let (repository, revision) = error.downloadable()?;
    Some((repository.to_owned(), revision.to_owned(), error.to_string()))
}

/// The native part of uqac; documented in the package.
#[pymodule]
mod _uqac {
    #[pymodule_export]
    use super::Error;
    #[pymodule_export]
    use super::events::Events;
    #[pymodule_export]
    use super::metrics::{bootstrap, length_controlled_auroc, metric, reliability, risk_coverage};
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::results::Response;
    #[pymodule_export]
    use super::{downloadable, main, reply, score_keys};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
