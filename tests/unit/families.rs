//! The six randomly initialised models of the oracle, one per family, and how a backend is compared with it.

use serde_json::Value;
use test_support::{numbers, token_ids};
use uqac::backend::entropy::EntropyRule;
use uqac::backend::forward::forward;
use uqac::backend::{Backend, Next, Pass, Prediction, Row, SequenceId, Step, TraceOptions};

pub const FAMILIES: [&str; 6] = ["llama", "llama3", "qwen2", "qwen3", "gemma2", "gemma3"];

/// Runs `tokens` in passes of `width` rows; the steps of all rows, and the last hidden state.
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

/// Largest error over the largest magnitude.
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
    let all = backend.open(trace(expected.len())).unwrap();
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
    for (row, key) in [(last, "entropy_last"), (prompt_len, "entropy_first_response_row")] {
        let error = relative(&entropies(backend, all, row, expected.len()), &numbers(&golden[key]));
        assert!(error < 1e-4, "{name}: {key} off by {error}");
    }
    backend.close(all);

    let k = golden["k_heads"].as_u64().unwrap() as usize;
    let few = backend.open(trace(k)).unwrap();
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
