//! The CUDA backend, with its kernels run on the CPU by `tests/cuda_host`: compared with Hugging Face in float64 on one
//! small model per family, with the CPU backend for every cache type, and with itself: batches, captured steps.

use super::families::{Family, check, families, run, trace};
use safetensors::Dtype;
use serde_json::json;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use test_support::{cuda_host, long_tests, tiny, token_ids};
use uqac::backend::DType::{self, Bf16, F16, F32};
use uqac::backend::cpu::{CpuBackend, CpuOptions, InputRounding};
use uqac::backend::cuda::{CudaBackend, CudaOptions};
use uqac::backend::entropy::EntropyRule;
use uqac::backend::forward;
use uqac::backend::sampling::{Choice, Sampling};
use uqac::backend::{
    Backend, BackendError, DecodeRow, HeadAttention, HeadRecord, Next, Pass, Prediction, Row, SequenceId, Step,
    TraceOptions, TraceParts,
};
use uqac::model::{ModelSpec, Weights};

fn model(folder: &Path) -> (ModelSpec, Arc<Weights>) {
    let spec = ModelSpec::from_folder(folder).unwrap();
    let weights = Weights::open(folder, &spec).unwrap();
    (spec, Arc::new(weights))
}

fn cuda(folder: &Path, (k, v): (DType, DType)) -> CudaBackend {
    let (spec, weights) = model(folder);
    let options = CudaOptions { ordinal: 0, k_cache: Some(k), v_cache: Some(v), ..CudaOptions::default() };
    CudaBackend::new(spec, weights, &options, &mut |_, _| ()).unwrap()
}

fn cpu(folder: &Path, cache: (DType, DType)) -> CpuBackend {
    rounding_cpu(folder, cache, InputRounding::F32)
}

fn rounding_cpu(folder: &Path, (k_cache, v_cache): (DType, DType), input_rounding: InputRounding) -> CpuBackend {
    let (spec, weights) = model(folder);
    let v_cache = v_cache.into();
    CpuBackend::new(spec, weights, CpuOptions { k_cache, v_cache, input_rounding, threads: 1, ..CpuOptions::default() })
}

/// A small bf16 model with a head_dim supported by the kernels; `edit` changes its config.
fn bf16_model(edit: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    small_model(Dtype::BF16, edit)
}

fn small_model(dtype: Dtype, edit: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config = tiny::config();
    config["head_dim"] = json!(16);
    edit(&mut config);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    tiny::write_weights_as(folder.path(), &config, dtype, |_, _| ());
    tiny::write_tokenizer(folder.path());
    folder
}

/// Text of a given length, as tokens of the small models.
fn text(len: usize, seed: u64) -> Vec<u32> {
    let mut noise = tiny::noise(seed + 1);
    (0..len).map(|_| (128.0 + 127.0 * noise()) as u32).collect()
}

/// Some of the families, or in the long variant all of them.
fn some_families(names: &[&str]) -> impl Iterator<Item = Family> {
    let long = long_tests();
    families().into_iter().filter(move |family| long || names.contains(&family.name.as_str()))
}

/// In the short variant the families with most parts: all are compared with the reference (`super::reference`), and that with
/// Hugging Face.
#[test]
fn every_family_equals_hugging_face() {
    if !cuda_host::load() {
        return;
    }
    let widths: &[usize] = if long_tests() { &[1, 5, 48] } else { &[5, 48] };
    for Family { name, golden, folder, .. } in some_families(&["gemma4_moe", "qwen3_5_mixed"]) {
        let mut backend = cuda(&folder, (F32, F32));
        for &width in widths {
            check(&format!("{name}, {width} rows a pass"), &golden, &mut backend, width);
        }
    }
}

/// The state that a sequence leaves.
#[derive(Debug, PartialEq)]
struct Left {
    steps: Vec<Step>,
    hidden: Vec<f32>,
    records: Vec<HeadRecord>,
    heads: Vec<Vec<HeadAttention>>,
    rows: Vec<Vec<f32>>,
    /// For the last rows, from the trace.
    states: Vec<f32>,
    layer_means: Option<Vec<Vec<f64>>>,
}

fn left(backend: &mut dyn Backend, id: SequenceId, steps: Vec<Step>, hidden: Vec<f32>, rows: &[usize]) -> Left {
    let answer = rows[rows.len() - 2]..rows[rows.len() - 1] + 1;
    Left {
        steps,
        hidden,
        records: rows.iter().filter_map(|row| backend.head_record(id, *row).unwrap()).collect(),
        heads: rows.iter().filter_map(|row| backend.head_attention(id, *row).unwrap()).collect(),
        rows: backend.attention_rows(id, rows).unwrap(),
        states: backend.hidden_states(id, answer).unwrap(),
        layer_means: backend.layer_means(id).unwrap(),
    }
}

/// Everything that a trace can record.
fn everything(options: TraceOptions) -> TraceOptions {
    let parts = TraceParts { wide: true, head_attention: true, layer_means: true, ..options.parts };
    TraceOptions { parts, ..options }
}

/// Runs a sequence traced from row 3 on.
fn score(backend: &mut dyn Backend, tokens: &[u32], width: usize, rule: EntropyRule) -> Left {
    let id = backend.open_for(tokens.len(), Some(everything(TraceOptions::new(3, 4, rule)))).unwrap();
    let (steps, hidden) = run(backend, id, tokens, width);
    // row 1 is not traced; row 3 is the first traced one
    let rows = [1, 3, 4, tokens.len() / 2, tokens.len() - 3, tokens.len() - 1];
    let left = left(backend, id, steps, hidden, &rows);
    backend.close(id);
    left
}

/// Largest differences: (hidden states, their means and, beyond the trace's rounding to f16, those of the trace;
/// log-probabilities and entropies; α* and attention weights at positions).
fn differences(a: &Left, b: &Left) -> [f64; 3] {
    let largest = |a: &mut dyn Iterator<Item = f64>| a.fold(0.0, f64::max);
    let floats = |a: &[f32], b: &[f32]| {
        assert_eq!(a.len(), b.len());
        largest(&mut a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())))
    };
    let step = |(a, b): (&Step, &Step)| {
        let logprob = a.logprob.zip(b.logprob).map_or(0.0, |(a, b)| (a - b).abs());
        let tops = a.top.iter().zip(&b.top).filter(|(a, b)| a.token == b.token);
        let top = largest(&mut tops.map(|(a, b)| (a.logprob - b.logprob).abs()));
        let wide = distribution(a).into_iter().zip(distribution(b));
        let wide = largest(&mut wide.map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() }));
        logprob.max(top).max((a.entropy - b.entropy).abs()).max(wide)
    };
    let means = |left: &Left| -> Vec<f32> {
        left.layer_means.as_ref().unwrap().iter().flatten().map(|mean| *mean as f32).collect()
    };
    [
        floats(&a.hidden, &b.hidden).max(floats(&means(a), &means(b))).max(largest(
            &mut a.states.iter().zip(&b.states).map(|(a, b)| f64::from((a - b).abs() - a.abs() / 2048.0)),
        )),
        largest(&mut a.steps.iter().zip(&b.steps).map(step)),
        largest(&mut a.rows.iter().zip(&b.rows).map(|(a, b)| floats(a, b))).max(floats(&places(a), &places(b))),
    ]
}

/// Attention weights at positions, for every head of every row.
fn places(left: &Left) -> Vec<f32> {
    left.heads.iter().flatten().flat_map(|head| [head.own, head.previous, head.first, head.prompt]).collect()
}

/// The values of a step's wide trace that differ as little as log-probabilities do; whether a token is dominant may
/// change.
fn distribution(step: &Step) -> [f64; 3] {
    let d = step.distribution.unwrap();
    // the first two are means of log-probabilities; logits that move by d move ln Σ e^{x/4} by d/4 and ln Σ e^{x/2} by d/2 at most
    [d.top_logprob, d.uniform_kl, d.log_affinity]
}

/// Asserts that the same heads are selected, except where their entropies are as close as the rounding.
fn same_heads(what: &str, a: &Left, b: &Left, near: f32) {
    assert_eq!(a.records.len(), b.records.len(), "{what}");
    for (a, b) in a.records.iter().zip(&b.records) {
        for (x, y) in a.entropies.iter().zip(&b.entropies) {
            assert!((x - y).abs() <= near || x == y, "{what}: {a:?} {b:?}");
        }
        let clear = a.gap > near && a.entropies.windows(2).all(|pair| pair[1] - pair[0] > near);
        assert!(a.heads == b.heads || !clear, "{what}: {a:?} {b:?}");
        assert!((a.gap - b.gap).abs() <= 2.0 * near || a.gap == b.gap, "{what}: {a:?} {b:?}");
    }
}

#[test]
fn every_cache_type_equals_the_cpu_backend() {
    if !cuda_host::load() {
        return;
    }
    let long = long_tests();
    // windows, keys that are values, partial rotation, heads of two sizes: one for each type
    let names = ["ministral", "phi3_partial", "gemma4", "gemma4_keys_are_values"];
    for (index, Family { name, golden, folder, .. }) in some_families(&names).enumerate() {
        let tokens = token_ids(&golden["input_ids"]);
        let exact = score(&mut cpu(&folder, (F32, F32)), &tokens, 48, EntropyRule::Exact);
        let types = [(F32, F32), (F32, F16), (F16, F16), (Bf16, Bf16)];
        let types = if long { &types[..] } else { std::slice::from_ref(&types[index % 4]) };
        for &cache in types {
            let (mut device, mut host) = (cuda(&folder, cache), cpu(&folder, cache));
            for (width, rule) in [(48, EntropyRule::Exact), (7, EntropyRule::Regularized)] {
                let what = format!("{name}, {cache:?}, {width} rows a pass, {rule:?}");
                let found = score(&mut device, &tokens, width, rule);
                let expected = score(&mut host, &tokens, width, rule);
                // Both are within 1e-4 of float64 (`every_family_equals_hugging_face`). A narrow cache rounds values
                // that differ by that much, and a few of them in opposite directions: less than the effect of rounding
                // all of them.
                let rounding = differences(&expected, &exact);
                for (found, rounding) in differences(&found, &expected).iter().zip(rounding) {
                    assert!(*found <= 2e-4_f64.max(rounding), "{what}: {found}, rounding makes {rounding}");
                }
                same_heads(&what, &found, &expected, 2e-4_f32.max(rounding[1] as f32));
            }
        }
    }
}

/// Heads of 512, whose prefill has two warps for each line.
#[test]
fn large_heads_equal_the_cpu_backend() {
    if !cuda_host::load() {
        return;
    }
    let (folder, tokens, cache) = (tiny::gemma4_model(512, Dtype::F32), text(40, 2), (F32, F16));
    let (mut device, mut host) = (cuda(folder.path(), cache), cpu(folder.path(), cache));
    let exact = score(&mut cpu(folder.path(), (F32, F32)), &tokens, 40, EntropyRule::Exact);
    let expected = score(&mut host, &tokens, 40, EntropyRule::Exact);
    let rounding = differences(&expected, &exact); // as in `every_cache_type_equals_the_cpu_backend`
    for width in [7, 33] {
        let found = score(&mut device, &tokens, width, EntropyRule::Exact);
        for (found, rounding) in differences(&found, &expected).iter().zip(rounding) {
            assert!(*found <= 2e-4_f64.max(rounding), "{width} rows a pass: {found}, rounding makes {rounding}");
        }
        same_heads(&format!("{width} rows a pass"), &found, &expected, 2e-4_f32.max(rounding[1] as f32));
    }
}

/// 16-bit weights have their own products in wide passes, in blocks of 64 and 128 rows; 300 rows take two passes.
#[test]
fn wide_products_and_long_prompts_equal_the_cpu_backend() {
    if !cuda_host::load() {
        return;
    }
    for (bias, gelu) in [(false, false), (true, true)] {
        let folder = bf16_model(|config| {
            config["hidden_act"] = json!(if gelu { "gelu_pytorch_tanh" } else { "silu" });
            config["num_key_value_heads"] = json!(if bias { 6 } else { 1 });
        });
        let (mut device, mut exact) = (cuda(folder.path(), (F32, F32)), cpu(folder.path(), (F32, F32)));
        let mut host = rounding_cpu(folder.path(), (F32, F32), InputRounding::OneTerm);
        let lengths: &[usize] = match (long_tests(), bias) {
            (true, _) => &[17, 60, 100, 300],
            (false, true) => &[17, 300],
            (false, false) => &[60],
        };
        for &len in lengths {
            let (tokens, width) = (text(len, len as u64), 256);
            let found = score(&mut device, &tokens, width, EntropyRule::Exact);
            let expected = score(&mut host, &tokens, width, EntropyRule::Exact);
            // Both round the products' inputs to f16. Slightly different values are occasionally rounded in opposite
            // directions, which is less than the effect of rounding all of them.
            let rounding = differences(&expected, &score(&mut exact, &tokens, width, EntropyRule::Exact));
            let bound = rounding.into_iter().fold(2e-4, f64::max);
            for (found, rounding) in differences(&found, &expected).into_iter().zip(rounding) {
                assert!(found <= rounding.max(2e-4), "{len} rows: {found}, rounding makes {rounding}");
            }
            same_heads(&format!("{len} rows"), &found, &expected, bound as f32);
        }
    }
}

/// Tokens that the small models may choose.
const VOCABULARY: usize = 250;

fn decode_row(row: Row, sampling: Sampling, stream: u64) -> DecodeRow {
    DecodeRow { row, sampling, stream, detail: true }
}

/// Prompts of different lengths, with at least three tokens: earlier rows have no attention to compare.
fn prompts(n: usize) -> Vec<Vec<u32>> {
    (0..n).map(|i| text([5, 23, 3, 9, 16, 4][i % 6] + i / 6, i as u64)).collect()
}

/// Prefills prompts and decodes them together, `tokens(i)` of the i-th; returns the state that each leaves.
fn generate(
    backend: &mut CudaBackend,
    prompts: &[(usize, Vec<u32>)],
    sampling: Sampling,
    captured: bool,
    tokens: impl Fn(usize) -> usize,
) -> Vec<(Vec<u32>, Left)> {
    let ids: Vec<SequenceId> = prompts
        .iter()
        .map(|(_, prompt)| {
            let trace = everything(TraceOptions::new(prompt.len() - 1, 4, EntropyRule::Exact));
            let id = backend.open(Some(trace)).unwrap();
            run(backend, id, &prompt[..prompt.len() - 1], 48);
            id
        })
        .collect();
    let rows: Vec<DecodeRow> = ids
        .iter()
        .zip(prompts)
        .map(|(id, (stream, prompt))| {
            let position = prompt.len() - 1;
            let row = Row { sequence: *id, position, token: prompt[position] };
            decode_row(row, sampling, *stream as u64)
        })
        .collect();
    let mut found = vec![(Vec::new(), Vec::new()); prompts.len()];
    let mut on_step = |index: usize, step: Step, token: u32| {
        let (tokens_so_far, steps): &mut (Vec<u32>, Vec<Step>) = &mut found[index];
        tokens_so_far.push(token);
        steps.push(step);
        if steps.len() < tokens(prompts[index].0) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    match captured {
        true => backend.decode(&rows, VOCABULARY, &mut on_step).unwrap(),
        false => forward::decode(backend, &rows, VOCABULARY, &mut on_step).unwrap(),
    }
    ids.into_iter()
        .zip(prompts)
        .zip(found)
        .map(|((id, (_, prompt)), (tokens, steps))| {
            let last = prompt.len() + tokens.len() - 2;
            let rows = [prompt.len() - 1, (prompt.len() - 1 + last) / 2, last];
            let left = left(backend, id, steps, Vec::new(), &rows);
            backend.close(id);
            (tokens, left)
        })
        .collect()
}

/// A captured step performs the same launches as an uncaptured one; rows in a batch, some ending early, equal those of
/// a sequence alone; sequences beyond a step's number of rows take turns.
#[test]
fn batches_and_captured_steps_agree_bit_for_bit() {
    if !cuda_host::load() {
        return;
    }
    let hot = Sampling { temperature: 0.9, top_p: 0.95, seed: 3, ..Sampling::GREEDY };
    batches_and_captured_steps_agree(bf16_model(|_| ()).path(), 17, &[hot]);
    batches_and_captured_steps_agree(tiny::gemma4_model(32, Dtype::BF16).path(), 3, &[Sampling::GREEDY]);
    batches_and_captured_steps_agree(tiny::delta_model().path(), 3, &[hot]);
}

/// In a batch of `rows`, and in others in the long variant.
fn batches_and_captured_steps_agree(folder: &Path, rows: usize, settings: &[Sampling]) {
    let prompts: Vec<(usize, Vec<u32>)> =
        prompts(if long_tests() { 67 } else { rows }).into_iter().enumerate().collect();
    let apart = if long_tests() { 5 } else { 2 };
    let tokens = |i: usize| 2 + apart * (i % 3);
    let mut backend = cuda(folder, (F32, F16));
    let batches: &[(usize, bool)] = match long_tests() {
        true => &[(1, true), (3, false), (8, false), (9, true), (16, false), (19, false), (67, false)],
        false => &[(1, true), (rows, false)],
    };
    // the first and the last row of every kernel's rows, if not all
    let long = long_tests();
    let compared = prompts.iter().filter(|(i, _)| long || [0, 1, 2, 7, 8, 15, 16].contains(i));
    for &sampling in settings {
        let alone: Vec<_> = compared
            .clone()
            .map(|one| (one.0, generate(&mut backend, std::slice::from_ref(one), sampling, false, tokens).remove(0)))
            .collect();
        for &(n, both) in batches {
            for captured in [true, false].into_iter().filter(|captured| *captured || both) {
                let found = generate(&mut backend, &prompts[..n], sampling, captured, tokens);
                for (index, alone) in alone.iter().filter(|(index, _)| *index < n) {
                    let found = &found[*index];
                    assert!(found == alone, "sequence {index} of {n}, captured: {captured}: {found:?} {alone:?}");
                }
            }
        }
    }
}

#[test]
fn choices_are_those_of_the_cpu_backend() {
    if !cuda_host::load() {
        return;
    }
    let folder = bf16_model(|_| ());
    let (mut device, mut host) = (cuda(folder.path(), (F32, F32)), cpu(folder.path(), (F32, F32)));
    let tokens = text(12, 3);
    let enter = |backend: &mut dyn Backend| {
        let id = backend.open(None).unwrap();
        let rows: Vec<Row> = (0..12).map(|position| Row { sequence: id, position, token: tokens[position] }).collect();
        forward::forward(backend, &Pass::all(&rows, false)).unwrap();
    };
    enter(&mut device);
    enter(&mut host);
    let mut choose = |sampling: Sampling, vocabulary: usize| {
        let ask = |backend: &mut dyn Backend| -> Vec<Option<u32>> {
            // neither adjacent nor in order
            let requests: Vec<Prediction> = [11, 3, 4, 0, 7]
                .into_iter()
                .map(|row| {
                    let choice = Choice { sampling, stream: row as u64, position: row + 1, vocabulary };
                    Prediction { row, next: Next::Choose(choice), detail: false }
                })
                .collect();
            let found = backend.predict(&requests).unwrap();
            assert!(found.iter().all(|(step, _)| step.entropy == 0.0 && step.top.is_empty()));
            found.into_iter().map(|(_, token)| token).collect()
        };
        let (found, expected) = (ask(&mut device), ask(&mut host));
        assert_eq!(found, expected, "{sampling:?}, {vocabulary} ids");
        assert!(found.iter().flatten().all(|token| (*token as usize) < vocabulary));
    };
    let seeds = if long_tests() { 6 } else { 1 };
    for vocabulary in [257, 200, 40, 1] {
        choose(Sampling::GREEDY, vocabulary);
        for seed in 0..seeds {
            let hot = Sampling { temperature: 1.3, seed, ..Sampling::GREEDY };
            choose(hot, vocabulary);
            choose(Sampling { top_p: 0.7, ..hot }, vocabulary);
            choose(Sampling { top_k: 5, top_p: 0.9, ..hot }, vocabulary);
            choose(Sampling { top_k: 300, ..hot }, vocabulary);
        }
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    if !cuda_host::load() {
        return;
    }
    let folder = bf16_model(|_| ());
    let mut backend = cuda(folder.path(), (F32, F16));
    let id = backend.open(trace(33)).unwrap();
    let row = |token| [Row { sequence: id, position: 0, token }];
    let message = |result: Result<(), BackendError>| result.unwrap_err().to_string();
    assert!(message(backend.begin(&Pass::all(&row(257), false))).contains("257"));
    assert!(message(backend.begin(&Pass::all(&row(1), true))).contains("33 heads"));
    let wide = Sampling { temperature: 1.0, top_k: 200, ..Sampling::GREEDY };
    let plain = backend.open(None).unwrap();
    let rows = [decode_row(Row { sequence: plain, position: 0, token: 1 }, wide, 0)];
    let refused = backend.decode(&rows, VOCABULARY, &mut |_, _, _| ControlFlow::Break(()));
    assert!(message(refused).contains("top-k of 200"));
    let refused = |edit: fn(&mut serde_json::Value), cache: (DType, DType), ordinal: usize| {
        let folder = bf16_model(edit);
        let (spec, weights) = model(folder.path());
        let options = CudaOptions { ordinal, k_cache: Some(cache.0), v_cache: Some(cache.1), ..CudaOptions::default() };
        CudaBackend::new(spec, weights, &options, &mut |_, _| ()).err().unwrap().to_string()
    };
    assert!(refused(|_| (), (F16, F32), 0).contains("attn_decode_kf16_vf32_d16"));
    assert!(refused(|c| c["head_dim"] = json!(40), (F32, F16), 0).contains("d40"));
    assert!(refused(|c| c["intermediate_size"] = json!(100), (F32, F16), 0).contains("intermediate_size is 100"));
    assert!(refused(|_| (), (F32, F16), 3).contains("no CUDA device 3"));
    let delta_nets: fn(&mut serde_json::Value) = |config| {
        config["architectures"] = json!(["Qwen3_5ForCausalLM"]);
        let sizes = [("num_key_heads", 1), ("num_value_heads", 1), ("key_head_dim", 130), ("value_head_dim", 8)];
        for (key, size) in sizes {
            config[format!("linear_{key}")] = json!(size);
        }
        config["linear_conv_kernel_dim"] = json!(4);
        config["full_attention_interval"] = json!(3);
    };
    assert!(refused(delta_nets, (F32, F16), 0).contains("expected keys of at most 128"));
}

#[test]
fn hidden_states_that_are_not_finite_are_errors() {
    if !cuda_host::load() {
        return;
    }
    let broken = |layer: &'static str, value: f32| {
        let folder = bf16_model(|_| ());
        let config =
            serde_json::from_str(&std::fs::read_to_string(folder.path().join("config.json")).unwrap()).unwrap();
        tiny::write_weights(folder.path(), &config, |name, v| {
            if name == layer {
                v.iter_mut().skip(7).step_by(11).for_each(|x| *x = value);
            }
        });
        let mut backend = cuda(folder.path(), (F32, F16));
        let id = backend.open(trace(4)).unwrap();
        let rows: Vec<Row> = (0..30).map(|position| Row { sequence: id, position, token: 5 }).collect();
        let prediction = Prediction { row: 29, next: Next::Given(None), detail: true };
        let failed =
            forward::forward(&mut backend, &Pass::all(&rows, true)).and_then(|()| backend.predict(&[prediction]));
        let message = failed.unwrap_err().to_string();
        let rows = [decode_row(rows[0], Sampling::GREEDY, 0)];
        let decoded = backend.decode(&rows, VOCABULARY, &mut |_, _, _| ControlFlow::Continue(()));
        (message, decoded.unwrap_err().to_string())
    };
    let (scored, decoded) = broken("layers.1.mlp.up_proj", f32::INFINITY);
    assert!(scored.contains("layers.1.mlp.up_proj") && decoded.contains("layers.1.mlp.up_proj"), "{scored} {decoded}");
    let (scored, decoded) = broken("layers.2.mlp.down_proj", 3e38);
    assert!(scored.contains("overflowed") && decoded.contains("position 0"), "{scored} {decoded}");
}
