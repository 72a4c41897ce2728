//! The operations of a pass, a layer at a time, over all rows of the pass.

use super::attention::{self, AttentionRow};
use super::input_rounding::{InputRounding, round_inputs, round_operands, round_row};
use super::{CpuBackend, norm, simd::Isa};
use super::{matmul::Job, matmul::matmul, matmul::matmul_many, threads::Disjoint, threads::ThreadPool};
use crate::backend::{DType, Operations, Result};
use crate::model::config::{Activation, ExpertSpec, LayerSpec};
use crate::model::weights::{Expert, LayerInput, LayerWeights, Weight};
use crate::{backend::reference::choose_experts, model::ModelSpec};
use std::f32::consts::FRAC_1_SQRT_2;

impl CpuBackend {
    /// h ← (norm of) x, every row.
    pub(super) fn norm_input(&mut self, weight: Option<&[f32]>) {
        let (spec, isa) = (&self.spec, self.options.isa);
        let Some(weight) = weight else { return self.pass.h.copy_from_slice(&self.pass.x) };
        let (x, width) = (&self.pass.x, spec.hidden_size);
        each_row(&self.pool, &mut self.pass.h, width, &|row, h| {
            h.copy_from_slice(&x[row * width..(row + 1) * width]);
            norm::rms_norm(isa, h, weight, spec.family.norm_weight_offset, spec.rms_norm_eps);
        });
    }

    /// x ← x + m (norm of) h, every row.
    pub(super) fn add_residual(&mut self, post_norm: Option<&[f32]>) {
        let (multiplier, width) = (self.spec.residual_multiplier, self.spec.hidden_size);
        let mut h = std::mem::take(&mut self.pass.h);
        self.norm_heads(&mut h, width, post_norm);
        each_row(&self.pool, &mut self.pass.x, width, &|row, x| {
            let h = &h[row * width..(row + 1) * width];
            x.iter_mut().zip(h).for_each(|(x, h)| *x += multiplier * h);
        });
        self.pass.h = h;
    }

    /// Norm of each head or of all together, depending on the length of `weight`; `x` is `[rows, width]`.
    pub(super) fn norm_heads(&self, x: &mut [f32], width: usize, weight: Option<&[f32]>) {
        let Some(weight) = weight else { return };
        each_row(&self.pool, x, width, &|_, x| {
            for part in x.chunks_exact_mut(weight.len()) {
                let (offset, eps) = (self.spec.family.norm_weight_offset, self.spec.rms_norm_eps);
                norm::rms_norm(self.options.isa, part, weight, offset, eps);
            }
        });
    }

    /// Norm (of each head, or of all together), rotation, and for queries the attention scale: `x` is `[rows, heads, head_dim]`.
    fn rotate_heads(&self, x: &mut [f32], heads: usize, norm_weight: Option<&[f32]>, layer: usize, queries: bool) {
        let spec = &self.spec;
        let LayerSpec { head_dim, rope: table, .. } = spec.layers[layer];
        let half = head_dim / 2;
        let (cos, sin) = (&self.pass.cos[table], &self.pass.sin[table]);
        self.norm_heads(x, heads * head_dim, norm_weight);
        each_row(&self.pool, x, heads * head_dim, &|row, x| {
            let scale = if queries { spec.query_scale(self.pass.rows[row].position) } else { 1.0 };
            for head in x.chunks_exact_mut(head_dim) {
                let angles = row * half..(row + 1) * half;
                norm::rotate(head, &cos[angles.clone()], &sin[angles]);
                if scale != 1.0 {
                    head.iter_mut().for_each(|x| *x *= scale);
                }
            }
        });
    }

    /// h ← W_down (act(W_gate h) ⊙ W_up h), every row.
    pub(super) fn dense_feed_forward(&mut self, l: &LayerWeights, Expert { gate, up, down }: &Expert) {
        let (isa, n, width) = (self.options.isa, self.pass.rows.len(), self.spec.hidden_size);
        let (pass, inner) = (&mut self.pass, gate.rows);
        round_inputs(&mut pass.h, width, gate.elements(), pass.rounds);
        let mut jobs = [
            Job { w: self.packed.matrix(gate), bias: l.gate_bias.as_deref(), y: &mut pass.gate },
            Job { w: self.packed.matrix(up), bias: l.up_bias.as_deref(), y: &mut pass.up },
        ];
        matmul_many(&self.pool, isa, &mut jobs, &pass.h, n);
        activate(&self.pool, isa, self.spec.activation, &mut pass.gate, &pass.up, inner);
        round_inputs(&mut pass.gate, inner, down.elements(), pass.rounds);
        let down = self.packed.matrix(down);
        matmul(&self.pool, isa, &down, &pass.gate, n, &mut pass.h, l.down_bias.as_deref());
    }

    /// Offers every head of a layer to the traced rows' selections.
    fn select_heads(&mut self, layer: usize) {
        let (heads, head_dim) = (self.spec.num_attention_heads, self.spec.layers[layer].head_dim);
        let first = self.spec.index_in_kind(layer) * heads;
        for (row, selection) in self.pass.selections.iter_mut().enumerate() {
            let Some(selection) = selection else { continue };
            for head in 0..heads {
                let index = row * heads + head;
                let query = &self.pass.q[index * head_dim..(index + 1) * head_dim];
                selection.offer((first + head) as u32, &self.pass.states[index], query);
            }
        }
    }

    /// h ← Σ_e g_e expert_e(h), every row; a shared expert comes last. With a dense network next to them,
    /// h ← norm(dense(h)) + norm(Σ_e g_e s_e expert_e(norm(x))).
    pub(super) fn mix_experts(&mut self, l: &LayerWeights, router: &Weight, spec: &ExpertSpec) {
        let Some(beside) = &l.dense_beside else { return self.mix(l, spec, self.router_logits(router), &[]) };
        let width = self.spec.hidden_size;
        self.dense_feed_forward(l, &beside.network);
        let mut dense = self.pass.h.clone();
        self.norm_heads(&mut dense, width, Some(&beside.post_norm));
        self.norm_input(Some(&beside.router_norm));
        let logits = self.router_logits(router);
        self.norm_input(Some(&beside.expert_norm));
        self.mix(l, spec, logits, &beside.expert_scales);
        let mut h = std::mem::take(&mut self.pass.h);
        self.norm_heads(&mut h, width, Some(&beside.post_expert_norm));
        h.iter_mut().zip(dense).for_each(|(h, dense)| *h += dense);
        self.pass.h = h;
    }

    /// The experts' logits of h, `[rows, num_experts]`.
    fn router_logits(&self, router: &Weight) -> Vec<f32> {
        let (pass, mut logits) = (&self.pass, Vec::new());
        let router = self.packed.matrix(router);
        matmul(&self.pool, self.options.isa, &router, &pass.h, pass.rows.len(), &mut logits, None);
        logits
    }

    /// h ← Σ_e g_e s_e expert_e(h); s_e = 1 without `scales`.
    fn mix(&mut self, l: &LayerWeights, spec: &ExpertSpec, mut logits: Vec<f32>, scales: &[f32]) {
        let (isa, n, hidden) = (self.options.isa, self.pass.rows.len(), self.spec.hidden_size);
        let h = std::mem::take(&mut self.pass.h);
        let mut groups: Vec<Group> = l.experts.iter().map(Group::new).collect();
        for (row, logits) in logits.chunks_exact(spec.num_experts).enumerate() {
            for (expert, share) in choose_experts(logits, spec) {
                let share = share * scales.get(expert).unwrap_or(&1.0);
                groups[expert].add(row, share, &h[row * hidden..(row + 1) * hidden]);
            }
        }
        if let Some((expert, gate)) = &l.shared_expert {
            let mut shared = Group::new(expert);
            matmul(&self.pool, isa, &self.packed.matrix(gate), &h, n, &mut logits, None);
            for (row, (gate, h)) in logits.iter().zip(h.chunks_exact(hidden)).enumerate() {
                shared.add(row, (1.0 / (1.0 + libm::exp((-gate).into()))) as f32, h);
            }
            groups.push(shared);
        }
        groups.retain(|group| !group.rows.is_empty());
        for group in &mut groups {
            round_inputs(&mut group.x, hidden, group.expert.gate.elements(), self.pass.rounds);
        }
        // the products of a single row share one input
        for groups in groups.chunks_mut(if n == 1 { usize::MAX } else { 1 }) {
            let (x, rows) = (std::mem::take(&mut groups[0].x), groups[0].rows.len());
            let mut jobs: Vec<Job> = Vec::with_capacity(2 * groups.len());
            for Group { expert, gate, up, .. } in groups {
                jobs.push(Job { w: self.packed.matrix(&expert.gate), bias: None, y: gate });
                jobs.push(Job { w: self.packed.matrix(&expert.up), bias: None, y: up });
            }
            matmul_many(&self.pool, isa, &mut jobs, &x, rows);
        }
        let (mut sum, mut out) = (h, Vec::new());
        sum.fill(0.0);
        for Group { expert, rows, mut gate, up, .. } in groups {
            let inner = expert.gate.rows;
            activate(&self.pool, isa, self.spec.activation, &mut gate, &up, inner);
            round_inputs(&mut gate, inner, expert.down.elements(), self.pass.rounds);
            matmul(&self.pool, isa, &self.packed.matrix(&expert.down), &gate, rows.len(), &mut out, None);
            for ((row, share), out) in rows.into_iter().zip(out.chunks_exact(hidden)) {
                sum[row * hidden..(row + 1) * hidden].iter_mut().zip(out).for_each(|(sum, x)| *sum += share * x);
            }
        }
        self.pass.h = sum;
    }

    // Per-layer embeddings: every layer's input for a token, and how a layer adds its own to the residual stream.

    /// inputs ← (√d E\[token\] + norm(W x / √hidden_size)) / √2 for every layer and row, d values each; x is the token's embedding.
    pub(super) fn make_layer_inputs(&mut self) {
        let (Some(w), Some(input)) = (&self.weights.layer_inputs, self.spec.layer_input) else { return };
        let (spec, isa) = (&self.spec, self.options.isa);
        let (width, pass) = (w.embedding.in_features, &mut self.pass);
        pass.h.copy_from_slice(&pass.x);
        round_inputs(&mut pass.h, spec.hidden_size, w.projection.elements(), pass.rounds);
        let projection = self.packed.matrix(&w.projection);
        matmul(&self.pool, isa, &projection, &pass.h, pass.rows.len(), &mut pass.inputs, None);
        let (divisor, scale) = ((spec.hidden_size as f32).sqrt(), (input.hidden_size as f32).sqrt());
        let (rows, embedding) = (&pass.rows, w.embedding.elements());
        each_row(&self.pool, &mut pass.inputs, width, &|row, inputs| {
            let mut embedded = (rows[row].token as usize * width..).map(|i| embedding.get(i) * scale);
            for part in inputs.chunks_exact_mut(input.hidden_size) {
                part.iter_mut().for_each(|x| *x /= divisor);
                norm::rms_norm(isa, part, &w.norm, spec.family.norm_weight_offset, spec.rms_norm_eps);
                part.iter_mut().zip(&mut embedded).for_each(|(x, e)| *x = (*x + e) * FRAC_1_SQRT_2);
            }
        });
    }

    /// x ← s (x + norm(W_p (act(W_g x) ⊙ e))), every row, with the layer's input e and factor s.
    pub(super) fn add_layer_input(&mut self, l: &LayerWeights, layer: usize) {
        let (isa, n, hidden) = (self.options.isa, self.pass.rows.len(), self.spec.hidden_size);
        if let Some(LayerInput { gate, projection, norm }) = &l.input {
            let (pass, d) = (&mut self.pass, gate.rows);
            pass.h.copy_from_slice(&pass.x);
            round_inputs(&mut pass.h, hidden, gate.elements(), pass.rounds);
            matmul(&self.pool, isa, &self.packed.matrix(gate), &pass.h, n, &mut pass.gate, None);
            pass.up.clear();
            let inputs = pass.inputs.chunks_exact(self.spec.layers.len() * d);
            inputs.for_each(|row| pass.up.extend_from_slice(&row[layer * d..(layer + 1) * d]));
            activate(&self.pool, isa, self.spec.activation, &mut pass.gate, &pass.up, d);
            round_inputs(&mut pass.gate, d, projection.elements(), pass.rounds);
            matmul(&self.pool, isa, &self.packed.matrix(projection), &pass.gate, n, &mut pass.h, None);
            self.add_residual(Some(norm));
        }
        if l.scalar != 1.0 {
            self.pass.x.iter_mut().for_each(|x| *x *= l.scalar);
        }
    }
}

/// gate ← act(gate) ⊙ up, both `[rows, inner]`.
pub(super) fn activate(pool: &ThreadPool, isa: Isa, by: Activation, gate: &mut [f32], up: &[f32], inner: usize) {
    each_row(pool, gate, inner, &|row, gate| norm::activate(isa, by, gate, &up[row * inner..(row + 1) * inner]));
}

/// x ← x ⊙ sigmoid(gate), in a delta net norm(x) ⊙ silu(gate), head by head: both `[rows, o.in_features]`.
fn gate_heads(pool: &ThreadPool, isa: Isa, l: &LayerWeights, x: &mut [f32], gate: &[f32], eps: f32) {
    let width = l.o.in_features;
    each_row(pool, x, width, &|row, x| {
        if let Some(net) = &l.delta_net {
            for head in x.chunks_exact_mut(net.norm.len()) {
                norm::rms_norm(isa, head, &net.norm, 0.0, eps);
            }
        }
        norm::gate(isa, x, &gate[row * width..(row + 1) * width], l.delta_net.is_some());
    });
}

/// Runs `f(row, part)` for every row's part of `data` (`[rows, width]`); on all threads if there are many.
pub(super) fn each_row(pool: &ThreadPool, data: &mut [f32], width: usize, f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let rows = data.len() / width;
    if rows < 4 {
        return data.chunks_exact_mut(width).enumerate().for_each(|(row, part)| f(row, part));
    }
    let parts = Disjoint::new(data);
    // SAFETY: one task per row.
    pool.run(rows, &|row| f(row, unsafe { parts.slice(row * width..(row + 1) * width) }));
}

impl Operations for CpuBackend {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn embed(&mut self) -> Result<()> {
        let (spec, pass) = (&self.spec, &mut self.pass);
        let scale = spec.embedding_scale.unwrap_or(1.0);
        let elements = self.weights.embedding.elements();
        for (x, row) in pass.x.chunks_exact_mut(spec.hidden_size).zip(&pass.rows) {
            let start = row.token as usize * spec.hidden_size;
            x.iter_mut().enumerate().for_each(|(i, x)| *x = elements.get(start + i) * scale);
        }
        self.make_layer_inputs();
        Ok(())
    }

    fn project_qkv(&mut self, layer: usize) -> Result<()> {
        let weights = self.weights.clone();
        let l = &weights.layers[layer];
        self.pass.note_layer();
        self.norm_input(l.input_norm.as_deref());
        if let Some(net) = self.spec.delta_net.filter(|_| self.spec.layers[layer].delta_net) {
            self.project_delta_net(layer, &net);
            return Ok(());
        }
        let (isa, n, heads) = (self.options.isa, self.pass.rows.len(), self.spec.num_attention_heads);
        let LayerSpec { head_dim, num_key_value_heads: kv_heads, .. } = self.spec.layers[layer];
        let kv_width = kv_heads * head_dim;
        let pass = &mut self.pass;
        let [mut q, mut k, mut v, mut gate] =
            [&mut pass.q, &mut pass.k, &mut pass.v, &mut pass.output_gate].map(std::mem::take);
        round_inputs(&mut self.pass.h, self.spec.hidden_size, l.q.elements(), self.pass.rounds);
        let mut jobs = Vec::with_capacity(4);
        for (w, bias, y) in [
            (Some(&l.q), &l.q_bias, &mut q),
            (l.k.as_ref(), &l.k_bias, &mut k),
            (l.v.as_ref(), &l.v_bias, &mut v),
            (l.output_gate.as_ref(), &l.output_gate_bias, &mut gate),
        ] {
            jobs.extend(w.map(|w| Job { w: self.packed.matrix(w), bias: bias.as_deref(), y }));
        }
        matmul_many(&self.pool, isa, &mut jobs, &self.pass.h, n);
        let rounds = self.options.input_rounding != InputRounding::F32;
        self.rotate_heads(&mut q, heads, l.q_norm.as_deref(), layer, true);
        if self.shape(layer).one_term {
            q.chunks_exact_mut(head_dim).for_each(round_row);
        } else if rounds {
            round_operands(&mut q);
        }
        if l.k.is_some() {
            if l.v.is_none() {
                v.clone_from(&k);
            }
            self.norm_heads(&mut v, kv_width, l.v_norm.as_deref());
            self.rotate_heads(&mut k, kv_heads, l.k_norm.as_deref(), layer, false);
            if rounds && self.options.k_cache == DType::F32 {
                round_operands(&mut k);
            }
            for (i, row) in self.pass.rows.iter().enumerate() {
                let part = i * kv_width..(i + 1) * kv_width;
                self.sequences[row.sequence.0].cache.write(layer, row.position, &k[part.clone()], &v[part]);
            }
        }
        (self.pass.q, self.pass.k, self.pass.v, self.pass.output_gate) = (q, k, v, gate);
        Ok(())
    }

    fn attend(&mut self, layer: usize) -> Result<()> {
        let delta_net = self.spec.delta_net.filter(|_| self.spec.layers[layer].delta_net);
        if let Some(net) = &delta_net {
            self.attend_delta_net(layer, net);
        }
        if self.spec.last_memory() == Some(layer) {
            self.pass.keep_wanted(&self.spec);
            if layer + 1 < self.spec.layers.len() {
                self.rotary_tables();
            }
        }
        if delta_net.is_some() {
            return Ok(());
        }
        let shape = self.shape(layer);
        let rows: Vec<AttentionRow> = (self.pass.rows.iter().zip(&self.pass.selections))
            .map(|(row, selection)| {
                let cache = &self.sequences[row.sequence.0].cache;
                let options = selection.as_ref().map(|selection| selection.options);
                let prompt =
                    options.filter(|options| options.parts.head_attention).map(|options| options.first_row + 1);
                AttentionRow { cache, position: row.position, entropy: options.is_some(), prompt }
            })
            .collect();
        let pass = &mut self.pass;
        pass.attended.resize(pass.q.len(), 0.0);
        attention::attend(&self.pool, self.options.isa, &shape, &rows, &pass.q, &mut pass.attended, &mut pass.states);
        self.select_heads(layer);
        Ok(())
    }

    fn project_output(&mut self, layer: usize) -> Result<()> {
        let weights = self.weights.clone();
        let l = &weights.layers[layer];
        let (isa, n, pass) = (self.options.isa, self.pass.rows.len(), &mut self.pass);
        if l.output_gate.is_some() {
            gate_heads(&self.pool, isa, l, &mut pass.attended, &pass.output_gate, self.spec.rms_norm_eps);
        }
        round_inputs(&mut pass.attended, l.o.in_features, l.o.elements(), pass.rounds);
        matmul(&self.pool, isa, &self.packed.matrix(&l.o), &pass.attended, n, &mut pass.h, l.o_bias.as_deref());
        self.add_residual(l.post_attention_norm.as_deref());
        Ok(())
    }

    fn feed_forward(&mut self, layer: usize) -> Result<()> {
        let weights = self.weights.clone();
        let l = &weights.layers[layer];
        self.norm_input(l.feed_forward_norm.as_deref());
        match (&l.router, self.spec.experts) {
            (Some(router), Some(spec)) => self.mix_experts(l, router, &spec),
            _ => self.dense_feed_forward(l, &l.experts[0]),
        }
        self.add_residual(l.post_feed_forward_norm.as_deref());
        self.add_layer_input(l, layer);
        Ok(())
    }

    fn final_norm(&mut self) -> Result<()> {
        let (spec, pass) = (&self.spec, &mut self.pass);
        let (width, weight) = (spec.hidden_size, &self.weights.final_norm);
        let mut norm = |x: &mut [f32]| {
            norm::rms_norm(self.options.isa, x, weight, spec.family.norm_weight_offset, spec.rms_norm_eps).is_finite()
        };
        pass.finite = pass.x.chunks_exact_mut(width).map(&mut norm).collect();
        pass.note_layer();
        for (i, (row, selection)) in pass.rows.iter().zip(std::mem::take(&mut pass.selections)).enumerate() {
            if let (Some(trace), Some(selection)) = (&mut self.sequences[row.sequence.0].trace, selection) {
                trace.record(row.position, selection, &pass.x[i * width..(i + 1) * width]);
            }
        }
        Ok(())
    }
}

// The feed-forward network of a layer with experts: rows are grouped by expert, so that each chosen expert's weights are read
// once per pass. A row's sum is in the order of its experts' ids, whatever the other rows choose.

/// The rows of a pass that chose one expert.
struct Group<'a> {
    expert: &'a Expert,
    /// With the expert's share in each.
    rows: Vec<(usize, f32)>,
    /// Their inputs, `[rows, hidden_size]`
    x: Vec<f32>,
    /// `[rows, intermediate size of the expert]`
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl Group<'_> {
    fn new(expert: &Expert) -> Group<'_> {
        Group { expert, rows: Vec::new(), x: Vec::new(), gate: Vec::new(), up: Vec::new() }
    }

    fn add(&mut self, row: usize, share: f32, x: &[f32]) {
        self.rows.push((row, share));
        self.x.extend_from_slice(x);
    }
}
