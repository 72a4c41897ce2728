//! The fused attention kernel compared with two passes in float64: output, softmax state, reweighted entropy and the
//! rows reconstructed from it, over odd lengths, group sizes, windows, softcaps and sinks; the same bits with any
//! number of threads.

use test_support::tiny::noise;
use uqac::backend::cpu::attention::{
    AttentionRow, AttentionShape, HeadState, RowHead, accumulate_row, add_row, attend,
};
use uqac::backend::cpu::cache::KvCache;
use uqac::backend::cpu::simd::Isa;
use uqac::backend::cpu::threads::ThreadPool;
use uqac::backend::entropy::{EntropyRule, Gamma};
use uqac::backend::{DType, ValueType};

struct Case {
    shape: AttentionShape,
    len: usize,
    /// Added to the first position's scores.
    sink: f32,
}

struct Data {
    /// `[len, kv_heads, head_dim]`
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[heads, head_dim]`
    query: Vec<f32>,
}

impl Case {
    /// Random values; with a sink, every query's first channel is 1 and only the first key has that channel.
    fn data(&self, seed: u64) -> Data {
        let s = &self.shape;
        let mut random = noise(seed + 1);
        let mut numbers = |n: usize| (0..n).map(|_| random() * 2.0).collect::<Vec<f32>>();
        let (mut keys, values) =
            (numbers(self.len * s.kv_heads * s.head_dim), numbers(self.len * s.kv_heads * s.head_dim));
        let mut query = numbers(s.heads * s.head_dim);
        if self.sink > 0.0 {
            query.iter_mut().step_by(s.head_dim).for_each(|q| *q = 1.0);
            keys.iter_mut().step_by(s.head_dim).for_each(|k| *k = 0.0);
            keys.iter_mut().step_by(s.head_dim).take(s.kv_heads).for_each(|k| *k = self.sink);
        }
        Data { keys, values, query }
    }
}

fn fill(case: &Case, data: &Data, k_type: DType, v_type: ValueType) -> KvCache {
    let s = &case.shape;
    let mut cache = KvCache::new([(s.kv_heads, s.head_dim)].into_iter(), k_type, v_type);
    cache.reserve(case.len);
    for (t, (key, value)) in
        data.keys.chunks(s.kv_heads * s.head_dim).zip(data.values.chunks(s.kv_heads * s.head_dim)).enumerate()
    {
        cache.write(0, t, key, value);
    }
    cache
}

/// One head of the last row in float64.
struct Exact {
    out: Vec<f64>,
    /// `None` without attention.
    entropy: Option<f64>,
    /// α
    alpha: Vec<f64>,
    /// α'
    row: Vec<f64>,
    /// α of the last position, the one before, the first, and of the first half in total.
    places: [f64; 4],
}

fn exact(case: &Case, data: &Data, head: usize) -> Exact {
    let s = &case.shape;
    let (row, kv_head) = (case.len - 1, head / (s.heads / s.kv_heads));
    let part = |data: &[f32], t: usize| -> Vec<f64> {
        let start = (t * s.kv_heads + kv_head) * s.head_dim;
        data[start..start + s.head_dim].iter().map(|x| f64::from(*x)).collect()
    };
    let first = s.window.map_or(0, |w| (row + 1).saturating_sub(w));
    let query = &data.query[head * s.head_dim..(head + 1) * s.head_dim];
    let score = |t: usize| {
        let s: f64 = part(&data.keys, t).iter().zip(query).map(|(k, q)| k * f64::from(*q)).sum();
        case.shape.softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
    };
    let scores: Vec<f64> = (first..=row).map(score).collect();
    let normalized = |weights: Vec<f64>| -> Vec<f64> {
        let kept = scores.iter().zip(&weights).filter(|(_, w)| **w > 0.0).map(|(s, _)| *s);
        let max = kept.fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> =
            scores.iter().zip(&weights).map(|(s, w)| if *w > 0.0 { w * (s - max).exp() } else { 0.0 }).collect();
        let sum: f64 = e.iter().sum();
        e.into_iter().map(|x| if sum > 0.0 { x / sum } else { 0.0 }).collect()
    };
    let alpha = normalized(vec![1.0; scores.len()]);
    let mut out = vec![0.0; s.head_dim];
    for (t, a) in alpha.iter().enumerate() {
        out.iter_mut().zip(part(&data.values, first + t)).for_each(|(o, v)| *o += a * v);
    }
    let reweighted = normalized((first..=row).map(|t| f64::from(Gamma::PUBLISHED.weight(row, t))).collect());
    let entropy = reweighted.iter().filter(|a| **a > 0.0).map(|a| -a * a.ln()).sum::<f64>();
    let any = reweighted.iter().any(|a| *a > 0.0);
    let whole = |of: &[f64]| [vec![0.0; first], of.to_vec()].concat();
    let at = |t: Option<usize>| t.and_then(|t| t.checked_sub(first)).map_or(0.0, |i| alpha[i]);
    let prompt = (first..case.len / 2).map(|t| alpha[t - first]).sum();
    let places = [at(Some(row)), at(row.checked_sub(1)), at(Some(0)), prompt];
    Exact { out, entropy: any.then_some(entropy), alpha: whole(&alpha), row: whole(&reweighted), places }
}

fn run(case: &Case, cache: &KvCache, query: &[f32], threads: usize, isa: Isa) -> (Vec<f32>, Vec<HeadState>) {
    let mut out = vec![f32::NAN; query.len()];
    let mut states = vec![HeadState::EMPTY; case.shape.heads];
    let rows = [AttentionRow { cache, position: case.len - 1, entropy: true, prompt: Some(case.len / 2) }];
    attend(&ThreadPool::new(threads), isa, &case.shape, &rows, query, &mut out, &mut states);
    (out, states)
}

fn check(case: &Case, seed: u64) {
    let data = case.data(seed);
    let cache = fill(case, &data, DType::F32, ValueType::F32);
    let (s, name) = (&case.shape, format!("{:?}, length {}, sink {}", case.shape, case.len, case.sink));
    // Scores are dot products of head_dim terms of size ≤ 4 (or the sink) in f32: each has an error below
    // head_dim · 2^-24 · Σ|q k|, which is a weight's relative error; the sums add as much again.
    let magnitude = 4.0 * s.head_dim as f64 + f64::from(case.sink);
    let bound = 4.0 * (s.head_dim as f64 + 16.0) * magnitude / f64::from(1u32 << 24);
    for isa in Isa::available() {
        let (out, states) = run(case, &cache, &data.query, 1, isa);
        let (shared, shared_states) = run(case, &cache, &data.query, 5, isa);
        assert_eq!((&out, &states), (&shared, &shared_states), "{name}: threads");
        for head in 0..s.heads {
            let Exact { out: expected, entropy, alpha, row, places } = exact(case, &data, head);
            for (found, expected) in out[head * s.head_dim..].iter().zip(&expected) {
                assert!((f64::from(*found) - expected).abs() <= 2.0 * bound, "{name}: {found} not {expected}");
            }
            let state = &states[head];
            let (_, found) = state.entropy.finish(&state.softmax, EntropyRule::Exact);
            match entropy {
                None => assert_eq!(found, f64::INFINITY, "{name}"),
                // an entropy's error is that of the weights times the maximum |ln α'|
                Some(h) => assert!((found - h).abs() <= bound * (1.0 + h) * 20.0, "{name}: entropy {found} not {h}"),
            }
            for (found, expected) in state.places.iter().zip(places) {
                let found = f64::from(found / state.softmax.sum);
                assert!((found - expected).abs() <= 2.0 * bound, "{name}: places {found} not {expected}");
            }
            let query = &data.query[head * s.head_dim..(head + 1) * s.head_dim];
            let traced = RowHead { query, max: state.entropy.max, sum: state.entropy.sum };
            let mut rebuilt = vec![0.0; case.len];
            accumulate_row(isa, s, &cache, head, &traced, &mut rebuilt);
            let plain = RowHead { max: state.softmax.max, sum: state.softmax.sum, ..traced };
            let mut added = vec![0.0; case.len];
            add_row(isa, s, &cache, head, &plain, &mut added);
            for (what, found, expected) in [("alpha'", rebuilt, row), ("alpha", added, alpha)] {
                for (found, expected) in found.iter().zip(&expected) {
                    assert!(
                        (f64::from(*found) - expected).abs() <= 2.0 * bound,
                        "{name}: {what} {found} not {expected}"
                    );
                }
            }
        }
    }
}

fn shape(group: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        layer: 0,
        heads: group * kv_heads,
        kv_heads,
        head_dim,
        window: None,
        softcap: None,
        gamma: Gamma::PUBLISHED,
        one_term: false,
    }
}

#[test]
fn attention_equals_float64() {
    let mut seed = 0;
    for len in [1, 2, 3, 11, 12, 31, 33, 127, 128, 129, 257, 1000] {
        for (group, head_dim) in [(1, 64), (3, 64), (4, 128), (7, 16), (8, 24), (2, 96)] {
            for sink in [0.0, 100.0] {
                seed += 1;
                check(&Case { shape: shape(group, 2, head_dim), len, sink }, seed);
            }
        }
    }
}

#[test]
fn windows_and_softcaps_equal_float64() {
    for (seed, len) in [1usize, 12, 40, 128, 130, 300, 700].into_iter().enumerate() {
        for (window, softcap) in [(Some(1), None), (Some(5), None), (Some(130), Some(50.0)), (None, Some(2.0))] {
            let shape = AttentionShape { window, softcap, ..shape(3, 2, 32) };
            check(&Case { shape, len, sink: 0.0 }, seed as u64);
        }
    }
}

#[test]
fn narrow_caches_round_the_inputs_and_nothing_else() {
    let case = Case { shape: shape(3, 2, 64), len: 200, sink: 0.0 };
    let data = case.data(5);
    for (k_type, v_type) in [(DType::F16, ValueType::F16), (DType::Bf16, ValueType::Bf16), (DType::F32, ValueType::Q8)]
    {
        let mut rounded = Data { keys: data.keys.clone(), values: data.values.clone(), query: data.query.clone() };
        rounded.keys.iter_mut().for_each(|x| *x = k_type.round(*x));
        rounded.values.chunks_mut(case.shape.head_dim).for_each(|head| v_type.round(head));
        assert!(rounded.values != data.values);
        let run = |cache: KvCache| run(&case, &cache, &data.query, 2, Isa::detect());
        let (narrow, states) = run(fill(&case, &data, k_type, v_type));
        let (wide, wide_states) = run(fill(&case, &rounded, DType::F32, ValueType::F32));
        assert_eq!(states, wide_states);
        // a scale multiplies the weight rather than the value: different rounding in each of 200 terms, Σ α |v| ≤ 2
        let bound = if v_type == ValueType::Q8 { 2.0 * 2.0 * 4.0 / (1u32 << 24) as f32 } else { 0.0 };
        for (found, expected) in narrow.iter().zip(&wide) {
            assert!((found - expected).abs() <= bound, "{v_type:?}: {found} not {expected}");
        }
    }
}
