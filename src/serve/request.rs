//! Request bodies: parses OpenAI's JSON into a [`Task`]. `null` counts as absent; [`fields`] tells which other fields are
//! errors.

use super::{error::ApiError, fields};
use crate::engine::running::{MAX_WINDOW, Measure, RunningConfidence, WINDOW};
use crate::model::chat::{Arguments, Conversation, Message, is_reserved};
use crate::uq::scores::{self, needs_ensemble};
use crate::{backend::MIN_TOP, backend::sampling::Sampling, engine::GenerateOptions, io::item::Item, uq::Parameters};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{fmt::Display, ops::RangeInclusive};

const MAX_CHOICES: usize = 128;

const MAX_STOP: usize = 16;

/// Max number of named tokens.
const MAX_NAMED: usize = 128;

/// Fields that are variables of the chat template: the field, and the variable.
const TEMPLATE_SWITCHES: [(&str, &str); 3] =
    [("enable_thinking", "enable_thinking"), ("think", "enable_thinking"), ("reasoning_effort", "reasoning_effort")];

/// OpenAI's default for `/v1/completions`.
const COMPLETION_TOKENS: usize = 16;

/// The engine's work for a request.
pub enum Task {
    Generate(Box<Generate>),
    /// Scores an existing response.
    Score(Box<Item>, UqacOptions),
}

/// Responses to generate.
#[derive(Default)]
pub struct Generate {
    pub chat: bool,
    pub prompts: Vec<Prompt>,
    /// Responses per prompt.
    pub n: usize,
    /// All but the trace options.
    pub options: GenerateOptions,
    /// Number of alternatives per token; `None`: no logprobs.
    pub logprobs: Option<usize>,
    /// Whether the answer repeats the prompt.
    pub echo: bool,
    pub stream: bool,
    pub include_usage: bool,
    /// Tokens whose log-probabilities are the alternatives, instead of the most probable ones.
    pub named: Vec<u32>,
    /// Whether the tokenizer adds its special tokens around the prompt.
    pub add_special_tokens: bool,
    /// Whether special tokens of a response are left out of its text, but for the marks of thoughts.
    pub skip_special_tokens: bool,
    /// Variables of the chat template.
    pub template_arguments: Arguments,
    /// Those of them that the request has in fields of their own: the template must read them.
    pub switches: Vec<(&'static str, &'static str)>,
    /// Max tokens of a thought, which is then closed.
    pub thinking_budget: Option<usize>,
    /// `None`: no confidence, and no trace for it.
    pub uqac: Option<UqacOptions>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    #[serde(skip)]
    Chat(Conversation),
    Text(String),
    Tokens(Vec<u32>),
}

/// Content of the `uqac` object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UqacOptions {
    /// Keys of scores besides the confidence; `None`: those that cost nothing more.
    pub scores: Option<Vec<&'static str>>,
    /// Whether P's ensemble runs; `None`: if anything requested needs it.
    pub ensemble: Option<bool>,
    /// Whether to add the ensemble, the tokens, and a trace of the chain's rows.
    pub explain: bool,
    pub running: Option<RunningConfidence>,
    pub thinking_budget: Option<usize>,
    /// Responses sampled beside each choice.
    pub samples: usize,
}

/// Fields of both generating endpoints.
#[derive(Deserialize)]
struct Common {
    #[serde(rename = "model")]
    _model: Option<String>,
    n: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    /// 0 and -1: all tokens.
    top_k: Option<i64>,
    repetition_penalty: Option<f64>,
    seed: Option<i128>,
    stop: Option<Strings>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    chat_template_kwargs: Option<Arguments>,
    thinking_budget: Option<usize>,
    do_sample: Option<bool>,
    add_special_tokens: Option<bool>,
    skip_special_tokens: Option<bool>,
    logprob_token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum Strings {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Message>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
}

#[derive(Deserialize)]
struct Completion {
    prompt: Prompts,
    max_tokens: Option<usize>,
    logprobs: Option<usize>,
    echo: Option<bool>,
    best_of: Option<usize>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string, token ids, or a list of these")]
enum Prompts {
    One(Prompt),
    Many(Vec<Prompt>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UqacFields {
    scores: Option<Strings>,
    ensemble: Option<bool>,
    explain: Option<bool>,
    stop_below: Option<f64>,
    running: Option<Measure>,
    window: Option<usize>,
    thinking_budget: Option<usize>,
    samples: Option<usize>,
}

impl Task {
    /// Parses the body of `/v1/chat/completions`.
    pub fn chat(body: Value) -> Result<Task, ApiError> {
        let (mut generate, body) = generate(body, "read-chat")?;
        let chat: Chat = read("", &body)?;
        ApiError::unless(!chat.messages.is_empty(), "messages", "expected at least one message")?;
        for (field, variable) in TEMPLATE_SWITCHES {
            let (value, is_switch) = (&body[field], variable == "enable_thinking");
            if !value.is_null() {
                ApiError::unless(!is_switch || value.is_boolean(), field, "expected true or false")?;
                generate.template_arguments.insert(variable.to_owned(), value.clone());
                if *value != json!(true) {
                    generate.switches.push((field, variable));
                }
            }
        }
        let max_tokens = within("max_tokens", chat.max_tokens, 1..=usize::MAX)?;
        let max_tokens = within("max_completion_tokens", chat.max_completion_tokens, 1..=usize::MAX)?.or(max_tokens);
        let top = within("top_logprobs", chat.top_logprobs, 0..=MIN_TOP)?;
        let logprobs = chat.logprobs.unwrap_or(false);
        ApiError::unless(logprobs || top.unwrap_or(0) == 0, "top_logprobs", "requires logprobs: true")?;
        (generate.chat, generate.prompts) = (true, vec![Prompt::Chat(Conversation::Messages(chat.messages))]);
        generate.options.max_tokens = max_tokens.unwrap_or(generate.options.max_tokens);
        generate.logprobs = logprobs.then_some(top.unwrap_or(0));
        generate.check_samples()?;
        Ok(Task::Generate(Box::new(generate)))
    }

    /// Parses the body of `/v1/completions`.
    pub fn completion(body: Value) -> Result<Task, ApiError> {
        let (mut generate, body) = generate(body, "read-completion")?;
        let completion: Completion = read("", &body)?;
        generate.prompts = match completion.prompt {
            Prompts::One(prompt) => vec![prompt],
            Prompts::Many(prompts) => prompts,
        };
        within("prompt", Some(generate.prompts.len()), 1..=MAX_CHOICES)?;
        within("n", Some(generate.n * generate.prompts.len()), 1..=MAX_CHOICES)?;
        let is_n = completion.best_of.is_none_or(|best_of| best_of == generate.n);
        ApiError::unless(is_n, "best_of", "not supported unless equal to n")?;
        generate.echo = completion.echo.unwrap_or(false);
        ApiError::unless(!generate.echo || !generate.stream, "echo", "not supported with stream")?;
        generate.options.max_tokens = completion.max_tokens.unwrap_or(COMPLETION_TOKENS);
        let generates = generate.named.is_empty() || generate.options.max_tokens > 0;
        let needed = "expected max_tokens of at least 1: it is about generated tokens";
        ApiError::unless(generates, "logprob_token_ids", needed)?;
        generate.logprobs = within("logprobs", completion.logprobs, 0..=MIN_TOP)?;
        generate.check_samples()?;
        Ok(Task::Generate(Box::new(generate)))
    }

    /// Parses the body of `/v1/score`: a line of `uqac score`'s input.
    pub fn score(mut body: Value) -> Result<Task, ApiError> {
        for name in ["input_ids", "n_instr", "answer_span"] {
            body.get_mut(name).into_iter().for_each(integers);
        }
        let options = uqac(&body["uqac"])?.unwrap_or_default();
        ApiError::unless(options.running.is_none(), "uqac.running", "only for generated responses")?;
        ApiError::unless(options.thinking_budget.is_none(), "uqac.thinking_budget", "only for generated responses")?;
        ApiError::unless(options.samples == 0, "uqac.samples", "only for generated responses")?;
        let item = Item::parse(body.to_string().as_bytes(), 1);
        let item = item.map_err(|bad| ApiError::new(400, None, bad.problem.to_string()))?;
        // its record has every score
        let ensemble = options.ensemble.or(options.scores.is_none().then_some(true));
        Ok(Task::Score(Box::new(item), UqacOptions { ensemble, ..options }))
    }
}

/// Deserializes an object. Errors name the field by its path in the body; `parent` is the object's own path followed by
/// a dot.
fn read<'de, T: Deserialize<'de>>(parent: &str, value: &'de Value) -> Result<T, ApiError> {
    const WORDS: [(&str, &str); 6] = [
        ("expected u32", "expected an integer from 0 to 4294967295"),
        ("expected usize", "expected a non-negative integer"),
        ("expected i128", "expected an integer"),
        ("expected f64", "expected a number"),
        ("expected a sequence", "expected a list"),
        ("expected string or map", "expected a string"),
    ];
    if !value.is_object() {
        return Err(ApiError::invalid(parent.trim_end_matches('.'), "expected an object"));
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let problem = error.inner().to_string();
        // serde reports a missing field at its parent
        let missing = problem.strip_prefix("missing field `").and_then(|name| name.strip_suffix('`'));
        let path = match (error.path().to_string().as_str(), missing) {
            (".", Some(name)) => format!("{parent}{name}"),
            (path, Some(name)) => format!("{parent}{path}.{name}"),
            (path, None) => format!("{parent}{path}"),
        };
        ApiError::invalid(&path, WORDS.iter().fold(problem, |problem, (serde, words)| problem.replace(serde, words)))
    })
}

fn within<T: PartialOrd + Display>(of: &str, sent: Option<T>, range: RangeInclusive<T>) -> Result<Option<T>, ApiError> {
    if let Some(found) = &sent {
        let problem = format!("expected {} to {}, found {found}", range.start(), range.end());
        ApiError::unless(range.contains(found), of, problem)?;
    }
    Ok(sent)
}

/// Reads `uqac`, an object or a boolean.
fn uqac(value: &Value) -> Result<Option<UqacOptions>, ApiError> {
    let fields: UqacFields = match value {
        Value::Null | Value::Bool(true) => return Ok(Some(UqacOptions::default())),
        Value::Bool(false) => return Ok(None),
        value => read("uqac.", value)?,
    };
    let known: Vec<&str> = scores::all().map(|score| score.key).collect();
    let key = |key: &String| {
        let problem = || format!("unknown score {key:?}; expected all, {}", known.join(", "));
        known.iter().copied().find(|known| known == key).ok_or_else(|| ApiError::invalid("uqac.scores", problem()))
    };
    let keys = |keys: Vec<String>| match keys == ["all"] {
        true => Ok(known.clone()),
        false => keys.iter().map(key).collect(),
    };
    let scores = fields.scores.map(|scores| keys(scores.list())).transpose()?;
    let window = within("uqac.window", fields.window, 1..=MAX_WINDOW)?;
    let runs = fields.running.is_some() || fields.stop_below.is_some();
    ApiError::unless(runs || window.is_none(), "uqac.window", "only with stop_below or running")?;
    let running = runs.then(|| RunningConfidence {
        measure: fields.running.unwrap_or_default(),
        window: window.unwrap_or(WINDOW),
        stop_below: fields.stop_below,
    });
    let (ensemble, explain, thinking_budget) =
        (fields.ensemble, fields.explain.unwrap_or(false), fields.thinking_budget);
    let samples = fields.samples.unwrap_or(0);
    Ok(Some(UqacOptions { scores, ensemble, explain, running, thinking_budget, samples }))
}

impl Generate {
    /// Samples are responses like choices, and count with them.
    fn check_samples(&self) -> Result<(), ApiError> {
        let samples = self.uqac.as_ref().map_or(0, |options| options.samples);
        let most = MAX_CHOICES / (self.n * self.prompts.len()) - 1;
        let problem =
            format!("expected 0 to {most} beside n {} of {} prompts, found {samples}", self.n, self.prompts.len());
        ApiError::unless(samples <= most, "uqac.samples", problem)
    }
}

impl UqacOptions {
    /// The server's parameters for this request.
    pub fn parameters(&self, of: &Parameters) -> Parameters {
        let asked = || self.explain || self.scores.iter().flatten().any(|key| needs_ensemble(key));
        Parameters { ensemble: self.ensemble.unwrap_or_else(|| of.ensemble || asked()), ..of.clone() }
    }
}

/// Turns numbers like `16.0` and `1e3`, as some clients write integers, into integers.
fn integers(value: &mut Value) {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|x| number.is_f64() && x.fract() == 0.0 && x.abs() <= EXACT);
            whole.into_iter().for_each(|whole| *number = (whole as i64).into());
        }
        Value::Array(values) => values.iter_mut().for_each(integers),
        Value::Object(fields) => fields.values_mut().for_each(integers),
        _ => (),
    }
}

/// Reads the fields of both generating endpoints; returns the body with its integers as such. `own` as in [`fields::check`].
fn generate(mut body: Value, own: &str) -> Result<(Generate, Value), ApiError> {
    for (name, value) in body.as_object_mut().into_iter().flatten() {
        // those are the template's
        if !["messages", "chat_template_kwargs"].contains(&name.as_str()) {
            integers(value);
        }
    }
    let uqac = uqac(&body["uqac"])?;
    body.as_object().map_or(Ok(()), |body| fields::check(body, own))?;
    let common: Common = read("", &body)?;
    let stop = common.stop.map(Strings::list).unwrap_or_default();
    let too_many = format!("expected at most {MAX_STOP} strings, found {}", stop.len());
    ApiError::unless(stop.len() <= MAX_STOP, "stop", too_many)?;
    let stream = common.stream.unwrap_or(false);
    ApiError::unless(stream || common.stream_options.is_none(), "stream_options", "requires stream: true")?;
    let arguments = common.chat_template_kwargs.unwrap_or_default();
    for name in arguments.keys() {
        ApiError::unless(!is_reserved(name), &format!("chat_template_kwargs.{name}"), "set by the conversation")?;
    }
    let n = within("n", common.n, 1..=MAX_CHOICES)?.unwrap_or(1);
    let temperature = within("temperature", common.temperature, 0.0..=2.0)?.unwrap_or(1.0) as f32;
    let sampling = Sampling {
        temperature: if common.do_sample == Some(false) { 0.0 } else { temperature },
        top_p: within("top_p", common.top_p, 0.0..=1.0)?.unwrap_or(1.0) as f32,
        top_k: within("top_k", common.top_k, -1..=i64::from(u32::MAX))?.unwrap_or(0).max(0) as usize,
        // -1 is vLLM's and llama.cpp's word for none
        seed: common.seed.filter(|seed| *seed != -1).map_or_else(fresh_seed, |seed| seed as u64),
        repetition_penalty: within("repetition_penalty", common.repetition_penalty, Sampling::PENALTIES)?
            .map_or(1.0, |penalty| penalty as f32),
    };
    let named = common.logprob_token_ids.unwrap_or_default();
    within("logprob_token_ids", Some(named.len()), 0..=MAX_NAMED)?;
    let asked = named.is_empty() || ![Value::Null, json!(false)].contains(&body["logprobs"]);
    ApiError::unless(asked, "logprob_token_ids", "requires logprobs")?;
    let generate = Generate {
        n,
        named,
        // a chat template writes them itself
        add_special_tokens: common.add_special_tokens.unwrap_or(own == "read-completion"),
        skip_special_tokens: common.skip_special_tokens.unwrap_or(true),
        options: GenerateOptions { stop, sampling, ..GenerateOptions::default() },
        stream,
        include_usage: common.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
        template_arguments: arguments,
        thinking_budget: common.thinking_budget.or(uqac.as_ref().and_then(|options| options.thinking_budget)),
        uqac,
        ..Generate::default()
    };
    Ok((generate, body))
}

impl Strings {
    fn list(self) -> Vec<String> {
        match self {
            Strings::One(text) => vec![text],
            Strings::Many(list) => list,
        }
    }
}

/// A random seed of 53 bits, which JSON's doubles hold exactly.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) >> 11
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uq::Profile;

    fn chat(more: Value) -> Result<Generate, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        match Task::chat(body)? {
            Task::Generate(generate) => Ok(*generate),
            Task::Score(..) => unreachable!(),
        }
    }

    #[test]
    fn defaults_are_openais() {
        let generate = chat(json!({
            "stop": null, "model": "another", "tools": [], "logit_bias": {}, "user": 7, "repetition_penalty": 1,
            "min_p": 0.0, "top_k": -1, "skip_special_tokens": true, "continue_final_message": false,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
        }))
        .unwrap();
        assert_eq!((generate.options.sampling.top_k, generate.options.sampling.repetition_penalty), (0, 1.0));
        let Prompt::Chat(Conversation::Messages(messages)) = &generate.prompts[0] else { panic!("no messages") };
        assert_eq!(messages[0].content.as_deref(), Some("ab"));
        assert_eq!((generate.n, generate.options.max_tokens, generate.logprobs), (1, 1024, None));
        assert_eq!((generate.options.sampling.temperature, generate.options.sampling.top_p), (1.0, 1.0));
        assert_eq!(generate.uqac, Some(UqacOptions::default()));
        assert_ne!(generate.options.sampling.seed, chat(json!({})).unwrap().options.sampling.seed);
        let seed = |seed: i64| chat(json!({"seed": seed, "top_logprobs": 0})).unwrap().options.sampling.seed;
        assert_eq!((seed(-2), seed(-1) == seed(-1)), (u64::MAX - 1, false));
        let options = chat(json!({"uqac": {"scores": ["answer_prob"], "explain": true}})).unwrap().uqac;
        let expected = UqacOptions { scores: Some(vec!["answer_prob"]), explain: true, ..UqacOptions::default() };
        assert_eq!(options, Some(expected));
        let runs = |uqac: Value, ensemble| {
            let of = Parameters { ensemble, ..Parameters::published(Profile::Corrected) };
            chat(json!({"uqac": uqac})).unwrap().uqac.unwrap().parameters(&of).ensemble
        };
        for (uqac, off, on) in [
            (json!({}), false, true),
            (json!({"scores": ["g4", "p_sim"]}), false, true),
            (json!({"scores": ["g4", "p"]}), true, true),
            (json!({"scores": "all"}), true, true),
            (json!({"explain": true}), true, true),
            (json!({"scores": "all", "ensemble": false}), false, false),
            (json!({"ensemble": true}), true, true),
        ] {
            assert_eq!((runs(uqac.clone(), false), runs(uqac.clone(), true)), (off, on), "{uqac}");
        }
        let budget = |body: Value| chat(body).unwrap().thinking_budget;
        assert_eq!(budget(json!({"thinking_budget": 9})), Some(9));
        assert_eq!(budget(json!({"uqac": {"thinking_budget": 0}})), Some(0));
        let running = |uqac: Value| chat(json!({"uqac": uqac})).unwrap().uqac.unwrap().running;
        let group = RunningConfidence { measure: Measure::Group, window: WINDOW, stop_below: Some(-1.0) };
        assert_eq!(running(json!({"stop_below": -1})), Some(group));
        let entropy = RunningConfidence { measure: Measure::Entropy, window: 3, stop_below: None };
        assert_eq!(running(json!({"running": "entropy", "window": 3, "stop_below": null})), Some(entropy));
        assert_eq!(chat(json!({"uqac": false})).unwrap().uqac, None);
        assert_eq!(
            chat(json!({"max_tokens": 3, "max_completion_tokens": 4, "seed": -1})).unwrap().options.max_tokens,
            4
        );
    }

    #[test]
    fn errors_name_the_field() {
        for (more, param, status) in [
            (json!({"messages": "x"}), "messages", 400),
            (json!({"messages": []}), "messages", 400),
            (json!({"messages": [{"role": "user"}]}), "messages[0].content", 400),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                "messages[0].content[0].type",
                400,
            ),
            (json!({"messages": [7]}), "messages[0]", 400),
            (json!({"n": 0}), "n", 400),
            (json!({"n": 1.5}), "n", 400),
            (json!({"max_tokens": -1}), "max_tokens", 400),
            (json!({"temperature": 2.1}), "temperature", 400),
            (json!({"top_p": "high"}), "top_p", 400),
            (json!({"seed": 1e30}), "seed", 400),
            (json!({"stop": ["a", 1]}), "stop", 400),
            (json!({"top_logprobs": 2}), "top_logprobs", 400),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", 400),
            (json!({"stream": 1}), "stream", 400),
            (json!({"stream_options": {}}), "stream_options", 400),
            (json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage", 400),
            (json!({"tools": [{}]}), "tools", 400),
            (json!({"repetition_penalty": 0}), "repetition_penalty", 400),
            (json!({"min_p": 0.1}), "min_p", 400),
            (json!({"min_tokens": 5}), "min_tokens", 400),
            (json!({"stop_token_ids": [7]}), "stop_token_ids", 400),
            (json!({"guided_json": {"type": "object"}}), "guided_json", 400),
            (json!({"guided_json": {}}), "guided_json", 400),
            (json!({"grammar": "root ::= x"}), "grammar", 400),
            (json!({"continue_final_message": true}), "continue_final_message", 400),
            (json!({"some_new_field": 1}), "some_new_field", 400),
            (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages", 400),
            (
                json!({"messages": [{"role": "assistant", "content": null, "tool_calls": []}]}),
                "messages[0].content",
                400,
            ),
            (json!({"logprob_token_ids": [5]}), "logprob_token_ids", 400),
            (json!({"uqac": {"explian": true}}), "uqac.explian", 400),
            (json!({"presence_penalty": 0.5}), "presence_penalty", 400),
            (json!({"response_format": {"type": "json_object"}}), "response_format", 400),
            (json!({"uqac": 1}), "uqac", 400),
            (json!({"uqac": {"scores": ["none"]}}), "uqac.scores", 400),
            (json!({"uqac": {"explain": "yes"}}), "uqac.explain", 400),
            (json!({"uqac": {"stop_below": "low"}}), "uqac.stop_below", 400),
            (json!({"uqac": {"stop_below": 1, "running": "mean"}}), "uqac.running", 400),
            (json!({"uqac": {"stop_below": 1, "window": 0}}), "uqac.window", 400),
            (json!({"uqac": {"window": 8}}), "uqac.window", 400),
            (json!({"uqac": {"samples": 128}}), "uqac.samples", 400),
            (json!({"uqac": {"samples": 4}, "n": 32}), "uqac.samples", 400),
            (json!({"uqac": {"samples": -1}}), "uqac.samples", 400),
            (json!({"uqac": {"samples": true}}), "uqac.samples", 400),
        ] {
            let error = chat(more.clone()).err().unwrap_or_else(|| panic!("{more}"));
            assert_eq!((error.param.as_deref(), error.status), (Some(param), status), "{more}: {}", error.message);
        }
    }

    #[test]
    fn prompts_have_four_forms() {
        let count = |prompt: Value| match Task::completion(json!({"prompt": prompt})) {
            Ok(Task::Generate(generate)) => Some(generate.prompts.len()),
            _ => None,
        };
        assert_eq!(count(json!("x")), Some(1));
        assert_eq!(count(json!(["x", "y"])), Some(2));
        assert_eq!(count(json!([1, 2, 3])), Some(1));
        assert_eq!(count(json!([[1, 2], [3]])), Some(2));
        assert_eq!(count(json!([1.0, 4e0])), Some(1));
        for bad in [json!(1), json!([1, -2]), json!([[1], 2]), json!([1.5]), json!({}), json!([null])] {
            assert_eq!(count(bad), None);
        }
    }
}
