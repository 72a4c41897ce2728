//! Every backend compared with the reference on small random models of all families, which needs no external data; and
//! the reference itself compared with Hugging Face in float64, if that oracle's data is available.
//!
//! The tolerance of a backend is derived, not tuned. A sum of n terms in f32 equals the exact sum of terms each changed
//! by at most n · 2^-24 of their magnitude (its backward error), and rounding a product's operands to 2^-p of their
//! magnitude changes them by as much. So the reference runs a second time on the same model with every weight changed
//! at random by up to that amount, where n is the longest sum in the model, and no result may differ from the reference
//! by more than twice the largest such change of its kind: once for the backend's errors, once for the reference's own
//! activations, which are f32 too.

use super::families::{Family, check, families};
use super::random_models::{RANDOM_FAMILIES, RandomModel, Shapes, open};
use std::ops::ControlFlow;
use std::path::Path;
use test_support::{cuda_host, long_tests};
use uqac::backend::DType::{self, Bf16, F16, F32};
use uqac::backend::cpu::simd::Isa;
use uqac::backend::cpu::{CpuBackend, CpuOptions};
use uqac::backend::cuda::{CudaBackend, CudaOptions};
use uqac::backend::entropy::{EntropyRule, Gamma};
use uqac::backend::forward::{enter, forward, mean_attention};
use uqac::backend::reference::ReferenceBackend;
use uqac::backend::sampling::Sampling;
use uqac::backend::{
    Backend, BackendError, DecodeRow, HeadRecord, Next, Pass, Prediction, Row, SequenceId, TraceOptions, TraceParts,
    WeightFormat,
};

type CacheTypes = (DType, DType);

fn reference(folder: &Path, (k, v): CacheTypes, gamma: Gamma) -> ReferenceBackend {
    let (spec, weights) = open(folder);
    ReferenceBackend::new(spec, weights, (k, v.into()), gamma)
}

fn cpu(folder: &Path, (k_cache, v_cache): CacheTypes, weights: WeightFormat, gamma: Gamma, isa: Isa) -> CpuBackend {
    let (spec, all) = open(folder);
    let v_cache = v_cache.into();
    let options = CpuOptions { k_cache, v_cache, weights, gamma, isa, threads: 2, ..CpuOptions::default() };
    CpuBackend::new(spec, all, options)
}

fn cuda(folder: &Path, (k, v): CacheTypes, weights: WeightFormat, gamma: Gamma) -> CudaBackend {
    let (spec, all) = open(folder);
    let options = CudaOptions { ordinal: 0, k_cache: Some(k), v_cache: Some(v), weights, gamma };
    CudaBackend::new(spec, all, &options, &mut |_, _| ()).unwrap()
}

/// The reference or, for 8-bit weights, which it does not support, the CPU backend.
fn oracle(folder: &Path, cache: CacheTypes, weights: WeightFormat, gamma: Gamma) -> Box<dyn Backend> {
    match weights {
        WeightFormat::File => Box::new(reference(folder, cache, gamma)),
        WeightFormat::Q8 => Box::new(cpu(folder, cache, weights, gamma, Isa::default())),
    }
}

#[test]
fn the_reference_equals_hugging_face() {
    for Family { name, golden, folder, .. } in families() {
        for width in [5, 48] {
            let mut backend = reference(&folder, (F32, F32), Gamma::PUBLISHED);
            check(&format!("{name}, {width} rows a pass"), &golden, &mut backend, width);
        }
    }
}

/// A sequence, the widths of its prefill passes (the last one repeated), and the trace's rule and γ.
struct Run {
    tokens: Vec<u32>,
    widths: Vec<usize>,
    rule: EntropyRule,
    gamma: Gamma,
}

/// All values that a backend produces for a run, by kind.
#[derive(Default)]
struct Numbers {
    logprobs: Vec<f64>,
    token_entropies: Vec<f64>,
    /// KL from the uniform distribution, log affinity to it, and mean ln p of the top 20, for every row.
    distributions: Vec<f64>,
    /// Attention weights at the positions of a wide trace, for every head of every row.
    places: Vec<f64>,
    hidden: Vec<f64>,
    /// For every head of every row, ordered by l·H + h.
    head_entropies: Vec<f64>,
    /// α' for every head of some rows.
    head_rows: Vec<f64>,
    /// α of some rows, averaged over all heads.
    mean_attention: Vec<f64>,
    /// α* of every row.
    attention_rows: Vec<f64>,
    traced_hidden: Vec<f64>,
    /// For every layer.
    layer_means: Vec<f64>,
}

impl Numbers {
    fn kinds(&self) -> [(&'static str, &[f64]); 11] {
        [
            ("log-probabilities", &self.logprobs),
            ("entropies of predictions", &self.token_entropies),
            ("hidden states", &self.hidden),
            ("entropies of heads", &self.head_entropies),
            ("attention of single heads", &self.head_rows),
            ("attention rows", &self.attention_rows),
            ("hidden states of the trace", &self.traced_hidden),
            ("distributions", &self.distributions),
            ("places of attention", &self.places),
            ("mean hidden states", &self.layer_means),
            ("mean attention", &self.mean_attention),
        ]
    }

    /// Maximum distance of each kind.
    fn distances(&self, other: &Numbers) -> [f64; 11] {
        let distance = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { (a - b).abs() }; // ∞ where a row has no attention
        let mut of_kind = [0.0; 11];
        for (largest, ((kind, a), (_, b))) in of_kind.iter_mut().zip(self.kinds().into_iter().zip(other.kinds())) {
            assert_eq!(a.len(), b.len(), "{kind}");
            *largest = a.iter().zip(b).map(distance).fold(0.0, f64::max);
        }
        of_kind
    }
}

fn wide(x: &[f32]) -> impl Iterator<Item = f64> + '_ {
    x.iter().map(|x| f64::from(*x))
}

/// Runs a sequence with `heads` heads per row; `after` is called after every pass with the backend and the positions
/// covered.
fn prefill(
    backend: &mut dyn Backend,
    run: &Run,
    heads: usize,
    mut after: impl FnMut(&mut dyn Backend, std::ops::Range<usize>),
) -> SequenceId {
    let parts = TraceParts { heads, entropy: run.rule, wide: true, head_attention: true, layer_means: true };
    let everything = TraceOptions { first_row: 0, parts };
    let id = backend.open(Some(everything)).unwrap();
    let (mut start, mut widths) = (0, run.widths.iter().copied());
    let mut width = 1;
    while start < run.tokens.len() {
        width = widths.next().unwrap_or(width);
        let end = (start + width.min(backend.max_rows())).min(run.tokens.len());
        let row = |position: usize| Row { sequence: id, position, token: run.tokens[position] };
        forward(backend, &Pass::all(&(start..end).map(row).collect::<Vec<_>>(), true)).unwrap();
        after(backend, start..end);
        start = end;
    }
    id
}

/// Everything that `backend` reports about a run with all heads selected.
fn numbers(backend: &mut dyn Backend, run: &Run) -> Numbers {
    let (total, vocab, len) = (backend.spec().total_heads(), backend.spec().vocab_size as u32, run.tokens.len());
    let mut found = Numbers::default();
    let few = [2, len / 2, len - 1];
    let id = prefill(backend, run, total, |backend, positions| {
        for (row, position) in positions.enumerate() {
            let given = |token| Prediction { row, next: Next::Given(token), detail: true };
            // other tokens' for a few rows, at different places in the kernels' tiles; the next token's for the rest
            let mut requests = vec![given(run.tokens.get(position + 1).copied())];
            let others = (position as u32 % 13..vocab).step_by(13).chain([vocab - 1]);
            requests.extend(others.filter(|_| few.contains(&position)).map(|token| given(Some(token))));
            let steps = backend.predict(&requests).unwrap();
            found.logprobs.extend(steps.iter().filter_map(|(step, _)| step.logprob));
            found.logprobs.extend(steps[0].0.top.iter().take(5).map(|top| top.logprob));
            found.token_entropies.push(steps[0].0.entropy);
            let whole = steps[0].0.distribution.unwrap();
            found.distributions.extend([whole.uniform_kl, whole.log_affinity, whole.top_logprob]);
            found.hidden.extend(wide(&backend.hidden(row).unwrap()));
        }
    });
    for position in 0..len {
        let record = backend.head_record(id, position).unwrap().unwrap();
        assert!(record.entropies.is_sorted() && record.heads.len() == total);
        let mut by_head: Vec<(u32, f32)> = record.heads.iter().copied().zip(record.entropies).collect();
        by_head.sort_by_key(|(head, _)| *head);
        found.head_entropies.extend(by_head.iter().map(|(_, h)| f64::from(*h)));
        let attention = backend.head_attention(id, position).unwrap().unwrap();
        assert!(attention.len() == total && attention.iter().map(|a| a.entropy).eq(by_head.iter().map(|(_, h)| *h)));
        found.places.extend(attention.iter().flat_map(|a| [a.own, a.previous, a.first, a.prompt].map(f64::from)));
        if few.contains(&position) {
            let mut rows = match backend.head_rows(id, position) {
                Ok(rows) => rows.into_iter().zip(&record.heads).collect(),
                Err(BackendError::Unsupported { .. }) => Vec::new(),
                Err(error) => panic!("{error}"),
            };
            rows.sort_by_key(|(_, head)| **head);
            found.head_rows.extend(rows.iter().flat_map(|(row, _)| wide(row)));
        }
    }
    let rows: Vec<usize> = (0..len).collect();
    found.attention_rows = backend.attention_rows(id, &rows).unwrap().iter().flat_map(|row| wide(row)).collect();
    found.traced_hidden = wide(&backend.hidden_states(id, len - 3..len).unwrap()).collect();
    for position in few {
        let start = backend.resumes_at(id, position);
        enter(backend, id, start, &run.tokens[start..position]).unwrap();
        let row = Row { sequence: id, position, token: run.tokens[position] };
        found.mean_attention.extend(mean_attention(backend, row).unwrap());
    }
    found.layer_means = backend.layer_means(id).unwrap().unwrap().concat();
    backend.close(id);
    found
}

/// The heads selected in every row of a sequence, and the row's α*.
fn selection(backend: &mut dyn Backend, id: SequenceId, len: usize) -> Vec<(HeadRecord, Vec<f32>)> {
    let rows: Vec<usize> = (0..len).collect();
    let attention = backend.attention_rows(id, &rows).unwrap();
    let record = |row: usize| backend.head_record(id, row).unwrap().unwrap();
    rows.into_iter().map(record).zip(attention).collect()
}

/// A model, a run of it, the oracle's results, and the bound for each kind of difference.
struct Case {
    name: String,
    folder: tempfile::TempDir,
    cache: CacheTypes,
    weights: WeightFormat,
    run: Run,
    expected: Numbers,
    bounds: [f64; 11],
    heads: usize,
    selected: Vec<(HeadRecord, Vec<f32>)>,
}

impl Case {
    /// `operands`: relative size to which the backend rounds the operands of its products.
    fn new(model: &RandomModel, cache: CacheTypes, weights: WeightFormat, run: Run, operands: f64) -> Case {
        let folder = model.write();
        let mut backend = oracle(folder.path(), cache, weights, run.gamma);
        let spec = backend.spec();
        let name = format!(
            "{}, {:?} weights ({weights}), {cache:?} cache, {} tokens in passes of {:?}, {:?}",
            model.config,
            model.dtype,
            run.tokens.len(),
            run.widths,
            run.rule
        );
        let net = spec.delta_net.map_or(0, |net| net.widths()[2]);
        let (inner, attention) = (spec.layers[0].intermediate_size, spec.num_attention_heads * spec.head_dim);
        let longest = [net, spec.hidden_size, inner, attention, run.tokens.len()];
        let change = longest.into_iter().max().unwrap() as f64 / f64::from(1 << 24) + operands;
        let heads = (spec.total_heads() / 3).max(1);
        let expected = numbers(&mut *backend, &run);
        let perturbed = model.write_perturbed(change);
        // the CPU rounds as well, and its perturbed weights use the same 8-bit steps
        let (exact, times) =
            if weights.is_file() { (None, 2.0) } else { (Some(reference(folder.path(), cache, run.gamma)), 4.0) };
        let exact = exact.map(|mut exact| numbers(&mut exact, &run));
        let perturbed = numbers(&mut reference(perturbed.path(), cache, run.gamma), &run);
        let bounds = perturbed.distances(exact.as_ref().unwrap_or(&expected)).map(|d| times * d);
        let id = prefill(&mut *backend, &run, heads, |_, _| ());
        let selected = selection(&mut *backend, id, run.tokens.len());
        Case { name, folder, cache, weights, run, expected, bounds, heads, selected }
    }

    fn check(&self, backend: &mut dyn Backend) {
        let (name, device) = (&self.name, backend.device());
        let mut found = numbers(backend, &self.run);
        let expected = &self.expected;
        if found.head_rows.is_empty() {
            found.head_rows.clone_from(&expected.head_rows); // the device does not return them
        }
        let kinds = self.expected.kinds();
        let mut bounds = self.bounds;
        // on a device traced hidden states are f16: 2^-11 for each element of both vectors
        bounds[6] += if device.starts_with("cuda") { 2.0 / 2048.0 } else { 0.0 };
        for ((kind, _), (found, bound)) in kinds.iter().zip(found.distances(&self.expected).into_iter().zip(bounds)) {
            assert!(found <= bound, "{device}: {kind} differ by {found:e}, bound {bound:e}: {name}");
        }
        // single heads are compared in a few rows, all heads in total in every row
        let (near, attention) = (self.bounds[3] as f32, self.bounds[4].max(self.bounds[5]) as f32);
        let id = prefill(backend, &self.run, self.heads, |_, _| ());
        let rows = selection(backend, id, self.run.tokens.len());
        for (row, ((found, alpha), (expected, expected_alpha))) in rows.iter().zip(&self.selected).enumerate() {
            // whether no head could take another's position
            let clear = |record: &HeadRecord| {
                record.gap > 2.0 * near && record.entropies.windows(2).all(|pair| pair[1] - pair[0] > 2.0 * near)
            };
            assert!(found.heads == expected.heads || !clear(expected), "{device}: heads of row {row}: {name}");
            if found.heads == expected.heads {
                let error = alpha.iter().zip(expected_alpha).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(error <= attention, "{device}: α* of row {row} differs by {error:e}: {name}");
            }
        }
        self.check_fork(backend, id);
        self.check_decode(backend);
    }

    /// A prefix forked from the sequence `first` that continues with other tokens produces exactly what a separate sequence
    /// does, bit for bit, and leaves the first one unchanged.
    fn check_fork(&self, backend: &mut dyn Backend, first: SequenceId) {
        let shared = self.run.tokens.len() / 2;
        let others: Vec<u32> = self.run.tokens.iter().rev().take(7).copied().collect();
        let options = Some(TraceOptions::new(shared, self.heads, self.run.rule));
        let tail = |backend: &mut dyn Backend, id: SequenceId| {
            // the positions between the last resumable one and the prefix's end are entered again
            let start = backend.resumes_at(id, shared);
            enter(backend, id, start, &self.run.tokens[start..shared]).unwrap();
            let row = |(i, token): (usize, &u32)| Row { sequence: id, position: shared + i, token: *token };
            let rows: Vec<Row> = others.iter().enumerate().map(row).collect();
            forward(backend, &Pass::all(&rows, true)).unwrap();
            let positions: Vec<usize> = (shared..shared + others.len()).collect();
            (backend.hidden(others.len() - 1).unwrap(), backend.attention_rows(id, &positions).unwrap())
        };
        let before = backend.attention_rows(first, &[self.run.tokens.len() - 1]).unwrap();
        let start = backend.resumes_at(first, shared);
        let fork = backend.fork(first, start, options).unwrap();
        let forked = tail(backend, fork);
        assert_eq!(backend.attention_rows(first, &[self.run.tokens.len() - 1]).unwrap(), before, "{}", self.name);
        // the same rows, replacing the first sequence's own
        let in_place = tail(backend, first);
        assert_eq!(forked, in_place, "{}: {}", backend.device(), self.name);
        backend.close(fork);
        backend.close(first);
    }

    /// At every step, greedy decoding selects a token that the reference considers as probable as its own choice.
    fn check_decode(&self, backend: &mut dyn Backend) {
        let prompt = &self.run.tokens[..self.run.tokens.len() / 3 + 1];
        let Run { rule, gamma, .. } = self.run;
        let run = Run { tokens: prompt[..prompt.len() - 1].to_vec(), widths: vec![16], rule, gamma };
        let id = prefill(backend, &run, self.heads, |_, _| ());
        let row = Row { sequence: id, position: prompt.len() - 1, token: prompt[prompt.len() - 1] };
        let vocabulary = backend.spec().vocab_size;
        let row = DecodeRow { row, sampling: Sampling::GREEDY, stream: 0, detail: false };
        let mut tokens = prompt.to_vec();
        backend
            .decode(&[row], vocabulary, &mut |_, _, token| {
                tokens.push(token);
                if tokens.len() < prompt.len() + 9 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .unwrap();
        backend.close(id);
        let run = Run { widths: vec![64], rule, gamma, tokens };
        let mut oracle = oracle(self.folder.path(), self.cache, self.weights, gamma);
        prefill(&mut *oracle, &run, self.heads, |oracle, positions| {
            for (row, position) in
                positions.enumerate().filter(|(_, p)| (prompt.len() - 1..run.tokens.len() - 1).contains(p))
            {
                let next = Next::Given(Some(run.tokens[position + 1]));
                let (step, _) = oracle.predict(&[Prediction { row, next, detail: true }]).unwrap().remove(0);
                let short = step.top[0].logprob - step.logprob.unwrap();
                assert!(
                    short <= 2.0 * self.bounds[0],
                    "decoded at {position}: short of the best by {short:e}: {}",
                    self.name
                );
            }
        });
    }
}

/// A value in [0, n) that depends only on the test's parameters.
fn pick(n: usize, family: usize, seed: u64, of: u64) -> usize {
    let mut noise = test_support::tiny::noise(1 + of + 17 * (seed + 31 * family as u64));
    ((0..9).map(|_| noise()).last().unwrap() / 2.0 * n as f32 + n as f32 / 2.0) as usize
}

const RULES: [EntropyRule; 2] = [EntropyRule::Exact, EntropyRule::Regularized];

/// The published γ, or one of a different length that hides a position.
fn gamma(number: usize) -> Gamma {
    let other = [0.1, 0.0, 0.7, 0.2, 0.9, 0.3, 0.8, 0.4, 0.6, 0.5, 0.35, 0.95];
    [Gamma::PUBLISHED, Gamma::new(&other).unwrap()][number]
}

#[test]
fn the_cpu_backend_equals_the_reference_on_random_models_of_every_family() {
    for (i, family) in RANDOM_FAMILIES.into_iter().enumerate() {
        for seed in 0..if long_tests() { 3 } else { 2 } {
            let model = RandomModel::new(family, seed, Shapes::Any);
            // each family's first model crosses a boundary of the cache's chunks of 128 positions, in the long variant two
            let first = if long_tests() { 265 } else { 137 };
            let len = if seed == 0 { first } else { 9 + pick(140, i, seed, 0) };
            let widths = [vec![256, 3, 1], vec![1], vec![17, 64, 1, 1, 30], vec![130, 1]][pick(4, i, seed, 1)].clone();
            let cache = [(F32, F32), (F32, F16), (F16, F16), (Bf16, F32)][pick(4, i, seed, 2)];
            let (rule, gamma) = (RULES[pick(2, i, seed, 3)], gamma(pick(2, i, seed, 4)));
            let run = Run { tokens: model.tokens(len, seed), widths, rule, gamma };
            let case = Case::new(&model, cache, WeightFormat::File, run, 0.0);
            for isa in Isa::available() {
                case.check(&mut cpu(case.folder.path(), cache, WeightFormat::File, gamma, isa));
            }
        }
    }
}

#[test]
fn the_cuda_backend_equals_the_reference_on_random_models_of_every_family() {
    if !cuda_host::load() {
        return;
    }
    for (i, family) in RANDOM_FAMILIES.into_iter().enumerate() {
        let seed = 100;
        let model = RandomModel::new(family, seed, Shapes::Cuda);
        let widths = [vec![40, 1], vec![5], vec![17, 7, 1]][pick(3, i, seed, 1)].clone();
        let (rule, gamma) = (RULES[i % 2], gamma(i / 2 % 2));
        let (least, most) = if long_tests() { (24, 48) } else { (19, 31) };
        let run = Run { tokens: model.tokens(least + pick(most - least, i, seed, 0), seed), widths, rule, gamma };
        // passes of more than 16 rows round the inputs of products with 16-bit weights to f16: at most 2^-11 of their
        // magnitude
        let rounds = model.dtype != F32 && run.widths.iter().any(|width| *width > 16);
        let operands = if rounds { 1.0 / f64::from(1 << 11) } else { 0.0 };
        let cache = [(F32, F32), (F32, F16)][i % 2];
        let case = Case::new(&model, cache, WeightFormat::File, run, operands);
        case.check(&mut cuda(case.folder.path(), cache, WeightFormat::File, gamma));
    }
}

#[test]
fn weights_in_8_bits_are_the_same_on_cuda_and_on_the_cpu() {
    if !cuda_host::load() {
        return;
    }
    // products are the same in every family: biases, an offset of norm weights, inputs of layers, delta nets
    let families = if long_tests() { &RANDOM_FAMILIES[..] } else { &["qwen2", "gemma2", "gemma4", "qwen3_5"] };
    for (i, family) in families.iter().enumerate() {
        let seed = 200;
        let model = RandomModel::new(family, seed, Shapes::Cuda);
        let cache = [(F32, F32), (F32, F16)][i % 2];
        let run = Run {
            tokens: model.tokens(24 + pick(if long_tests() { 60 } else { 12 }, i, seed, 0), seed),
            widths: [vec![70, 1], vec![5], vec![17, 7, 1]][i % 3].clone(),
            rule: RULES[i % 2],
            gamma: Gamma::PUBLISHED,
        };
        if open(model.write().path()).0.experts.is_some() {
            continue; // CPU only
        }
        // products unsuited to 8 bits (rows that are not a multiple of 16) round their inputs to f16 in wide passes
        let rounds = model.dtype != F32 && run.widths.iter().any(|width| *width > 16);
        let operands = if rounds { 1.0 / f64::from(1 << 11) } else { 0.0 };
        let case = Case::new(&model, cache, WeightFormat::Q8, run, operands);
        let mut backend = cuda(case.folder.path(), cache, WeightFormat::Q8, Gamma::PUBLISHED);
        assert!(backend.device().contains("q8"));
        case.check(&mut backend);
    }
}
