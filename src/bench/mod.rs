//! The cost of the method, measured: each stage of an answer next to the hardware limits, measured in the same run.
//!
//! ```text
//! machine  ─ read bandwidth, arithmetic peak, memory in use ─┐
//! measure  ─ rounds of every stage, interleaved ─────────────┴─ Report: JSON, tables   (uqac bench)
//! roofline ─ bytes and operations that a stage needs at least
//! ```

pub mod machine;
mod measure;
pub mod roofline;

pub use measure::run;

use crate::{engine::EngineError, model::tokenizer::TokenizerError, units::count};
use serde::Serialize;

/// Why a benchmark has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Machine(#[from] machine::MachineError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("{needed} tokens exceed the model's context of {context}: use a shorter prompt, response or sweep")]
    Context { needed: usize, context: usize },
    #[error("ln p of a response token is {logprob}: expected a finite number")]
    NotFinite { logprob: f64 },
}

/// Sizes of the work; also the options of the command line.
#[derive(Clone, Debug, PartialEq, Serialize, clap::Args)]
pub struct Settings {
    /// The model's name in the report.
    #[arg(skip)]
    pub model: String,
    /// Tokens of the prompt
    #[arg(long, value_name = "P", default_value_t = 512, value_parser = count(2..=MAX_TOKENS))]
    pub prompt_tokens: usize,
    /// Tokens of each response; end tokens are ignored
    #[arg(long, value_name = "G", default_value_t = 128, value_parser = count(5..=MAX_TOKENS))]
    pub gen_tokens: usize,
    /// Sequences decoded together
    #[arg(long, value_name = "B", default_value_t = 1, value_parser = count(1..=1024))]
    pub batch: usize,
    /// Repetitions of each stage
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(1..=10_000))]
    pub rounds: usize,
    /// Variants of the ensemble, evenly spread over the response
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count(1..=10_000))]
    pub variants: usize,
    /// Samples of self-consistency
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(1..=1000))]
    pub samples: usize,
    /// Further context lengths for decoding and scoring, such as 512,1k,2k,4k,8k
    #[serde(skip)] // the report has their rows
    #[arg(long, value_name = "T,...", value_delimiter = ',', value_parser = length)]
    pub sweep: Vec<usize>,
}

/// Larger than any model's context.
const MAX_TOKENS: u64 = 1 << 24;

/// A number of tokens; `4k` is 4096.
fn length(text: &str) -> Result<usize, &'static str> {
    let (digits, unit) = text.strip_suffix(['k', 'K']).map_or((text, 1), |digits| (digits, 1024));
    let tokens = digits.parse().ok().and_then(|n: usize| n.checked_mul(unit));
    tokens.filter(|n| (16..=MAX_TOKENS as usize).contains(n)).ok_or("expected at least 16 tokens, such as 512 or 4k")
}

/// Median and range over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MedianRange {
    pub median: f64,
    #[serde(rename = "least")]
    pub min: f64,
    #[serde(rename = "most")]
    pub max: f64,
}

impl MedianRange {
    /// NaN without values.
    pub fn of(values: &[f64]) -> MedianRange {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
        let median = if n % 2 == 1 { at(n / 2) } else { (at(n / 2) + at((n / 2).wrapping_sub(1))) / 2.0 };
        MedianRange { median, min: at(0), max: at(n.wrapping_sub(1)) }
    }
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    pub stage: &'static str,
    /// The size of the work.
    pub what: String,
    pub seconds: MedianRange,
    /// Tokens in or out, over all sequences; `None` for a stage without any.
    pub tokens: Option<usize>,
    pub tokens_per_second: Option<f64>,
    /// For a memory-bound stage: bytes read, per second and as a share of the read bandwidth.
    pub gb_per_second: Option<f64>,
    pub share_of_bandwidth: Option<f64>,
    /// For a compute-bound stage: operations, per second and as a share of the arithmetic peak.
    pub gflop_per_second: Option<f64>,
    pub share_of_arithmetic: Option<f64>,
    /// Peak memory in use during the stage, the model included; `None` if the system does not report it.
    pub peak_bytes: Option<u64>,
    /// Seconds relative to plain generation, prompt included.
    pub relative_to_generation: f64,
}

/// Decoding after a context of `context` tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepRow {
    pub context: usize,
    pub prefill_tokens_per_second: f64,
    pub plain_tokens_per_second: MedianRange,
    pub traced_tokens_per_second: MedianRange,
    /// Decode time added by the trace, in percent of the same round's plain step.
    pub trace_overhead_percent: MedianRange,
    pub gb_per_second: f64,
    pub share_of_bandwidth: f64,
    /// Bytes of a sequence's KV cache at the end.
    pub cache_bytes: u64,
    /// The context scored as an existing response.
    pub score: Scoring,
}

/// Traced pass, chain and similarity of an existing response.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scoring {
    pub seconds: MedianRange,
    /// Peak memory above the previous level; `None` if the system does not report it.
    pub extra_bytes: Option<u64>,
}

/// All results of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub settings: Settings,
    pub device: String,
    pub k_cache: &'static str,
    pub v_cache: &'static str,
    /// The dtypes of the model's matrices, as loaded.
    pub weights: String,
    /// Bytes of weights read by a decode step.
    pub weight_bytes_per_step: usize,
    /// Bytes per second.
    pub bandwidth: MedianRange,
    /// Operations per second; `None` on a GPU, where it is not measured.
    pub arithmetic_peak: Option<MedianRange>,
    pub stages: Vec<Stage>,
    /// Decode time added by each kind of trace, in percent of the same round's plain step.
    pub trace_overhead_percent: MedianRange,
    pub wide_trace_overhead_percent: MedianRange,
    pub head_trace_overhead_percent: MedianRange,
    pub layer_trace_overhead_percent: MedianRange,
    /// Number of links in the attention chain.
    pub chain_links: usize,
    pub sweep: Vec<SweepRow>,
}

impl Report {
    /// Total time of consecutive stages, relative to plain generation.
    pub fn relative(&self, stages: &[&str]) -> f64 {
        let of = |name: &&str| self.stages.iter().find(|stage| stage.stage == *name);
        stages.iter().map(|name| of(name).map_or(f64::NAN, |stage| stage.relative_to_generation)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        assert_eq!(MedianRange::of(&[3.0, 1.0, 2.0]), MedianRange { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(MedianRange::of(&[4.0, 1.0]).median, 2.5);
        assert!(MedianRange::of(&[]).median.is_nan());
    }
}
