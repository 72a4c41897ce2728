//! One run: shapes and stages in order. Results are saved after each stage; a failure is reported, and the next stage runs.

use crate::cupti::Recorder;
use crate::log::{Failure, FailureKind, Log, caught};
use crate::machine::{Machine, resolve};
use crate::measure::{Bench, Deadline, Sizes, StageError};
use crate::report::{Report, Row};
use crate::shapes::{self, Shape};
use crate::{Fatal, agreement, answered, checkpoint, described, stages, timeline};
use serde_json::json;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Instant;
use uqac::internals::InputRounding;
use uqac::{DType, DeviceChoice, ValueType};
use uqac::{Engine, EngineOptions, WeightFormat};

#[derive(clap::Args)]
pub struct RunArgs {
    /// auto, cpu, cuda, cuda:N or reference
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Shapes to measure [default: all]
    #[arg(long, value_delimiter = ',', value_parser = shapes::names())]
    shapes: Vec<String>,
    /// Stages, in this order
    #[arg(long, value_delimiter = ',', default_value = "agreement,decode,answered,prefill,batch,deep,lengths")]
    stages: Vec<Stage>,
    /// Shrunken shapes and short runs: does everything work?
    #[arg(long)]
    quick: bool,
    /// Seconds after which no further stage begins; 0: no limit
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    budget: u64,
    /// Layers instead of the shape's own, to look at single kernels
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    layers: Option<u16>,
    /// Sequences of `batch` and of `timeline` [default: 16, 64 and 256 (quick: 3); a timeline: 1]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u16).range(1..))]
    batches: Vec<u16>,
    /// Rounds of each comparison [default: 5, quick: 2]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: Option<u8>,
    /// Where checkpoints are written [default: a new temporary folder]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Leave the checkpoints there for another run
    #[arg(long)]
    keep: bool,
    /// FLOP/s of a large bf16 matrix product on this machine: the floor of work bound by arithmetic
    #[arg(long, value_name = "RATE")]
    matrix_rate: Option<f64>,
    /// Bytes per second that bulk copies read on this machine: the floor of work bound by memory [default: the copy rate]
    #[arg(long, value_name = "RATE")]
    read_rate: Option<f64>,
    /// Threads, for the CPU and for writing checkpoints; 0: one per core
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Type of the cached keys [default: the engine's]
    #[arg(long)]
    k_cache: Option<DType>,
    /// Type of the cached values [default: the engine's]
    #[arg(long)]
    v_cache: Option<ValueType>,
    /// Weights in memory: as in the file, or in 8 bits
    #[arg(long, default_value_t, value_name = "file|q8")]
    weights: WeightFormat,
    /// libcupti, for `timeline` [default: libcupti.so, as the loader finds it]
    #[arg(long, value_name = "FILE")]
    cupti: Option<PathBuf>,
    /// Appended to the rows' names, for runs that deviate from the defaults
    #[arg(long, default_value = "", value_name = "TEXT")]
    suffix: String,
    /// Save the results here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A measurement of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Stage {
    /// Shrunken, against the CPU: same tokens, probabilities, heads, chain
    Agreement,
    /// One sequence, plain and traced
    Decode,
    /// Chain, similarities and ensemble after the answer
    Answered,
    Prefill,
    /// Several sequences, plain and traced
    Batch,
    /// Decoding after a long prompt
    Deep,
    /// Traced passes over sequences of growing length
    Lengths,
    /// One long response from its first token to its last
    Whole,
    /// The kernels of a decode step and the gaps between them, by CUPTI
    Timeline,
    /// The kernels of a prefill, by CUPTI
    PrefillTimeline,
    /// A short generation and nothing else, for a profiler
    Steps,
}

/// A stage, and for [`Stage::Lengths`], [`Stage::Batch`] and [`Stage::Timeline`] its length or batch size.
#[derive(Clone, Copy, Debug)]
struct Task {
    stage: Stage,
    size: usize,
}

impl Task {
    /// `stages` in order, one task per size.
    fn list(stages: &[Stage], sizes: &Sizes) -> VecDeque<Task> {
        let sizes_of = |stage| match stage {
            Stage::Lengths => &sizes.lengths[..],
            Stage::Batch => &sizes.batches[..],
            Stage::Timeline => &sizes.timelines[..],
            _ => &[0],
        };
        stages.iter().flat_map(|&stage| sizes_of(stage).iter().map(move |&size| Task { stage, size })).collect()
    }

    fn name(self) -> String {
        let stage = format!("{:?}", self.stage).to_lowercase();
        if self.size > 0 { format!("{stage} {}", self.size) } else { stage }
    }

    fn run(self, bench: &mut Bench) -> Result<Vec<Row>, StageError> {
        bench.deadline.need(0.0)?;
        match self.stage {
            // these load their own models
            Stage::Agreement | Stage::Timeline | Stage::PrefillTimeline => Ok(Vec::new()),
            Stage::Decode => stages::decode(bench, 1),
            Stage::Batch => stages::decode(bench, self.size),
            Stage::Answered => answered::answered(bench),
            Stage::Prefill => stages::prefill(bench),
            Stage::Deep => stages::deep(bench),
            Stage::Lengths => stages::length(bench, self.size),
            Stage::Whole => stages::whole(bench),
            Stage::Steps => stages::steps(bench),
        }
    }
}

/// The setup shared by all measurements.
struct Rig {
    machine: Machine,
    options: EngineOptions,
    sizes: Sizes,
    matrix_rate: Option<f64>,
    read_rate: Option<f64>,
    deadline: Deadline,
    counts: bool,
}

impl Rig {
    /// Loads a model.
    fn load<'a>(&'a mut self, shape: &'a str, folder: &Path) -> Result<Bench<'a>, Failure> {
        let before_load = self.machine.in_use().map_err(StageError::from)?;
        let Rig { machine, options, sizes, matrix_rate, read_rate, deadline, counts } = self;
        let (matrix_rate, read_rate, deadline, counts) = (*matrix_rate, *read_rate, *deadline, *counts);
        let engine = Engine::load(folder, *options)?;
        Ok(Bench { engine, machine, shape, sizes, counts, matrix_rate, read_rate, deadline, before_load })
    }
}

/// Settings and results of a run.
struct Session<'a> {
    arguments: &'a RunArgs,
    rig: Rig,
    folder: PathBuf,
    log: Log,
}

/// Runs the measurements; true without failures.
pub fn run(arguments: &RunArgs) -> Result<bool, Fatal> {
    let mut sizes = if arguments.quick { Sizes::quick() } else { Sizes::full() };
    sizes.rounds = arguments.rounds.map_or(sizes.rounds, usize::from);
    if !arguments.batches.is_empty() {
        sizes.batches = arguments.batches.iter().map(|&batch| batch.into()).collect();
        sizes.timelines.clone_from(&sizes.batches);
    }
    let deadline = Deadline::after(arguments.budget);
    let machine = Machine::open(arguments.device, arguments.threads, sizes.buffer)?;
    let temporary = tempfile::tempdir().map_err(|source| Fatal::Io { path: std::env::temp_dir(), source })?;
    let folder = arguments.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
    let counts = !arguments.quick && arguments.layers.is_none() && matches!(machine, Machine::Cuda { .. });
    let report = Report { counts, ..Report::default() };
    let (json, suffix) = (arguments.json.clone(), arguments.suffix.clone());
    let log = Log { report, json, suffix, failures: 0 };
    let RunArgs { device, threads, k_cache, v_cache, weights, matrix_rate, read_rate, .. } = *arguments;
    let device = resolve(device);
    let options = EngineOptions { device, threads, k_cache, v_cache, weights, ..EngineOptions::default() };
    let rig = Rig { machine, options, sizes, matrix_rate, read_rate, deadline, counts };
    let mut session = Session { arguments, rig, folder, log };
    session.describe()?;
    shapes(&arguments.shapes, false)?.iter().try_for_each(|shape| session.measure(shape))?;
    Ok(session.log.failures == 0)
}

/// The shapes with these names, or all if no names are given.
pub fn shapes(names: &[String], shrunken: bool) -> Result<Vec<Shape>, StageError> {
    let wanted =
        shapes::names().into_iter().filter(|name| names.is_empty() || names.iter().any(|other| other == *name));
    wanted
        .map(|name| {
            let shape = shapes::find(name).and_then(|shape| if shrunken { shape.shrunken() } else { Some(shape) });
            shape.ok_or_else(|| StageError::Shape((*name).to_owned()))
        })
        .collect()
}

impl Session<'_> {
    /// The machine and its rates.
    fn describe(&mut self) -> Result<(), Fatal> {
        let machine = &mut self.rig.machine;
        let device = described(machine)?;
        println!("{device}");
        let about = &mut self.log.report.about;
        about.insert("device".to_owned(), device);
        if self.arguments.quick {
            let note = "shrunken shapes and short runs: shows that everything runs, says nothing about speed";
            about.insert("quick".to_owned(), note.to_owned());
        }
        let giga = |rate: f64| rate / 1e9;
        let rates = (0..self.rig.sizes.rounds).map(|_| machine.bandwidth().map(giga)).collect::<Result<Vec<_>, _>>()?;
        let mut rows = vec![Row::new("the machine", "memory bandwidth by copies", "GB/s", &rates)];
        let matrix = self.rig.matrix_rate;
        rows.extend(matrix.map(|r| Row::new("the machine", "large bf16 matrix product", "TFLOP/s", &[r / 1e12])));
        self.log.add(rows)
    }

    /// All stages of one shape.
    fn measure(&mut self, shape: &Shape) -> Result<(), Fatal> {
        println!("{}", shape.name);
        let mut tasks = Task::list(&self.arguments.stages, &self.rig.sizes);
        let shrunken = || shape.shrunken().ok_or_else(|| StageError::Shape(shape.name.to_owned()));
        if !take(&mut tasks, Stage::Agreement).is_empty() {
            let outcome = caught(|| self.agreement(&shrunken()?));
            let unexplained = outcome.as_ref().ok().and_then(|rows| agreement::unexplained(rows));
            self.log.record(shape.name, "agreement", outcome)?;
            if let Some(failure) = unexplained {
                self.log.problem(shape.name, "agreement", failure)?;
            }
        }
        let [timelines, prefill] = [Stage::Timeline, Stage::PrefillTimeline].map(|stage| take(&mut tasks, stage));
        if tasks.is_empty() && timelines.is_empty() && prefill.is_empty() {
            return Ok(());
        }
        let mut shape = if self.arguments.quick { shrunken()? } else { shape.clone() };
        if let Some(layers) = self.arguments.layers {
            let fewer = shape.with(&json!({ "num_hidden_layers": layers }));
            shape = fewer.ok_or_else(|| StageError::Shape(shape.name.to_owned()))?;
        }
        let folder = self.folder.join(shape.name);
        let start = Instant::now();
        if let Err(error) = checkpoint::write(&folder, &shape, self.arguments.threads) {
            let error = std::io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
            return self.log.problem(shape.name, "checkpoint", error.into());
        }
        let (bytes, seconds) = (shape.byte_len() as f64, start.elapsed().as_secs_f64());
        println!("  {:.2} GB of weights in {} after {seconds:.1} s", bytes / 1e9, folder.display());
        while !tasks.is_empty() && self.work_off(&shape, &folder, &mut tasks)? {}
        for task in timelines {
            let outcome = caught(|| self.timeline(shape.name, &folder, task.size));
            self.log.record(shape.name, &task.name(), outcome)?;
        }
        if !prefill.is_empty() {
            let outcome = caught(|| self.prefill_timeline(shape.name, &folder));
            self.log.record(shape.name, "prefill timeline", outcome)?;
        }
        if !self.arguments.keep {
            std::fs::remove_dir_all(&folder).map_err(|source| Fatal::Io { path: folder, source })?;
        }
        Ok(())
    }

    /// Loads the model and runs tasks until one breaks the engine. Returns false if the model does not load.
    fn work_off(&mut self, shape: &Shape, folder: &Path, tasks: &mut VecDeque<Task>) -> Result<bool, Fatal> {
        let start = Instant::now();
        let mut bench = match caught(|| self.rig.load(shape.name, folder)) {
            Ok(bench) => bench,
            Err(failure) => return self.log.problem(shape.name, "load", failure).map(|()| false),
        };
        let seconds = start.elapsed().as_secs_f64();
        let (engine, (k, v)) = (&bench.engine, bench.engine.cache_types());
        let cache = format!("K {k}, V {v}");
        println!("  {}, cache {cache}", engine.device());
        // a kernel was replaced by its plain version, so these figures are not the engine's
        let warnings: Vec<String> = engine.warnings().cloned().collect();
        let gigabytes = engine.weights().byte_len() as f64 / 1e9;
        let load = Row::new(shape.name, "time to load", "s", &[seconds]).fact("GB/s", gigabytes / seconds);
        self.log.report.about.insert(format!("cache, {}", shape.name), cache);
        self.log.add(vec![load])?;
        for message in warnings {
            self.log.problem(shape.name, "self-test", Failure { message, kind: FailureKind::Wrong })?;
        }
        while let Some(task) = tasks.pop_front() {
            let outcome = caught(|| Ok(task.run(&mut bench)?));
            if !self.log.record(shape.name, &task.name(), outcome)? {
                break;
            }
        }
        Ok(true)
    }

    /// Decode steps of `batch` sequences timed alone, then under CUPTI, which must be loaded before a step is captured.
    fn timeline(&mut self, shape: &str, folder: &Path, batch: usize) -> Result<Vec<Row>, Failure> {
        let rig = &mut self.rig;
        rig.deadline.need(0.0)?;
        let step = stages::traced_steps(&mut rig.load(shape, folder)?, batch)?;
        let recorder = Recorder::start(self.arguments.cupti.as_deref()).map_err(StageError::from)?;
        stages::traced_steps(&mut rig.load(shape, folder)?, batch)?;
        let runs = recorder.finish().map_err(StageError::from)?;
        let steps = timeline::steps(&runs, rig.sizes.response / 2);
        if steps.len() < 2 {
            return Err(StageError::NoSteps { runs: runs.len() }.into());
        }
        let mut rows = timeline::rows(shape, &steps, step, rig.counts && batch == 1);
        if batch > 1 {
            rows.iter_mut().for_each(|row| row.what += &format!(", batch {batch}"));
        }
        Ok(rows)
    }

    /// A prefill under CUPTI, after a warm-up.
    fn prefill_timeline(&mut self, shape: &str, folder: &Path) -> Result<Vec<Row>, Failure> {
        let rig = &mut self.rig;
        rig.deadline.need(0.0)?;
        let recorder = Recorder::start(self.arguments.cupti.as_deref()).map_err(StageError::from)?;
        let mut bench = rig.load(shape, folder)?;
        let prompts = bench.prompts(1, bench.sizes.prefill);
        bench.generate(&prompts, 1, false)?;
        let seconds = bench.generate(&prompts, 1, false)?.first;
        drop(bench);
        let runs = recorder.finish().map_err(StageError::from)?;
        Ok(timeline::longest(shape, "prefill kernel", &[timeline::last_pass(&runs, seconds)], seconds, "µs a prefill"))
    }

    /// The shrunken shape on the device and on the CPU.
    fn agreement(&mut self, shape: &Shape) -> Result<Vec<Row>, Failure> {
        self.rig.deadline.need(0.0)?;
        let folder = self.folder.join(format!("{}-shrunken", shape.name));
        checkpoint::write(&folder, shape, self.arguments.threads)?;
        let mut device = Engine::load(&folder, self.rig.options)?;
        let (k, v) = device.cache_types();
        let threads = self.arguments.threads;
        let on_cpu = EngineOptions { device: DeviceChoice::Cpu, threads, ..EngineOptions::default() };
        let input_rounding = InputRounding::OneTerm;
        let rounded = EngineOptions { k_cache: Some(k), v_cache: Some(v), input_rounding, ..on_cpu };
        let mut cpu = Engine::load(&folder, rounded)?;
        let (k_cache, v_cache) = (Some(DType::F32), Some(ValueType::F32));
        let mut exact = Engine::load(&folder, EngineOptions { k_cache, v_cache, ..on_cpu })?;
        Ok(agreement::agreement(shape.name, &mut device, &mut cpu, &mut exact)?)
    }
}

/// Removes a stage's tasks from the list, and returns them.
fn take(tasks: &mut VecDeque<Task>, stage: Stage) -> Vec<Task> {
    let (taken, rest): (Vec<Task>, _) = tasks.drain(..).partition(|task| task.stage == stage);
    *tasks = VecDeque::from_iter::<Vec<Task>>(rest);
    taken
}
