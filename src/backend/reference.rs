//! The forward pass to read: a transformer of the Llama, Qwen and Gemma families together with the trace that UQAC needs,
//! one row, one head and one number at a time. No tiles, no threads, no vector instructions: every formula is written
//! once, in the order in which a token meets it. The other backends compute the same, fast.
//!
//! A token enters in [`embed`](Backend::embed), goes through [`project_qkv`](Backend::project_qkv),
//! [`attend`](Backend::attend), [`project_output`](Backend::project_output) and [`feed_forward`](Backend::feed_forward) of
//! every layer, and comes out of [`final_norm`](Backend::final_norm) as a hidden state; [`predict`](Backend::predict) says
//! which token follows. The formulas are the functions of [`Model`], below the backend. Activations are f32, sums f64.
//!
//! In shapes, H is `num_attention_heads` and G `num_key_value_heads`. Row T is what is computed when the token at position
//! T is the input. Comments begin with the **name** of the part of the method that they implement.

use super::entropy::{EntropyRule, reweighting};
use super::{Backend, BackendError, DType, HeadRecord, Next, Prediction, Row, SequenceId};
use super::{Step, TokenLogprob, TraceOptions};
use crate::model::{ModelSpec, Weights, config::Activation, weights::Weight};
use std::{collections::BTreeMap, f64::consts::PI, ops::Range, sync::Arc};

/// The model, the sequences that are open (by id), and the rows of the pass in flight.
pub struct ReferenceBackend {
    model: Model,
    k_cache: DType,
    v_cache: DType,
    sequences: Vec<Sequence>,
    pass: Vec<PassRow>,
}

/// The KV cache of a sequence, and what has been traced of it.
#[derive(Default)]
struct Sequence {
    /// Normed and rotated: `[layer][positions, G, head_dim]`
    keys: Vec<Vec<f32>>,
    /// `[layer][positions, G, head_dim]`
    values: Vec<Vec<f32>>,
    options: Option<TraceOptions>,
    /// By position.
    trace: BTreeMap<usize, TracedRow>,
}

/// **Memory.** What is kept of a traced row is O(1): the K selected heads' ids and queries, and one hidden state.
struct TracedRow {
    selected: HeadRecord,
    /// Normed and rotated: `[K][head_dim]`
    queries: Vec<Vec<f32>>,
    /// After the final norm: `[hidden_size]`
    hidden: Vec<f32>,
}

/// One row on its way through the layers.
struct PassRow {
    row: Row,
    /// Residual stream; after the pass the final hidden state: `[hidden_size]`
    x: Vec<f32>,
    /// Normed and rotated: `[H, head_dim]`
    queries: Vec<f32>,
    /// What the heads took from the values: `[H, head_dim]`
    attended: Vec<f32>,
    /// Where the row is traced.
    options: Option<TraceOptions>,
    /// Of a traced row, in the order of l·H + h: the entropy of the reweighted attention in nats, and the query.
    heads: Vec<(f32, Vec<f32>)>,
}

impl ReferenceBackend {
    /// Keys and values are rounded to `k_cache` and `v_cache` when they enter the cache.
    pub fn new(spec: ModelSpec, weights: Arc<Weights>, k_cache: DType, v_cache: DType) -> ReferenceBackend {
        let frequencies = spec.rope.iter().map(|rope| rope.inverse_frequencies(spec.head_dim)).collect();
        let model = Model { spec, weights, frequencies, f32_sums: false };
        ReferenceBackend { model, k_cache, v_cache, sequences: Vec::new(), pass: Vec::new() }
    }

    /// The same pass with sums in f32, term by term. Its distance from the reference is what f32 costs: tests take their
    /// tolerances from it.
    pub fn naive(self) -> ReferenceBackend {
        ReferenceBackend { model: Model { f32_sums: true, ..self.model }, ..self }
    }

    /// **Memory.** α' of a traced row's selected heads, exact from the KV cache, K·T dot products: `[K][position + 1]`.
    fn reweighted_rows(&self, id: SequenceId, position: usize) -> Vec<Vec<f32>> {
        let Sequence { keys, trace, options, .. } = &self.sequences[id.0];
        let (Some(row), Some(options)) = (trace.get(&position), options) else { return Vec::new() };
        let heads = self.model.spec.num_attention_heads;
        let head_row = |(id, query): (&u32, &Vec<f32>)| {
            let (layer, h) = (*id as usize / heads, *id as usize % heads);
            let scores = self.model.scores(layer, h, query, &keys[layer], position);
            self.model.reweighted(&scores, options.rule).0
        };
        row.selected.heads.iter().zip(&row.queries).map(head_row).collect()
    }
}

impl Backend for ReferenceBackend {
    fn spec(&self) -> &ModelSpec {
        &self.model.spec
    }

    fn device(&self) -> String {
        "reference (scalar, one thread: slow; for reading and checking)".to_owned()
    }

    fn cache_types(&self) -> (DType, DType) {
        (self.k_cache, self.v_cache)
    }

    fn max_rows(&self) -> usize {
        64 // rows are computed one after the other: a bound for memory alone
    }

    fn open(&mut self, options: Option<TraceOptions>) -> SequenceId {
        let empty = vec![Vec::new(); self.model.spec.layers.len()];
        self.sequences.push(Sequence { keys: empty.clone(), values: empty, options, trace: BTreeMap::new() });
        SequenceId(self.sequences.len() - 1)
    }

    /// Copies the whole cache: what lies after the prefix is never attended to before it is overwritten.
    fn fork(&mut self, of: SequenceId, _len: usize, to: Option<TraceOptions>) -> Result<SequenceId, BackendError> {
        let Sequence { keys, values, .. } = &self.sequences[of.0];
        let (keys, values) = (keys.clone(), values.clone());
        self.sequences.push(Sequence { keys, values, options: to, trace: BTreeMap::new() });
        Ok(SequenceId(self.sequences.len() - 1))
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences[sequence.0] = Sequence::default();
    }

    /// x = E[token], in Gemma times √hidden_size.
    fn embed(&mut self, rows: &[Row], record: bool) -> Result<(), BackendError> {
        let ModelSpec { vocab_size, hidden_size, embedding_scale, .. } = self.model.spec;
        let embedding = self.model.weights.embedding.elements();
        let enter = |row: &Row| {
            let start = row.token as usize * hidden_size;
            let x = (start..start + hidden_size).map(|i| embedding.get(i) * embedding_scale.unwrap_or(1.0)).collect();
            let options = self.sequences[row.sequence.0].options.filter(|o| record && row.position >= o.first_row);
            PassRow { row: *row, x, queries: Vec::new(), attended: Vec::new(), options, heads: Vec::new() }
        };
        if let Some(Row { token, .. }) = rows.iter().find(|row| row.token as usize >= vocab_size) {
            return Err(BackendError::TokenRange { token: *token, vocab_size });
        }
        self.pass = rows.iter().map(enter).collect();
        Ok(())
    }

    /// q, k, v = W norm(x) + b; q and k are rotated; k and v go to the cache.
    fn project_qkv(&mut self, layer: usize) {
        let (model, w) = (&self.model, &self.model.weights.layers[layer]);
        for PassRow { row, x, queries, .. } in &mut self.pass {
            let h = model.norm(x, &w.input_norm);
            let q = model.linear(&w.q, w.q_bias.as_deref(), &h);
            let k = model.linear(&w.k, w.k_bias.as_deref(), &h);
            let v = model.linear(&w.v, w.v_bias.as_deref(), &h);
            *queries = model.rotate(layer, row.position, q, w.q_norm.as_deref());
            let k = model.rotate(layer, row.position, k, w.k_norm.as_deref());
            let sequence = &mut self.sequences[row.sequence.0];
            store(&mut sequence.keys[layer], row.position, &k, self.k_cache);
            store(&mut sequence.values[layer], row.position, &v, self.v_cache);
        }
    }

    /// Every head takes the mean of the values, weighted by the softmax of its scores. In a traced row it notes the entropy
    /// of its reweighted attention as well.
    fn attend(&mut self, layer: usize) {
        let model = &self.model;
        for PassRow { row, queries, attended, options, heads, .. } in &mut self.pass {
            let Sequence { keys, values, .. } = &self.sequences[row.sequence.0];
            attended.clear();
            for (h, query) in queries.chunks_exact(model.spec.head_dim).enumerate() {
                let scores = model.scores(layer, h, query, &keys[layer], row.position);
                attended.extend(model.weighted_mean(h, &scores, &values[layer]));
                if let Some(options) = options {
                    heads.push((model.reweighted(&scores, options.rule).1, query.to_vec()));
                }
            }
        }
    }

    /// x ← x + W_o · attention (Gemma: x + norm(W_o · attention)).
    fn project_output(&mut self, layer: usize) {
        let (model, w) = (&self.model, &self.model.weights.layers[layer]);
        for PassRow { x, attended, .. } in &mut self.pass {
            let h = model.linear(&w.o, w.o_bias.as_deref(), attended);
            model.add_residual(x, h, w.post_attention_norm.as_deref());
        }
    }

    /// x ← x + W_down (act(W_gate norm(x)) ⊙ W_up norm(x)) (Gemma: norm of the product).
    fn feed_forward(&mut self, layer: usize) {
        let (model, w) = (&self.model, &self.model.weights.layers[layer]);
        for PassRow { x, .. } in &mut self.pass {
            let h = model.norm(x, &w.feed_forward_norm);
            let gate = model.linear(&w.gate, w.gate_bias.as_deref(), &h);
            let up = model.linear(&w.up, w.up_bias.as_deref(), &h);
            let inner: Vec<f32> = gate.iter().zip(up).map(|(g, u)| activate(model.spec.activation, *g) * u).collect();
            let h = model.linear(&w.down, w.down_bias.as_deref(), &inner);
            model.add_residual(x, h, w.post_feed_forward_norm.as_deref());
        }
    }

    /// x ← norm(x), the hidden state. **Head selection**: per row, the K heads of all L·H with the lowest entropy (ties:
    /// lower l·H + h).
    fn final_norm(&mut self) -> Result<(), BackendError> {
        for PassRow { row, x, options, heads, .. } in &mut self.pass {
            *x = self.model.norm(x, &self.model.weights.final_norm);
            self.model.check_finite(x, row.position)?;
            let Some(options) = options else { continue };
            let mut order: Vec<usize> = (0..heads.len()).collect();
            order.sort_by(|a, b| heads[*a].0.total_cmp(&heads[*b].0)); // a stable sort: of equals the lower id is first
            let (selected, others) = order.split_at(options.heads.min(order.len()));
            let entropies: Vec<f32> = selected.iter().map(|id| heads[*id].0).collect();
            let best_other = others.first().map_or(f32::INFINITY, |id| heads[*id].0);
            let gap = best_other - entropies.last().unwrap_or(&f32::NEG_INFINITY);
            let queries = selected.iter().map(|id| std::mem::take(&mut heads[*id].1)).collect();
            let selected = HeadRecord { heads: selected.iter().map(|id| *id as u32).collect(), entropies, gap };
            let traced = TracedRow { selected, queries, hidden: x.clone() };
            self.sequences[row.sequence.0].trace.insert(row.position, traced);
        }
        Ok(())
    }

    /// ln p of the next token, its entropy -Σ p ln p, and the most probable tokens, all over the full vocabulary.
    fn predict(&mut self, requests: &[Prediction]) -> Result<Vec<(Step, Option<u32>)>, BackendError> {
        let predict = |request: &Prediction| {
            let PassRow { row, x, .. } = &self.pass[request.row];
            let logits = self.model.logits(x);
            self.model.check_finite(&logits, row.position)?;
            let token = match request.next {
                Next::Given(token) => token,
                Next::Choose(choice) => Some(choice.token(&logits)),
            };
            let logits: Vec<f64> = logits.into_iter().map(f64::from).collect();
            let lse = self.model.log_sum_exp(&logits);
            let logprobs: Vec<f64> = logits.iter().map(|logit| logit - lse).collect();
            let mut step = Step { logprob: token.map(|token| logprobs[token as usize]), ..Step::default() };
            if request.detail {
                step.entropy = -self.model.sum(logprobs.iter().map(|lp| lp.exp() * lp));
                step.top = most_probable(&logprobs);
            }
            Ok((step, token))
        };
        requests.iter().map(predict).collect()
    }

    fn hidden(&self, row: usize) -> Result<Vec<f32>, BackendError> {
        Ok(self.pass[row].x.clone())
    }

    fn head_record(&self, sequence: SequenceId, row: usize) -> Result<Option<HeadRecord>, BackendError> {
        Ok(self.sequences[sequence.0].trace.get(&row).map(|row| row.selected.clone()))
    }

    /// **Aggregate.** α*_t = max over the selected heads of α'_t.
    fn attention_rows(&mut self, sequence: SequenceId, rows: &[usize]) -> Result<Vec<Vec<f32>>, BackendError> {
        let max = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(b).map(|(a, b)| a.max(b)).collect();
        let row = |row: &usize| self.reweighted_rows(sequence, *row).into_iter().fold(vec![0.0; row + 1], max);
        Ok(rows.iter().map(row).collect())
    }

    fn head_rows(&mut self, sequence: SequenceId, row: usize) -> Result<Vec<Vec<f32>>, BackendError> {
        Ok(self.reweighted_rows(sequence, row))
    }

    /// **Similarity filter.** Cosine of final hidden states (after the final norm) at the tokens' own positions.
    fn cosines(&mut self, of: SequenceId, positions: &[usize], answer: Range<usize>) -> Result<Vec<f32>, BackendError> {
        let (model, trace) = (&self.model, &self.sequences[of.0].trace);
        let cosine = |p: usize, a: usize| {
            let (p, a) = (&trace.get(&p)?.hidden, &trace.get(&a)?.hidden);
            Some((model.dot(p, a) / (model.dot(p, p) * model.dot(a, a)).sqrt()) as f32)
        };
        Ok(positions.iter().flat_map(|p| answer.clone().map(|a| cosine(*p, a).unwrap_or(0.0))).collect())
    }

    fn memory(&self, sequence: SequenceId) -> (usize, usize) {
        let Sequence { keys, values, trace, .. } = &self.sequences[sequence.0];
        let numbers = |row: &TracedRow| row.hidden.len() + row.queries.iter().map(|q| 2 + q.len()).sum::<usize>();
        let cached: usize = keys.iter().chain(values).map(Vec::len).sum();
        (4 * cached, 4 * trace.values().map(numbers).sum::<usize>())
    }
}

/// The formulas. What distinguishes the families is data in `spec`.
struct Model {
    spec: ModelSpec,
    weights: Arc<Weights>,
    /// `[rope table][head_dim / 2]`
    frequencies: Vec<Vec<f32>>,
    /// Whether sums are rounded to f32 after every term.
    f32_sums: bool,
}

impl Model {
    fn sum(&self, terms: impl Iterator<Item = f64>) -> f64 {
        match self.f32_sums {
            true => terms.fold(0.0_f32, |sum, term| (f64::from(sum) + term) as f32).into(),
            false => terms.sum(),
        }
    }

    fn dot(&self, a: &[f32], b: &[f32]) -> f64 {
        self.sum(a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)))
    }

    /// W x + b: `w` is [out, in] in its stored dtype, `x` [in], `bias` and the result [out].
    fn linear(&self, w: &Weight, bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
        let weights = w.elements();
        let product = |(i, x): (usize, &f32)| f64::from(weights.get(i)) * f64::from(*x);
        let dot = |out: usize| self.sum((out * w.in_features..).zip(x).map(product)) as f32;
        (0..w.rows).map(|out| dot(out) + bias.map_or(0.0, |b| b[out])).collect()
    }

    /// RMSNorm, x / √(mean(x²) + ε) · (offset + weight), all [n]. The offset is 1 in Gemma, which stores weight - 1.
    fn norm(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let ModelSpec { rms_norm_eps, norm_weight_offset, .. } = self.spec;
        let scale = 1.0 / (self.dot(x, x) / x.len() as f64 + f64::from(rms_norm_eps)).sqrt();
        x.iter().zip(weight).map(|(x, w)| (f64::from(*x) * scale) as f32 * (norm_weight_offset + w)).collect()
    }

    /// x ← x + h, or x + norm(h) where the family norms what joins the residual stream; both [hidden_size].
    fn add_residual(&self, x: &mut [f32], h: Vec<f32>, post_norm: Option<&[f32]>) {
        let h = post_norm.map_or_else(|| h.clone(), |weight| self.norm(&h, weight));
        x.iter_mut().zip(h).for_each(|(x, h)| *x += h);
    }

    /// Rotary position of queries or keys [heads, head_dim]: each pair (a, b) of components i and i + head_dim / 2 turns by
    /// position · frequency_i. Where the family has `norm` [head_dim], each head is normed first (Qwen3, Gemma-3).
    fn rotate(&self, layer: usize, position: usize, mut x: Vec<f32>, norm: Option<&[f32]>) -> Vec<f32> {
        for head in x.chunks_exact_mut(self.spec.head_dim) {
            if let Some(weight) = norm {
                head.copy_from_slice(&self.norm(head, weight));
            }
            let (a, b) = head.split_at_mut(self.spec.head_dim / 2);
            for ((a, b), frequency) in a.iter_mut().zip(b).zip(&self.frequencies[self.spec.layers[layer].rope]) {
                let angle = f64::from(position as f32 * frequency); // a product in f32, as in Hugging Face
                let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
        x
    }

    /// The part of a cached key or value that query head h meets at position t; G heads serve H: `[head_dim]`.
    fn cached<'a>(&self, cache: &'a [f32], t: usize, h: usize) -> &'a [f32] {
        let start = (t * self.spec.num_key_value_heads + h / self.spec.group_size()) * self.spec.head_dim;
        &cache[start..start + self.spec.head_dim]
    }

    /// The scores s_t of head h of row T: scale · q · k_t for t = 0..=T, -∞ outside the sliding window. **Reweighted
    /// attention**: "softcapping (Gemma-2) applies to s before all this". `query` is [head_dim], `keys` [positions, G,
    /// head_dim], the result [T + 1].
    fn scores(&self, layer: usize, h: usize, query: &[f32], keys: &[f32], row: usize) -> Vec<f64> {
        let first = self.spec.layers[layer].window.map_or(0, |window| (row + 1).saturating_sub(window));
        let product = |t: usize| self.dot(query, self.cached(keys, t, h)) * f64::from(self.spec.attention_scale);
        let seen = (first..=row).map(|t| softcap(product(t), self.spec.attn_logit_softcapping));
        std::iter::repeat_n(f64::NEG_INFINITY, first).chain(seen).collect()
    }

    /// ln Σ e^x, relative to the maximum so that nothing overflows; -∞ where every x is.
    fn log_sum_exp(&self, x: &[f64]) -> f64 {
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let relative = |x: &f64| if max.is_finite() { (x - max).exp() } else { 0.0 };
        max + self.sum(x.iter().map(relative)).ln()
    }

    /// Σ α_t v_t for head h, where α = softmax(s): `scores` is [T + 1], `values` [positions, G, head_dim], the result
    /// [head_dim].
    fn weighted_mean(&self, h: usize, scores: &[f64], values: &[f32]) -> Vec<f32> {
        let z = self.log_sum_exp(scores);
        let alpha: Vec<f64> = scores.iter().map(|s| (s - z).exp()).collect();
        let term = |t: usize, i: usize| alpha[t] * f64::from(self.cached(values, t, h)[i]);
        (0..self.spec.head_dim).map(|i| self.sum((0..alpha.len()).map(|t| term(t, i))) as f32).collect()
    }

    /// **Reweighted attention.** α'_t = w_t α_t / Σ w α, the softmax of s_t + ln w_t, and its entropy H = -Σ α' ln α' in
    /// nats; `scores` and α' are [T + 1]. A row without attention (T < 2) "must not win the head selection with entropy 0";
    /// under the authors' rule, [`EntropyRule::Regularized`], it does, and α' adds up to f = σ / (σ + 1e-12), σ = Σ w α.
    fn reweighted(&self, scores: &[f64], rule: EntropyRule) -> (Vec<f32>, f32) {
        let ln_weight = |t: usize| f64::from(reweighting(scores.len() - 1, t)).ln();
        let s: Vec<f64> = scores.iter().enumerate().map(|(t, s)| s + ln_weight(t)).collect();
        let z = self.log_sum_exp(&s);
        let (f, without_attention) = match (rule, (z - self.log_sum_exp(scores)).exp()) {
            (EntropyRule::Exact, _) => (1.0, f32::INFINITY),
            (EntropyRule::Regularized, sigma) => (sigma / (sigma + 1e-12), 0.0),
        };
        if z == f64::NEG_INFINITY {
            return (vec![0.0; scores.len()], without_attention);
        }
        let alpha: Vec<f64> = s.iter().map(|s| f * (s - z).exp()).collect();
        let entropy = -self.sum(alpha.iter().filter(|a| **a > 0.0).map(|a| a * a.ln()));
        (alpha.iter().map(|a| *a as f32).collect(), entropy as f32)
    }

    /// W_head · x, softcapped in Gemma-2: `x` is [hidden_size], the result [vocab_size].
    fn logits(&self, x: &[f32]) -> Vec<f32> {
        let logits = self.linear(&self.weights.head, None, x).into_iter();
        logits.map(|x| softcap(x.into(), self.spec.final_logit_softcapping) as f32).collect()
    }

    fn check_finite(&self, x: &[f32], position: usize) -> Result<(), BackendError> {
        let finite = x.iter().all(|x| x.is_finite());
        if finite { Ok(()) } else { Err(BackendError::not_finite(&self.weights, position)) }
    }
}

fn softcap(x: f64, cap: Option<f32>) -> f64 {
    cap.map(f64::from).map_or(x, |cap| cap * (x / cap).tanh())
}

/// silu(x) = x / (1 + e^-x), or gelu(x) in its tanh form.
fn activate(activation: Activation, x: f32) -> f32 {
    let x = f64::from(x);
    let activated = match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => x / 2.0 * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
    };
    activated as f32
}

/// Writes position `position` of a layer's keys or values, rounded to the cache's type.
fn store(cache: &mut Vec<f32>, position: usize, x: &[f32], dtype: DType) {
    cache.resize(cache.len().max((position + 1) * x.len()), 0.0);
    let slots = &mut cache[position * x.len()..(position + 1) * x.len()];
    slots.iter_mut().zip(x).for_each(|(slot, x)| *slot = dtype.round(*x));
}

/// The tokens with p > 0.01 and at least five, best first (ties: lower id); `logprobs` is [vocab_size].
fn most_probable(logprobs: &[f64]) -> Vec<TokenLogprob> {
    let mut top: Vec<TokenLogprob> =
        (0..).zip(logprobs).map(|(token, logprob)| TokenLogprob { token, logprob: *logprob }).collect();
    top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    let kept = top.iter().take_while(|t| t.logprob > 0.01_f64.ln()).count().max(5);
    top.truncate(kept);
    top
}
