//! The state of the running pass.

use super::attention::HeadState;
use super::trace::Selection;
use crate::backend::Row;
use crate::model::ModelSpec;

/// The state of the running pass; widths in [`ModelSpec`]'s terms.
#[derive(Default)]
pub struct Pass {
    pub rows: Vec<Row>,
    /// Rows that it began with, and which of them (ascending) are left in the last layer, where not all are.
    pub width: usize,
    pub left: Option<Vec<usize>>,
    /// Per row, where it is traced.
    pub selections: Vec<Option<Selection>>,
    /// Residual stream; after the pass the normed hidden state: `[rows, hidden_size]`
    pub x: Vec<f32>,
    /// Normed input of a block, then its output: `[rows, hidden_size]`
    pub h: Vec<f32>,
    /// `[rows, heads · head_dim]`: queries, and the attention's output
    pub q: Vec<f32>,
    pub attended: Vec<f32>,
    /// `[rows, kv_heads · head_dim]`
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// `[rows, intermediate_size]`
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    /// `[rows, heads]`
    pub states: Vec<HeadState>,
    /// `[rope table][rows, head_dim / 2]`
    pub cos: Vec<Vec<f32>>,
    pub sin: Vec<Vec<f32>>,
    pub logits: Vec<f32>,
}

impl Pass {
    /// Makes everything that has a row a row hold `n` of them.
    pub fn resize(&mut self, spec: &ModelSpec, n: usize) {
        let (q, kv) = (spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim);
        for (rows, width) in [
            (&mut self.x, spec.hidden_size),
            (&mut self.h, spec.hidden_size),
            (&mut self.q, q),
            (&mut self.attended, q),
            (&mut self.k, kv),
            (&mut self.v, kv),
            (&mut self.gate, spec.intermediate_size),
            (&mut self.up, spec.intermediate_size),
        ] {
            rows.resize(n * width, 0.0);
        }
        self.states.resize(n * spec.num_attention_heads, HeadState::EMPTY);
    }

    /// Where a row of the pass stands now.
    pub fn index(&self, row: usize) -> usize {
        match &self.left {
            None => row,
            Some(left) => left.binary_search(&row).expect("who asks of a row has wanted it"),
        }
    }

    /// Leaves out the rows that are neither recorded nor wanted, behind the last layer's keys and values.
    pub fn narrow(&mut self, spec: &ModelSpec, wanted: &dyn Fn(usize) -> bool) {
        let left: Vec<usize> = (0..self.rows.len()).filter(|i| self.selections[*i].is_some() || wanted(*i)).collect();
        let n = left.len();
        if n == self.rows.len() {
            return;
        }
        let (q_width, hidden) = (spec.num_attention_heads * spec.head_dim, spec.hidden_size);
        for (to, &from) in left.iter().enumerate() {
            self.rows.swap(to, from);
            self.selections.swap(to, from);
            self.q.copy_within(from * q_width..(from + 1) * q_width, to * q_width);
            self.x.copy_within(from * hidden..(from + 1) * hidden, to * hidden);
        }
        self.rows.truncate(n);
        self.selections.truncate(n);
        self.resize(spec, n);
        self.left = Some(left);
    }
}
