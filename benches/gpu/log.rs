//! Results, printed and saved one by one, so that an interrupted run keeps them.

use crate::measure::StageError;
use crate::report::{Problem, Report, Row};
use crate::{Fatal, write_json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use uqac::LoadError;

/// The results so far, and where they are saved.
pub struct Log {
    pub report: Report,
    pub json: Option<PathBuf>,
    /// Appended to the names of a stage's rows.
    pub suffix: String,
    /// Failed measurements, skipped ones excluded.
    pub failures: usize,
}

/// Why a measurement is missing.
pub struct Failure {
    pub message: String,
    pub kind: FailureKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No time left, or a context beyond the model's.
    Skipped,
    Wrong,
    /// The engine may be in any state and is reloaded.
    Broken,
}

impl From<StageError> for Failure {
    fn from(error: StageError) -> Self {
        let kind = match error {
            StageError::Budget { .. } | StageError::Context { .. } => FailureKind::Skipped,
            StageError::Engine(_) | StageError::Machine(_) => FailureKind::Broken,
            _ => FailureKind::Wrong,
        };
        Failure { message: error.to_string(), kind }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Failure { message: error.to_string(), kind: FailureKind::Broken }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure { message: error.to_string(), kind: FailureKind::Broken }
    }
}

/// Runs `work`; a panic becomes a failure (its message is on standard error).
pub fn caught<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Failure { message: format!("panic: {text}"), kind: FailureKind::Broken })
    })
}

impl Log {
    pub fn add(&mut self, rows: Vec<Row>) -> Result<(), Fatal> {
        let (rows, broken): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(Row::is_finite);
        for row in broken {
            let failure = Failure { message: "the figure is not finite".to_owned(), kind: FailureKind::Wrong };
            self.problem(&row.shape, &row.what, failure)?;
        }
        rows.iter().for_each(|row| println!("{}", row.line()));
        self.report.rows.extend(rows);
        self.save()
    }

    pub fn problem(&mut self, shape: &str, stage: &str, failure: Failure) -> Result<(), Fatal> {
        let Failure { message, kind } = failure;
        self.failures += usize::from(kind != FailureKind::Skipped);
        println!("  NOT MEASURED: {stage}: {message}");
        self.report.problems.push(Problem { shape: shape.to_owned(), stage: stage.to_owned(), message });
        self.save()
    }

    /// Adds a stage's result. Returns false if the stage broke the engine.
    pub fn record(&mut self, shape: &str, stage: &str, outcome: Result<Vec<Row>, Failure>) -> Result<bool, Fatal> {
        match outcome {
            Ok(mut rows) => {
                rows.iter_mut().for_each(|row| row.what += &self.suffix);
                self.add(rows).map(|()| true)
            }
            Err(failure) => {
                let broken = failure.kind == FailureKind::Broken;
                self.problem(shape, stage, failure).map(|()| !broken)
            }
        }
    }

    pub fn save(&self) -> Result<(), Fatal> {
        self.json.clone().map_or(Ok(()), |path| write_json(path, &self.report))
    }
}
