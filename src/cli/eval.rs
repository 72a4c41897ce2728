//! `uqac eval`: a model over benchmarks, into a folder that a run can be resumed from.

use super::assess::{ReadingArgs, chain_rule, examples_and_rules};
use super::early::EarlyArgs;
use super::error::CliError;
use super::progress::{EvalProgress, Progress};
use super::{ModelArgs, SOME_FAILED, count, manifest, print, signals};
use crate::engine::encode::EncodeError;
use crate::engine::{BATCH_SIZE, Engine, EngineOptions};
use crate::eval::analysis::{AnalysisOptions, analyse, results_json};
use crate::eval::run::claims::Claims;
use crate::eval::run::controls::draw_number;
use crate::eval::run::folder::{RunFolder, Shard};
use crate::eval::run::manifest::{EvalOptions, Manifest};
use crate::eval::run::methods::{METHODS, Method, UQAC};
use crate::eval::run::sweep::{Setting, Sweep, settings};
use crate::eval::run::{RunOptions, TaskRun};
use crate::eval::tasks::{self, BoxedInstruction, DEFAULT_MAX_TOKENS, Task, TaskOptions};
use crate::report::tables::{build::tables, text::text};
use crate::report::term::colour::TermStyle;
use crate::report::term::sanitize::escaped_json;
use crate::uq::{ChainRule, Parameters};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// Run a model over benchmarks: answers, grades, confidences
///
/// A FILE.jsonl of your own has {question, answer, grader}, where grader is number, math, choice or exact. What has been
/// done is kept in the output folder item by item: the same command again resumes where a run ended. `uqac report` makes
/// tables and pictures of the folder.
#[derive(Args)]
#[command(override_usage = USAGE, after_help = examples_and_rules(EXAMPLES))]
pub struct EvalArgs {
    #[arg(short, long, value_name = "TASK,..", value_delimiter = ',', help = format!("Tasks: {}", tasks::names()))]
    tasks: Vec<String>,
    /// The run's folder
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Folder with the benchmarks' files [default: the Hugging Face cache]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Only the first N items of each task
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<usize>,
    /// Part I of N (I from 1): every N-th item. The parts may share a folder. auto: every process with the same folder does
    /// what no other has begun
    #[arg(long, value_name = "I/N|auto")]
    shard: Option<Part>,
    /// With --shard auto: what a process has begun that is silent for so long is taken over by another
    #[arg(long, value_name = "SECONDS", value_parser = count(1..=86_400), default_value = "60")]
    lease: usize,
    /// Responses generated at once: more are faster, and take more memory; results do not depend on it
    #[arg(long, value_name = "N", value_parser = count(1..=1024), default_value_t = BATCH_SIZE)]
    batch_size: usize,
    /// What is run besides the method and the baselines from its pass
    #[arg(long, value_name = "METHOD,..", value_delimiter = ',', value_parser = methods())]
    methods: Vec<String>,
    /// Max tokens of a response [default: as published for the task and the model: 1024, of BBH 1536]
    #[arg(long, value_name = "N", value_parser = count(1..=u32::MAX.into()))]
    max_tokens: Option<usize>,
    /// A text that ends a response, which is cut before it; can be repeated [default: the task's own]
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Seed of everything drawn
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Self-consistency: responses drawn for each question
    #[arg(long, value_name = "N", value_parser = count(1..=1000), default_value = "5")]
    samples: usize,
    /// Self-consistency: temperature
    #[arg(long, value_name = "T", default_value_t = 0.5)]
    temperature: f32,
    /// Self-consistency: stop drawing once no outcome of the samples that are left could change the majority; weights are
    /// then over the samples that were drawn
    #[arg(long)]
    stop_decided: bool,
    /// Where the chain comes from; all but attention are controls
    #[arg(long, value_parser = chain_rule(), default_value_t = ChainRule::Attention)]
    chain: ChainRule,
    /// Draws of the random controls that every response's P_attn and P_sim are reported beside, and of each
    /// --sweep chain=random..; 0: no controls
    #[arg(long, value_name = "N", default_value_t = 5)]
    draws: usize,
    /// Whether questions of GSM8K and MATH ask for a \boxed{} answer [default: those of MATH do for Gemma, as published]
    #[arg(long, value_name = "BOOL")]
    boxed_instruction: Option<bool>,
    /// Take prompts as they are, for base models
    #[arg(long)]
    no_chat_template: bool,
    /// Assess the same responses under other parameters too: k=8,32 theta=0.7 kept= tau= targets= chain= k-cache= v-cache=,
    /// or any rule by its name
    #[arg(long, value_name = "NAME=VALUE,..", num_args = 1..)]
    sweep: Vec<String>,
    /// Sweep every combination of values, not each alone
    #[arg(long)]
    grid: bool,
    /// Nothing but a JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Options from a TOML file, by their long names; flags beat it
    // read before these are parsed, by `super::config`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    reading: ReadingArgs,
    #[command(flatten)]
    early: EarlyArgs,
}

/// Which items a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Fixed(Shard),
    Auto,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        if text == "auto" { Ok(Part::Auto) } else { Ok(Part::Fixed(text.parse()?)) }
    }
}

/// What must be given may also come from the file of `--config`, so the parser does not require it.
const USAGE: &str = "uqac eval [OPTIONS] --tasks <TASK,..> --output <FOLDER>";

const EXAMPLES: &str = "\
  uqac eval -t abacus -n 50 -o runs/abacus
  uqac eval -m Qwen/Qwen2.5-0.5B-Instruct -t gsm8k,math --data DATA -o runs/qwen --methods self-consistency
  uqac eval -m Qwen/Qwen2.5-0.5B-Instruct -t mine.jsonl -o runs/mine --sweep theta=0.5,0.7 k=8,16";

/// The methods' names, which `--help` shows with what they mean.
fn methods() -> PossibleValuesParser {
    let uqac = PossibleValue::new(UQAC).help("UQAC with its baselines: always run");
    let others = METHODS.iter().map(|method| PossibleValue::new(method.key()).help(method.about()));
    PossibleValuesParser::new(std::iter::once(uqac).chain(others))
}

impl EvalArgs {
    /// The methods with passes of their own that are asked for.
    fn own_passes(&self) -> impl Iterator<Item = &'static dyn Method> {
        METHODS.into_iter().filter(|method| self.methods.iter().any(|key| key == method.key()))
    }

    fn options(&self, engine: &Engine, parameters: Parameters) -> EvalOptions {
        let keys = std::iter::once(UQAC).chain(self.own_passes().map(Method::key));
        EvalOptions {
            parameters: Parameters { chain: self.chain, draw: self.draw(), ..parameters },
            max_tokens: self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
            stop: self.stop(),
            running: self.early.running(),
            seed: self.seed,
            methods: keys.map(str::to_owned).collect(),
            samples: self.samples,
            temperature: self.temperature,
            stop_decided: self.stop_decided,
            draws: self.draws,
            chat_template: !self.no_chat_template,
            boxed_instruction: match self.boxed_instruction {
                Some(true) => BoxedInstruction::All,
                None if engine.spec().boxed_instruction => BoxedInstruction::Math,
                _ => BoxedInstruction::None,
            },
        }
    }

    /// The part of the items that is this process's from the start.
    fn own_shard(&self) -> Option<Shard> {
        match self.shard {
            Some(Part::Fixed(shard)) => Some(shard),
            _ => None,
        }
    }

    /// The draw of a chain that is drawn.
    fn draw(&self) -> u64 {
        if self.chain.is_random() { draw_number(self.seed, 0) } else { 0 }
    }

    /// What takes the place of the tasks' own stop strings, if any was given.
    fn stop(&self) -> Option<Vec<String>> {
        (!self.stop.is_empty()).then(|| self.stop.clone())
    }
}

pub fn run(args: &EvalArgs) -> Result<ExitCode, CliError> {
    // what can be wrong with the command line is found before the model is loaded
    let settings = settings(&args.sweep, args.grid, args.draws)?;
    if !settings.is_empty() && args.shard == Some(Part::Auto) {
        return Err(CliError::SweepAuto);
    }
    let parameters = args.reading.parameters()?;
    let output = args.output.clone().ok_or(CliError::Missing("--output FOLDER"))?;
    if args.tasks.is_empty() {
        return Err(CliError::Missing("--tasks TASK,.."));
    }
    if !(args.temperature.is_finite() && args.temperature > 0.0) {
        return Err(CliError::Temperature(args.temperature));
    }
    load_tasks(args, TaskOptions::default())?;
    let (model_name, model_folder) = args.model.or_embedded()?;
    let mut engine = args.model.run.load(&model_folder)?;
    let options = args.options(&engine, parameters);
    check_template(&engine, args)?;
    let thinking = engine.chat_template().is_some_and(|template| template.source().contains("</think>"));
    let boxed_instruction = options.boxed_instruction;
    let tasks = load_tasks(args, TaskOptions { boxed_instruction, thinking, ..TaskOptions::default() })?;
    let manifest = manifest(&model_name, &model_folder, &engine, options.clone())?;
    let folder = RunFolder::open(&output, &manifest)?;
    signals::on_interrupt("interrupted; the same command goes on from here");
    let claims = match args.shard {
        Some(Part::Auto) => Some(Claims::join(folder.path(), Duration::from_secs(args.lease as u64))?),
        _ => None,
    };
    let claims = claims.as_ref();
    let run = RunOptions { batch_size: args.batch_size, limit: args.limit, shard: args.own_shard(), claims };
    let mut progress = EvalProgress::new(tasks.iter().map(|task| run.items(task).count()).sum());
    let mut runs: Vec<TaskRun> = tasks.iter().map(|task| TaskRun::new(task, &options, run, &folder)).collect();
    // what other processes have begun is waited for at the end
    for wait in [false, true] {
        for (task, run) in tasks.iter().zip(&mut runs) {
            progress.task(&task.name);
            run.go_on(&mut engine, wait, &mut |event| progress.item(&event))?;
        }
    }
    drop(runs); // a sweep reads their files
    let errors = progress.finish();
    let eval = Eval { args, model_folder: &model_folder, manifest: &manifest, folder: &folder };
    eval.sweep(&tasks, &settings, &mut engine)?;
    eval.report()?;
    Ok(ExitCode::from(if errors > 0 { SOME_FAILED } else { 0 }))
}

fn load_tasks(args: &EvalArgs, options: TaskOptions) -> Result<Vec<Task>, CliError> {
    let options = TaskOptions { data: args.data.clone(), max_tokens: args.max_tokens, stop: args.stop(), ..options };
    let mut all: Vec<Task> = Vec::new();
    for spec in &args.tasks {
        for task in tasks::load(spec, &options)? {
            // one task, named twice, is run once
            if all.iter().all(|t| t.name != task.name) {
                all.push(task);
            }
        }
    }
    Ok(all)
}

/// A chat template is needed where there are turns.
fn check_template(engine: &Engine, args: &EvalArgs) -> Result<(), CliError> {
    if !args.no_chat_template {
        return engine.chat_template().map(|_| ()).ok_or(EncodeError::NoChatTemplate.into());
    }
    let method = args.own_passes().find(|method| method.needs_chat_template());
    method.map_or(Ok(()), |method| Err(CliError::NeedsChatTemplate(method.key())))
}

/// A run whose responses are all there.
struct Eval<'a> {
    args: &'a EvalArgs,
    model_folder: &'a Path,
    manifest: &'a Manifest,
    folder: &'a RunFolder,
}

impl Eval<'_> {
    fn sweep(&self, tasks: &[Task], settings: &[Setting], engine: &mut Engine) -> Result<(), CliError> {
        if settings.is_empty() {
            return Ok(());
        }
        let run_args = &self.args.model.run;
        for task in tasks {
            let sweep = Sweep {
                folder: self.folder,
                task: &task.name,
                shard: self.args.own_shard(),
                options: &self.manifest.options,
                model: &self.manifest.model,
                settings,
            };
            let mut progress = Progress::new(None);
            let own = engine.cache_types();
            sweep.run::<CliError>(
                &mut |caches, work| {
                    if caches == own {
                        return Ok(work(engine)?);
                    }
                    let options =
                        EngineOptions { k_cache: Some(caches.0), v_cache: Some(caches.1), ..run_args.options() };
                    Ok(work(&mut Engine::load(self.model_folder, options)?)?)
                },
                &mut |_, _| progress.advance(false),
            )?;
            progress.finish();
        }
        Ok(())
    }

    /// `results.json`, and the tables.
    fn report(&self) -> Result<(), CliError> {
        let results = results_json(self.folder.path())?;
        let json = escaped_json(&serde_json::to_string_pretty(&results)?) + "\n";
        self.folder.replace("results.json", &json)?;
        if self.args.json {
            return print(&json);
        }
        let analysis = analyse(&[self.folder.path().to_owned()], &AnalysisOptions::default())?;
        print(&text(&tables(&analysis), TermStyle::of_stdout()))
    }
}
