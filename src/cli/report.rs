//! `uqac report`: an evaluation's tables and pictures, recomputed from its samples.

use super::error::CliError;
use super::{note, print};
use crate::eval::analysis::{Analysis, AnalysisOptions, analyse};
use crate::report::html;
use crate::report::pictures::galleries;
use crate::report::png::pngs;
use crate::report::svg::Picture;
use crate::report::tables::{build::tables, csv::csv, latex::latex, markdown::markdown, text::text};
use crate::report::term::colour::TermStyle;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Tables and pictures of what evaluations found
///
/// Reads the folders that `uqac eval --output` has written; no model is needed. Shards of a run, in one folder or in
/// several given together, are merged.
#[derive(Args)]
pub struct ReportArgs {
    /// Folders of runs
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// How it is written; json holds every number, html is one page with tables, pictures and every item
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// A file instead of standard output; with html a folder, which gets report.html and the pictures (or a file, if it
    /// ends in .html)
    #[arg(long, value_name = "FILE|FOLDER")]
    output: Option<PathBuf>,
    /// Also write the pictures into this folder, as SVG
    #[arg(long, value_name = "FOLDER")]
    pictures: Option<PathBuf>,
    /// The pictures as PNG, too (in builds with the feature png)
    #[arg(long)]
    png: bool,
    /// Only these methods, by their keys in the samples' uq.scores; they are compared on the items that all of them have
    #[arg(long, value_delimiter = ',', value_name = "METHOD,...")]
    methods: Vec<String>,
    /// The method that the others are compared with
    #[arg(long, value_name = "METHOD", default_value = "p")]
    against: String,
    /// Resamples of the bootstrap; 0: no intervals
    #[arg(long, value_name = "N", default_value_t = 1000)]
    resamples: usize,
    /// Find the threshold that holds this share of wrong answers by not answering below it, on a random half of the items,
    /// and show what comes of it on the other half
    #[arg(long, value_name = "SHARE", value_parser = share)]
    target_risk: Option<f64>,
    /// Fit Platt's sigmoid and isotonic regression on a random half of the items, and show the errors on the other half
    #[arg(long)]
    calibrate: bool,
    /// Seed of the bootstrap and of the halves
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if value > 0.0 && value < 1.0 { Ok(value) } else { Err("expected a number above 0 and below 1".to_owned()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Markdown,
    Csv,
    Latex,
    Json,
    Html,
}

pub fn run(args: &ReportArgs) -> Result<ExitCode, CliError> {
    let options = AnalysisOptions {
        resamples: args.resamples,
        seed: args.seed,
        methods: args.methods.clone(),
        against: args.against.clone(),
        target_risk: args.target_risk,
        calibrate: args.calibrate,
    };
    let analysis = analyse(&args.folders, &options)?;
    if !matches!(args.format, Format::Table | Format::Markdown) {
        for run in &analysis.runs {
            run.notes.iter().for_each(|what| note(&format!("note: {}: {what}", run.name)));
        }
    }
    let (file, folder) = places(args);
    match args.pictures.clone().or(folder.map(|folder| folder.join("pictures"))) {
        Some(folder) => draw(&analysis, &folder, args.png)?,
        None if args.png => return Err(CliError::Missing("--pictures FOLDER")),
        None => (),
    }
    let text = written(&analysis, args)?;
    match file {
        Some(file) => {
            let made = folder.map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| std::fs::write(&file, text)).map_err(|source| CliError::File { path: file, source })?;
        }
        None => print(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The file that the report goes to, and the folder that is its own, if it has one: a page's.
fn places(args: &ReportArgs) -> (Option<PathBuf>, Option<&Path>) {
    let named_html = |path: &Path| path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("html"));
    match args.output.as_deref() {
        Some(folder) if args.format == Format::Html && !named_html(folder) => {
            (Some(folder.join("report.html")), Some(folder))
        }
        other => (other.map(Path::to_owned), None),
    }
}

fn written(analysis: &Analysis, args: &ReportArgs) -> Result<String, CliError> {
    /// Columns of a table in a file.
    const FILE_WIDTH: usize = 120;
    let style = match args.output {
        Some(_) => TermStyle { colour: false, width: FILE_WIDTH },
        None => TermStyle::of_stdout(),
    };
    Ok(match args.format {
        Format::Table => text(&tables(analysis), style),
        Format::Markdown => markdown(&tables(analysis)),
        Format::Latex => latex(&tables(analysis)),
        Format::Csv => csv(analysis)?,
        Format::Html => html::render(analysis)?,
        Format::Json => serde_json::to_string_pretty(analysis)? + "\n",
    })
}

/// Writes every picture into the folder.
fn draw(analysis: &Analysis, folder: &Path, png: bool) -> Result<(), CliError> {
    let write = |name: String, bytes: &[u8]| {
        let file = folder.join(name);
        std::fs::write(&file, bytes).map_err(|source| CliError::File { path: file, source })
    };
    std::fs::create_dir_all(folder).map_err(|source| CliError::File { path: folder.to_owned(), source })?;
    let pictures: Vec<Picture> = galleries(analysis).into_iter().flat_map(|gallery| gallery.pictures).collect();
    for picture in &pictures {
        write(format!("{}.svg", picture.name), picture.standalone().as_bytes())?;
    }
    if png {
        for (picture, bytes) in pictures.iter().zip(pngs(&pictures)?) {
            write(format!("{}.png", picture.name), &bytes)?;
        }
    }
    note(&format!("{} pictures in {}", pictures.len(), folder.display()));
    Ok(())
}
