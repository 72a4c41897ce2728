//! Settings of a run: `manifest.json` in the folder of `eval`, `OUTPUT.manifest.json` next to the output of `score`.

use super::fingerprint::Fingerprint;
use crate::backend::{DType, ValueType, WeightFormat, sampling::Sampling};
use crate::eval::{
    samples::TEMPERATURE,
    tasks::{BoxedInstruction, DEFAULT_MAX_TOKENS, PLACEHOLDER},
};
use crate::{
    engine::ThinkingBudget, engine::running::RunningConfidence, units::count, units::is_default, units::whole,
    uq::Parameters, uq::Profile,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Version of the run folder's format.
pub const FORMAT: u32 = 1;

/// Settings, model and machine. Identical for all shards of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest<Options = EvalOptions> {
    pub format: u32,
    /// Of uqac.
    pub version: String,
    pub model: Model,
    pub options: Options,
    /// The machine of the first run; it may be continued on another.
    pub device: String,
    /// When it first ran, and the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// As given on the command line, or the folder's name.
    pub name: String,
    #[serde(flatten)]
    pub fingerprint: Fingerprint,
    pub k_cache: DType,
    pub v_cache: ValueType,
    /// The CPU's weight storage format, if not that of the files.
    #[serde(default, skip_serializing_if = "WeightFormat::is_file")]
    pub weight_format: WeightFormat,
    /// The discount for the nearest positions, if not the published one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gamma: Option<Vec<f32>>,
    /// Variables of the chat template.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub template_arguments: Map<String, Value>,
}

/// Everything besides the model that `score`'s records depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreOptions {
    #[serde(flatten)]
    pub parameters: Parameters,
    pub chat_template: bool,
    /// Whether records describe the rows of the chain.
    pub trace: bool,
    /// Whether records name withheld answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abstain: bool,
    /// `None` for an input that can be read only once.
    pub input: Option<Input>,
}

/// The content of an input file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    pub bytes: u64,
    /// The first 16 hexadecimal digits of its SHA-256.
    pub hash: String,
}

/// Everything that results of `eval` depend on besides the model and the questions; also its options on the command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
pub struct EvalOptions {
    #[serde(flatten)]
    #[arg(skip = Parameters::published(Profile::Corrected))]
    pub parameters: Parameters,
    /// Max tokens per response, if the task has no limit of its own.
    #[arg(skip = DEFAULT_MAX_TOKENS)]
    pub max_tokens: usize,
    /// Text that ends a response and is cut off; can be repeated [default: the task's own]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub stop: Option<Vec<String>>,
    /// The confidence below which a response ends early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(skip)]
    pub running: Option<RunningConfidence>,
    /// Max tokens of a thought, which is then closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(skip)]
    pub thinking_budget: Option<usize>,
    /// Seed of all random draws
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Keys of the methods: `uqac`, and those with passes of their own.
    #[arg(skip)]
    pub methods: Vec<String>,
    /// Repetition penalty of Hugging Face's generation_config.json, on the tokens of prompt and response [default: 1, none]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long, value_name = "X", value_parser = Sampling::penalty, hide_short_help = true)]
    pub repetition_penalty: Option<f32>,
    /// Self-consistency's samples per question, and their temperature.
    #[arg(skip = 5_usize)]
    pub samples: usize,
    #[arg(skip = TEMPERATURE)]
    pub temperature: f32,
    /// Random control chains per response, and per --sweep chain=random..; 0: no controls
    #[serde(default, skip_serializing_if = "is_default")]
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(0..=u32::MAX.into()), hide_short_help = true)]
    pub draws: usize,
    /// Use prompts verbatim, for base models
    #[arg(long = "no-chat-template", action = clap::ArgAction::SetFalse, hide_short_help = true)]
    pub chat_template: bool,
    #[arg(skip)]
    pub boxed_instruction: BoxedInstruction,
    /// Use the first N questions of each task, with their answers, as examples for the rest
    #[serde(default, skip_serializing_if = "is_default")]
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0..=u32::MAX.into()))]
    pub shots: usize,
    /// Prompt template; {question} is replaced with the question, \n with a line break
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long, value_name = "TEXT", value_parser = prompt_template, hide_short_help = true)]
    pub prompt_template: Option<String>,
}

impl EvalOptions {
    /// The budget of every response's thoughts.
    pub fn budget(&self) -> Option<ThinkingBudget> {
        self.thinking_budget.map(|tokens| self.parameters.budget(tokens))
    }

    /// The repetition penalty of every response; 1: none.
    pub fn repetition_penalty(&self) -> f32 {
        self.repetition_penalty.unwrap_or(1.0)
    }
}

fn prompt_template(text: &str) -> Result<String, String> {
    let expected = || format!("expected a text with {PLACEHOLDER}");
    if text.contains(PLACEHOLDER) { Ok(text.replace("\\n", "\n")) } else { Err(expected()) }
}

/// Hashes missing from older versions' manifests.
const NEWER_HASHES: [&str; 3] = ["generation_config", "weights_index", "tokenizer_config"];

impl<Options: Serialize> Manifest<Options> {
    /// Differences that separate another run's results from this one's, one line each; empty if none. Fields that are not
    /// [`comparable`] may differ, as may fields missing here because an older version wrote this manifest.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let [ours, mut theirs] = [self, other].map(|m| comparable(&serde_json::to_value(m).unwrap_or_default()));
        for hash in NEWER_HASHES {
            if ours["model"][hash].is_null() {
                theirs["model"][hash] = Value::Null;
            }
        }
        let mut lines = Vec::new();
        compare("", &ours, &theirs, &mut lines);
        lines
    }
}

/// A manifest without the fields that may differ between parts of one run: device, model name, date and command.
pub fn comparable(manifest: &Value) -> Value {
    let mut manifest = manifest.clone();
    if let Some(fields) = manifest.as_object_mut() {
        fields.retain(|key, _| !["device", "started", "command"].contains(&key.as_str()));
    }
    if let Some(model) = manifest.get_mut("model").and_then(Value::as_object_mut) {
        model.remove("name");
    }
    manifest
}

/// Adds a line for every leaf that differs.
fn compare(path: &str, ours: &Value, theirs: &Value, lines: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(_), _) | (_, Value::Object(_)) => {
            let [own, other] = [ours, theirs].map(|value| value.as_object().into_iter().flat_map(Map::keys));
            for key in own.chain(other.filter(|key| ours.get(key).is_none())) {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare(&path, &ours[key], &theirs[key], lines);
            }
        }
        _ if ours != theirs => lines.push(format!("{path}: the earlier run has {ours}, this one {theirs}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn manifest() -> Manifest {
        let fingerprint = Fingerprint {
            architecture: "LlamaForCausalLM".into(),
            config: "a".into(),
            generation_config: Some("absent".into()),
            weights: "b".into(),
            weights_index: Some("absent".into()),
            tokenizer: "c".into(),
            tokenizer_config: Some("f".into()),
            chat_template: None,
        };
        Manifest {
            format: FORMAT,
            version: "0.1.0".into(),
            model: Model {
                name: "m".into(),
                fingerprint,
                k_cache: DType::F32,
                v_cache: ValueType::F16,
                weight_format: WeightFormat::File,
                gamma: None,
                template_arguments: Map::new(),
            },
            options: EvalOptions {
                parameters: Parameters::published(Profile::Corrected),
                max_tokens: 1024,
                stop: None,
                running: None,
                thinking_budget: None,
                seed: 0,
                methods: vec!["uqac".into()],
                repetition_penalty: None,
                samples: 5,
                temperature: 0.5,
                draws: 0,
                chat_template: true,
                boxed_instruction: BoxedInstruction::Math,
                shots: 0,
                prompt_template: None,
            },
            device: "cpu".into(),
            started: None,
            command: None,
        }
    }

    #[test]
    fn differences_name_what_differs() {
        let first = manifest();
        let text = serde_json::to_string(&first).unwrap();
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), first);
        let mut other = Manifest { device: "cuda:0".into(), command: Some("uqac eval".into()), ..first.clone() };
        other.model.name = "elsewhere".into();
        assert_eq!(first.differences(&other), Vec::<String>::new());
        other.options.max_tokens = 512;
        other.options.methods.push("verbalized".into());
        other.model.fingerprint.chat_template = Some("d".into());
        // an older version lacks the field
        let mut older = first.clone();
        older.model.fingerprint.tokenizer_config = None;
        assert_eq!(older.differences(&first), Vec::<String>::new());
        other.model.fingerprint.tokenizer_config = Some("x".into());
        assert_eq!(
            first.differences(&other),
            [
                "model.tokenizer_config: the earlier run has \"f\", this one \"x\"",
                "model.chat_template: the earlier run has null, this one \"d\"",
                "options.max_tokens: the earlier run has 1024, this one 512",
                "options.methods: the earlier run has [\"uqac\"], this one [\"uqac\",\"verbalized\"]",
            ]
        );
    }
}
