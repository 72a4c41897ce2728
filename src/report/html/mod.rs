//! `report.html`: tables, pictures and every item of one or more runs in a single self-contained file.
//!
//! ```text
//! finding, tables, pictures ─────────────┐
//! samples ─ items as JSON (data) ────────┼─ page.html in frame.html (page) ─ report.html
//! page.css, {dom,view,arcs,tex,items}.js ┘
//! ```
//!
//! Items are drawn by the script when they are opened, so that a run of a thousand stays light. All external content
//! is treated as text: escaped here, and inserted as text by the script; a content security policy forbids the page
//! to load anything.

mod answer;
mod data;
mod page;

pub use answer::answer;
pub use data::Items;
pub use page::{Document, Page};

use super::{finding::findings, pictures::galleries, tables::build::tables};
use crate::eval::analysis::{Analysis, AnalysisError, Method, RunAnalysis, for_each_line, sample_files};
use crate::eval::sample::Sample;

/// Maximum size of a page's items in bytes; browsers still open such a page without delay.
const ITEMS_LIMIT: usize = 30 << 20;

/// The report of an analysis as a page; reads the runs' samples again.
///
/// # Errors
/// A samples file can no longer be read.
pub fn render(analysis: &Analysis) -> Result<String, AnalysisError> {
    let benchmarks = analysis.benchmarks().count();
    let limit = ITEMS_LIMIT / benchmarks.max(1);
    let mut runs = Vec::with_capacity(benchmarks);
    let methods: Vec<Method> = analysis.methods.iter().filter(|method| method.is_recorded()).cloned().collect();
    for run in &analysis.runs {
        runs.extend(items_of(run, &methods, limit)?);
    }
    let mut models: Vec<&str> = analysis.runs.iter().map(|run| run.name.as_str()).collect();
    models.dedup();
    let title = format!("Evaluation of {}", models.join(", "));
    let (findings, tables, galleries) = (findings(analysis), tables(analysis), galleries(analysis));
    Ok(Page { title, findings, runs, tables, galleries, methods }.render())
}

/// The items of each benchmark in a run.
fn items_of(run: &RunAnalysis, methods: &[Method], limit: usize) -> Result<Vec<Items>, AnalysisError> {
    let mut all: Vec<Items> = run.benchmarks().map(|task| Items::new(&run.name, &task.task, limit)).collect();
    let of_one_benchmark = |a: &str, b: &str| a.split(':').next() == b.split(':').next();
    for folder in &run.folders {
        for file in sample_files(folder)? {
            for_each_line(&file, |sample: Sample| {
                if let Some(items) = all.iter_mut().find(|items| of_one_benchmark(&items.task, &sample.task)) {
                    items.add(&sample, methods);
                }
            })?;
        }
    }
    Ok(all)
}
