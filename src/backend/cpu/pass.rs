//! The state of the running pass.

use super::{attention::HeadState, delta_net::DeltaRows, trace::Selection};
use crate::backend::{BackendError, Pass, Result, Row};
use crate::model::ModelSpec;

/// The state of the running pass; dimensions are named as in [`ModelSpec`].
#[derive(Default)]
pub struct PassState {
    pub rows: Vec<Row>,
    /// Whether the inputs of its products are rounded.
    pub rounds: bool,
    /// The `wanted` or recorded rows (ascending): the only ones left after the last keys and values.
    kept: Vec<usize>,
    /// Per row, if it is traced.
    pub selections: Vec<Option<Selection>>,
    /// Residual stream; after the pass the normed hidden state: `[rows, hidden_size]`
    pub x: Vec<f32>,
    /// Normed input of a block, then its output: `[rows, hidden_size]`
    pub h: Vec<f32>,
    /// `[rows, heads · head_dim]` of the running layer: queries, and the attention's output
    pub q: Vec<f32>,
    pub attended: Vec<f32>,
    /// As wide as the input of a layer's o, for which delta nets have their own widths.
    pub output_gate: Vec<f32>,
    pub delta: DeltaRows,
    /// `[rows, kv_heads · head_dim]`
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// `[rows, intermediate_size]` of the running layer
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    /// The layers' inputs, if they have any: `[rows, layers · hidden_size_per_layer_input]`
    pub inputs: Vec<f32>,
    /// `[rows, heads]`
    pub states: Vec<HeadState>,
    /// `[rope table][rows, head_dim / 2]`
    pub cos: Vec<Vec<f32>>,
    pub sin: Vec<Vec<f32>>,
    pub logits: Vec<f32>,
    /// Whether the hidden state of each row of the finished pass is finite.
    pub finite: Vec<bool>,
}

impl PassState {
    /// Resizes all per-row buffers to `n` rows.
    fn resize(&mut self, spec: &ModelSpec, n: usize) {
        self.x.resize(n * spec.hidden_size, 0.0);
        self.h.resize(n * spec.hidden_size, 0.0);
        self.states.resize(n * spec.num_attention_heads, HeadState::EMPTY);
    }

    /// Starts with the rows of `pass` and their selections.
    pub fn begin(&mut self, spec: &ModelSpec, pass: &Pass, selections: Vec<Option<Selection>>) {
        self.rows = pass.rows.to_vec();
        self.kept = (0..self.rows.len()).filter(|i| selections[*i].is_some() || (pass.wanted)(*i)).collect();
        self.selections = selections;
        self.resize(spec, self.rows.len());
    }

    /// Records x in the traced rows' selections.
    pub fn note_layer(&mut self) {
        for (i, selection) in self.selections.iter_mut().enumerate() {
            let Some(selection) = selection else { continue };
            let width = self.x.len() / self.rows.len();
            selection.note_layer(&self.x[i * width..(i + 1) * width]);
        }
    }

    /// Index of a row in the finished pass.
    pub fn index(&self, row: usize) -> Result<usize> {
        self.kept.binary_search(&row).map_err(|_| BackendError::RowNotWanted { row })
    }

    /// Drops the rows that are neither recorded nor `wanted`, after the last keys and values.
    pub fn keep_wanted(&mut self, spec: &ModelSpec) {
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
    }
}
