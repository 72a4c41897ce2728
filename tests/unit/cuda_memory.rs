//! Device memory, as counted by the host-run driver: a long sequence takes what `uqac inspect` predicts, and a growing
//! cache keeps its contents.

use safetensors::Dtype;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use test_support::{cuda_host, long_tests, tiny};
use uqac::backend::DType::{F16, F32};
use uqac::backend::cuda::{CudaBackend, CudaOptions};
use uqac::backend::entropy::EntropyRule;
use uqac::backend::forward::extend;
use uqac::backend::sampling::Sampling;
use uqac::backend::{Backend, BackendError, DecodeRow, DeviceChoice, HeadRecord, Row, SequenceId, Step, TraceOptions};
use uqac::engine::{Engine, EngineOptions, GenerateOptions, TraceParts};
use uqac::model::{ModelSpec, Weights};

/// Tokens of a long response: in the long variant enough for a cache to grow twice, including the room it reserves
/// ahead.
fn long_response() -> usize {
    if long_tests() { 8192 } else { 600 }
}

fn text(len: usize) -> Vec<u32> {
    let mut noise = tiny::noise(3);
    (0..len).map(|_| (125.0 + 124.0 * noise()) as u32).collect()
}

fn engine(folder: &Path) -> Engine {
    Engine::load(folder, EngineOptions { device: DeviceChoice::Cuda(0), ..EngineOptions::default() }).unwrap()
}

fn predicted(engine: &Engine, tokens: usize) -> [usize; 4] {
    let memory = engine.expected_memory(tokens);
    [engine.weights().byte_len(), memory.working, memory.cache, memory.trace]
}

/// Scored: all of it is a traced response, as `uqac inspect` assumes.
#[test]
fn a_long_response_takes_the_memory_that_is_predicted() {
    if !cuda_host::alone("unit::cuda_memory::a_long_response_takes_the_memory_that_is_predicted") {
        return;
    }
    let (folder, len) = (tiny::windowed_model(), long_response());
    let mut engine = engine(folder.path());
    cuda_host::peak_memory(); // excludes loading
    let parts = predicted(&engine, len);
    let predicted: usize = parts.iter().sum();
    // 2 heads of 64, f32 and f16; one step beyond the end, and two granules of mapped memory
    let exact = len * 2 * 64 * (4 + 2);
    assert!((exact..exact + (5 << 20)).contains(&parts[2]), "{parts:?}");
    drop(engine.trace(&text(len), 1, TraceParts::default()).unwrap());
    let peak = cuda_host::peak_memory() as usize;
    // norms and other small buffers: a few KiB
    assert!(peak.abs_diff(predicted) <= predicted / 200, "{peak} bytes, {predicted} predicted: {parts:?}");
}

/// Generated: the cache grows as the response is generated, and never takes more than its limit requires.
#[test]
fn a_growing_response_takes_what_its_limit_asks_for() {
    if !cuda_host::alone("unit::cuda_memory::a_growing_response_takes_what_its_limit_asks_for") {
        return;
    }
    let folder = tiny::windowed_model();
    let mut engine = engine(folder.path());
    cuda_host::peak_memory(); // excludes loading
    let (prompt, max_tokens) = if long_tests() { (text(4000), 600) } else { (text(200), 90) };
    let options = GenerateOptions { max_tokens, trace: None, ..GenerateOptions::default() };
    let prompt_len = prompt.len();
    let generation = engine.generate(&[prompt], &options, |_| ControlFlow::Continue(())).unwrap().remove(0);
    let parts = predicted(&engine, generation.tokens.len());
    let untraced: usize = parts[..3].iter().sum();
    let peak = cuda_host::peak_memory() as usize;
    assert!(peak <= untraced + untraced / 200, "{peak} bytes, {untraced} predicted: {parts:?}");
    assert!(
        generation.tokens.len() < prompt_len + max_tokens || peak >= untraced - untraced / 200,
        "{peak}, {untraced}: {parts:?}"
    );
}

fn backend(folder: &Path) -> CudaBackend {
    let spec = ModelSpec::from_folder(folder).unwrap();
    let weights = Arc::new(Weights::open(folder, &spec).unwrap());
    let options = CudaOptions { ordinal: 0, k_cache: Some(F32), v_cache: Some(F16), ..CudaOptions::default() };
    CudaBackend::new(spec, weights, &options, &mut |_, _| ()).unwrap()
}

/// The state that a decoded sequence leaves.
#[derive(Debug, PartialEq)]
struct Left {
    tokens: Vec<u32>,
    steps: Vec<Step>,
    records: Vec<Option<HeadRecord>>,
    rows: Vec<Vec<f32>>,
    states: Vec<f32>,
}

/// Prefills a prompt in two passes and decodes `count` tokens, with every row traced.
fn decode(backend: &mut CudaBackend, id: SequenceId, prompt_len: usize, count: usize) -> Left {
    let prompt = text(prompt_len);
    for (start, end) in [(0, 9), (9, prompt_len)] {
        extend::<BackendError>(backend, id, start, &prompt[start..end], true, |_| true, |_, _| Ok(())).unwrap();
    }
    let row = Row { sequence: id, position: prompt_len, token: 7 };
    let (mut steps, mut tokens) = (Vec::new(), Vec::new());
    let sampling = Sampling { temperature: 1.5, seed: 3, ..Sampling::GREEDY };
    backend
        .decode(&[DecodeRow { row, sampling, stream: 0, detail: true }], 250, &mut |_, step, token| {
            steps.push(step);
            tokens.push(token);
            if tokens.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
    let all: Vec<usize> = (0..prompt_len + count).collect();
    Left {
        tokens,
        steps,
        records: all.iter().map(|row| backend.head_record(id, *row).unwrap()).collect(),
        rows: backend.attention_rows(id, &all.iter().copied().step_by(9).collect::<Vec<_>>()).unwrap(),
        states: backend.hidden_states(id, 0..prompt_len + count).unwrap(),
    }
}

/// Steps in flight while a cache grows are kept too.
#[test]
fn what_is_decoded_while_a_cache_grows_is_kept() {
    if !cuda_host::load() {
        return;
    }
    for folder in [tiny::windowed_model(), tiny::gemma4_model(32, Dtype::BF16), tiny::delta_model()] {
        let [grown, reserved] = what_is_decoded_is_kept(folder.path(), 70, 66);
        // capacities differ, but not by a whole granule of mapped memory
        assert_eq!(grown, reserved);
    }
}

/// If the driver cannot map memory, a cache grows by allocating a new one and copying.
#[test]
fn a_cache_that_cannot_be_mapped_grows_by_copies() {
    let name = "unit::cuda_memory::a_cache_that_cannot_be_mapped_grows_by_copies";
    if cuda_host::alone_with(name, &[("UQAC_HOST_CUDA_MAPPING", "0")]) {
        let [grown, reserved] = what_is_decoded_is_kept(tiny::windowed_model().path(), 100, 96);
        assert_ne!(grown, reserved, "the memory that is held is that of the capacities");
    }
}

/// Memory held by a cache that has grown, and by one reserved up front; both must leave the same state.
fn what_is_decoded_is_kept(folder: &Path, prompt_len: usize, count: usize) -> [(usize, usize); 2] {
    // 64 positions at first, then half as many again or what a pass needs: a cache grows in the prompt's second pass, and
    // beyond 128 and 192 positions again
    let count = if long_tests() { 300 } else { count };
    let mut backend = backend(folder);
    let trace = TraceOptions::new(2, 3, EntropyRule::Exact);
    let mut decoded = |hint: usize| {
        let id = backend.open(Some(trace)).unwrap();
        backend.reserve(id, hint).unwrap();
        let left = decode(&mut backend, id, prompt_len, count);
        let held = backend.memory(id);
        backend.close(id);
        (left, held)
    };
    let (grown, held) = decoded(0);
    let (reserved, exact) = decoded(prompt_len + count);
    assert_eq!(grown, reserved);
    assert!(grown.records[2..].iter().all(Option::is_some));
    [held, exact]
}

/// Steps have as many rows as memory allows: here 64, where 128 were requested.
#[test]
fn a_step_has_fewer_rows_where_there_is_no_memory_for_more() {
    let name = "unit::cuda_memory::a_step_has_fewer_rows_where_there_is_no_memory_for_more";
    if !cuda_host::alone_with(name, &[("UQAC_HOST_CUDA_MEMORY", "64M"), ("UQAC_HOST_CUDA_MAPPING", "0")]) {
        return;
    }
    let folder = tiny::windowed_model();
    let mut backend = backend(folder.path());
    let start = |backend: &mut CudaBackend, positions: usize| -> Result<SequenceId, BackendError> {
        let id = backend.open(None)?;
        backend.reserve(id, positions)?;
        let first = extend::<BackendError>(backend, id, 0, &[7], false, |_| false, |_, _| Ok(()));
        first.map(|_| id).inspect_err(|_| backend.close(id))
    };
    let ids: Vec<SequenceId> = (0..100).map(|_| start(&mut backend, 64).unwrap()).collect();
    // reserves the space kept per sequence: slots are doubled when they do not suffice
    for _ in 0..300 {
        backend.open(None).unwrap();
    }
    start(&mut backend, 64).unwrap();
    let row = |id: &SequenceId| {
        let row = Row { sequence: *id, position: 1, token: 7 };
        DecodeRow { row, sampling: Sampling::GREEDY, stream: 0, detail: false }
    };
    let rows: Vec<DecodeRow> = ids.iter().map(row).collect();
    // with nothing left, then with a little more each time: first what one row needs in addition to the sequences, then
    // what all need
    let mut others = Vec::new();
    for rows in [&rows[..1], &rows] {
        others.extend(std::iter::from_fn(|| start(&mut backend, 300).ok()));
        let captured = cuda_host::calls("cuStreamEndCapture");
        let mut steps = vec![0; rows.len()];
        loop {
            let mut on_step = |index: usize, _: Step, _: u32| {
                steps[index] += 1;
                if steps[index] < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            match backend.decode(rows, 250, &mut on_step) {
                Ok(()) => break,
                Err(_) => backend.close(others.pop().expect("memory for steps of 64 rows")),
            }
        }
        assert_eq!(steps, vec![3; rows.len()]);
        let shapes = cuda_host::calls("cuStreamEndCapture") - captured;
        assert_eq!(shapes, if rows.len() == 1 { 1 } else { 2 }, "100 rows as 64 and 36");
    }
}
