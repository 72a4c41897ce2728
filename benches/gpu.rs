//! The engine on a GPU (or, as a trial, on the CPU), each figure next to the floor set by bytes and operations. Writes
//! its own random-weight checkpoints of published shapes. `benches/gpu.sh` runs it along with the tests and the rivals;
//! on its own: `cargo bench --bench gpu -- run --quick`.

#[path = "gpu/agreement.rs"]
mod agreement;
#[path = "gpu/answered.rs"]
mod answered;
#[path = "gpu/compare.rs"]
mod compare;
#[path = "gpu/cupti.rs"]
mod cupti;
#[path = "gpu/log.rs"]
mod log;
#[path = "gpu/measure.rs"]
mod measure;
#[path = "gpu/rates.rs"]
mod rates;
#[path = "gpu/report.rs"]
mod report;
#[path = "gpu/session.rs"]
mod session;
mod shapes;
#[path = "gpu/stages.rs"]
mod stages;
#[path = "gpu/timeline.rs"]
mod timeline;

use clap::{Parser, Subcommand};
use machine::{Machine, MachineError};
use report::{Problem, Report};
use shapes::checkpoint;
use std::path::PathBuf;
use std::process::ExitCode;
use uqac::DeviceChoice;
use uqac::internals::{machine, roofline};

#[derive(Parser)]
#[command(name = "gpu", about = "Measures the engine on a GPU against its floors")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure
    Run(session::RunArgs),
    /// The device's memory rates
    Rates(rates::RatesArgs),
    /// The device's name
    Device {
        /// auto, cpu, cuda, cuda:N or reference
        #[arg(long, default_value = "auto")]
        device: DeviceChoice,
    },
    /// Merge the JSON of several runs, and write it as JSON and as a Markdown table
    Report(ReportArgs),
    /// Write each shape's config.json to FOLDER/SHAPE/, for the rivals
    Configs {
        folder: PathBuf,
        /// Shrunken shapes
        #[arg(long)]
        quick: bool,
    },
}

#[derive(clap::Args)]
struct ReportArgs {
    /// Results of `run`, or of a program that writes the same fields; missing files are skipped
    files: Vec<PathBuf>,
    /// A fact about the run as a whole
    #[arg(long, value_name = "KEY=VALUE")]
    about: Vec<String>,
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    #[arg(long, value_name = "FILE")]
    markdown: PathBuf,
}

/// Buffer size in bytes when nothing is measured.
const SMALL_BUFFER: usize = 1 << 20;

/// An error that stops the program; a failed measurement is only reported.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error(transparent)]
    Machine(#[from] machine::MachineError),
    #[error(transparent)]
    Stage(#[from] measure::StageError),
    #[error("--about {0:?}: expected KEY=VALUE")]
    About(String),
}

fn main() -> ExitCode {
    // cargo bench adds its own flag
    let arguments = Arguments::parse_from(std::env::args().filter(|argument| argument != "--bench"));
    let done = |()| true;
    let result = match arguments.command {
        Command::Run(arguments) => session::run(&arguments),
        Command::Rates(arguments) => rates::run(&arguments),
        Command::Device { device } => print_device(device).map(done),
        Command::Report(arguments) => merge(&arguments).map(done),
        Command::Configs { folder, quick } => configs(folder, quick).map(done),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Writes a file, creating its folder; an interruption leaves the old file intact.
pub fn write(path: PathBuf, text: &str) -> Result<(), Fatal> {
    let part = path.with_extension("part");
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = folder.and_then(|()| std::fs::write(&part, text)).and_then(|()| std::fs::rename(&part, &path));
    written.map_err(|source| Fatal::Io { path, source })
}

pub fn write_json(path: PathBuf, report: &Report) -> Result<(), Fatal> {
    match serde_json::to_string_pretty(report) {
        Ok(text) => write(path, &(text + "\n")),
        Err(source) => Err(Fatal::Json { path, source }),
    }
}

/// Device name and size.
fn described(machine: &Machine) -> Result<String, MachineError> {
    match machine {
        Machine::Cpu { threads, .. } => Ok(format!("CPU, {threads} threads")),
        Machine::Cuda { context, .. } => {
            let total = context.mem_get_info()?.1;
            Ok(format!("{}, {:.0} GiB", context.name()?, total as f64 / (1u64 << 30) as f64))
        }
    }
}

fn print_device(choice: DeviceChoice) -> Result<(), Fatal> {
    println!("{}", described(&Machine::open(choice, 0, SMALL_BUFFER)?)?);
    Ok(())
}

fn merge(arguments: &ReportArgs) -> Result<(), Fatal> {
    let mut merged = Report::default();
    for pair in &arguments.about {
        let (key, value) = pair.split_once('=').ok_or_else(|| Fatal::About(pair.clone()))?;
        merged.about.insert(key.to_owned(), value.to_owned());
    }
    for path in arguments.files.iter().filter(|path| path.is_file()).cloned() {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(Fatal::Io { path, source }),
        };
        match serde_json::from_str(&text) {
            Ok(report) => merged.merge(report),
            // that program was cut off; the others' results are kept
            Err(error) => merged.problems.push(Problem {
                shape: "results".to_owned(),
                stage: path.display().to_string(),
                message: error.to_string(),
            }),
        }
    }
    merged.rows.extend(compare::comparisons(&merged.rows, merged.counts));
    // one section per shape, in order of appearance
    let mut order: Vec<String> = Vec::new();
    for row in &merged.rows {
        if !order.contains(&row.shape) {
            order.push(row.shape.clone());
        }
    }
    merged.rows.sort_by_key(|row| order.iter().position(|shape| *shape == row.shape));
    write_json(arguments.json.clone(), &merged)?;
    write(arguments.markdown.clone(), &merged.markdown())
}

fn configs(folder: PathBuf, quick: bool) -> Result<(), Fatal> {
    for shape in session::shapes(&[], quick)? {
        write(folder.join(shape.name).join("config.json"), &shape.config.to_string())?;
    }
    Ok(())
}
