//! Timed generations, and the context shared by all stages.

use crate::cupti::CuptiError;
use crate::machine::{Machine, MachineError};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use uqac::Sampling;
use uqac::{Engine, EngineError, GenerateOptions, Generation, TraceParts};

/// Workload sizes.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Tokens of the prompt and of the response in decode runs.
    pub prompt: usize,
    pub response: usize,
    /// Sequences in batched decode runs.
    pub batches: Vec<usize>,
    /// Sequences in timelines of a decode step.
    pub timelines: Vec<usize>,
    /// Prompt length of the prefill measurement.
    pub prefill: usize,
    /// Response length and number of variants for the measurement of the work after an answer.
    pub answered: usize,
    pub variants: usize,
    /// Length of the long response, and steps timed there.
    pub long: usize,
    pub long_steps: usize,
    /// Lengths of scored sequences.
    pub lengths: Vec<usize>,
    pub rounds: usize,
    /// Bytes of each buffer for the copy bandwidth.
    pub buffer: usize,
}

impl Sizes {
    /// The sizes of the published figures.
    pub fn full() -> Sizes {
        Sizes {
            prompt: 512,
            response: 512,
            batches: vec![16, 64, 256],
            timelines: vec![1],
            prefill: 4096,
            answered: 500,
            variants: 8,
            long: 32_768,
            long_steps: 256,
            lengths: vec![1024, 2048, 4096, 8192, 16_384, 32_768],
            rounds: 5,
            buffer: 2 << 30,
        }
    }

    /// Sizes that run each stage in moments.
    pub fn quick() -> Sizes {
        Sizes {
            prompt: 16,
            response: 9,
            batches: vec![3],
            timelines: vec![1],
            prefill: 40,
            answered: 20,
            variants: 3,
            long: 80,
            long_steps: 5,
            lengths: vec![32, 64],
            rounds: 2,
            buffer: 16 << 20,
        }
    }
}

/// The end of the run's time budget.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// 0 seconds means no deadline.
    pub fn after(seconds: u64) -> Deadline {
        Deadline((seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds)))
    }

    /// Fails if fewer than `seconds` are left.
    pub fn need(&self, seconds: f64) -> Result<(), StageError> {
        let Some(end) = self.0 else { return Ok(()) };
        let left = end.saturating_duration_since(Instant::now()).as_secs_f64();
        if left > seconds { Ok(()) } else { Err(StageError::Budget { needed: seconds, left }) }
    }
}

/// Why a stage has no result.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Cupti(#[from] CuptiError),
    #[error("CUPTI recorded {runs} kernels: expected at least two whole decode steps")]
    NoSteps { runs: usize },
    #[error("sequence {sequence} has {found} response tokens, expected {expected}")]
    Short { sequence: usize, found: usize, expected: usize },
    #[error(transparent)]
    Driver(#[from] cudarc::driver::DriverError),
    #[error("the read kernel's sum is {found:#x}, expected {expected:#x}: its figure would be worthless")]
    ReadSum { found: u32, expected: u32 },
    #[error("the shape {0} does not make a model")]
    Shape(String),
    #[error("ln p of response token {index} of sequence {sequence} is {logprob}")]
    NotFinite { sequence: usize, index: usize, logprob: f64 },
    #[error("skipped: needs about {needed:.0} s, {left:.0} s are left")]
    Budget { needed: f64, left: f64 },
    #[error("skipped: the model's context is {context}, the measurement needs {needed}")]
    Context { context: usize, needed: usize },
}

/// The context shared by the stages.
pub struct Bench<'a> {
    pub engine: Engine,
    pub machine: &'a mut Machine,
    pub shape: &'a str,
    pub sizes: &'a Sizes,
    /// Whether targets apply: full size, on a GPU.
    pub counts: bool,
    /// Floating-point operations per second of a large bf16 product on this machine.
    pub matrix_rate: Option<f64>,
    /// Read rate of bulk copies on this machine, in bytes per second.
    pub read_rate: Option<f64>,
    pub deadline: Deadline,
    /// Bytes in use before the model was loaded.
    pub before_load: u64,
}

impl Bench<'_> {
    /// The floor of memory-bound work, in bytes per second: the read rate if known, else `copies`.
    pub fn read_floor(&self, copies: f64) -> f64 {
        self.read_rate.unwrap_or(copies)
    }

    /// Bytes that the trace adds to a decode step of one sequence.
    pub fn trace_bytes(&self) -> f64 {
        self.engine.expected_memory(1).trace_row as f64
    }

    /// `count` different prompts of pseudo-random ids.
    pub fn prompts(&self, count: usize, tokens: usize) -> Vec<Vec<u32>> {
        let vocab = self.engine.spec().vocab_size as u64;
        let id = |stream: usize, i: usize| {
            let mixed = (stream as u64 * 1_000_003 + i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            (mixed % vocab) as u32
        };
        (0..count).map(|stream| (0..tokens).map(|i| id(stream, i)).collect()).collect()
    }

    /// Fails if the model's context is shorter than `needed` tokens.
    pub fn need_context(&self, needed: usize) -> Result<(), StageError> {
        let context = self.engine.spec().max_position_embeddings;
        if needed > context { Err(StageError::Context { context, needed }) } else { Ok(()) }
    }

    /// The result of `work`, and the peak memory use relative to before the model was loaded, in bytes.
    pub fn peak<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, StageError>) -> Result<(T, f64), StageError> {
        let watch = self.machine.watch()?;
        let done = work(self);
        let peak = watch.peak()?;
        Ok((done?, peak.saturating_sub(self.before_load) as f64))
    }

    /// Generates `tokens` tokens for each prompt, with or without UQAC's trace.
    pub fn generate(&mut self, prompts: &[Vec<u32>], tokens: usize, traced: bool) -> Result<Timing, StageError> {
        let options = GenerateOptions {
            max_tokens: tokens,
            sampling: Sampling::GREEDY,
            trace: traced.then(TraceParts::default),
            ..GenerateOptions::default()
        };
        let start = Instant::now();
        let (mut first, mut last) = (None, start);
        let on_token = |_: uqac::Progress| {
            last = Instant::now();
            first.get_or_insert(last);
            ControlFlow::Continue(())
        };
        let generations = self.engine.generate(prompts, &options, on_token)?;
        check(&generations, tokens)?;
        let first = first.unwrap_or(last);
        Ok(Timing {
            first: (first - start).as_secs_f64(),
            step: (last - first).as_secs_f64() / tokens.saturating_sub(1).max(1) as f64,
        })
    }
}

/// Seconds until the first token, and per decode step after it.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub first: f64,
    pub step: f64,
}

/// Every token must be present, with a finite probability.
fn check(generations: &[Generation], expected: usize) -> Result<(), StageError> {
    for (sequence, generation) in generations.iter().enumerate() {
        let found = generation.tokens.len() - generation.prompt_len;
        if found != expected {
            return Err(StageError::Short { sequence, found, expected });
        }
        for (index, step) in generation.steps.iter().take(found).enumerate() {
            let logprob = step.logprob.unwrap_or(f64::NAN);
            if !logprob.is_finite() {
                return Err(StageError::NotFinite { sequence, index, logprob });
            }
        }
    }
    Ok(())
}
