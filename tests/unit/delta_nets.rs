//! Models with gated delta nets, whose sequences can be gone back in only to where their states are kept.

use test_support::tiny;
use uqac::backend::cpu::{CpuBackend, CpuOptions};
use uqac::backend::entropy::EntropyRule;
use uqac::backend::forward::{enter, extend};
use uqac::backend::{Backend, BackendError, Operations, Pass, Row, SequenceId, TraceOptions};

const INTERVAL: usize = uqac::backend::cpu::states::INTERVAL;

/// The backend, and a sequence of which all but the last token have entered.
fn entered(tokens: &[u32], forked_at: usize) -> (tempfile::TempDir, CpuBackend, SequenceId) {
    let folder = tiny::delta_model();
    let (spec, weights) = super::random_models::open(folder.path());
    let mut backend = CpuBackend::new(spec, weights, CpuOptions { threads: 2, ..CpuOptions::default() });
    let id = backend.open(Some(TraceOptions::new(0, 4, EntropyRule::Exact))).unwrap();
    backend.expect_fork(id, forked_at);
    let before = &tokens[..tokens.len() - 1];
    extend::<BackendError>(&mut backend, id, 0, before, true, |_| false, |_, _| Ok(())).unwrap();
    (folder, backend, id)
}

fn tokens(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + i / 7) % 250).collect()
}

fn hidden(backend: &mut CpuBackend, rows: &[Row]) -> Vec<f32> {
    uqac::backend::forward::forward(backend, &Pass::all(rows, false)).unwrap();
    backend.hidden(rows.len() - 1).unwrap()
}

#[test]
fn a_sequence_goes_back_to_where_its_states_are_kept() {
    let all = tokens(2 * INTERVAL + 90);
    let (len, mark) = (all.len() - 1, INTERVAL + 33);
    let (_folder, mut backend, id) = entered(&all, mark);
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
    // elsewhere it is refused, and nothing is lost by that
    let row = |position: usize| Row { sequence: id, position, token: all[position] };
    for rows in [vec![row(3)], vec![row(len), row(0)], vec![row(len), row(len + 1 - 2)], vec![row(mark), row(mark)]] {
        let refused = backend.begin(&Pass::all(&rows, true));
        assert!(matches!(refused, Err(BackendError::NotHeld { .. })), "{rows:?}: {refused:?}");
    }
    assert!(matches!(backend.fork(id, mark + 1, None), Err(BackendError::NotHeld { .. })));
    let start = backend.resumes_at(id, len);
    enter(&mut backend, id, start, &all[start..len]).unwrap();
    let expected = hidden(&mut backend, &[row(len)]);
    // what went back and came again is where it was, whatever came between
    for back in [mark, INTERVAL, 0] {
        let other: Vec<u32> = all[back..].iter().map(|token| token + 1).collect();
        let fork = backend.fork(id, back, None).unwrap();
        enter(&mut backend, fork, back, &other).unwrap();
        enter(&mut backend, fork, back, &all[back..len]).unwrap();
        assert_eq!(hidden(&mut backend, &[Row { sequence: fork, ..row(len) }]), expected, "{back}");
        backend.close(fork);
    }
}

#[test]
fn the_memory_of_states_is_foretold() {
    let all = tokens(3 * INTERVAL + 2);
    let (_folder, backend, id) = entered(&all, 200);
    let expected = backend.expected_memory(all.len() - 1, TraceOptions::new(0, 4, EntropyRule::Exact));
    let (spec, net) = (backend.spec(), backend.spec().delta_net.unwrap());
    // of each state, three inputs of the convolutions, and a matrix of 8 x 20 for each head, whose columns fill vectors of 16
    let layer = 3 * net.widths().iter().sum::<usize>() + 4 * 8 * 32;
    assert_eq!(expected.states, (1 + 1 + 3) * (spec.layers.len() / 2) * 4 * layer);
    let cache = backend.memory(id).0 - expected.states;
    assert!(cache >= expected.cache && cache < 2 * expected.cache, "{cache} bytes of {expected:?}");
}
