//! Randomly initialised models of every family with Hugging Face's float64 results, and their comparison with a
//! backend: those of the golden data, and those of `tests/data/tiny_families.jsonl`, whose weights are generated here.

use super::random_models::RandomModel;
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use test_support::{golden, numbers, read_json, token_ids};
use uqac::backend::DType;
use uqac::backend::entropy::EntropyRule;
use uqac::backend::forward::forward;
use uqac::backend::{Backend, Next, Pass, Prediction, Row, SequenceId, Step, TraceOptions};

/// Families in the golden data.
pub const FAMILIES: [&str; 6] = ["llama", "llama3", "qwen2", "qwen3", "gemma2", "gemma3"];

/// Golden models whose entropies were not computed with the method's weights (a row's own token has one, and γ begins
/// there): for these only the model's predictions are compared. `tests/data/tiny_families.jsonl` has entropies for the
/// same families.
const PREDICTIONS: [&str; 9] = [
    "gemma1",
    "gemma3_multimodal",
    "gemma4_small",
    "gemma4_large",
    "mistral",
    "smollm3",
    "olmo2",
    "qwen3moe",
    "qwen3_5",
];

/// A model with its expected results.
pub struct Family {
    pub name: String,
    pub golden: Value,
    pub folder: PathBuf,
    /// Removes the folder of a generated model.
    _made: Option<TempDir>,
}

/// A line of `tests/data/tiny_families.jsonl`.
#[derive(Deserialize)]
struct Line {
    name: String,
    seed: u64,
    config: Value,
    #[serde(default)]
    golden: Value,
}

fn lines() -> Vec<Line> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny_families.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// All families; without the golden data only the generated ones.
pub fn families() -> Vec<Family> {
    let stored = golden().map(|golden| {
        let family = move |name: &str| {
            let folder = golden.join(format!("tiny_{name}"));
            Family { name: name.to_owned(), golden: read_json(&folder.join("golden.json")), folder, _made: None }
        };
        FAMILIES.into_iter().chain(PREDICTIONS).map(family)
    });
    let made = lines().into_iter().map(|Line { name, seed, config, golden }| {
        let made = RandomModel { config, dtype: DType::F32, seed }.write();
        Family { name, golden, folder: made.path().to_owned(), _made: Some(made) }
    });
    stored.into_iter().flatten().chain(made).collect()
}

/// Writes the weights that `tests/peers/tiny_families.py` passes to transformers, to the folder it names.
#[test]
fn tiny_families_are_written() {
    let Some(to) = std::env::var_os("UQAC_TINY_FAMILIES") else { return };
    for Line { name, seed, config, .. } in lines() {
        let made = RandomModel { config, dtype: DType::F32, seed }.write();
        let folder = Path::new(&to).join(name);
        std::fs::create_dir(&folder).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(made.path().join(file), folder.join(file)).unwrap();
        }
    }
}

/// Runs `tokens` in passes of `width` rows; returns the steps of all rows, and the last hidden state.
pub fn run(backend: &mut dyn Backend, id: SequenceId, tokens: &[u32], width: usize) -> (Vec<Step>, Vec<f32>) {
    let (mut steps, mut hidden) = (Vec::new(), Vec::new());
    for start in (0..tokens.len()).step_by(width) {
        let end = (start + width).min(tokens.len());
        let rows: Vec<Row> =
            (start..end).map(|position| Row { sequence: id, position, token: tokens[position] }).collect();
        forward(backend, &Pass::all(&rows, true)).unwrap();
        let requests: Vec<Prediction> = (start..end)
            .map(|row| Prediction { row: row - start, next: Next::Given(tokens.get(row + 1).copied()), detail: true })
            .collect();
        steps.extend(backend.predict(&requests).unwrap().into_iter().map(|(step, _)| step));
        hidden = backend.hidden(end - start - 1).unwrap();
    }
    (steps, hidden)
}

/// Maximum error relative to the maximum magnitude.
pub fn relative(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).abs()).fold(0.0, f64::max) / scale
}

pub fn trace(heads: usize) -> Option<TraceOptions> {
    Some(TraceOptions::new(0, heads, EntropyRule::Exact))
}

/// Entropies of all heads at `row`, by head.
pub fn entropies(backend: &dyn Backend, id: SequenceId, row: usize, n: usize) -> Vec<f32> {
    let record = backend.head_record(id, row).unwrap().unwrap();
    let mut by_head = vec![f32::NAN; n];
    record.heads.iter().zip(record.entropies).for_each(|(head, h)| by_head[*head as usize] = h);
    by_head
}

/// Compares a backend with a family's oracle, in passes of `width` rows.
pub fn check(name: &str, golden: &Value, backend: &mut dyn Backend, width: usize) {
    let tokens = token_ids(&golden["input_ids"]);
    let (last, prompt_len) = (tokens.len() - 1, golden["n_instr"].as_u64().unwrap() as usize);
    let expected = numbers(&golden["entropy_last"]);
    let all = backend.open_for(tokens.len(), trace(expected.len())).unwrap();
    let (steps, hidden) = run(backend, all, &tokens, width);
    assert!(relative(&hidden, &numbers(&golden["last_hidden"])) < 1e-4, "{name}: last hidden state");
    // logits are defined up to the log-sum-exp that `Step` subtracts
    let logits = numbers(&golden["logits_last"]);
    let max = logits.iter().fold(f64::MIN, |m, x| m.max(*x));
    let lse = max + logits.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
    let scale = logits.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    for top in &steps[last].top {
        let error = (top.logprob - (logits[top.token as usize] - lse)).abs();
        assert!(error < 1e-4 * scale, "{name}: logit of token {}", top.token);
    }
    let entropy: f64 = logits.iter().map(|x| -(x - lse).exp() * (x - lse)).sum();
    assert!((steps[last].entropy - entropy).abs() < 1e-4 * entropy, "{name}: entropy of the prediction");
    for (row, logprob) in numbers(&golden["next_logprob"]).into_iter().enumerate() {
        let error = (steps[row].logprob.unwrap() - logprob).abs();
        assert!(error < 1e-4 * logprob.abs().max(1.0), "{name}: logprob at row {row}");
    }
    for (row, token) in token_ids(&golden["argmax"]).into_iter().enumerate() {
        assert_eq!(steps[row].top[0].token, token, "{name}: argmax at row {row}");
    }
    if PREDICTIONS.iter().any(|listed| name.starts_with(&format!("{listed},"))) {
        return backend.close(all);
    }
    for (row, key) in [(last, "entropy_last"), (prompt_len, "entropy_first_response_row")] {
        let error = relative(&entropies(backend, all, row, expected.len()), &numbers(&golden[key]));
        assert!(error < 1e-4, "{name}: {key} off by {error}");
    }
    backend.close(all);

    let k = golden["k_heads"].as_u64().unwrap() as usize;
    let few = backend.open_for(tokens.len(), trace(k)).unwrap();
    run(backend, few, &tokens, width);
    let mut heads = backend.head_record(few, last).unwrap().unwrap().heads;
    heads.sort_unstable();
    assert_eq!(heads, token_ids(&golden["heads_last"]), "{name}: selected heads");
    let row = backend.attention_rows(few, &[last]).unwrap().remove(0);
    for (t, (found, expected)) in row.iter().zip(numbers(&golden["alpha_star_last"])).enumerate() {
        assert!((f64::from(*found) - expected).abs() < 1e-4, "{name}: alpha* at {t}: {found} not {expected}");
    }
    backend.close(few);
}
