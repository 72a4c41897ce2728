//! The state of the running pass.

use super::attention::HeadState;
use super::delta_net::DeltaRows;
use super::trace::Selection;
use crate::backend::{BackendError, Pass, Row};
use crate::model::ModelSpec;
use crate::model::config::LayerSpec;

/// The state of the running pass; widths in [`ModelSpec`]'s terms.
#[derive(Default)]
pub struct PassState {
    pub rows: Vec<Row>,
    /// Rows that it began with.
    pub width: usize,
    /// The `wanted` or recorded ones (ascending): the only rows after the last keys and values.
    kept: Vec<usize>,
    /// Per row, where it is traced.
    pub selections: Vec<Option<Selection>>,
    /// Residual stream; after the pass the normed hidden state: `[rows, hidden_size]`
    pub x: Vec<f32>,
    /// Normed input of a block, then its output: `[rows, hidden_size]`
    pub h: Vec<f32>,
    /// `[rows, heads · head_dim]` of the running layer: queries, and the attention's output
    pub q: Vec<f32>,
    pub attended: Vec<f32>,
    /// As wide as what `attended` gives to a layer's o, which delta nets have widths of their own for.
    pub output_gate: Vec<f32>,
    pub delta: DeltaRows,
    /// `[rows, kv_heads · head_dim]`
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// `[rows, intermediate_size]` of the running layer
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    /// Of the layers, where they have inputs: `[rows, layers · hidden_size_per_layer_input]`
    pub inputs: Vec<f32>,
    /// `[rows, heads]`
    pub states: Vec<HeadState>,
    /// `[rope table][rows, head_dim / 2]`
    pub cos: Vec<Vec<f32>>,
    pub sin: Vec<Vec<f32>>,
    pub logits: Vec<f32>,
}

impl PassState {
    /// Makes everything that has a row a row hold `n` of them.
    fn resize(&mut self, spec: &ModelSpec, n: usize) {
        let inputs = spec.layer_input.map_or(0, |input| spec.layers.len() * input.hidden_size);
        for (rows, width) in
            [(&mut self.x, spec.hidden_size), (&mut self.h, spec.hidden_size), (&mut self.inputs, inputs)]
        {
            rows.resize(n * width, 0.0);
        }
        self.states.resize(n * spec.num_attention_heads, HeadState::EMPTY);
    }

    /// Starts with the rows of `pass` and their selections.
    pub fn begin(&mut self, spec: &ModelSpec, pass: &Pass, selections: Vec<Option<Selection>>) {
        self.rows = pass.rows.to_vec();
        self.width = self.rows.len();
        self.kept = (0..self.width).filter(|i| selections[*i].is_some() || (pass.wanted)(*i)).collect();
        self.selections = selections;
        self.resize(spec, self.width);
    }

    /// Notes x in the traced rows' selections.
    pub fn note_layer(&mut self) {
        for (i, selection) in self.selections.iter_mut().enumerate() {
            let Some(selection) = selection else { continue };
            let width = self.x.len() / self.rows.len();
            selection.note_layer(&self.x[i * width..(i + 1) * width]);
        }
    }

    /// Place of a row of the finished pass.
    pub fn index(&self, row: usize) -> Result<usize, BackendError> {
        self.kept.binary_search(&row).map_err(|_| BackendError::RowNotWanted { row })
    }

    /// Gives what is as wide as the layers' own sizes those of one layer.
    pub fn resize_layer(&mut self, spec: &ModelSpec, layer: usize) {
        let LayerSpec { head_dim, num_key_value_heads, intermediate_size, .. } = spec.layers[layer];
        let (q, kv) = (spec.num_attention_heads * head_dim, num_key_value_heads * head_dim);
        for (rows, width) in [
            (&mut self.q, q),
            (&mut self.k, kv),
            (&mut self.v, kv),
            (&mut self.gate, intermediate_size),
            (&mut self.up, intermediate_size),
        ] {
            rows.resize(self.rows.len() * width, 0.0);
        }
    }

    /// Drops the rows that are neither recorded nor `wanted`, after the last keys and values, those of `layer`.
    pub fn keep_wanted(&mut self, spec: &ModelSpec, layer: usize) {
        let n = self.kept.len();
        if n == self.rows.len() {
            return;
        }
        for buffer in [&mut self.q, &mut self.x, &mut self.inputs, &mut self.attended, &mut self.output_gate] {
            let width = buffer.len() / self.rows.len();
            for (to, &from) in self.kept.iter().enumerate() {
                buffer.copy_within(from * width..(from + 1) * width, to * width);
            }
            buffer.truncate(n * width);
        }
        for (to, &from) in self.kept.iter().enumerate() {
            self.rows.swap(to, from);
            self.selections.swap(to, from);
        }
        self.rows.truncate(n);
        self.selections.truncate(n);
        self.resize(spec, n);
        self.resize_layer(spec, layer);
    }
}
