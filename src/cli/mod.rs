//! The command line, the whole of the program: one file per subcommand, and shared code here. What most commands import is
//! imported here, and by `use super::*` there.

mod ask;
mod bench;
mod calibrate;
mod devices;
mod error;
mod eval;
mod inspect;
mod options;
mod progress;
mod report;
mod say;
mod score;
mod serve;
mod signals;

use crate::eval::run::{fingerprint::Fingerprint, manifest::FORMAT, manifest::Manifest, manifest::Model};
use crate::{backend::entropy::Gamma, engine::Engine, files, files::FileError, report::term::TermStyle, units};
use clap::error::{ContextKind, ContextValue};
use clap::{Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
use error::{CliError, Failure, is_broken_pipe};
use say::{Level, counted, note, print, print_json, says, show, write};
use std::{ffi::OsString, path::Path, path::PathBuf, process::ExitCode, sync::OnceLock};

/// Exit code after a run with failed items.
const SOME_FAILED: u8 = 1;

/// Exit code of a command that could not run: wrong usage, an unreadable model or file.
const FAILED: u8 = 2;

/// Exit code of `ask --abstain` if no answer is given.
const ABSTAINED: u8 = 3;

#[derive(Parser)]
#[command(version, long_version = LONG_VERSION, about, after_help = AFTER_HELP)]
struct Cli {
    /// Print results and errors only
    #[arg(short, long, global = true, help_heading = "Messages")]
    quiet: bool,
    /// Also print the device, the dtypes and the load time
    #[arg(short, long, global = true, help_heading = "Messages")]
    verbose: bool,
    /// Colours in results; auto: in a terminal
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Messages")]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

/// The version and the commit, which `build.rs` determines.
const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\ncommit: ", env!("UQAC_COMMIT"));

const AFTER_HELP: &str = include_str!("help.txt").trim_ascii_end();

#[derive(Subcommand)]
enum Command {
    Ask(ask::AskArgs),
    Score(score::ScoreArgs),
    Serve(serve::ServeArgs),
    Eval(Box<eval::EvalArgs>),
    Calibrate(calibrate::CalibrateArgs),
    Inspect(inspect::InspectArgs),
    Devices(devices::DevicesArgs),
    Bench(bench::BenchArgs),
    Report(report::ReportArgs),
}

/// Parses the command line, runs the command and reports its error.
pub fn main() -> ExitCode {
    signals::restore_stack_size();
    main_with(std::env::args_os().collect())
}

/// [`main`] with explicit arguments, program name first, for a process whose own arguments are an interpreter's.
pub fn main_with(arguments: Vec<OsString>) -> ExitCode {
    if let Some(code) = crate::backend::cuda::run_if_child() {
        return code;
    }
    signals::prepare();
    match run(ARGUMENTS.get_or_init(|| arguments).clone()) {
        Ok(code) => code,
        // The reader of the output may close it early.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            say::say(Level::Quiet, &format!("error: {error}"));
            ExitCode::from(FAILED)
        }
    }
}

/// This process's arguments, for the manifest.
static ARGUMENTS: OnceLock<Vec<OsString>> = OnceLock::new();

fn run(arguments: Vec<OsString>) -> Result<ExitCode, Failure> {
    // `-1` is a value: each option says itself what it expects
    let values = |arg: clap::Arg| {
        let takes_values = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_values)
    };
    let commands = Cli::command().mut_subcommands(|command| command.mut_args(values));
    let parsed = commands.try_get_matches_from(arguments).and_then(|mut found| Cli::from_arg_matches_mut(&mut found));
    let Cli { quiet, verbose, color, command } = parsed.unwrap_or_else(|error| suggesting(error).exit());
    say::set(match (quiet, verbose) {
        (true, _) => Level::Quiet,
        (_, true) => Level::Verbose,
        _ => Level::Normal,
    });
    match color {
        ColorChoice::Auto => (),
        choice => TermStyle::choose_colour(choice == ColorChoice::Always),
    }
    match command {
        Command::Ask(args) => return ask::run(&args),
        Command::Score(args) => return score::run(&args),
        Command::Eval(args) => return eval::run(&args),
        Command::Devices(args) => return devices::run(&args),
        Command::Serve(args) => serve::run(&args)?,
        Command::Calibrate(args) => calibrate::run(&args)?,
        Command::Inspect(args) => inspect::run(&args)?,
        Command::Bench(args) => bench::run(&args)?,
        Command::Report(args) => report::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// An error that suggests the command whose letters were typed in another order: too short for clap's own measure.
fn suggesting(mut error: clap::Error) -> clap::Error {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) {
        let commands = Cli::command();
        let mut names = commands.get_subcommands().map(|command| command.get_name());
        if let Some(near) = names.find(|name| sorted(name) == sorted(typed)) {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(near.to_owned()));
        }
    }
    error
}

/// A model's display name: the last component of a folder, otherwise the name as given.
fn model_name(named: &str, folder: &Path) -> String {
    let folder = folder.canonicalize().ok().filter(|_| Path::new(named).is_dir());
    folder.map_or_else(|| named.to_owned(), |folder| files::name(&folder))
}

/// The manifest of a run starting now.
fn manifest<T>(named: &str, folder: &Path, engine: &Engine, options: T) -> Result<Manifest<T>, Failure> {
    let ((k_cache, v_cache), gamma) = (engine.cache_types(), engine.options().gamma);
    Ok(Manifest {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: Model {
            name: model_name(named, folder),
            fingerprint: Fingerprint::of(folder, engine)?,
            k_cache,
            v_cache,
            weight_format: engine.options().weights,
            gamma: (gamma != Gamma::PUBLISHED).then(|| gamma.values().to_vec()),
            template_arguments: engine.chat_template().map(|template| template.arguments.clone()).unwrap_or_default(),
        },
        options,
        device: engine.device(),
        started: Some(jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()),
        command: Some(command_line()),
    })
}

/// The command in shell syntax.
fn command_line() -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./:=,@%+".contains(c);
    let quoted = |word: String| match !word.is_empty() && word.chars().all(plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let words = ARGUMENTS.get().into_iter().flatten().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    std::iter::once("uqac".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
