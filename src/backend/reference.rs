//! The reference forward pass, written to be read: a transformer of the Llama, Qwen and Gemma families together with the
//! trace that UQAC needs, one row, one head and one value at a time. No tiles, no threads, no vector instructions: every
//! formula is written once, in the order a token meets it. The other backends compute the same, fast. [`Operations`] is a
//! token's path through the layers, from its embedding to its final hidden state; the formulas are the methods of `Model`
//! and the functions after it; [`Backend`] has predictions and the trace. Activations are f32, sums f64. In shapes, H is
//! `num_attention_heads` and G `num_key_value_heads`. Row T is computed with the token at position T as input. A **name**
//! in bold is the part of the method that a function implements.

pub(crate) mod delta_net;

use super::{
    Backend, BackendError, DType, HeadAttention, HeadRecord, MIN_TOP, Next, Operations, Pass, Predicted, Prediction,
    Result, Row, SequenceId, ValueType, distribution::Distribution,
};
use super::{Step, TokenLogprob, TraceOptions, entropy::EntropyRule, entropy::Gamma};
use crate::model::config::{Activation, ExpertSpec, LayerSpec, Rotation};
use crate::model::weights::{Expert, LayerInput, LayerWeights, Weight};
use crate::model::{ModelSpec, Weights};
use delta_net::{Inputs, State, sigmoid};
use std::{collections::HashMap, f64::consts::PI, ops::Range, sync::Arc};

/// The model, the sequences (by id), and the rows of the pass in flight.
pub struct ReferenceBackend {
    model: Model,
    cache_types: (DType, ValueType),
    gamma: Gamma,
    pub(super) sequences: Vec<Sequence>,
    pub(super) pass: Vec<PassRow>,
}

/// Keys (normed and rotated) or values by (layer, position), each `[G, head_dim]`, for layers that have their own.
type Cache = HashMap<(usize, usize), Vec<f32>>;

/// A sequence's KV cache, its delta nets' inputs and (by layer) states, and its trace by position.
#[derive(Clone, Default)]
pub(super) struct Sequence {
    pub(super) keys: Cache,
    pub(super) values: Cache,
    /// Whether it has the frequencies of long sequences.
    long: bool,
    inputs: Inputs,
    states: HashMap<usize, State>,
    options: Option<TraceOptions>,
    trace: HashMap<usize, TracedRow>,
}

/// **Memory.** A traced row keeps O(1) data: the K selected heads with their queries, and one hidden state.
#[derive(Clone)]
struct TracedRow {
    selected: HeadRecord,
    /// Normed and rotated: `[K][head_dim]`
    queries: Vec<Vec<f32>>,
    /// After the final norm: `[hidden_size]`
    hidden: Vec<f32>,
    /// Attention targets of every head, if recorded.
    attention: Vec<HeadAttention>,
    layers: Vec<Vec<f32>>,
}

/// One row on its way through the layers. Visible fields are compared with other backends.
#[derive(Default)]
pub(super) struct PassRow {
    pub(super) row: Row,
    wanted: bool,
    options: Option<TraceOptions>,
    /// Residual stream; at the end, the final hidden state: `[hidden_size]`
    pub(super) x: Vec<f32>,
    /// The layers' inputs, if they have any: `[L, hidden_size_per_layer_input]`
    inputs: Vec<f32>,
    /// Normed and rotated: `[H, head_dim]`
    pub(super) queries: Vec<f32>,
    /// Output of the heads: `[H, head_dim]`; in a delta net, of its memory.
    pub(super) attended: Vec<f32>,
    /// In layers with an output gate; as long as `attended`.
    pub(super) gate: Vec<f32>,
    /// For a traced row, per head so far: the entropy of its reweighted attention in nats, (l·H + h, its query).
    pub(super) heads: Vec<(f32, (u32, Vec<f32>))>,
    attention: Vec<HeadAttention>,
    /// If recorded, x before every layer and after the final norm: `[≤ L + 1][hidden_size]`
    layers: Vec<Vec<f32>>,
}

impl Operations for ReferenceBackend {
    fn spec(&self) -> &ModelSpec {
        &self.model.spec
    }

    /// x = E\[token\], times √hidden_size in Gemma.
    fn embed(&mut self) -> Result<()> {
        let (embedding, n) = (self.model.weights.embedding.elements(), self.model.spec.hidden_size);
        let scale = self.model.spec.embedding_scale.unwrap_or(1.0);
        for PassRow { row, x, inputs, .. } in &mut self.pass {
            *x = (row.token as usize * n..).take(n).map(|i| embedding.get(i) * scale).collect();
            *inputs = self.model.layer_inputs(row.token, x);
        }
        Ok(())
    }

    /// q, k, v = W norm(x) + b; q and k are rotated; k and v are cached. A layer that attends to another's keys and
    /// values has only q, and v may be k before its norm. All inputs of a delta net are kept.
    fn project_qkv(&mut self, layer: usize) -> Result<()> {
        let (model, w) = (&self.model, &self.model.weights.layers[layer]);
        for PassRow { row, x, queries, gate, options, layers, .. } in &mut self.pass {
            layers.extend(options.filter(|options| options.parts.layer_means).map(|_| x.clone()));
            let h = model.norm_or_copy(x, w.input_norm.as_deref());
            *gate = w.output_gate.iter().flat_map(|w_g| model.linear(w_g, w.output_gate_bias.as_deref(), &h)).collect();
            let Sequence { keys, values, inputs, long, .. } = &mut self.sequences[row.sequence.0];
            let rotate = |x, norm: Option<&[f32]>| model.rotate(layer, (row.position, *long), x, norm);
            if let Some(input) = model.delta_input(layer, &h) {
                inputs.insert((layer, row.position), input);
                continue;
            }
            let q = model.linear(&w.q, w.q_bias.as_deref(), &h);
            *queries = rotate(q, w.q_norm.as_deref());
            let Some(k) = &w.k else { continue };
            let k = model.linear(k, w.k_bias.as_deref(), &h);
            let mut v = w.v.as_ref().map_or_else(|| k.clone(), |v| model.linear(v, w.v_bias.as_deref(), &h));
            model.norm_heads(&mut v, w.v_norm.as_deref());
            let k = rotate(k, w.k_norm.as_deref());
            v.chunks_mut(model.spec.layers[layer].head_dim).for_each(|head| self.cache_types.1.round(head));
            keys.insert((layer, row.position), k.iter().map(|x| self.cache_types.0.round(*x)).collect());
            values.insert((layer, row.position), v);
        }
        Ok(())
    }

    /// Every head takes the softmax-weighted mean of the values; for a traced row, its reweighted entropy is recorded.
    fn attend(&mut self, layer: usize) -> Result<()> {
        let model = &self.model;
        for PassRow { row, queries, attended, options, heads, attention, .. } in &mut self.pass {
            let Sequence { keys, values, inputs, states, .. } = &mut self.sequences[row.sequence.0];
            if model.spec.layers[layer].delta_net {
                *attended = model.recall(layer, inputs, row.position, states.entry(layer).or_default());
                continue;
            }
            attended.clear();
            for (h, query) in queries.chunks_exact(model.spec.layers[layer].head_dim).enumerate() {
                let scores = model.scores(layer, h, query, keys, row.position);
                attended.extend(model.weighted_mean(layer, h, &scores, values));
                if let Some(options) = options {
                    let id = (model.spec.index_in_kind(layer) * model.spec.num_attention_heads + h) as u32;
                    let entropy = reweighted(&scores, options.parts.entropy, &self.gamma).1;
                    heads.push((entropy, (id, query.to_vec())));
                    if options.parts.head_attention {
                        attention.push(places(&scores, entropy, options.first_row));
                    }
                }
            }
        }
        Ok(())
    }

    /// x ← x + W_o · attention, gated if there is a gate.
    fn project_output(&mut self, layer: usize) -> Result<()> {
        let (model, w) = (&self.model, &self.model.weights.layers[layer]);
        for PassRow { x, attended, gate, .. } in &mut self.pass {
            if w.output_gate.is_some() {
                *attended = model.gated(layer, attended, gate);
            }
            let h = model.linear(&w.o, w.o_bias.as_deref(), attended);
            model.add_residual(x, h, w.post_attention_norm.as_deref());
        }
        Ok(())
    }

    /// x ← x + Σ_e g_e expert_e(norm(x)); a dense layer is one expert with g = 1; a shared expert's g is its gate's sigmoid.
    /// In Gemma 4 a dense network may run next to the experts, followed by the layer's input e,
    /// x ← x + norm(W_p (act(W_g x) ⊙ e)), and a factor on x.
    fn feed_forward(&mut self, layer: usize) -> Result<()> {
        let (model, w) = (&self.model, &self.model.weights.layers[layer]);
        let act = |x: f32| activate(model.spec.activation, x.into()) as f32;
        for PassRow { x, inputs, .. } in &mut self.pass {
            let h = model.norm_or_copy(x, w.feed_forward_norm.as_deref());
            let sum = match &w.dense_beside {
                None => model.mixture(w, &h, model.chosen(w.router.as_ref(), &h)),
                Some(beside) => {
                    let norm = |x: &[f32], weight: &[f32]| model.norm_or_copy(x, Some(weight));
                    let mut chosen = model.chosen(w.router.as_ref(), &norm(x, &beside.router_norm));
                    chosen.iter_mut().for_each(|(expert, share)| *share *= beside.expert_scales[*expert]);
                    let mixed = model.mixture(w, &norm(x, &beside.expert_norm), chosen);
                    let dense = norm(&model.expert(&beside.network, w, &h), &beside.post_norm);
                    dense.iter().zip(norm(&mixed, &beside.post_expert_norm)).map(|(a, b)| a + b).collect()
                }
            };
            model.add_residual(x, sum, w.post_feed_forward_norm.as_deref());
            if let Some(LayerInput { gate, projection, norm }) = &w.input {
                let input = &inputs[layer * gate.rows..];
                let inner: Vec<f32> = model.linear(gate, None, x).iter().zip(input).map(|(g, e)| act(*g) * e).collect();
                model.add_residual(x, model.linear(projection, None, &inner), Some(norm));
            }
            x.iter_mut().for_each(|x| *x *= w.scalar);
        }
        Ok(())
    }

    /// x ← norm(x), the hidden state. **Head selection**: per row, the K of all L·H heads with the lowest H (ties: lower
    /// l·H + h).
    fn final_norm(&mut self) -> Result<()> {
        for PassRow { row, x, options, heads, attention, layers, .. } in &mut self.pass {
            *x = self.model.norm_or_copy(x, Some(&self.model.weights.final_norm));
            let Some(options) = options else { continue };
            heads.sort_by(|a, b| a.0.total_cmp(&b.0)); // stable: ties keep the lower id first
            let others = heads.split_off(options.parts.heads.min(heads.len()));
            let rejected = others.first().map_or(f32::INFINITY, |head| head.0);
            let gap = rejected - heads.last().map_or(f32::NEG_INFINITY, |head| head.0);
            let (entropies, (heads, queries)) = heads.drain(..).unzip();
            let (selected, hidden) = (HeadRecord { heads, entropies, gap }, x.clone());
            layers.extend(options.parts.layer_means.then(|| x.clone()));
            let (attention, layers) = (std::mem::take(attention), std::mem::take(layers));
            let traced = TracedRow { selected, queries, hidden, attention, layers };
            self.sequences[row.sequence.0].trace.insert(row.position, traced);
        }
        Ok(())
    }
}

/// The formulas. What distinguishes the families is data in `spec`.
struct Model {
    spec: ModelSpec,
    weights: Arc<Weights>,
    /// By rope table, of short and long sequences.
    rotations: [Vec<Rotation>; 2],
}

impl Model {
    /// W x + b: `w` is [out, in] in its stored dtype, `x` [in], `bias` and the result [out].
    fn linear(&self, w: &Weight, bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
        let elements = w.elements();
        let product = |(i, x): (usize, &f32)| f64::from(elements.get(i)) * f64::from(*x);
        let row = |out: usize| (out * w.in_features..).zip(x).map(product).sum::<f64>() as f32;
        (0..w.rows).map(|out| row(out) + bias.map_or(0.0, |b| b[out])).collect()
    }

    /// A token's input to every layer, (√d E\[token\] + norm(W x / √hidden_size)) / √2, of
    /// d = `hidden_size_per_layer_input` values each; x is the token's embedding.
    fn layer_inputs(&self, token: u32, x: &[f32]) -> Vec<f32> {
        let (Some(w), Some(spec)) = (&self.weights.layer_inputs, self.spec.layer_input) else { return Vec::new() };
        let (d, width, elements) = (spec.hidden_size, w.embedding.in_features, w.embedding.elements());
        let mut projected = self.linear(&w.projection, None, x);
        projected.iter_mut().for_each(|p| *p /= (x.len() as f32).sqrt());
        let projected = projected.chunks_exact(d).flat_map(|part| self.norm_or_copy(part, Some(&w.norm)));
        let embedded = (token as usize * width..).map(|i| elements.get(i) * (d as f32).sqrt());
        projected.zip(embedded).map(|(p, e)| (p + e) * 0.5_f32.sqrt()).collect()
    }

    /// W_down (act(W_gate h) ⊙ W_up h)
    fn expert(&self, Expert { gate, up, down }: &Expert, w: &LayerWeights, h: &[f32]) -> Vec<f32> {
        let gate = self.linear(gate, w.gate_bias.as_deref(), h);
        let up = self.linear(up, w.up_bias.as_deref(), h);
        let act = |x: f32| activate(self.spec.activation, x.into()) as f32;
        let inner: Vec<f32> = gate.iter().zip(up).map(|(g, u)| act(*g) * u).collect();
        self.linear(down, w.down_bias.as_deref(), &inner)
    }

    /// Σ_e g_e expert_e(h) over the chosen experts and a shared one.
    fn mixture(&self, w: &LayerWeights, h: &[f32], chosen: Vec<(usize, f32)>) -> Vec<f32> {
        let shared = w.shared_expert.as_ref();
        let shared = shared.map(|(expert, gate)| (expert, sigmoid(self.linear(gate, None, h)[0].into()) as f32));
        let mut sum = vec![0.0; h.len()];
        for (expert, share) in chosen.into_iter().map(|(expert, share)| (&w.experts[expert], share)).chain(shared) {
            sum.iter_mut().zip(self.expert(expert, w, h)).for_each(|(sum, x)| *sum += share * x);
        }
        sum
    }

    /// A row's experts with their shares g: those with the router's highest probabilities.
    fn chosen(&self, router: Option<&Weight>, h: &[f32]) -> Vec<(usize, f32)> {
        let of_logits = |(router, spec)| choose_experts(&self.linear(router, None, h), spec);
        router.zip(self.spec.experts.as_ref()).map_or_else(|| vec![(0, 1.0)], of_logits)
    }

    /// RMSNorm, x / √(mean(x²) + ε) · (offset + weight), all [n]. The offset is 1 where weight - 1 is stored (Gemma).
    fn norm(&self, x: &[f32], weight: &[f32], offset: f32) -> Vec<f32> {
        let scale = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(self.spec.rms_norm_eps)).sqrt();
        x.iter().zip(weight).map(|(x, w)| (f64::from(*x) * scale) as f32 * (offset + w)).collect()
    }

    /// A block's input: x, normed except in families that norm only a block's output.
    fn norm_or_copy(&self, x: &[f32], weight: Option<&[f32]>) -> Vec<f32> {
        weight.map_or_else(|| x.to_vec(), |weight| self.norm(x, weight, self.spec.family.norm_weight_offset))
    }

    /// x ← x + m h, both [hidden_size]; m is 1 except in Granite. Some families norm h before adding it.
    fn add_residual(&self, x: &mut [f32], h: Vec<f32>, post_norm: Option<&[f32]>) {
        let h = self.norm_or_copy(&h, post_norm);
        x.iter_mut().zip(h).for_each(|(x, h)| *x += self.spec.residual_multiplier * h);
    }

    /// Norms x [heads, head_dim] in parts as long as `norm`, a head or all heads together; no-op without one.
    fn norm_heads(&self, x: &mut [f32], norm: Option<&[f32]>) {
        let Some(norm) = norm else { return };
        x.chunks_exact_mut(norm.len()).for_each(|part| part.copy_from_slice(&self.norm_or_copy(part, Some(norm))));
    }

    /// Rotary position embedding of queries or keys [heads, head_dim]: in every head, components i and i + head_dim / 2
    /// rotate by the angle position · frequency_i. With a `norm`, each head is normed first (Qwen3, Gemma 3), or all
    /// together (OLMo 2).
    fn rotate(&self, layer: usize, at: (usize, bool), mut x: Vec<f32>, norm: Option<&[f32]>) -> Vec<f32> {
        let (position, long) = at;
        let LayerSpec { head_dim, rope, .. } = self.spec.layers[layer];
        self.norm_heads(&mut x, norm);
        for head in x.chunks_exact_mut(head_dim) {
            let (a, b) = head.split_at_mut(head_dim / 2);
            let turns = self.rotations[usize::from(long)][rope].at(position);
            for ((a, b), (cos, sin)) in a.iter_mut().zip(b).zip(turns) {
                let (x, y) = (f64::from(*a), f64::from(*b));
                (*a, *b) = ((x * cos - y * sin) as f32, (y * cos + x * sin) as f32);
            }
        }
        x
    }

    /// The cached key or value [head_dim] at position t for query head h: H / G query heads share one.
    fn cached<'a>(&self, cache: &'a Cache, layer: usize, t: usize, h: usize) -> &'a [f32] {
        let LayerSpec { head_dim, num_key_value_heads, kv_layer, .. } = self.spec.layers[layer];
        let start = h / (self.spec.num_attention_heads / num_key_value_heads) * head_dim;
        &cache[&(kv_layer, t)][start..start + head_dim]
    }

    /// The scores s_t = scale_T · q · k_t of head h in row T for t = 0..=T, -∞ outside the sliding window: `query` is
    /// [head_dim], the result [T + 1]. "Softcapping (Gemma-2) applies to s before all this."
    fn scores(&self, layer: usize, h: usize, query: &[f32], keys: &Cache, row: usize) -> Vec<f64> {
        let first = self.spec.layers[layer].window.map_or(0, |window| (row + 1).saturating_sub(window));
        let product = |t: usize| dot(query, self.cached(keys, layer, t, h)) * f64::from(self.spec.query_scale(row));
        let seen = (first..=row).map(|t| softcap(product(t), self.spec.attn_logit_softcapping));
        std::iter::repeat_n(f64::NEG_INFINITY, first).chain(seen).collect()
    }

    /// Σ α_t v_t of head h, where α is the softmax of `scores` [T + 1]; the result is [head_dim].
    fn weighted_mean(&self, layer: usize, h: usize, scores: &[f64], values: &Cache) -> Vec<f32> {
        let value = |(t, alpha): (usize, f64)| (alpha, self.cached(values, layer, t, h));
        let terms: Vec<(f64, &[f32])> = softmax(scores).into_iter().enumerate().map(value).collect();
        (0..self.spec.layers[layer].head_dim)
            .map(|i| terms.iter().map(|(a, v)| a * f64::from(v[i])).sum::<f64>() as f32)
            .collect()
    }

    /// W_head · x, divided in Granite, softcapped in Gemma 2: `x` is [hidden_size], the result [vocab_size].
    fn logits(&self, x: &[f32]) -> Vec<f32> {
        let logits = self.linear(&self.weights.head, None, x).into_iter().map(|x| x / self.spec.logits_scaling);
        logits.map(|x| softcap(x.into(), self.spec.final_logit_softcapping) as f32).collect()
    }

    fn check_finite(&self, x: &[f32], position: usize) -> Result<()> {
        let finite = x.iter().all(|x| x.is_finite());
        if finite { Ok(()) } else { Err(BackendError::not_finite(&self.weights, position)) }
    }
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// ln Σ e^x, relative to the maximum so that nothing overflows; -∞ if every x is.
pub(crate) fn log_sum_exp(x: &[f64]) -> f64 {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let relative = |x: &f64| if max.is_finite() { (x - max).exp() } else { 0.0 };
    max + x.iter().map(relative).sum::<f64>().ln()
}

/// e^{x_t} / Σ e^x.
pub(crate) fn softmax(x: &[f64]) -> Vec<f64> {
    let z = log_sum_exp(x);
    x.iter().map(|x| (x - z).exp()).collect()
}

/// The `num_experts_per_tok` experts of the highest probabilities (softmax of `logits` [num_experts]; ties: lower ids),
/// with these as their shares (normalized to 1 with `norm_topk_prob`), ascending by id.
pub(crate) fn choose_experts(logits: &[f32], spec: &ExpertSpec) -> Vec<(usize, f32)> {
    let probabilities = softmax(&logits.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    let mut chosen: Vec<(usize, f64)> = probabilities.into_iter().enumerate().collect();
    chosen.sort_by(|a, b| b.1.total_cmp(&a.1)); // stable
    chosen.truncate(spec.num_experts_per_tok);
    chosen.sort_by_key(|(expert, _)| *expert);
    let sum: f64 = if spec.norm_topk_prob { chosen.iter().map(|(_, p)| p).sum() } else { 1.0 };
    chosen.into_iter().map(|(expert, p)| (expert, (p / sum) as f32)).collect()
}

/// **Reweighted attention.** α'_t = w_t α_t / Σ w α, the softmax of s_t + ln w_t, and its entropy H = -Σ α' ln α' in
/// nats; `scores` and α' are [T + 1]. A row without attention (T < 2) "must not win the head selection with entropy 0";
/// under the authors' rule, [`EntropyRule::Regularized`], it does, and α' adds up to f = σ / (σ + 1e-12), σ = Σ w α.
pub(crate) fn reweighted(scores: &[f64], rule: EntropyRule, gamma: &Gamma) -> (Vec<f32>, f32) {
    let ln_weight = |t: usize| f64::from(gamma.weight(scores.len() - 1, t)).ln();
    let s: Vec<f64> = scores.iter().enumerate().map(|(t, s)| s + ln_weight(t)).collect();
    let z = log_sum_exp(&s);
    if z == f64::NEG_INFINITY {
        return (vec![0.0; scores.len()], if rule == EntropyRule::Exact { f32::INFINITY } else { 0.0 });
    }
    let sigma = (z - log_sum_exp(scores)).exp();
    let f = if rule == EntropyRule::Exact { 1.0 } else { sigma / (sigma + 1e-12) };
    let alpha: Vec<f64> = s.iter().map(|s| f * (s - z).exp()).collect();
    let entropy: f64 = alpha.iter().filter(|a| **a > 0.0).map(|a| -a * a.ln()).sum();
    (alpha.iter().map(|a| *a as f32).collect(), entropy as f32)
}

/// A head's attention targets: α_t = e^{s_t} / Σ e^s at certain positions, from `scores` [T + 1]; the prompt ends at
/// `last_of_prompt`.
pub(crate) fn places(scores: &[f64], entropy: f32, last_of_prompt: usize) -> HeadAttention {
    let alpha = softmax(scores);
    let before = |distance: usize| alpha.iter().rev().nth(distance).map_or(0.0, |a| *a as f32);
    let prompt = alpha.iter().take(last_of_prompt + 1).sum::<f64>() as f32;
    HeadAttention { entropy, own: before(0), previous: before(1), first: alpha[0] as f32, prompt }
}

pub(crate) fn softcap(x: f64, cap: Option<f32>) -> f64 {
    cap.map(f64::from).map_or(x, |cap| cap * (x / cap).tanh())
}

/// silu(x) = x / (1 + e^-x), or gelu(x) in its tanh form.
pub(crate) fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => x / 2.0 * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
    }
}

impl Backend for ReferenceBackend {
    fn device(&self) -> String {
        "reference (scalar, one thread: slow; for reading and checking)".to_owned()
    }

    fn cache_types(&self) -> (DType, ValueType) {
        self.cache_types
    }

    fn max_rows(&self) -> usize {
        64 // rows are computed one at a time: this only bounds memory
    }

    fn open_for(&mut self, tokens: usize, options: Option<TraceOptions>) -> Result<SequenceId> {
        let long = self.spec().is_long(tokens);
        self.sequences.push(Sequence { options, long, ..Sequence::default() });
        Ok(SequenceId(self.sequences.len() - 1))
    }

    fn fork(&mut self, id: SequenceId, _: usize, options: Option<TraceOptions>) -> Result<SequenceId> {
        self.sequences.push(Sequence { options, trace: HashMap::new(), ..self.sequences[id.0].clone() });
        Ok(SequenceId(self.sequences.len() - 1))
    }

    fn truncate(&mut self, id: SequenceId, positions: usize) {
        let Sequence { keys, values, trace, .. } = &mut self.sequences[id.0];
        trace.retain(|position, _| *position < positions);
        [keys, values].into_iter().for_each(|cache| cache.retain(|(_, position), _| *position < positions));
    }

    fn close(&mut self, id: SequenceId) {
        self.sequences[id.0] = Sequence::default();
    }

    fn begin(&mut self, pass: &Pass) -> Result<()> {
        self.check_tokens(pass.rows)?;
        let enter = |(i, row): (usize, &Row)| {
            let options = self.sequences[row.sequence.0].options.filter(|o| pass.record && row.position >= o.first_row);
            PassRow { row: *row, wanted: (pass.wanted)(i), options, ..PassRow::default() }
        };
        self.pass = pass.rows.iter().enumerate().map(enter).collect();
        Ok(())
    }

    fn next_logits(&mut self, row: usize) -> Result<Vec<f32>> {
        self.wanted(row).map(|row| self.model.logits(&row.x))
    }

    /// ln p of the next token, the entropy -Σ p ln p, and the most probable tokens, all over the full vocabulary.
    fn predict_each(&mut self, requests: &[Prediction]) -> Result<Vec<Predicted>> {
        let predict = |request: &Prediction| -> Predicted {
            let PassRow { row, x, .. } = self.wanted(request.row)?;
            self.model.check_finite(x, row.position)?;
            let logits = self.model.logits(x);
            self.model.check_finite(&logits, row.position)?;
            let token = match request.next {
                Next::Given(token) => token,
                Next::Choose(choice) => Some(choice.token(&logits)),
            };
            let logits: Vec<f64> = logits.into_iter().map(f64::from).collect();
            let z = log_sum_exp(&logits);
            let mut step = Step { logprob: token.map(|token| logits[token as usize] - z), ..Step::default() };
            if request.detail {
                step.entropy = logits.iter().map(|x| -(x - z).exp() * (x - z)).sum();
                step.top = (0..).zip(&logits).map(|(token, x)| TokenLogprob { token, logprob: x - z }).collect();
                step.top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
                let wide = self.sequences[row.sequence.0].options.is_some_and(|options| options.parts.wide);
                step.distribution = wide.then(|| Distribution::by_definition(&logits, &step.top));
                let likely = step.top.iter().take_while(|t| t.logprob > 0.01_f64.ln()).count();
                step.top.truncate(likely.max(MIN_TOP));
            }
            Ok((step, token))
        };
        Ok(requests.iter().map(predict).collect())
    }

    fn check(&self) -> Result<()> {
        self.pass.iter().try_for_each(|PassRow { row, x, .. }| self.model.check_finite(x, row.position))
    }

    #[cfg(test)]
    fn hidden(&self, row: usize) -> Result<Vec<f32>> {
        Ok(self.wanted(row)?.x.clone())
    }

    fn head_record(&self, id: SequenceId, row: usize) -> Result<Option<HeadRecord>> {
        Ok(self.sequences[id.0].trace.get(&row).map(|row| row.selected.clone()))
    }

    fn head_attention(&self, id: SequenceId, row: usize) -> Result<Option<Vec<HeadAttention>>> {
        let attention = self.sequences[id.0].trace.get(&row).map(|row| row.attention.clone());
        Ok(attention.filter(|heads| !heads.is_empty()))
    }

    fn layer_means(&self, id: SequenceId) -> Result<Option<Vec<Vec<f64>>>> {
        let Sequence { trace, options, .. } = &self.sequences[id.0];
        let last = trace.keys().max().copied().filter(|_| options.is_some_and(|options| options.parts.layer_means));
        let rows: Vec<&TracedRow> =
            trace.iter().filter(|(row, _)| Some(**row) < last).map(|(_, traced)| traced).collect();
        let mean = |layer: usize, i: usize| {
            rows.iter().map(|r| f64::from(r.layers[layer][i])).sum::<f64>() / rows.len() as f64
        };
        let means = |layer: usize| (0..self.model.spec.hidden_size).map(|i| mean(layer, i)).collect();
        Ok((!rows.is_empty()).then(|| (0..=self.model.spec.layers.len()).map(means).collect()))
    }

    /// **Memory.** α' is exact, computed from the KV cache: K·T dot products.
    fn head_rows(&mut self, id: SequenceId, row: usize) -> Result<Vec<Vec<f32>>> {
        let (Sequence { keys, trace, options, .. }, heads) = (&self.sequences[id.0], self.spec().num_attention_heads);
        let (Some(traced), Some(options)) = (trace.get(&row), options) else { return Ok(Vec::new()) };
        let alpha = |(id, query): (&u32, &Vec<f32>)| {
            let (index, h) = (*id as usize / heads, *id as usize % heads);
            let layer = self.spec().attention_layers().nth(index).unwrap_or_default();
            reweighted(&self.model.scores(layer, h, query, keys, row), options.parts.entropy, &self.gamma).0
        };
        Ok(traced.selected.heads.iter().zip(&traced.queries).map(alpha).collect())
    }

    /// **Aggregate.** α*_t = max over the selected heads of α'_t.
    fn attention_rows(&mut self, id: SequenceId, rows: &[usize]) -> Result<Vec<Vec<f32>>> {
        let max = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(b).map(|(a, b)| a.max(b)).collect();
        rows.iter().map(|row| Ok(self.head_rows(id, *row)?.into_iter().fold(vec![0.0; row + 1], max))).collect()
    }

    /// Σ over the layer's heads of α, the softmax of their scores.
    fn layer_attention(&mut self, layer: usize) -> Result<Vec<f32>> {
        let PassRow { row, queries, .. } = self.wanted(0)?;
        let keys = &self.sequences[row.sequence.0].keys;
        let mut sum = vec![0.0; row.position + 1];
        for (h, query) in queries.chunks_exact(self.model.spec.layers[layer].head_dim).enumerate() {
            let scores = self.model.scores(layer, h, query, keys, row.position);
            sum.iter_mut().zip(softmax(&scores)).for_each(|(sum, alpha)| *sum += alpha);
        }
        Ok(sum.into_iter().map(|sum| sum as f32).collect())
    }

    fn hidden_states(&self, id: SequenceId, positions: Range<usize>) -> Result<Vec<f32>> {
        let (trace, untraced) = (&self.sequences[id.0].trace, vec![0.0; self.spec().hidden_size]);
        let state = |position| trace.get(&position).map_or(&untraced, |row| &row.hidden);
        Ok(positions.flat_map(state).copied().collect())
    }

    fn state_memory(&self, positions: usize) -> usize {
        let layers = self.spec().layers.len() - self.spec().attention_layers().count();
        self.spec().delta_net.map_or(0, |net| 4 * positions * layers * net.widths().iter().sum::<usize>())
    }

    fn memory(&self, id: SequenceId) -> (usize, usize) {
        let Sequence { keys, values, inputs, trace, .. } = &self.sequences[id.0];
        let numbers = |row: &TracedRow| row.hidden.len() + row.queries.iter().map(|q| 2 + q.len()).sum::<usize>();
        let cached = keys.values().chain(values.values()).chain(inputs.values().flat_map(|x| &x.qkv)).map(Vec::len);
        (4 * cached.sum::<usize>(), 4 * trace.values().map(numbers).sum::<usize>())
    }
}

impl ReferenceBackend {
    /// Keys and values are rounded to their `cache_types` when cached.
    pub fn new(spec: ModelSpec, weights: Arc<Weights>, cache_types: (DType, ValueType), gamma: Gamma) -> Self {
        let rotations = [false, true].map(|long| spec.rotations(long));
        let model = Model { spec, weights, rotations };
        ReferenceBackend { model, cache_types, gamma, sequences: Vec::new(), pass: Vec::new() }
    }

    fn wanted(&self, row: usize) -> Result<&PassRow> {
        self.pass.get(row).filter(|row| row.wanted).ok_or(BackendError::RowNotWanted { row })
    }
}
