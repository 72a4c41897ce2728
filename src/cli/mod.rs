//! The command line, all of the program: one file per subcommand, and here what they share.

mod ask;
mod assess;
mod bench;
mod config;
mod devices;
mod error;
mod eval;
mod fit_gamma;
mod inspect;
mod progress;
mod report;
mod score;

use crate::backend::cuda::Gemm;
use crate::backend::{DType, DeviceChoice, WeightFormat};
use crate::engine::{Engine, EngineOptions};
use crate::model::demo;
use crate::model::hub::locate_model;
use crate::report::term::sanitize::visible;
use clap::{Args, CommandFactory, Parser, Subcommand};
use error::CliError;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code when some items could not be scored.
const SOME_FAILED: u8 = 1;

/// Exit code when a command could not do its work: usage, a model that cannot be loaded, a file that cannot be read or
/// written.
const FAILED: u8 = 2;

#[derive(Parser)]
#[command(version, about, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  score, eval: done, but some items have status \"error\" in the output
  2  wrong usage, or a model or file that cannot be read or written

Environment:
  UQAC_MODEL   the model if --model is not given
  UQAC_CACHE   folder for what is unpacked or compiled at first use [default: ~/.cache/uqac]
  CUDA_HOME    the CUDA toolkit, whose headers kernels are compiled with at first use
  NO_COLOR     no colours, if set and not empty
  COLUMNS      width of the report";

#[derive(Subcommand)]
enum Command {
    Ask(ask::AskArgs),
    Score(score::ScoreArgs),
    Eval(eval::EvalArgs),
    FitGamma(fit_gamma::FitGammaArgs),
    Inspect(inspect::InspectArgs),
    Devices(devices::DevicesArgs),
    Bench(bench::BenchArgs),
    Report(report::ReportArgs),
}

/// Which model, and how it runs.
#[derive(Args)]
struct ModelArgs {
    /// Model folder, a name on the Hugging Face hub that has been downloaded, or abacus, the small model inside this
    /// program [default: $UQAC_MODEL; for ask and eval abacus without it]
    #[arg(long, value_name = "FOLDER|NAME")]
    model: Option<String>,
    #[command(flatten)]
    run: RunArgs,
}

/// How a model runs.
#[derive(Args, Clone)]
struct RunArgs {
    /// Where it runs; auto: the first CUDA device if it can be used, else the CPU; reference: one scalar thread, slow, for
    /// checking
    #[arg(long, value_name = "auto|cpu|cuda[:N]|reference", default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Type of the cached keys [default: f32; f16 is faster on CUDA, and keeps fewer chains]
    #[arg(long, value_name = "f32|f16|bf16")]
    k_cache: Option<DType>,
    /// Type of the cached values [default: f32; on CUDA f16]
    #[arg(long, value_name = "f32|f16|bf16")]
    v_cache: Option<DType>,
    /// What multiplies in wide passes on CUDA: own kernels; cuBLASLt; or what is faster at the start (whose bits may then
    /// differ from run to run)
    #[arg(long, value_name = "own|auto|cublaslt", default_value_t = Gemm::Own)]
    gemm: Gemm,
    /// Threads on the CPU; 0: one per core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// How the CPU holds the weights; q8: in 8 bits, which is faster and changes results a little
    #[arg(long, value_name = "file|q8", default_value_t = WeightFormat::File)]
    weights: WeightFormat,
}

impl ModelArgs {
    /// What the flag or the environment names.
    fn named(&self) -> Option<String> {
        let named = self.model.clone().or_else(|| std::env::var("UQAC_MODEL").ok());
        named.filter(|name| !name.is_empty())
    }

    /// The folder of the model that is named.
    fn folder(&self) -> Result<PathBuf, CliError> {
        Ok(locate_model(&self.named().ok_or(CliError::NoModel)?)?)
    }

    /// The model that is named, or else the one inside the program, and its folder.
    fn or_embedded(&self) -> Result<(String, PathBuf), CliError> {
        let name = self.named().unwrap_or_else(|| {
            note("note: no --model given: this is abacus, a model of 2.5 million parameters that can do sums");
            demo::NAME.to_owned()
        });
        let folder = locate_model(&name)?;
        Ok((name, folder))
    }
}

impl RunArgs {
    fn options(&self) -> EngineOptions {
        let &RunArgs { device, threads, k_cache, v_cache, gemm, weights } = self;
        EngineOptions { device, threads, k_cache, v_cache, gemm, weights, ..EngineOptions::default() }
    }

    fn load(&self, folder: &std::path::Path) -> Result<Engine, CliError> {
        let mut upload = progress::Upload::default();
        let engine = Engine::load_with(folder, self.options(), &mut |done, total| upload.show(done, total))?;
        if !self.weights.is_file() {
            note("note: weights are rounded to 8 bits (--weights q8); probabilities and confidences differ a little");
        }
        if let Some(why) = engine.cuda_fallback_reason() {
            note(&format!("note: running on the CPU: {why}"));
        }
        Ok(engine)
    }
}

/// Parses the command line, runs the command and reports its error.
pub fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        // Whoever reads our output may stop when they have enough.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("error: {error}"));
            ExitCode::from(FAILED)
        }
    }
}

fn run() -> Result<ExitCode, CliError> {
    let arguments = config::expanded(&Cli::command(), std::env::args_os().collect())?;
    match Cli::parse_from(arguments).command {
        Command::Ask(args) => ask::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::FitGamma(args) => fit_gamma::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Report(args) => report::run(&args),
    }
}

/// A line for the person at the terminal, made harmless: errors quote files. That nobody may be listening is no error.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", visible(line));
}

/// Writes to standard output.
fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Stdout)
}
