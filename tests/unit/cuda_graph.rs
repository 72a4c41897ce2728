//! The driver calls of the CUDA backend: in a decode step, for a fork, and for queries of a response.

use super::families::trace;
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::Arc;
use test_support::{cuda_host, tiny};
use uqac::backend::cuda::{CudaBackend, CudaOptions};
use uqac::backend::forward::{self, extend};
use uqac::backend::sampling::Sampling;
use uqac::backend::{Backend, BackendError, DecodeRow, Row};
use uqac::model::{ModelSpec, Weights};

fn backend(progress: &mut dyn FnMut(usize, usize)) -> CudaBackend {
    let folder = tempfile::tempdir().unwrap();
    let mut config = tiny::config();
    config["head_dim"] = json!(16);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    tiny::write_weights(folder.path(), &config, |_, _| ());
    let spec = ModelSpec::from_folder(folder.path()).unwrap();
    let weights = Arc::new(Weights::open(folder.path(), &spec).unwrap());
    let options = CudaOptions { ordinal: 0, k_cache: None, v_cache: None, ..CudaOptions::default() };
    CudaBackend::new(spec, weights, &options, progress).unwrap()
}

/// A decode step is a replayed graph: after the first of its kind no kernel is launched separately, and the host
/// waits for several steps at once.
#[test]
fn a_decode_step_is_one_graph() {
    if !cuda_host::alone("unit::cuda_graph::a_decode_step_is_one_graph") {
        return;
    }
    let mut copied = Vec::new();
    let mut backend = backend(&mut |done, total| copied.push((done, total)));
    assert!(
        copied.windows(2).all(|pair| pair[0].0 < pair[1].0) && copied.last().is_some_and(|(done, total)| done == total)
    );

    let id = backend.open(None).unwrap();
    backend.reserve(id, 256).unwrap();
    extend::<BackendError>(&mut backend, id, 0, &[5; 9], false, |_| true, |_, _| Ok(())).unwrap();
    let mut decode = |steps: usize| {
        let row = Row { sequence: id, position: 9, token: 7 };
        let mut left = steps;
        let mut on_step = |_, _, _| {
            left -= 1;
            if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let row = DecodeRow { row, sampling: Sampling::GREEDY, stream: 0, detail: true };
        backend.decode(&[row], 257, &mut on_step).unwrap();
    };
    decode(2);
    let names = ["cuLaunchKernel", "cuGraphLaunch", "cuStreamSynchronize", "cuEventSynchronize", "cuMemAlloc_v2"];
    let count = || names.map(cuda_host::calls);
    let before = count();
    decode(41);
    let after = count();
    let [kernels, graphs, stream_waits, event_waits, allocations] = std::array::from_fn(|i| after[i] - before[i]);
    assert_eq!((kernels, stream_waits, allocations), (0, 0, 0));
    assert!((41..=48).contains(&graphs), "{graphs} steps for 41 tokens");
    assert!(event_waits <= 12, "{event_waits} waits for {graphs} steps");
}

/// The same holds for a step whose later rows are guesses, and its results equal those of a pass and its predictions.
#[test]
fn a_step_with_guesses_is_one_graph() {
    if !cuda_host::alone("unit::cuda_graph::a_step_with_guesses_is_one_graph") {
        return;
    }
    let mut backend = backend(&mut |_, _| ());
    let id = backend.open(trace(4)).unwrap();
    backend.reserve(id, 256).unwrap();
    extend::<BackendError>(&mut backend, id, 0, &[5; 9], true, |_| true, |_, _| Ok(())).unwrap();
    let sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::GREEDY };
    let row = |i: usize| DecodeRow {
        row: Row { sequence: id, position: 9 + i, token: [7, 3, 11][i] },
        sampling,
        stream: 2,
        detail: true,
    };
    let rows: Vec<DecodeRow> = (0..3).map(row).collect();
    let expected = forward::step(&mut backend, &rows, 257).unwrap();
    let records: Vec<_> = (9..12).map(|row| backend.head_record(id, row).unwrap()).collect();
    let names = ["cuLaunchKernel", "cuGraphLaunch"];
    for (turn, launches) in [(0, None), (1, Some([0, 1]))] {
        backend.truncate(id, 9);
        let before = names.map(cuda_host::calls);
        assert_eq!(backend.step(&rows, 257).unwrap(), expected, "turn {turn}");
        let after = names.map(cuda_host::calls);
        assert!(launches.is_none_or(|launches| launches == [after[0] - before[0], after[1] - before[1]]));
        let again: Vec<_> = (9..12).map(|row| backend.head_record(id, row).unwrap()).collect();
        assert_eq!(again, records, "turn {turn}");
    }
}

/// A fork copies keys and values in one call each, regardless of layers and heads; queries of a response use memory
/// that is kept.
#[test]
fn a_fork_is_two_copies_and_queries_keep_their_memory() {
    if !cuda_host::alone("unit::cuda_graph::a_fork_is_two_copies_and_queries_keep_their_memory") {
        return;
    }
    let mut backend = backend(&mut |_, _| ());
    let id = backend.open(trace(4)).unwrap();
    extend::<BackendError>(&mut backend, id, 0, &[5; 70], true, |_| true, |_, _| Ok(())).unwrap();
    let names = ["cuMemcpy2DAsync_v2", "cuMemcpyDtoDAsync_v2"];
    let before = names.map(cuda_host::calls);
    let fork = backend.fork(id, 60, None).unwrap();
    let after = names.map(cuda_host::calls);
    assert_eq!((after[0] - before[0], after[1] - before[1]), (2, 0));
    backend.close(fork);

    let mut read = || {
        let rows = backend.attention_rows(id, &[9, 69, 30]).unwrap();
        (rows, backend.hidden_states(id, 40..60).unwrap())
    };
    let found = read();
    let names = ["cuMemAlloc_v2", "cuMemFree_v2", "cuMemCreate", "cuCtxSynchronize"];
    let before = names.map(cuda_host::calls);
    assert_eq!(read(), found);
    assert_eq!(names.map(cuda_host::calls), before);
}
