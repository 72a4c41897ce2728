//! Options, as keyword arguments of the Python functions; the defaults are the command line's.

use crate::Error;
use pyo3::PyResult;
use pyo3::exceptions::PyValueError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use uqac::BATCH_SIZE;
use uqac::Gamma;
use uqac::Reading;
use uqac::Sampling;
use uqac::Thinking;
use uqac::{EngineOptions, GenerateOptions, Parameters, Profile};
use uqac::{Measure, RunningConfidence, WINDOW};

/// Options for running a model.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Load {
    device: String,
    k_cache: Option<String>,
    v_cache: Option<String>,
    threads: usize,
    weights: String,
    gamma: Option<Vec<f64>>,
    speculate: String,
    /// Variables of the chat template.
    pub template_args: serde_json::Map<String, serde_json::Value>,
}

impl Default for Load {
    fn default() -> Load {
        let [device, weights, speculate] = ["auto", "file", "auto"].map(str::to_owned);
        let template_args = serde_json::Map::new();
        Load { device, k_cache: None, v_cache: None, threads: 0, weights, gamma: None, speculate, template_args }
    }
}

impl Load {
    pub fn engine(&self) -> PyResult<EngineOptions> {
        let gamma = |values: &Vec<f64>| {
            let expected = format!("gamma: expected at most {} numbers from 0 to 1", Gamma::MAX_NEAREST);
            Gamma::new(values).ok_or_else(|| PyValueError::new_err(expected))
        };
        Ok(EngineOptions {
            device: parsed("device", &self.device)?,
            threads: self.threads,
            k_cache: self.k_cache.as_deref().map(|text| parsed("k_cache", text)).transpose()?,
            v_cache: self.v_cache.as_deref().map(|text| parsed("v_cache", text)).transpose()?,
            weights: parsed("weights", &self.weights)?,
            speculate: parsed("speculate", &self.speculate)?,
            gamma: self.gamma.as_ref().map_or(Ok(Gamma::PUBLISHED), gamma)?,
            ..EngineOptions::default()
        })
    }
}

/// Options for generating and assessing responses.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    pub chat_template: bool,
    max_tokens: usize,
    temperature: f32,
    top_p: f32,
    top_k: usize,
    seed: u64,
    repetition_penalty: f64,
    stop: Vec<String>,
    /// A response ends once its running confidence falls below this.
    stop_below: Option<f64>,
    /// Quantity averaged by the running confidence.
    running: Option<Measure>,
    window: usize,
    /// Max tokens of a thought.
    thinking_budget: Option<usize>,
    /// Number of responses generated concurrently.
    pub batch_size: usize,
    /// Responses sampled beside each one.
    pub samples: usize,
    /// Whether tokens are reported as they are sampled.
    pub stream: bool,
    profile: Profile,
    rules: BTreeMap<String, String>,
    parameters: BTreeMap<String, serde_json::Value>,
    /// Whether P's ensemble runs.
    ensemble: bool,
    thinking: Thinking,
    wide_trace: bool,
    /// Whether a trace includes each head's attention, the layers' mean hidden states, and the final hidden
    /// states.
    heads: bool,
    layers: bool,
    pub hidden: bool,
    /// Whether the record describes the rows of its chain.
    pub trace: bool,
    /// Whether answers that are not above the certified threshold are withheld.
    pub abstain: bool,
}

impl Default for Options {
    fn default() -> Options {
        let Sampling { temperature, top_p, top_k, seed, repetition_penalty } = Sampling::GREEDY;
        Options {
            chat_template: true,
            max_tokens: GenerateOptions::default().max_tokens,
            temperature,
            top_p,
            top_k,
            seed,
            repetition_penalty: repetition_penalty.into(),
            stop: Vec::new(),
            stop_below: None,
            running: None,
            window: WINDOW,
            thinking_budget: None,
            batch_size: BATCH_SIZE,
            samples: 0,
            stream: false,
            profile: Profile::Corrected,
            rules: BTreeMap::new(),
            parameters: BTreeMap::new(),
            ensemble: true,
            thinking: Thinking::Auto,
            wide_trace: false,
            heads: false,
            layers: false,
            hidden: false,
            trace: false,
            abstain: false,
        }
    }
}

impl Options {
    /// The method's parameters.
    pub fn parameters(&self) -> PyResult<Parameters> {
        let parameters = self.parameters.iter().map(|(name, value)| (name.clone(), value.to_string()));
        let settings = self.rules.clone().into_iter().chain(parameters);
        let reading = Reading::new(self.profile, settings).map_err(invalid)?;
        let &Options { ensemble, wide_trace, heads, layers, .. } = self;
        let thinking = self.thinking.clone();
        Ok(Parameters {
            ensemble,
            wide_trace,
            head_trace: heads,
            layer_trace: layers,
            thinking,
            ..Parameters::published(reading)
        })
    }

    pub fn generate(&self, parameters: &Parameters) -> PyResult<GenerateOptions> {
        let &Options {
            max_tokens,
            temperature,
            top_p,
            top_k,
            seed,
            repetition_penalty,
            stop_below,
            running,
            window,
            samples,
            ..
        } = self;
        let penalties = format!("a number in {:?}", Sampling::PENALTIES);
        for (name, holds, expected) in [
            ("max_tokens", max_tokens >= 1, "a number ≥ 1"),
            ("window", window >= 1, "a number ≥ 1"),
            ("samples", samples <= 128, "at most 128"),
            ("temperature", temperature.is_finite() && temperature >= 0.0, "a number ≥ 0"),
            ("top_p", top_p > 0.0 && top_p <= 1.0, "a number above 0 and at most 1"),
            ("repetition_penalty", Sampling::PENALTIES.contains(&repetition_penalty), &penalties),
        ] {
            if !holds {
                return Err(PyValueError::new_err(format!("{name}: expected {expected}")));
            }
        }
        let measure = running.or(stop_below.map(|_| Measure::default()));
        Ok(GenerateOptions {
            max_tokens,
            sampling: Sampling { temperature, top_p, top_k, seed, repetition_penalty: repetition_penalty as f32 },
            trace: Some(parameters.trace_parts()),
            stop: self.stop.clone(),
            thinking_budget: self.thinking_budget.map(|tokens| parameters.budget(tokens)),
            running: measure.map(|measure| RunningConfidence { measure, window, stop_below }),
            ..GenerateOptions::default()
        })
    }
}

/// Parses JSON written by the Python side.
pub fn from_json<T: DeserializeOwned>(json: &str) -> PyResult<T> {
    // via a value: its errors mention no position in a text that the user never saw
    serde_json::from_str::<serde_json::Value>(json).and_then(serde_json::from_value).map_err(invalid)
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> PyResult<T> {
    text.parse().map_err(|why| PyValueError::new_err(format!("{name}: {why}")))
}

/// Error for an invalid argument.
pub fn invalid(why: impl std::fmt::Display) -> pyo3::PyErr {
    PyValueError::new_err(why.to_string())
}

/// Error for a failed operation.
pub fn failed(why: impl std::fmt::Display) -> pyo3::PyErr {
    Error::new_err(why.to_string())
}
