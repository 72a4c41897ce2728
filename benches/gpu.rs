//! The engine on a GPU (or, to try the program out, on the CPU), each figure beside the floor that bytes and operations
//! set. Makes its own random-weight checkpoints of published shapes. `benches/gpu.sh` runs it together with the tests
//! and the rivals; alone: `cargo bench --bench gpu -- run --quick`.

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
#[path = "gpu/report.rs"]
mod report;
#[path = "gpu/session.rs"]
mod session;
#[path = "gpu/stages.rs"]
mod stages;
#[path = "gpu/timeline.rs"]
mod timeline;

use clap::{Parser, Subcommand};
use report::{Problem, Report};
use shapes::SHAPES;
use std::path::PathBuf;
use std::process::ExitCode;
use uqac::backend::DeviceChoice;
use uqac::bench::{checkpoint, device, machine, predict, roofline, shapes};

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
    /// Say what the device is
    Device {
        /// auto, cpu, cuda, cuda:N or reference
        #[arg(long, default_value = "auto")]
        device: DeviceChoice,
    },
    /// Merge the JSON of several runs, and write it as JSON and as a Markdown table
    Report(ReportArgs),
    /// Write every shape's config.json to FOLDER/SHAPE/, for other programs to run the same
    Configs {
        folder: PathBuf,
        /// Shrunken shapes
        #[arg(long)]
        quick: bool,
    },
}

#[derive(clap::Args)]
struct ReportArgs {
    /// Results of `run`, or of a program that writes the same fields; one that is not there is left out
    files: Vec<PathBuf>,
    /// What `uqac bench --predict --json` has said: its numbers are set beside the rows of the same name
    #[arg(long, value_name = "FILE")]
    predictions: Vec<PathBuf>,
    /// What is said of the run as a whole
    #[arg(long, value_name = "KEY=VALUE")]
    about: Vec<String>,
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    #[arg(long, value_name = "FILE")]
    markdown: PathBuf,
}

/// Bytes of the buffers where nothing is measured.
const SMALL_BUFFER: usize = 1 << 20;

/// What stops the program; a measurement that fails does not, it is reported.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error(transparent)]
    Machine(#[from] machine::MachineError),
    #[error("--about {0:?}: expected KEY=VALUE")]
    About(String),
}

fn main() -> ExitCode {
    // cargo bench adds a flag of its own
    let arguments = Arguments::parse_from(std::env::args().filter(|argument| argument != "--bench"));
    let done = |()| true;
    let result = match arguments.command {
        Command::Run(arguments) => session::run(&arguments),
        Command::Device { device } => say_device(device).map(done),
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

/// Writes a file, its folder too; an interruption leaves the old file as it was.
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

fn say_device(choice: DeviceChoice) -> Result<(), Fatal> {
    println!("{}", device::machine(choice, 0, SMALL_BUFFER)?.describe()?);
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
            // a program that was cut off; the others' results are still wanted
            Err(error) => merged.problems.push(Problem {
                shape: "results".to_owned(),
                stage: path.display().to_string(),
                message: error.to_string(),
            }),
        }
    }
    merged.rows.extend(compare::comparisons(&merged.rows, merged.counts));
    for path in &arguments.predictions {
        set_beside(&mut merged, path)?;
    }
    // one section a shape, in the order in which shapes first came
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

/// Adds predictions to the rows that measure the same.
fn set_beside(report: &mut Report, path: &PathBuf) -> Result<(), Fatal> {
    let read = std::fs::read_to_string(path).map_err(|source| Fatal::Io { path: path.clone(), source })?;
    let json = |source| Fatal::Json { path: path.clone(), source };
    let prediction: predict::Prediction = serde_json::from_str(&read).map_err(json)?;
    report
        .about
        .insert(format!("predictions for {}", prediction.shape), format!("{}: {}", prediction.device, prediction.note));
    for row in report.rows.iter_mut().filter(|row| row.shape == prediction.shape) {
        if let Some(found) = prediction.rows.iter().find(|found| found.what == row.what && found.unit == row.unit) {
            let numbers =
                [("predicted", found.predicted), ("predicted at least", found.low), ("predicted at most", found.high)];
            row.facts.extend(numbers.map(|(name, value)| (name.to_owned(), value)));
        }
    }
    Ok(())
}

fn configs(folder: PathBuf, quick: bool) -> Result<(), Fatal> {
    for shape in SHAPES {
        let shape = if quick { shape.shrunken() } else { shape };
        write(folder.join(shape.name).join("config.json"), &shape.config().to_string())?;
    }
    Ok(())
}
