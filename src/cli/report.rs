//! `uqac report`: an evaluation's tables, recomputed from its samples.

use super::error::CliError;
use super::{note, print};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use uqac::eval::analysis::{Analysis, AnalysisOptions, analyse};
use uqac::report::colour::Look;
use uqac::report::tables::{csv::csv, latex::latex, markdown::markdown, sheets::sheets, text::text};

/// Tables of what evaluations found
///
/// Reads the folders that `uqac eval --output` has written; no model is needed. Shards of a run, in one folder or in
/// several given together, are merged.
#[derive(Args)]
pub struct ReportArgs {
    /// Folders of runs
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// How it is written; json holds everything
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// A file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only these methods, by their keys in the samples' uq.scores; they are compared on the items that all of them have
    #[arg(long, value_delimiter = ',', value_name = "METHOD,...")]
    methods: Vec<String>,
    /// The method that the others are compared with
    #[arg(long, value_name = "METHOD", default_value = "p")]
    against: String,
    /// Resamples of the bootstrap; 0: no intervals
    #[arg(long, value_name = "N", default_value_t = 1000)]
    resamples: usize,
    /// Seed of the bootstrap
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Markdown,
    Csv,
    Latex,
    Json,
}

pub fn run(args: &ReportArgs) -> Result<ExitCode, CliError> {
    let options = AnalysisOptions {
        resamples: args.resamples,
        seed: args.seed,
        methods: args.methods.clone(),
        against: args.against.clone(),
    };
    let analysis = analyse(&args.folders, &options)?;
    if !matches!(args.format, Format::Table | Format::Markdown) {
        for run in &analysis.runs {
            run.notes.iter().for_each(|what| note(&format!("note: {}: {what}", run.name)));
        }
    }
    let text = written(&analysis, args)?;
    match &args.output {
        Some(file) => std::fs::write(file, text).map_err(|source| CliError::File { file: file.clone(), source })?,
        None => print(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn written(analysis: &Analysis, args: &ReportArgs) -> Result<String, CliError> {
    /// Columns of a table in a file.
    const FILE_WIDTH: usize = 120;
    let look = match args.output {
        Some(_) => Look { colour: false, width: FILE_WIDTH },
        None => Look::of_stdout(),
    };
    Ok(match args.format {
        Format::Table => text(&sheets(analysis), look),
        Format::Markdown => markdown(&sheets(analysis)),
        Format::Latex => latex(&sheets(analysis)),
        Format::Csv => csv(analysis)?,
        Format::Json => serde_json::to_string_pretty(analysis)? + "\n",
    })
}
