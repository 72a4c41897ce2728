//! What a run of the bench found.

use super::Settings;
use crate::report::svg::{Bar, Picture, overhead};
use serde::Serialize;

/// Median and range of a figure's rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MedianRange {
    pub median: f64,
    #[serde(rename = "least")]
    pub min: f64,
    #[serde(rename = "most")]
    pub max: f64,
}

impl MedianRange {
    /// Of at least one value; NaN of none.
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
    /// Its name in the table and in [`Report::stage`].
    pub stage: &'static str,
    /// What is done in the seconds.
    pub what: String,
    pub seconds: MedianRange,
    /// Tokens that go in or come out, all sequences together; `None` where the stage has none.
    pub tokens: Option<usize>,
    pub tokens_per_second: Option<f64>,
    /// Bytes that it has to read, where these bound it, and their share of the read bandwidth.
    pub gb_per_second: Option<f64>,
    pub share_of_bandwidth: Option<f64>,
    /// Operations that it has to do, where these bound it, and their share of the arithmetic peak.
    pub gflop_per_second: Option<f64>,
    pub share_of_arithmetic: Option<f64>,
    /// Peak of the memory in use while it ran, the model included.
    pub peak_bytes: Option<u64>,
    /// Its seconds divided by those of plain generation, prompt included.
    pub relative_to_generation: f64,
}

/// Decoding after a context of `context` tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepRow {
    /// Tokens.
    pub context: usize,
    pub prefill_tokens_per_second: f64,
    pub plain_tokens_per_second: MedianRange,
    pub traced_tokens_per_second: MedianRange,
    /// What the trace adds to a step's time, in percent, round by round.
    pub trace_overhead_percent: MedianRange,
    pub gb_per_second: f64,
    pub share_of_bandwidth: f64,
    /// Bytes of a sequence's KV cache at its end.
    pub cache_bytes: u64,
    /// Scoring the context as a response that exists; `None` where it is too short.
    pub score: Option<Scoring>,
}

/// A response that exists: its traced pass with every probability, the chain of its last tokens, and their similarity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scoring {
    pub seconds: MedianRange,
    /// Peak of the bytes in use meanwhile, less those in use before; `None` where the system does not say.
    pub extra_bytes: Option<u64>,
}

/// Everything that a run of the bench measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub settings: Settings,
    /// As the engine names it.
    pub device: String,
    pub k_cache: &'static str,
    pub v_cache: &'static str,
    /// The dtypes of the model's matrices, in their stored dtype or that of `--weights`.
    pub weights: String,
    /// Bytes of weights that a decode step reads.
    pub weight_bytes_per_step: usize,
    /// Bytes a second.
    pub bandwidth: MedianRange,
    /// Operations a second; `None` on a GPU, where it is not measured.
    pub arithmetic_peak: Option<MedianRange>,
    pub stages: Vec<Stage>,
    /// What the trace adds to a decode step's time, in percent, round by round.
    pub trace_overhead_percent: MedianRange,
    /// The same of a wide trace (`--wide-trace`), and of a wide one with every head's attention (`--head-trace` too).
    pub wide_trace_overhead_percent: MedianRange,
    pub head_trace_overhead_percent: MedianRange,
    /// The same of `--layer-trace`.
    pub layer_trace_overhead_percent: MedianRange,
    /// Links of the attention chain that was found.
    pub chain_links: usize,
    pub sweep: Vec<SweepRow>,
}

impl Report {
    /// The stage of a name, if it was measured.
    pub fn stage(&self, name: &str) -> Option<&Stage> {
        self.stages.iter().find(|stage| stage.stage == name)
    }

    /// The seconds of some stages one after the other, relative to plain generation.
    fn relative(&self, stages: &[&str]) -> f64 {
        stages.iter().map(|name| self.stage(name).map_or(f64::NAN, |stage| stage.relative_to_generation)).sum()
    }

    /// The paper's figure of run times: a method's time for an answer with a confidence, plain generation as 1.
    pub fn picture(&self) -> Picture {
        let bar = |method: &str, relative| Bar { method: method.to_owned(), relative };
        let traced = self.relative(&["prefill", "decode, traced"]);
        let after = self.relative(&["chain", "similarity", "ensemble"]);
        let bars = [
            bar("plain", self.relative(&["prefill", "decode"])),
            bar("UQAC trace", traced),
            bar("UQAC", traced + after),
            bar("verbalized", self.relative(&["prefill", "decode", "verbalized"])),
            bar("self-consist.", self.relative(&["prefill", "decode", "self-consistency"])),
        ];
        let Settings { model, prompt_tokens, gen_tokens, variants, samples, .. } = &self.settings;
        let of = format!(
            "{model} · {} · prompt {prompt_tokens}, response {gen_tokens} tokens · {variants} variants, {samples} samples",
            self.device
        );
        overhead("run-time", &of, &bars)
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
