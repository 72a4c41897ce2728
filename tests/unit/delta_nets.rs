//! Models with gated delta nets, whose sequences can be truncated only to positions with saved states.

use std::ops::ControlFlow;
use test_support::{cuda_host, long_tests, tiny};
use uqac::backend::cpu::{CpuBackend, CpuOptions};
use uqac::backend::cuda::{CudaBackend, CudaOptions};
use uqac::backend::entropy::EntropyRule;
use uqac::backend::forward::forward;
use uqac::backend::sampling::Sampling;
use uqac::backend::{Backend, BackendError, DecodeRow, Operations, Pass, Row, SequenceId, TraceOptions};

const INTERVAL: usize = uqac::backend::STATE_INTERVAL;

fn cpu() -> CpuBackend {
    let (spec, weights) = super::random_models::open(tiny::delta_model().path());
    CpuBackend::new(spec, weights, CpuOptions { threads: 2, ..CpuOptions::default() })
}

fn cuda() -> CudaBackend {
    let (spec, weights) = super::random_models::open(tiny::delta_model().path());
    let options = CudaOptions { ordinal: 0, k_cache: None, v_cache: None, ..CudaOptions::default() };
    CudaBackend::new(spec, weights, &options, &mut |_, _| ()).unwrap()
}

/// A sequence with all but the last token entered.
fn entered(backend: &mut dyn Backend, tokens: &[u32], forked_at: usize) -> SequenceId {
    let id = backend.open(Some(TraceOptions::new(0, 4, EntropyRule::Exact))).unwrap();
    backend.expect_fork(id, forked_at);
    enter(backend, id, 0, &tokens[..tokens.len() - 1], true);
    id
}

/// In narrow passes, in which a row has the same bits on CUDA as well.
fn enter(backend: &mut dyn Backend, sequence: SequenceId, start: usize, tokens: &[u32], record: bool) {
    let rows: Vec<Row> =
        (start..).zip(tokens).map(|(position, token)| Row { sequence, position, token: *token }).collect();
    rows.chunks(16).for_each(|rows| forward(backend, &Pass::all(rows, record)).unwrap());
}

fn tokens(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + i / 7) % 250).collect()
}

fn hidden(backend: &mut dyn Backend, row: Row) -> Vec<f32> {
    forward(backend, &Pass::all(&[row], false)).unwrap();
    backend.hidden(0).unwrap()
}

#[test]
fn a_sequence_goes_back_to_where_its_states_are_kept() {
    goes_back(&mut cpu(), &[INTERVAL + 33, INTERVAL, 0]);
}

#[test]
fn a_sequence_goes_back_to_where_its_states_are_kept_on_cuda() {
    if cuda_host::load() {
        goes_back(&mut cuda(), if long_tests() { &[INTERVAL + 33, INTERVAL, 0] } else { &[INTERVAL + 33] });
    }
}

fn goes_back(backend: &mut dyn Backend, backs: &[usize]) {
    let all = tokens(2 * INTERVAL + 30);
    let (len, mark) = (all.len() - 1, INTERVAL + 33);
    let id = entered(backend, &all, mark);
    assert!(!backend.rewinds());
    for (positions, expected) in [
        (len + 5, len),
        (len, len),
        (len - 1, 2 * INTERVAL),
        (2 * INTERVAL, 2 * INTERVAL),
        (2 * INTERVAL - 1, mark),
        (mark - 1, INTERVAL),
        (INTERVAL - 1, 0),
    ] {
        assert_eq!(backend.resumes_at(id, positions), expected, "{positions}");
    }
    // anywhere else it is refused, without losing anything
    let row = |position: usize| Row { sequence: id, position, token: all[position] };
    for rows in [vec![row(3)], vec![row(len), row(0)], vec![row(len), row(len + 1 - 2)], vec![row(mark), row(mark)]] {
        let refused = backend.begin(&Pass::all(&rows, true));
        assert!(matches!(refused, Err(BackendError::NotHeld { .. })), "{rows:?}: {refused:?}");
    }
    assert!(matches!(backend.fork(id, mark + 1, None), Err(BackendError::NotHeld { .. })));
    let start = backend.resumes_at(id, len);
    enter(backend, id, start, &all[start..len], false);
    let expected = hidden(backend, row(len));
    // truncating and re-entering reproduces the state, regardless of what came in between
    for &back in backs {
        let other: Vec<u32> = all[back..].iter().map(|token| token + 1).collect();
        let fork = backend.fork(id, back, None).unwrap();
        enter(backend, fork, back, &other, false);
        enter(backend, fork, back, &all[back..len], false);
        assert_eq!(hidden(backend, Row { sequence: fork, ..row(len) }), expected, "{back}");
        backend.close(fork);
    }
}

/// Captured steps also save states, and none runs beyond the end.
#[test]
fn captured_steps_keep_states() {
    if !cuda_host::load() {
        return;
    }
    let (mut backend, prompt, count) = (cuda(), tokens(INTERVAL - 5), 9);
    let id = entered(&mut backend, &prompt, prompt.len() - 1);
    let mut all = prompt.clone();
    let row = Row { sequence: id, position: prompt.len() - 1, token: prompt[prompt.len() - 1] };
    let row = DecodeRow { row, sampling: Sampling::GREEDY, stream: 0, detail: false };
    let mut on_step = |_, _, token| {
        all.push(token);
        if all.len() < prompt.len() + count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    backend.decode(&[row], 250, &mut on_step).unwrap();
    let last = all.len() - 1;
    assert_eq!((backend.resumes_at(id, last), backend.resumes_at(id, last - 1)), (last, INTERVAL));
    enter(&mut backend, id, INTERVAL, &all[INTERVAL..last], false);
    let found = hidden(&mut backend, Row { sequence: id, position: last, token: all[last] });
    let other = entered(&mut backend, &all, 0);
    assert_eq!(found, hidden(&mut backend, Row { sequence: other, position: last, token: all[last] }));
}

#[test]
fn the_memory_of_states_is_foretold() {
    let all = tokens(3 * INTERVAL + 2);
    let mut backend = cpu();
    let id = entered(&mut backend, &all, 200);
    let expected = backend.expected_memory(all.len() - 1, TraceOptions::new(0, 4, EntropyRule::Exact));
    let (spec, net) = (backend.spec(), backend.spec().delta_net.unwrap());
    // per state: three inputs of the convolutions, and a matrix of 8 x 20 per head, whose columns fill vectors of 16
    let layer = 3 * net.widths().iter().sum::<usize>() + 4 * 8 * 32;
    assert_eq!(expected.states, (1 + 1 + 3) * (spec.layers.len() / 2) * 4 * layer);
    let cache = backend.memory(id).0 - expected.states;
    assert!(cache >= expected.cache && cache < 2 * expected.cache, "{cache} bytes of {expected:?}");
}
