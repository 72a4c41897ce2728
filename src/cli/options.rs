//! Options shared by commands, each declared once: a run's in [`EvalOptions`](crate::eval::run::manifest::EvalOptions), the
//! others here.

use super::*;
use crate::backend::{DType, DeviceChoice, ValueType, WeightFormat, entropy::Gamma};
use crate::engine::running::{MAX_WINDOW, Measure, RunningConfidence, WINDOW};
use crate::engine::{Engine, EngineOptions, Speculate, ThinkingBudget};
use crate::model::reply::{self, Thinking};
use crate::model::{chat::is_reserved, hub::locate_model};
use crate::uq::{Parameters, Profile, Reading, RuleSetting, rules, values};
use crate::{eval::calibration::Calibration, eval::calibration::Drawn, names::Named, units::count, units::number};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// How a model runs: [`EngineOptions`].
#[derive(Args)]
pub struct EngineArgs {
    /// Device; auto: the first CUDA device if usable, else the CPU; reference: one scalar thread, for checks
    #[arg(long, value_name = "auto|cpu|cuda[:N]|reference", default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// CPU threads; 0: one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0..=1024))]
    pub threads: usize,
    /// Type of cached keys [default: f32; f16 is faster on CUDA and reproduces fewer chains]
    #[arg(long, value_name = "f32|f16|bf16", hide_short_help = true)]
    k_cache: Option<DType>,
    /// Type of cached values [default: f32; on CUDA f16]; q8, 8 bits, on the CPU only
    #[arg(long, value_name = "f32|f16|bf16|q8", hide_short_help = true)]
    v_cache: Option<ValueType>,
    /// Weights in memory; q8: 8 bits, faster, slightly different results
    #[arg(long, value_name = "file|q8", default_value_t, hide_short_help = true)]
    weights: WeightFormat,
    /// Tokens to guess per pass from earlier text, without changing results; auto: as many as pay off, none on CUDA
    #[arg(long, value_name = "off|auto|N", default_value_t, hide_short_help = true)]
    speculate: Speculate,
}

impl EngineArgs {
    pub fn options(&self) -> EngineOptions {
        let EngineArgs { device, threads, k_cache, v_cache, weights, speculate } = *self;
        EngineOptions { device, threads, k_cache, v_cache, weights, speculate, ..EngineOptions::default() }
    }
}

/// A model, and how it runs.
#[derive(Args)]
#[command(next_help_heading = "Model and device")]
pub struct ModelArgs {
    /// Model folder, name of a downloaded Hugging Face model, or abacus, the built-in model [default: $UQAC_MODEL; for ask,
    /// eval and serve otherwise abacus]
    #[arg(short, long, value_name = "FOLDER|NAME")]
    model: Option<String>,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// γ, the discount of the nearest positions: output of `examples/fit_gamma.rs`, or a JSON list, nearest first [default:
    /// the published γ]
    #[arg(long, value_name = "FILE", value_parser = gamma, hide_short_help = true)]
    gamma: Option<Gamma>,
    /// Set a variable of the chat template, such as enable_thinking=false (JSON or a text); can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = template_argument, hide_short_help = true)]
    template_arg: Vec<(String, serde_json::Value)>,
}

fn template_argument(text: &str) -> Result<(String, serde_json::Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    if is_reserved(name) { Err(format!("{name} is set by the conversation")) } else { Ok((name.to_owned(), value)) }
}

/// Reads γ from a file.
fn gamma(path: &str) -> Result<Gamma, String> {
    let text = files::read_to_string(Path::new(path), files::MAX_SETTINGS).map_err(|error| error.to_string())?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(files::json_fault)?;
    let values: Option<Vec<f64>> = serde_json::from_value(value.get("gamma").unwrap_or(&value).clone()).ok();
    values
        .and_then(|values| Gamma::new(&values))
        .ok_or_else(|| format!("expected a list of at most {} numbers from 0 to 1", Gamma::MAX_NEAREST))
}

impl ModelArgs {
    /// The name from the flag or the environment.
    pub fn named(&self) -> Option<String> {
        self.model.clone().or_else(|| std::env::var("UQAC_MODEL").ok()).filter(|name| !name.is_empty())
    }

    /// The folder of the named model.
    pub fn folder(&self) -> Result<PathBuf, Failure> {
        locate(&self.named().ok_or(CliError::NoModel)?)
    }

    /// The named model, or the built-in one by default, and its folder.
    pub fn or_embedded(&self) -> Result<(String, PathBuf), Failure> {
        let name = self.named().unwrap_or_else(|| {
            note("note: no --model given; using abacus (2.5 million parameters, arithmetic word problems)");
            crate::model::demo::NAME.to_owned()
        });
        let folder = locate(&name)?;
        Ok((name, folder))
    }

    pub fn options(&self) -> EngineOptions {
        EngineOptions { gamma: self.gamma.unwrap_or(Gamma::PUBLISHED), ..self.engine.options() }
    }

    pub fn load(&self, folder: &Path) -> Result<Engine, Failure> {
        let mut engine = load(folder, self.options())?;
        if !self.template_arg.is_empty() && engine.chat_template().is_none() {
            note("warning: the model has no chat template; --template-arg has no effect");
        }
        engine.set_template_arguments(self.template_arg.iter().cloned().collect());
        Ok(engine)
    }
}

/// The folder of a model; abacus is unpacked on first use.
pub fn locate(name: &str) -> Result<PathBuf, Failure> {
    Ok(progress::work("preparing the model's files", || locate_model(name))?)
}

/// Loads a model, reporting progress and notes.
pub fn load(folder: &Path, options: EngineOptions) -> Result<Engine, Failure> {
    let upload = progress::bar(None, "{bar:32} {bytes}/{total_bytes} to the device, {bytes_per_sec}, {eta} left");
    signals::on_truncation(folder);
    let begun = std::time::Instant::now();
    let engine = Engine::load_with(folder, options, &mut |done, total| {
        upload.set_length(total as u64);
        upload.set_position(done as u64);
        if done >= total {
            upload.finish_and_clear();
        }
    })?;
    let (spec, device, (k_cache, v_cache)) = (engine.spec(), engine.device(), engine.cache_types());
    let model = format!("{}, a context of {} tokens", spec.architecture, spec.max_position_embeddings);
    let caches = format!("K cache {k_cache}, V cache {v_cache}");
    let seconds = begun.elapsed().as_secs_f64();
    let loaded = format!("{}: {model}, on {device}, {caches}; loaded in {seconds:.2} s", folder.display());
    say::say(Level::Verbose, &loaded);
    if !options.weights.is_file() {
        note("note: weights are rounded to 8 bits (--weights q8); probabilities and confidences differ a little");
    }
    engine.warnings().for_each(|warning| note(&format!("warning: {warning}")));
    if let Some(why) = engine.cuda_fallback_reason() {
        note(&format!("note: running on the CPU: {why}"));
    }
    Ok(engine)
}

/// Says which settings of `generation_config.json` the responses do without.
pub fn note_settings(engine: &Engine, repetition_penalty: f32) {
    let applied = |name: &str| name == "repetition_penalty" && repetition_penalty != 1.0;
    let settings = engine.spec().greedy_settings.iter().filter(|(name, _)| !applied(name));
    let settings: Vec<String> = settings.map(|(name, value)| format!("{name} {value}")).collect();
    if !settings.is_empty() {
        let settings = settings.join(", ");
        note(&format!(
            "note: responses do without {settings} of generation_config.json; repetition_penalty can be set"
        ));
    }
}

/// Says that a calibration is of other samples than those to be drawn.
pub fn note_samples(calibration: Option<&Calibration>, samples: usize, option: &str) {
    let other = calibration.and_then(|found| found.samples).filter(|drawn| drawn.samples != samples);
    if let Some(Drawn { samples, temperature }) = other {
        let beside = format!("{samples} samples at temperature {temperature} ({option} {samples})");
        note(&format!("note: the model's calibration applies beside {beside}: no confidence without"));
    }
}

/// The reading of the method, and its trace.
#[derive(Args)]
#[command(next_help_heading = "Method")]
pub struct MethodArgs {
    /// Interpretation of the method
    #[arg(long, value_parser = named::<Profile>(), default_value = Profile::Corrected.name(), hide_short_help = true)]
    profile: Profile,
    /// Set one rule of the profile; can be repeated
    #[arg(long = "rule", value_name = "NAME=VALUE", hide_short_help = true)]
    rules: Vec<RuleSetting>,
    /// Set parameters of the method, such as k=32 theta=0.7, or rules
    #[arg(long, value_name = "NAME=VALUE", num_args = 1.., hide_short_help = true)]
    set: Vec<RuleSetting>,
    /// Re-score the response with alternative tokens, for P: more passes, no other score needs them [default: on; for serve,
    /// if the calibration or a request needs P]
    #[arg(long, value_name = "on|off", value_parser = on_or_off, hide_short_help = true)]
    pub ensemble: Option<bool>,
    /// Record more per token, for the scores that need it
    #[arg(long, value_name = "PART,..", value_delimiter = ',', hide_short_help = true)]
    trace: Vec<TracePart>,
    /// How a response's thought is marked, where no answer is looked for: auto (the known formats), none, or OPEN,CLOSE
    #[arg(long, value_name = "auto|none|OPEN,CLOSE", default_value_t, hide_short_help = true)]
    thinking: Thinking,
}

/// A model, the reading of the method, and the use of a calibration: of commands that give an answer its confidence.
#[derive(Args)]
pub struct AssessArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub method: MethodArgs,
    /// Withhold answers whose score is not above the threshold certified by `calibrate --target-risk`, or is outside the
    /// calibrated range: JSON has them under "withheld" only; ask then exits with code 3
    #[arg(long, help_heading = "Calibration")]
    pub abstain: bool,
}

/// An optional part of the trace.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum TracePart {
    /// Statistics of each prediction's whole distribution: DeepConf, self-certainty, Rényi, Fisher-Rao, BoostedProb
    Wide,
    /// The attention of every head: RAUQ, attention score, lookback ratio
    Heads,
    /// The mean hidden state of every layer: chain of embeddings
    Layers,
}

impl MethodArgs {
    /// The published parameters with this reading.
    pub fn parameters(&self) -> Result<Parameters, Failure> {
        let settings = self.rules.iter().chain(&self.set);
        let reading = Reading::new(self.profile, settings.map(|setting| (&setting.name, &setting.value)))?;
        let [wide_trace, head_trace, layer_trace] =
            [TracePart::Wide, TracePart::Heads, TracePart::Layers].map(|part| self.trace.contains(&part));
        let (thinking, ensemble) = (self.thinking.clone(), self.ensemble.unwrap_or(true));
        Ok(Parameters { ensemble, wide_trace, head_trace, layer_trace, thinking, ..Parameters::published(reading) })
    }
}

fn on_or_off(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off"),
    }
}

/// The last section of a command's long help: its examples, the parameters and rules with their values, and the formats of
/// thoughts.
pub fn examples_and_rules(examples: &str) -> String {
    let (rules, thoughts) = (rules::help(), "Thoughts (--thinking auto; ^: at the start only)");
    let parameters = values::help();
    format!(
        "{examples}\n\nParameters (--set NAME=VALUE ..):\n{parameters}\nRules (--rule NAME=VALUE):\n{rules}\n\n{thoughts}:\n{}",
        reply::help()
    )
}

/// Parses the name of a value; help lists them all.
pub fn named<T: Named + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let value = |(_, name, meaning): &(T, &'static str, &'static str)| PossibleValue::new(*name).help(*meaning);
    PossibleValuesParser::new(T::VALUES.iter().map(value)).try_map(|name| T::named(&name))
}

/// Early stopping by confidence.
#[derive(Args)]
#[command(next_help_heading = "Early stopping")]
pub struct EarlyArgs {
    /// End a response once its running confidence falls below C
    #[arg(long, value_name = "C", value_parser = number(f64::MIN..=f64::MAX, "expected a number"), hide_short_help = true)]
    stop_below: Option<f64>,
    /// Quantity averaged over the window
    #[arg(long, value_parser = named::<Measure>(), default_value = Measure::Group.name(), requires = "stop_below", hide_short_help = true)]
    running: Measure,
    /// Window in tokens; shorter responses are not stopped
    #[arg(long, value_name = "N", value_parser = count(1..=MAX_WINDOW as u64), default_value_t = WINDOW, requires = "stop_below", hide_short_help = true)]
    window: usize,
    /// Close a thought after N tokens, and have the model reply
    #[arg(long, value_name = "N", value_parser = count(0..=u32::MAX.into()), hide_short_help = true)]
    pub thinking_budget: Option<usize>,
}

impl EarlyArgs {
    /// The budget of thoughts, which must be marked.
    pub fn budget(&self, parameters: &Parameters) -> Result<Option<ThinkingBudget>, CliError> {
        match self.thinking_budget {
            Some(_) if parameters.thinking == Thinking::None => Err(CliError::NoThoughts),
            tokens => Ok(tokens.map(|tokens| parameters.budget(tokens))),
        }
    }

    /// `None` without early stopping.
    pub fn running(&self) -> Option<RunningConfidence> {
        let EarlyArgs { stop_below, running: measure, window, .. } = *self;
        stop_below.map(|_| RunningConfidence { measure, window, stop_below })
    }
}
