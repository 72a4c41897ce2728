//! `uqac eval`: a model over benchmarks, into a folder that a run can be resumed from.

use super::assess::{chain_rule, profile, reading, rules_help};
use super::error::CliError;
use super::progress::{EvalProgress, Progress};
use super::{ModelArgs, RunArgs, SOME_FAILED, print};
use clap::Args;
use serde::{Deserialize, Deserializer};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use uqac::backend::cuda::Gemm;
use uqac::backend::{DType, DeviceChoice, WeightFormat};
use uqac::engine::{Engine, EngineOptions};
use uqac::eval::analysis::{AnalysisOptions, analyse, results_json};
use uqac::eval::run::fingerprint::Fingerprint;
use uqac::eval::run::folder::{RunFolder, Shard};
use uqac::eval::run::manifest::{EvalOptions, FORMAT, Manifest, Method, Model};
use uqac::eval::run::sweep::{Setting, Sweep, settings};
use uqac::eval::run::{RunOptions, run_task};
use uqac::eval::tasks::{self, Task, TaskOptions};
use uqac::report::tables::{build::tables, text::text};
use uqac::report::term::colour::TermStyle;
use uqac::uq::{ChainRule, Parameters, Profile, Reading, RuleSetting};

/// Run a model over benchmarks: answers, grades, confidences
///
/// Tasks are gsm8k, math, bbh, bbh:SUBTASK, abacus, or a FILE.jsonl of your own with {question, answer, grader}, where
/// grader is number, math, choice or exact. What has been done is kept in the output folder item by item: the same
/// command again goes on where a run ended. `uqac report` makes tables and pictures of the folder.
#[derive(Args)]
#[command(after_help = rules_help())]
pub struct EvalArgs {
    #[command(flatten)]
    flags: Flags,
    /// Options from a TOML file, by their long names; flags beat it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Everything that a flag or the file may say.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Flags {
    /// Model folder, a name on the Hugging Face hub that has been downloaded, or abacus, the small model inside this
    /// program [default: $UQAC_MODEL, abacus without it]
    #[arg(long, value_name = "FOLDER|NAME")]
    model: Option<String>,
    /// Tasks, separated by commas
    #[arg(long, value_name = "TASK,..", value_delimiter = ',')]
    tasks: Vec<String>,
    /// The run's folder
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Folder with the benchmarks' files [default: the Hugging Face cache]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Only the first N items of each task
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Part I of N (I from 1): every N-th item. The parts may share a folder
    #[arg(long, value_name = "I/N")]
    #[serde(deserialize_with = "parsed")]
    shard: Option<Shard>,
    /// Responses generated at once; results do not depend on it [default: 8]
    #[arg(long, value_name = "N", value_parser = positive)]
    batch_size: Option<usize>,
    /// Which reading of the method [default: corrected]
    #[arg(long, value_parser = profile())]
    profile: Option<Profile>,
    /// Change one rule of the profile; can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    rule: Vec<RuleSetting>,
    /// What is run besides the method and the baselines from its pass
    #[arg(long, value_enum, value_name = "METHOD,..", value_delimiter = ',')]
    methods: Vec<Method>,
    /// Tokens of a response at most [default: 1024]
    #[arg(long, value_name = "N", value_parser = positive)]
    max_tokens: Option<usize>,
    /// Seed of everything drawn [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Self-consistency: responses drawn for each question [default: 5]
    #[arg(long, value_name = "N", value_parser = positive)]
    samples: Option<usize>,
    /// Self-consistency: temperature [default: 0.5]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Where the chain comes from; none: all tokens of the response, an ablation [default: attention]
    #[arg(long, value_parser = chain_rule())]
    chain: Option<ChainRule>,
    /// Whether questions of GSM8K and MATH ask for a \boxed{} answer [default: what suits the model]
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
    /// Where it runs; auto: the first CUDA device if it can be used, else the CPU [default: auto]
    #[arg(long, value_name = "auto|cpu|cuda[:N]")]
    #[serde(deserialize_with = "parsed")]
    device: Option<DeviceChoice>,
    /// Type of the cached keys
    #[arg(long, value_enum, value_name = "TYPE")]
    k_cache: Option<DType>,
    /// Type of the cached values
    #[arg(long, value_enum, value_name = "TYPE")]
    v_cache: Option<DType>,
    /// Who multiplies in wide passes on CUDA: own kernels, cuBLASLt, or what is faster at the start [default: own]
    #[arg(long, value_name = "own|auto|cublaslt")]
    #[serde(deserialize_with = "parsed")]
    gemm: Option<Gemm>,
    /// Threads on the CPU; 0: one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// How the CPU holds the weights; q8: in 8 bits, which is faster and changes results a little [default: file]
    #[arg(long, value_name = "file|q8")]
    weights: Option<WeightFormat>,
    /// Nothing but a JSON object on standard output
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "expected a number from 1 on".to_owned())
}

/// A value that is written as on the command line.
fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: std::fmt::Display>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

impl EvalArgs {
    /// Flags over the file.
    fn merged(&self) -> Result<Flags, CliError> {
        let Some(path) = &self.config else { return Ok(self.flags.clone()) };
        let text = std::fs::read_to_string(path).map_err(|source| CliError::File { path: path.clone(), source })?;
        let file: Flags = toml::from_str(&text)
            .map_err(|source| CliError::Config { path: path.clone(), source: Box::new(source) })?;
        let flags = self.flags.clone();
        let list = |flag: Vec<String>, file: Vec<String>| if flag.is_empty() { file } else { flag };
        Ok(Flags {
            model: flags.model.or(file.model),
            tasks: list(flags.tasks, file.tasks),
            output: flags.output.or(file.output),
            data: flags.data.or(file.data),
            limit: flags.limit.or(file.limit),
            shard: flags.shard.or(file.shard),
            batch_size: flags.batch_size.or(file.batch_size),
            profile: flags.profile.or(file.profile),
            rule: if flags.rule.is_empty() { file.rule } else { flags.rule },
            methods: if flags.methods.is_empty() { file.methods } else { flags.methods },
            max_tokens: flags.max_tokens.or(file.max_tokens),
            seed: flags.seed.or(file.seed),
            samples: flags.samples.or(file.samples),
            temperature: flags.temperature.or(file.temperature),
            chain: flags.chain.or(file.chain),
            boxed_instruction: flags.boxed_instruction.or(file.boxed_instruction),
            no_chat_template: flags.no_chat_template || file.no_chat_template,
            sweep: list(flags.sweep, file.sweep),
            grid: flags.grid || file.grid,
            device: flags.device.or(file.device),
            k_cache: flags.k_cache.or(file.k_cache),
            v_cache: flags.v_cache.or(file.v_cache),
            gemm: flags.gemm.or(file.gemm),
            threads: flags.threads.or(file.threads),
            weights: flags.weights.or(file.weights),
            json: flags.json || file.json,
        })
    }
}

impl Flags {
    fn model(&self) -> ModelArgs {
        let run = RunArgs {
            device: self.device.unwrap_or(DeviceChoice::Auto),
            k_cache: self.k_cache,
            v_cache: self.v_cache,
            gemm: self.gemm.unwrap_or_default(),
            threads: self.threads.unwrap_or(0),
            weights: self.weights.unwrap_or_default(),
        };
        ModelArgs { model: self.model.clone(), run }
    }

    fn reading(&self) -> Result<Reading, CliError> {
        reading(self.profile.unwrap_or(Profile::Corrected), &self.rule)
    }

    fn options(&self, engine: &Engine, reading: Reading) -> EvalOptions {
        let mut methods = self.methods.clone();
        methods.push(Method::Uqac);
        methods.sort();
        methods.dedup();
        EvalOptions {
            parameters: Parameters { chain: self.chain.unwrap_or_default(), ..Parameters::published(reading) },
            max_tokens: self.max_tokens.unwrap_or(1024),
            seed: self.seed.unwrap_or(0),
            methods,
            samples: self.samples.unwrap_or(5),
            temperature: self.temperature.unwrap_or(0.5),
            chat_template: !self.no_chat_template,
            boxed_instruction: self.boxed_instruction.unwrap_or(engine.spec().boxed_instruction),
        }
    }
}

pub fn run(args: &EvalArgs) -> Result<ExitCode, CliError> {
    let flags = args.merged()?;
    // what can be wrong with the command line is found before the model is loaded
    let settings = settings(&flags.sweep, flags.grid)?;
    let reading = flags.reading()?;
    let output = flags.output.clone().ok_or(CliError::Needed("--output FOLDER"))?;
    if flags.tasks.is_empty() {
        return Err(CliError::Needed("--tasks TASK,.."));
    }
    if let Some(temperature) = flags.temperature.filter(|t| !(t.is_finite() && *t > 0.0)) {
        return Err(CliError::Temperature(temperature));
    }
    load_tasks(&flags, false)?;
    let model_args = flags.model();
    let (model_name, model_folder) = model_args.or_embedded()?;
    let mut engine = model_args.run.load(&model_folder)?;
    let options = flags.options(&engine, reading);
    check_template(&engine, &options)?;
    let tasks = load_tasks(&flags, options.boxed_instruction)?;
    let manifest = manifest(&model_name, &model_folder, &engine, &options)?;
    let folder = RunFolder::open(&output, &manifest)?;
    let run = RunOptions { batch_size: flags.batch_size.unwrap_or(8), limit: flags.limit, shard: flags.shard };
    let mut progress = EvalProgress::new(tasks.iter().map(|task| run.items(task).count()).sum());
    for task in &tasks {
        progress.task(&task.name);
        run_task(&mut engine, task, &options, &run, &folder, &mut |event| progress.item(&event))?;
    }
    let errors = progress.finish();
    let eval = Eval { flags: &flags, model_folder: &model_folder, manifest: &manifest, folder: &folder };
    eval.sweep(&tasks, &settings, &mut engine)?;
    eval.report()?;
    Ok(ExitCode::from(if errors > 0 { SOME_FAILED } else { 0 }))
}

fn load_tasks(flags: &Flags, boxed_instruction: bool) -> Result<Vec<Task>, CliError> {
    let options = TaskOptions { data: flags.data.clone(), boxed_instruction };
    let mut all: Vec<Task> = Vec::new();
    for spec in &flags.tasks {
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
fn check_template(engine: &Engine, options: &EvalOptions) -> Result<(), CliError> {
    use uqac::engine::encode::EncodeError;
    if options.chat_template && engine.chat_template().is_none() {
        return Err(EncodeError::NoChatTemplate.into());
    }
    if !options.chat_template && options.methods.contains(&Method::Verbalized) {
        return Err(EncodeError::NeedsChatTemplate("--methods verbalized").into());
    }
    Ok(())
}

fn manifest(named: &str, folder: &Path, engine: &Engine, options: &EvalOptions) -> Result<Manifest, CliError> {
    let template = engine.chat_template().map(|template| template.source());
    let fingerprint =
        Fingerprint::of(folder, engine.spec(), template).map_err(|(path, source)| CliError::File { path, source })?;
    let (k_cache, v_cache) = engine.cache_types();
    let name = match Path::new(named).is_dir() {
        true => folder.canonicalize().ok().and_then(|f| Some(f.file_name()?.to_string_lossy().into_owned())),
        false => None,
    };
    Ok(Manifest {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: Model {
            name: name.unwrap_or_else(|| named.to_owned()),
            fingerprint,
            k_cache,
            v_cache,
            weight_format: engine.options().weights,
        },
        options: options.clone(),
        device: engine.device(),
    })
}

/// A run whose responses are all there.
struct Eval<'a> {
    flags: &'a Flags,
    model_folder: &'a Path,
    manifest: &'a Manifest,
    folder: &'a RunFolder,
}

impl Eval<'_> {
    fn sweep(&self, tasks: &[Task], settings: &[Setting], engine: &mut Engine) -> Result<(), CliError> {
        if settings.is_empty() {
            return Ok(());
        }
        let run_args = self.flags.model().run;
        for task in tasks {
            let sweep = Sweep {
                folder: self.folder,
                task: &task.name,
                shard: self.flags.shard,
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
        let json = serde_json::to_string_pretty(&results)? + "\n";
        self.folder.replace("results.json", &json)?;
        if self.flags.json {
            return print(&json);
        }
        let analysis = analyse(&[self.folder.path().to_owned()], &AnalysisOptions::default())?;
        print(&text(&tables(&analysis), TermStyle::of_stdout()))
    }
}
