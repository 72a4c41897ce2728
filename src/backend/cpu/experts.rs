//! The feed-forward network of a layer with experts: rows are grouped by expert, so that each chosen expert's weights are read
//! once per pass. A row's sum is in the order of its experts' ids, whatever the other rows choose.

use super::CpuBackend;
use super::input_rounding::round_inputs;
use super::layer::activate;
use super::matmul::{Job, matmul, matmul_many};
use crate::backend::reference::choose_experts;
use crate::model::config::ExpertSpec;
use crate::model::weights::{Expert, LayerWeights, Weight};

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

impl CpuBackend {
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
                shared.add(row, (1.0 / (1.0 + f64::from(-gate).exp())) as f32, h);
            }
            groups.push(shared);
        }
        groups.retain(|group| !group.rows.is_empty());
        let terms = self.terms();
        for group in &mut groups {
            round_inputs(&mut group.x, hidden, group.expert.gate.elements(), terms);
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
            round_inputs(&mut gate, inner, expert.down.elements(), terms);
            matmul(&self.pool, isa, &self.packed.matrix(&expert.down), &gate, rows.len(), &mut out, None);
            for ((row, share), out) in rows.into_iter().zip(out.chunks_exact(hidden)) {
                sum[row * hidden..(row + 1) * hidden].iter_mut().zip(out).for_each(|(sum, x)| *sum += share * x);
            }
        }
        self.pass.h = sum;
    }
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
