//! The command line, all of the program: one file per subcommand, and here what they share.

mod ask;
mod assess;
mod bench;
mod calibrate;
mod completions;
mod config;
mod devices;
mod early;
mod error;
mod eval;
mod fit_gamma;
mod inspect;
mod progress;
mod report;
mod say;
mod score;
mod serve;
mod signals;

use crate::backend::cuda::Gemm;
use crate::backend::entropy::Gamma;
use crate::backend::{DType, DeviceChoice, WeightFormat};
use crate::engine::{Engine, EngineOptions};
use crate::eval::assess::fingerprint;
use crate::eval::run::manifest::{FORMAT, Manifest, Model};
use crate::files;
use crate::model::demo;
use crate::model::hub::locate_model;
use crate::report::term::colour::TermStyle;
use clap::builder::RangedU64ValueParser;
use clap::{Args, ColorChoice, CommandFactory, Parser, Subcommand};
use error::CliError;
use say::{Level, detail, note, print};
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Instant;

/// Exit code when some items could not be scored.
const SOME_FAILED: u8 = 1;

/// Exit code when a command could not do its work: usage, a model that cannot be loaded, a file that cannot be read or
/// written.
const FAILED: u8 = 2;

#[derive(Parser)]
#[command(version, long_version = long_version(), about, after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    messages: Messages,
    #[command(subcommand)]
    command: Command,
}

/// How much is said, and in which colours.
#[derive(Args)]
#[command(next_help_heading = "Messages")]
struct Messages {
    /// Say nothing but results and errors
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Also say what runs where, and how long it takes to load
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Colours in results; auto: in a terminal
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
}

impl Messages {
    fn apply(&self) {
        say::set(match (self.quiet, self.verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        });
        match self.color {
            ColorChoice::Auto => (),
            choice => TermStyle::choose_colour(choice == ColorChoice::Always),
        }
    }
}

/// The version, the commit that it was built from, and the features it was built with.
fn long_version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let commit = option_env!("UQAC_COMMIT").unwrap_or("not recorded");
        format!("{}\ncommit: {commit}", env!("CARGO_PKG_VERSION"))
    })
}

const AFTER_HELP: &str = "\
Examples:
  uqac ask \"What is 17 + 25?\"
  uqac score --model Qwen/Qwen2.5-0.5B-Instruct --input responses.jsonl --output scores.jsonl
  uqac eval --tasks abacus --limit 50 --output runs/abacus && uqac report runs/abacus

Exit codes:
  0  done
  1  score, eval: done, but some items have status \"error\" in the output
  2  wrong usage, or a model or file that cannot be read or written

Environment:
  UQAC_MODEL   the model if --model is not given
  UQAC_API_KEY the key that serve asks for if --api-key is not given
  UQAC_CACHE   folder for what is unpacked or compiled at first use [default: ~/.cache/uqac]
  CUDA_HOME    the CUDA toolkit, whose headers kernels are compiled with at first use
  NO_COLOR     no colours, if set and not empty
  COLUMNS      width of the report";

#[derive(Subcommand)]
enum Command {
    Ask(ask::AskArgs),
    Score(score::ScoreArgs),
    Serve(serve::ServeArgs),
    Eval(eval::EvalArgs),
    Calibrate(calibrate::CalibrateArgs),
    FitGamma(fit_gamma::FitGammaArgs),
    Inspect(inspect::InspectArgs),
    Devices(devices::DevicesArgs),
    Bench(bench::BenchArgs),
    Report(report::ReportArgs),
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
}

/// Which model, and how it runs.
#[derive(Args)]
#[command(next_help_heading = "Model and device")]
struct ModelArgs {
    /// Model folder, a name on the Hugging Face hub that has been downloaded, or abacus, the small model inside this
    /// program [default: $UQAC_MODEL; for ask, eval and serve abacus without it]
    #[arg(short, long, value_name = "FOLDER|NAME")]
    model: Option<String>,
    #[command(flatten)]
    run: RunArgs,
}

/// How a model runs.
#[derive(Args, Clone)]
#[command(next_help_heading = "Model and device")]
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
    #[arg(long, value_name = "N", default_value = "0", value_parser = count(0..=1024))]
    threads: usize,
    /// γ, the discount of the nearest positions: a file that `fit-gamma --json` has written, or a JSON list, nearest first
    /// [default: the published one]. Not on CUDA
    #[arg(long, value_name = "FILE", value_parser = gamma)]
    gamma: Option<Gamma>,
    /// How the CPU holds the weights; q8: in 8 bits, which is faster and changes results a little
    #[arg(long, value_name = "file|q8", default_value_t = WeightFormat::File)]
    weights: WeightFormat,
}

/// γ from a file.
fn gamma(path: &str) -> Result<Gamma, String> {
    let text = files::read_to_string(Path::new(path), files::MAX_SETTINGS).map_err(|error| error.to_string())?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let list = value.get("gamma").unwrap_or(&value);
    let values: Option<Vec<f64>> =
        list.as_array().and_then(|list| list.iter().map(serde_json::Value::as_f64).collect());
    values
        .and_then(|values| Gamma::new(&values))
        .ok_or_else(|| format!("expected a list of at most {} numbers from 0 to 1", Gamma::MAX_NEAREST))
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
        let &RunArgs { device, threads, k_cache, v_cache, gemm, weights, gamma } = self;
        let gamma = gamma.unwrap_or(Gamma::PUBLISHED);
        EngineOptions { device, threads, k_cache, v_cache, gemm, weights, gamma, ..EngineOptions::default() }
    }

    fn load(&self, folder: &Path) -> Result<Engine, CliError> {
        let mut upload = progress::Upload::default();
        signals::on_truncation(folder);
        let begun = Instant::now();
        let engine = Engine::load_with(folder, self.options(), &mut |done, total| upload.show(done, total))?;
        let (k_cache, v_cache) = engine.cache_types();
        detail(&format!(
            "{}: {}, a context of {} tokens, on {}, K cache {}, V cache {}; loaded in {:.2} s",
            folder.display(),
            engine.spec().architecture,
            engine.spec().max_position_embeddings,
            engine.device(),
            k_cache.name(),
            v_cache.name(),
            begun.elapsed().as_secs_f64()
        ));
        if !self.weights.is_file() {
            note("note: weights are rounded to 8 bits (--weights q8); probabilities and confidences differ a little");
        }
        engine.warnings().iter().for_each(|warning| note(&format!("warning: {warning}")));
        if let Some(why) = engine.cuda_fallback_reason() {
            note(&format!("note: running on the CPU: {why}"));
        }
        Ok(engine)
    }
}

/// Parses the command line, runs the command and reports its error.
pub fn main() -> ExitCode {
    signals::restore_stack_size();
    main_with(std::env::args_os().collect())
}

/// [`main`] with these arguments, the program's name first, for a process whose own arguments are an interpreter's.
pub fn main_with(arguments: Vec<OsString>) -> ExitCode {
    if let Some(code) = crate::backend::cuda::run_if_child() {
        return code;
    }
    signals::prepare();
    match run(ARGUMENTS.get_or_init(|| arguments).clone()) {
        Ok(code) => code,
        // Whoever reads our output may stop when they have enough.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            say::error(&format!("error: {error}"));
            ExitCode::from(FAILED)
        }
    }
}

/// The arguments of this process, for the manifest.
static ARGUMENTS: OnceLock<Vec<OsString>> = OnceLock::new();

fn run(arguments: Vec<OsString>) -> Result<ExitCode, CliError> {
    let arguments = config::expanded(&Cli::command(), arguments)?;
    let Cli { messages, command } = Cli::parse_from(arguments);
    messages.apply();
    match command {
        Command::Ask(args) => ask::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::FitGamma(args) => fit_gamma::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Completions(args) => completions::completions(&args, Cli::command()),
        Command::Man(args) => completions::man(&args, Cli::command()),
    }
}

/// A number of things, in a range.
fn count(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

/// What a model is called: of a folder its last part.
fn model_name(named: &str, folder: &Path) -> String {
    let name = match Path::new(named).is_dir() {
        true => folder.canonicalize().ok().and_then(|f| Some(f.file_name()?.to_string_lossy().into_owned())),
        false => None,
    };
    name.unwrap_or_else(|| named.to_owned())
}

/// What a run is made with.
fn manifest<Options>(
    named: &str,
    folder: &Path,
    engine: &Engine,
    options: Options,
) -> Result<Manifest<Options>, CliError> {
    let (k_cache, v_cache) = engine.cache_types();
    Ok(Manifest {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: Model {
            name: model_name(named, folder),
            fingerprint: fingerprint(folder, engine)?,
            k_cache,
            v_cache,
            weight_format: engine.options().weights,
            gamma: Some(engine.options().gamma)
                .filter(|gamma| *gamma != Gamma::PUBLISHED)
                .map(|gamma| gamma.values().to_vec()),
        },
        options,
        device: engine.device(),
        started: Some(jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()),
        command: Some(command_line()),
    })
}

/// The command as it could be typed again.
fn command_line() -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./:=,@%+".contains(c);
    let quoted = |word: String| match !word.is_empty() && word.chars().all(plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let words = ARGUMENTS.get().into_iter().flatten().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    std::iter::once("uqac".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
