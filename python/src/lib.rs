//! The Python module `uqac._uqac`: a thin skin over the library, whose Python side is `python/uqac`.
//!
//! What is asked and what is found cross as JSON, the JSON of the command line; arrays cross as bytes with a dtype and a
//! shape. A model lives on a thread of its own, so that no caller holds the interpreter's lock while the engine runs.

mod arrays;
mod events;
mod jobs;
mod metrics;
mod model;
mod options;

use pyo3::prelude::*;

pyo3::create_exception!(
    _uqac,
    Error,
    pyo3::exceptions::PyRuntimeError,
    "What the engine cannot do, and what to do about it."
);

/// The native part of uqac; see the package.
#[pymodule]
mod _uqac {
    #[pymodule_export]
    use super::Error;
    #[pymodule_export]
    use super::events::Events;
    #[pymodule_export]
    use super::jobs::Response;
    #[pymodule_export]
    use super::metrics::{bootstrap, length_controlled_auroc, metric, reliability, risk_coverage};
    #[pymodule_export]
    use super::model::Model;
}
