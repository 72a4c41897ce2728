//! `uqac inspect`: a model's spec, weights, tokenizer and memory.

use super::options::{EngineArgs, load, locate};
use super::*;
use crate::report::term::{Style, TermStyle, TextTable, quoted, visible};
use crate::{engine::Engine, engine::SELECTED_HEADS, model::ModelSpec, model::Weights, model::chat::Message};
use serde_json::{Map, Value, json};

/// Show a model's shape, weights, tokenizer, chat template and memory
#[derive(Args)]
#[command(
    after_help = "Examples:\n  uqac inspect abacus\n  uqac inspect Qwen/Qwen2.5-0.5B-Instruct --context 8192 --json | jq .memory"
)]
pub struct InspectArgs {
    /// Model folder, or name of a downloaded Hugging Face model
    #[arg(value_name = "MODEL")]
    model: String,
    /// Context length for the memory figures [default: the model's, at most 4096]
    #[arg(long, value_name = "N", value_parser = units::count(1..=u32::MAX.into()))]
    context: Option<usize>,
    /// Number of concurrent sequences for the memory figures
    #[arg(long, value_name = "N", value_parser = units::count(1..=1024), default_value_t = 1)]
    batch: usize,
    /// Print a JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(args: &InspectArgs) -> Result<(), Failure> {
    let folder = locate(&args.model)?;
    let engine = match (Weights::are_in(&folder), folder.join("tokenizer.json").is_file()) {
        (true, true) => load(&folder, args.engine.options())?,
        (has_weights, _) => {
            let of_config = "weights; sizes and memory are those of config.json, in bf16, on the CPU";
            let what = if has_weights { "tokenizer.json; memory is that of the CPU" } else { of_config };
            note(&format!("note: the folder has no {what}"));
            Engine::outline(&folder)?
        }
    };
    let longest = engine.spec().max_position_embeddings;
    let context = args.context.unwrap_or(longest.min(4096));
    if context > longest {
        note(&format!("warning: --context {context} is beyond the model's context of {longest} tokens"));
    }
    let facts = facts(&engine, &folder.display().to_string(), (context, args.batch))?;
    Ok(show(args.json, &facts, || tables(&facts, TermStyle::of_stdout()))?)
}

/// All facts, grouped.
fn facts(engine: &Engine, folder: &str, memory: (usize, usize)) -> Result<Value, Failure> {
    let (weights, matrices) = (engine.weights(), engine.weights().matrices());
    let (options, (k_cache, v_cache)) = (engine.options(), engine.cache_types());
    // for settings that checkpoints store in several places
    let found_in = engine.spec().sources.iter().map(|(setting, place)| (setting.clone(), json!(place)));
    let found_in = found_in.chain([("head".to_owned(), json!(weights.head.name))]);
    let parameters =
        Weights::tensors(engine.spec())?.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum::<usize>();
    Ok(json!({
        "model": model_facts(engine.spec(), folder),
        "weights": {
            "matrices": matrices.len(),
            "parameters": parameters,
            "type": weights.types(), "bytes": weights.byte_len(), "bytes_per_decoded_token": engine.weight_bytes_per_token(),
        },
        "tokenizer": Some(engine).filter(|engine| engine.tokenizer().vocab_size() > 0).map(tokenizer_facts),
        "run": {
            "device": engine.device(), "k_cache": k_cache, "v_cache": v_cache,
            "weights": Some(options.weights).filter(|_| !options.weights.is_file()),
            "traced_heads_per_row": SELECTED_HEADS,
        },
        "found_in": found_in.collect::<Map<_, _>>(),
        "memory": memory_facts(engine, memory),
    }))
}

/// The spec as it is, in the terms of `config.json`; of what differs between layers, the distinct values in order of appearance.
fn model_facts(spec: &ModelSpec, folder: &str) -> Value {
    let mut facts = json!({"folder": folder});
    let counts = [("count", spec.layers.len()), ("with_own_cache", spec.cached_layers().count())];
    let mut layers: Map<_, _> = counts.map(|(name, count)| (name.to_owned(), json!(count))).into_iter().collect();
    let spec = json!(spec);
    for (name, value) in spec["layers"].as_array().into_iter().flatten().filter_map(Value::as_object).flatten() {
        if name == "kv_layer" {
            continue; // of every layer another
        }
        let found = layers.entry(name.clone()).or_insert(json!([]));
        if let Some(found) = found.as_array_mut().filter(|found| !found.contains(value)) {
            found.push(value.clone());
        }
    }
    // they are shown with the tokenizer, or as `found_in`
    let elsewhere = ["sources", "eos_token_ids", "greedy_settings"];
    for (name, value) in spec.as_object().into_iter().flatten().filter(|(name, _)| !elsewhere.contains(&name.as_str()))
    {
        facts[name] = if name == "layers" { json!(layers) } else { value.clone() };
    }
    facts
}

fn tokenizer_facts(engine: &Engine) -> Value {
    let (spec, tokenizer) = (engine.spec(), engine.tokenizer());
    let token = |id: u32| format!("{id} {}", quoted(&tokenizer.decode_token(id).unwrap_or_default()));
    let template = match engine.chat_template().map(|t| t.render(&[Message::new("user", "Hello")], true)) {
        None => "none (use --no-chat-template)".to_owned(),
        Some(Ok(text)) => quoted(&text),
        Some(Err(error)) => format!("cannot be used: {error}"),
    };
    let settings: Vec<_> = spec.greedy_settings.iter().map(|(name, value)| json!([name, value])).collect();
    json!({
        "tokens": tokenizer.vocab_size(), "logits": spec.vocab_size,
        "bos": tokenizer.bos_token_id().map(token),
        "generation_settings_not_applied": Some(settings).filter(|settings| !settings.is_empty()),
        "ends_a_response": spec.eos_token_ids.iter().map(|id| token(*id)).collect::<Vec<_>>(),
        "chat_template_for_hello": template,
    })
}

/// Memory in bytes for a batch of sequences, each a traced response of `context` tokens.
fn memory_facts(engine: &Engine, (context, batch): (usize, usize)) -> Value {
    let (weights, mut memory) = (engine.weights().byte_len(), engine.expected_memory(context));
    for bytes in [&mut memory.cache, &mut memory.states, &mut memory.trace] {
        *bytes *= batch;
    }
    json!({
        "tokens": context,
        "batch": Some(batch).filter(|batch| *batch > 1),
        "weights": weights, "kv_cache": memory.cache, "kv_cache_per_token": memory.cache_row,
        "states": Some(memory.states).filter(|bytes| *bytes > 0),
        "trace": memory.trace, "trace_per_token": memory.trace_row,
        "working_memory": Some(memory.working).filter(|bytes| *bytes > 0),
        "total": weights + memory.cache + memory.states + memory.trace + memory.working,
    })
}

/// Each group as a table of names and values.
fn tables(facts: &Value, look: TermStyle) -> String {
    let mut out = String::new();
    for (group, entries) in facts.as_object().into_iter().flatten() {
        let mut table = TextTable::new("ll", ["", ""]);
        for (name, value) in entries.as_object().into_iter().flatten() {
            let bytes = group == "memory" && !["tokens", "batch"].contains(&name.as_str()) || name.starts_with("bytes");
            let text = match value.as_u64() {
                Some(size) if bytes => units::bytes(size as usize),
                _ => plain(value),
            };
            if !text.is_empty() {
                table.row([(name.replace('_', " "), Style::DIM), (visible(&text).into_owned(), Style::PLAIN)]);
            }
        }
        out += &format!("{}\n{}", look.paint(Style::BOLD, group), table.render(look));
    }
    out
}

/// A value as text; empty for null.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(n) => n.as_u64().map_or_else(|| short_float(n.as_f64().unwrap_or(f64::NAN)), grouped),
        Value::Array(values) => {
            let shown = |value: &Value| if value.is_null() { "none".to_owned() } else { plain(value) };
            if let [Value::Null] = values[..] {
                String::new()
            } else {
                values.iter().map(shown).collect::<Vec<_>>().join(" · ")
            }
        }
        Value::Object(fields) => {
            let named = fields.iter().map(|(name, value)| (name.replace('_', " "), plain(value)));
            let named = named.filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name} {value}"));
            named.collect::<Vec<_>>().join(", ")
        }
    }
}

/// An integer, with digits in groups of three from six digits on.
fn grouped(n: u64) -> String {
    fn groups(n: u64) -> String {
        if n < 1000 { n.to_string() } else { format!("{} {:03}", groups(n / 1000), n % 1000) }
    }
    if n < 100_000 { n.to_string() } else { groups(n) }
}

/// At most seven significant digits, the precision of an f32.
fn short_float(x: f64) -> String {
    let short = x as f32;
    if short != 0.0 && short.abs() < 1e-3 { format!("{short:e}") } else { format!("{short}") }
}
