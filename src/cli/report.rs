//! `uqac report`: tables and pictures of evaluations, recomputed from their samples.

use super::progress::{ANALYSIS, work};
use super::*;
use crate::eval::analysis::{Analysis, AnalysisOptions, analyse, methods::known};
use crate::report::tables::markup::{latex, markdown, text};
use crate::report::tables::{build::tables, facts::csv};
use crate::report::term::{TermStyle, escaped_json};
use crate::report::{html, pictures::galleries, svg::Picture};
use crate::uq::scores::Score;
use clap::ValueEnum;

/// Tables and pictures of evaluations
///
/// Reads folders written by `uqac eval --output`; needs no model. Merges the shards of a run, in one folder or several.
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = examples_and_methods())]
pub struct ReportArgs {
    /// Folders of runs
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Output format; json has every number, html is one page with tables, pictures and all items
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Output file [default: standard output]; with html a folder for report.html and the pictures, or a file named *.html
    #[arg(short, long, value_name = "FILE|FOLDER")]
    output: Option<PathBuf>,
    /// Replace an existing file (report.html in a folder is always replaced)
    #[arg(long)]
    overwrite: bool,
    /// Also write the pictures to this folder, as SVG
    #[arg(long, value_name = "FOLDER")]
    pictures: Option<PathBuf>,
    #[command(flatten)]
    options: AnalysisOptions,
}

const EXAMPLES: &str = "\
Examples:
  uqac report runs/abacus
  uqac report runs/qwen runs/llama --format html --output report
  uqac report runs/qwen --methods p,p_sim,self_consistency --against self_consistency";

fn examples_and_methods() -> String {
    let line = |of: &Score| format!("  {:<26} {:<29} {}\n", of.key, of.name, of.meaning);
    format!(
        "{EXAMPLES}\n\nMethods (--methods, --against): key, name in tables, meaning\n{}",
        known().map(line).collect::<String>()
    )
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

pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let (file, folder) = places(args);
    if let Some(file) = &file {
        refuse_existing(file, args.overwrite || folder.is_some(), &args.folders)?;
    }
    let analysis = work(ANALYSIS, || analyse(&args.folders, &args.options))?;
    if !matches!(args.format, Format::Table | Format::Markdown) {
        for run in &analysis.runs {
            run.notes.iter().for_each(|what| note(&format!("note: {}: {what}", run.name)));
        }
    }
    if let Some(folder) = args.pictures.clone().or(folder.map(|folder| folder.join("pictures"))) {
        draw(&analysis, &folder)?;
    }
    let text = written(&analysis, args)?;
    match file {
        Some(file) => {
            folder.map_or(Ok(()), std::fs::create_dir_all).map_err(FileError::at(&file))?;
            write(&file, &text)?;
        }
        None => print(&text)?,
    }
    Ok(())
}

/// An existing file is replaced only with --overwrite, a run's own files never.
fn refuse_existing(file: &Path, overwrite: bool, runs: &[PathBuf]) -> Result<(), CliError> {
    let Ok(metadata) = file.metadata() else { return Ok(()) };
    let of_a_run = |name: &str| name == "manifest.json" || name.starts_with("samples_") || name.starts_with("sweep_");
    for entry in runs.iter().filter_map(|run| run.read_dir().ok()).flatten().flatten() {
        let same = || entry.path().metadata().is_ok_and(|other| files::same(&metadata, &other));
        if of_a_run(&entry.file_name().to_string_lossy()) && same() {
            return Err(CliError::RunFile(file.to_owned()));
        }
    }
    match metadata.is_file() && metadata.len() > 0 && !overwrite {
        true => Err(CliError::Exists(file.to_owned())),
        false => Ok(()),
    }
}

/// The output file, and a page's folder.
fn places(args: &ReportArgs) -> (Option<PathBuf>, Option<&Path>) {
    let named_html = |path: &Path| path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("html"));
    match args.output.as_deref() {
        Some(to) if args.format == Format::Html && !named_html(to) => (Some(to.join("report.html")), Some(to)),
        other => (other.map(Path::to_owned), None),
    }
}

fn written(analysis: &Analysis, args: &ReportArgs) -> Result<String, Failure> {
    /// Width in columns of a text table in a file.
    const FILE_WIDTH: usize = 120;
    let style = match args.output {
        Some(_) => TermStyle { colour: false, width: FILE_WIDTH },
        None => TermStyle::of_stdout(),
    };
    Ok(match args.format {
        Format::Table => text(&tables(analysis), style),
        Format::Markdown => markdown(&tables(analysis)),
        Format::Latex => latex(&tables(analysis)),
        Format::Csv => csv(analysis).map_err(CliError::Csv)?,
        Format::Html => html::render(analysis)?,
        Format::Json => escaped_json(&serde_json::to_string_pretty(analysis).map_err(CliError::Json)?) + "\n",
    })
}

/// Writes every picture to the folder.
fn draw(analysis: &Analysis, folder: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(FileError::at(folder))?;
    let pictures: Vec<Picture> = galleries(analysis).into_iter().flat_map(|gallery| gallery.pictures).collect();
    for picture in &pictures {
        write(&folder.join(format!("{}.svg", picture.name)), &picture.standalone())?;
    }
    note(&format!("{} pictures in {}", pictures.len(), folder.display()));
    Ok(())
}
