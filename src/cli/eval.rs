//! `uqac eval`: runs a model over benchmarks into a resumable output folder.

use super::options::{EarlyArgs, MethodArgs, ModelArgs, examples_and_rules, named, note_settings};
use super::progress::{ANALYSIS, EvalProgress, Progress, work};
use super::*;
use crate::eval::analysis::{AnalysisOptions, analyse, results_json};
use crate::eval::run::methods::{METHODS, UQAC, own_passes};
use crate::eval::run::{RunOptions, controls::draw_number, folder::RunFolder, manifest::EvalOptions, run_task};
use crate::eval::tasks::{self, BoxedInstruction, DEFAULT_MAX_TOKENS, Task, TaskOptions};
use crate::uq::{ChainRule, Parameters, scores::samples::needs_samples};
use crate::{engine::Engine, engine::EngineOptions, engine::encode::EncodeError};
use crate::{eval::run::sweep::Sweep, eval::run::sweep::settings, report::term::TermStyle, report::term::escaped_json};
use crate::{names::Named, report::tables::build::brief, report::tables::markup::text, units::count, units::number};
use clap::builder::{PossibleValue, PossibleValuesParser};

/// Run a model over benchmarks: answers, grades, confidences
///
/// A FILE.jsonl has one {question, answer, grader} per line; grader is number, math, choice or exact. The same command
/// resumes an interrupted run, item by item. `uqac report` makes tables and pictures of the folder.
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = examples_and_rules(EXAMPLES))]
pub struct EvalArgs {
    #[arg(short, long, value_name = "TASK,..", value_delimiter = ',', required = true, help = format!("Tasks: {}", tasks::names()))]
    tasks: Vec<String>,
    /// The run's folder
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Folder with the benchmark files [default: the Hugging Face cache]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    #[command(flatten)]
    run: RunOptions,
    /// Max tokens of a response [default: as published for the task and the model: 1024, BBH 1536]
    #[arg(long, value_name = "N", value_parser = count(1..=u32::MAX.into()))]
    max_tokens: Option<usize>,
    /// Source of the chain; all but attention are controls
    #[arg(long, value_parser = named::<ChainRule>(), default_value = ChainRule::Attention.name(), hide_short_help = true)]
    chain: ChainRule,
    /// Ask for a \boxed{} answer in GSM8K and MATH [default: in MATH for Gemma, as published]
    #[arg(long, value_name = "BOOL", hide_short_help = true)]
    boxed_instruction: Option<bool>,
    /// Re-score the same responses under other parameters: k=8,32 theta=0.7 kept= similarity= tau= targets= chain= k-cache=
    /// v-cache=, or any rule by name
    #[arg(long, value_name = "NAME=VALUE,..", num_args = 1.., hide_short_help = true)]
    sweep: Vec<String>,
    /// Methods to run besides UQAC and the baselines from its pass
    #[arg(long, value_name = "METHOD,..", value_delimiter = ',', value_parser = methods())]
    methods: Vec<String>,
    /// Self-consistency: samples per question [default: 5]
    #[arg(long, value_name = "N", value_parser = count(1..=1000), hide_short_help = true)]
    samples: Option<usize>,
    /// Self-consistency: temperature [default: 0.5]
    #[arg(long, value_name = "T", value_parser = number(0f32.next_up()..=f32::MAX, "expected a number above 0: samples must differ"), hide_short_help = true)]
    temperature: Option<f32>,
    /// Print results.json instead of the main numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: EvalOptions,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    method: MethodArgs,
    #[command(flatten)]
    early: EarlyArgs,
}

const EXAMPLES: &str = "\
Examples:
  uqac eval -t abacus -n 50 -o runs/abacus
  uqac eval -m Qwen/Qwen2.5-0.5B-Instruct -t gsm8k,math --data DATA -o runs/qwen --methods self-consistency
  uqac eval -m Qwen/Qwen2.5-0.5B-Instruct -t mine.jsonl -o runs/mine --sweep theta=0.5,0.7 k=8,16";

/// The methods' names, with their meanings for `--help`.
fn methods() -> PossibleValuesParser {
    let uqac = PossibleValue::new(UQAC).help("UQAC and its baselines; always run");
    let others = METHODS.iter().map(|method| PossibleValue::new(method.key).help(method.about));
    PossibleValuesParser::new(std::iter::once(uqac).chain(others))
}

impl EvalArgs {
    /// The options, including everything that depends on other flags or on the model.
    fn options(&self, engine: &Engine, parameters: Parameters) -> EvalOptions {
        let keys = std::iter::once(UQAC).chain(own_passes(&self.methods).map(|method| method.key));
        let draw = if self.chain.is_random() { draw_number(self.options.seed, 0) } else { 0 };
        EvalOptions {
            parameters: Parameters { chain: self.chain, draw, ..parameters },
            max_tokens: self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
            running: self.early.running(),
            thinking_budget: self.early.thinking_budget,
            methods: keys.map(str::to_owned).collect(),
            samples: self.samples.unwrap_or(self.options.samples),
            temperature: self.temperature.unwrap_or(self.options.temperature),
            boxed_instruction: match self.boxed_instruction {
                Some(true) => BoxedInstruction::All,
                None if engine.spec().family.boxed_instruction => BoxedInstruction::Math,
                _ => BoxedInstruction::None,
            },
            ..self.options.clone()
        }
    }
}

pub fn run(args: &EvalArgs) -> Result<ExitCode, Failure> {
    // report command-line errors before the model is loaded
    let settings = settings(&args.sweep, args.options.draws)?;
    let parameters = args.method.parameters()?;
    args.early.budget(&parameters)?;
    let draws = own_passes(&args.methods).any(|method| method.scores.iter().any(|score| needs_samples(score.key)));
    if !draws && (args.samples.is_some() || args.temperature.is_some()) {
        return Err(CliError::NoSamples.into());
    }
    load_tasks(args, TaskOptions::default())?;
    let (model_name, model_folder) = args.model.or_embedded()?;
    let mut engine = args.model.load(&model_folder)?;
    let options = args.options(&engine, parameters);
    note_settings(&engine, options.repetition_penalty());
    check_template(&engine, &options)?;
    let thinks = |source: &str| options.parameters.thinking.is_in(source);
    let thinking = engine.chat_template().is_some_and(|template| thinks(template.source()));
    let boxed_instruction = options.boxed_instruction;
    let tasks = load_tasks(args, TaskOptions { boxed_instruction, thinking, ..TaskOptions::default() })?;
    let manifest = manifest(&model_name, &model_folder, &engine, options)?;
    let folder = RunFolder::open(&args.output, &manifest)?;
    signals::on_interrupt("interrupted; the same command resumes the run");
    signals::on_stop("interrupted: finishing the items in flight; Ctrl-C again drops them");
    signals::stop_on_request();
    let run = RunOptions { stop: Some(signals::stop_requested), ..args.run };
    let mut progress = EvalProgress::new(tasks.iter().map(|task| run.items(task).count()).sum(), run.batch_size);
    for task in &tasks {
        progress.task(&task.name);
        run_task(&mut engine, task, &manifest.options, run, &folder, &mut |event| progress.event(event))?;
    }
    let errors = progress.finish();
    signals::end_if_requested();
    if !settings.is_empty() {
        for task in &tasks {
            let mut rows = Sweep::open(&folder, &task.name, args.run.shard, &manifest, &settings)?;
            sweep(&mut rows, &mut engine, args, &model_folder)?;
        }
    }
    report(args)?;
    Ok(ExitCode::from(if errors > 0 { SOME_FAILED } else { 0 }))
}

fn load_tasks(args: &EvalArgs, options: TaskOptions) -> Result<Vec<Task>, Failure> {
    let options = TaskOptions {
        data: args.data.clone(),
        max_tokens: args.max_tokens,
        stop: args.options.stop.clone(),
        shots: args.options.shots,
        prompt_template: args.options.prompt_template.clone(),
        ..options
    };
    let mut all: Vec<Task> = Vec::new();
    for spec in &args.tasks {
        for task in tasks::load(spec, &options)? {
            // a task named twice is run once
            if all.iter().all(|t| t.name != task.name) {
                all.push(task);
            }
        }
    }
    Ok(all)
}

/// Chat turns need a chat template.
fn check_template(engine: &Engine, options: &EvalOptions) -> Result<(), Failure> {
    if options.chat_template {
        return engine.chat_template().map(|_| ()).ok_or(EncodeError::NoChatTemplate.into());
    }
    let method = own_passes(&options.methods).find(|method| method.needs_chat_template);
    method.map_or(Ok(()), |method| Err(CliError::NeedsChatTemplate(method.key).into()))
}

/// Fills in a sweep's rows; loads an engine with other cache types if the settings require one.
fn sweep(sweep: &mut Sweep, engine: &mut Engine, args: &EvalArgs, model_folder: &Path) -> Result<(), Failure> {
    let mut progress = Progress::new(None, 1);
    for (k, v) in sweep.caches() {
        let mut advance = || {
            signals::end_if_requested(); // after a whole line
            progress.advance(false)
        };
        if (k, v) == engine.cache_types() {
            sweep.run(engine, &mut advance)?;
        } else {
            let options = EngineOptions { k_cache: Some(k), v_cache: Some(v), ..args.model.options() };
            sweep.run(&mut Engine::load(model_folder, options)?, &mut advance)?;
        }
    }
    progress.finish();
    Ok(())
}

/// Writes `results.json`, and prints the main figures.
fn report(args: &EvalArgs) -> Result<(), Failure> {
    let folders = std::slice::from_ref(&args.output);
    let analysis = work(ANALYSIS, || analyse(folders, &AnalysisOptions::default()))?;
    let json = serde_json::to_string_pretty(&results_json(&analysis)).map_err(CliError::Json)?;
    let json = escaped_json(&json) + "\n";
    let path = args.output.join("results.json");
    crate::cache::write(&path, json.as_bytes()).map_err(FileError::at(&path))?;
    if args.json {
        return Ok(print(&json)?);
    }
    let (table, run) = (text(&[brief(&analysis)], TermStyle::of_stdout()), args.output.display());
    let more = format!("All tables: uqac report {run}\nA page: uqac report {run} --format html -o report");
    Ok(print(&format!("{table}\n{more}\n"))?)
}
