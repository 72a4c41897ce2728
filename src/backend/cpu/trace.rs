//! The trace, O(1) per row: the K heads of lowest reweighted entropy (id, query, m', Z') and the final hidden state.

use super::attention::{HeadState, RowHead};
use crate::backend::{HeadAttention, HeadRecord, TraceOptions};

/// A row's candidate head.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    /// l·H + h
    head: u32,
    entropy: f32,
    /// m'
    max: f32,
    /// Z' / f
    sum: f32,
    /// Index of its query among the K slots.
    slot: usize,
}

/// The running selection of one row while its layers are computed; heads come in ascending order of l·H + h.
#[derive(Clone, Debug)]
pub struct Selection {
    pub options: TraceOptions,
    entries: Vec<Entry>,
    /// Of a query slot: the largest head_dim.
    width: usize,
    /// `[K, width]`; smaller heads are padded with 0.
    queries: Vec<f32>,
    /// Lowest entropy not kept.
    rejected: f32,
    /// Every head so far, if recorded.
    heads: Vec<HeadAttention>,
    /// The residual stream so far, if recorded: `[≤ L + 1, hidden_size]`
    layers: Vec<f32>,
}

impl Selection {
    pub fn new(options: TraceOptions, width: usize) -> Selection {
        let (entries, queries, heads, layers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Selection { options, entries, width, queries, rejected: f32::INFINITY, heads, layers }
    }

    /// Records the residual stream `[hidden_size]` before a layer, or the final hidden state.
    pub fn note_layer(&mut self, x: &[f32]) {
        if self.options.parts.layer_means {
            self.layers.extend_from_slice(x);
        }
    }

    /// Offers head `head` (l·H + h) with its rotated and scaled query `[head_dim]`. Keeps it if fewer than K are kept or its
    /// entropy is below the highest kept; ties keep the earlier, lower id.
    pub fn offer(&mut self, head: u32, state: &HeadState, query: &[f32]) {
        let (f, entropy) = state.entropy.finish(&state.softmax, self.options.parts.entropy);
        if self.options.parts.head_attention {
            let [own, previous, first, prompt] = state.places.map(|x| x / state.softmax.sum);
            self.heads.push(HeadAttention { entropy: entropy as f32, own, previous, first, prompt });
        }
        let sum = if f > 0.0 { (f64::from(state.entropy.sum) / f) as f32 } else { 0.0 };
        let mut entry = Entry { head, entropy: entropy as f32, max: state.entropy.max, sum, slot: self.entries.len() };
        if self.entries.len() < self.options.parts.heads {
            self.queries.extend_from_slice(query);
            self.entries.push(entry);
            self.queries.resize(self.entries.len() * self.width, 0.0);
            return;
        }
        let worst = (0..self.entries.len()).reduce(|a, b| match self.entries[b].entropy >= self.entries[a].entropy {
            true => b,
            false => a,
        });
        match worst {
            Some(worst) if entry.entropy < self.entries[worst].entropy => {
                entry.slot = self.entries[worst].slot;
                self.rejected = self.rejected.min(self.entries[worst].entropy);
                self.queries[entry.slot * self.width..][..query.len()].copy_from_slice(query);
                // at the end, so that ids stay ascending and the last of equal worst entries has the highest id
                self.entries.remove(worst);
                self.entries.push(entry);
            }
            _ => self.rejected = self.rejected.min(entry.entropy),
        }
    }
}

/// Σ over rows of the residual stream, `[L + 1, hidden_size]`. The last row is kept separately, since the mean excludes it.
#[derive(Clone, Debug, Default)]
struct LayerSums {
    sums: Vec<f64>,
    last: Vec<f32>,
}

impl LayerSums {
    /// Adds the next row, or (`again`) replaces the last one.
    fn record(&mut self, row: Vec<f32>, again: bool) {
        if !again {
            self.sums.resize(row.len(), 0.0);
            self.sums.iter_mut().zip(&self.last).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        self.last = row;
    }
}

/// A finished row.
#[derive(Clone, Debug)]
struct TracedRow {
    /// Entries are sorted by ascending entropy; without the residual stream.
    selection: Selection,
    /// `[hidden_size]`
    hidden: Vec<f32>,
}

/// The trace of one response: rows `first_row ..`, contiguous.
#[derive(Clone, Debug)]
pub struct Trace {
    pub options: TraceOptions,
    rows: Vec<TracedRow>,
    layers: LayerSums,
}

impl Trace {
    pub fn new(options: TraceOptions) -> Trace {
        Trace { options, rows: Vec::new(), layers: LayerSums::default() }
    }

    /// Records row `row` (absolute): the next one, or an earlier one to replace. Others are ignored.
    pub fn record(&mut self, row: usize, mut selection: Selection, hidden: &[f32]) {
        let count = self.rows.len();
        let Some(index) = row.checked_sub(self.options.first_row).filter(|i| *i <= count) else { return };
        let layers = std::mem::take(&mut selection.layers);
        if index + 1 >= count {
            self.layers.record(layers, index < count);
        }
        selection.entries.sort_by(|a, b| a.entropy.total_cmp(&b.entropy).then(a.head.cmp(&b.head)));
        let traced = TracedRow { selection, hidden: hidden.to_vec() };
        match self.rows.get_mut(index) {
            Some(earlier) => *earlier = traced,
            None => self.rows.push(traced),
        }
    }

    /// Drops the rows from `row` (absolute) on.
    pub fn truncate(&mut self, row: usize) {
        self.rows.truncate(row.saturating_sub(self.options.first_row));
    }

    fn row(&self, row: usize) -> Option<&TracedRow> {
        self.rows.get(row.checked_sub(self.options.first_row)?)
    }

    /// The selected heads (l·H + h) of row `row` (absolute), lowest entropy first; none if it was not traced. Only the first
    /// `head_dim` elements of a query are used.
    pub fn selected(&self, row: usize) -> Vec<(usize, RowHead<'_>)> {
        let Some(TracedRow { selection: Selection { entries, queries, width, .. }, .. }) = self.row(row) else {
            return Vec::new();
        };
        let head = |e: &Entry| {
            let query = &queries[e.slot * width..(e.slot + 1) * width];
            (e.head as usize, RowHead { query, max: e.max, sum: e.sum })
        };
        entries.iter().map(head).collect()
    }

    pub fn head_record(&self, row: usize) -> Option<HeadRecord> {
        let Selection { entries, rejected, .. } = &self.row(row)?.selection;
        Some(HeadRecord {
            heads: entries.iter().map(|e| e.head).collect(),
            entropies: entries.iter().map(|e| e.entropy).collect(),
            gap: rejected - entries.last().map_or(f32::NEG_INFINITY, |e| e.entropy),
        })
    }

    /// Attention targets of every head of row `row` (absolute), if recorded.
    pub fn head_attention(&self, row: usize) -> Option<Vec<HeadAttention>> {
        Some(self.row(row)?.selection.heads.clone()).filter(|heads| !heads.is_empty())
    }

    /// The mean of the residual stream over all rows but the last, `[L + 1, hidden_size]`, if recorded for at least two rows.
    pub fn layer_means(&self) -> Option<Vec<Vec<f64>>> {
        let rows = self.rows.len().checked_sub(1).filter(|rows| *rows > 0)? as f64;
        let mean = |sums: &[f64]| sums.iter().map(|sum| sum / rows).collect();
        let hidden_size = self.rows[0].hidden.len();
        self.options.parts.layer_means.then(|| self.layers.sums.chunks(hidden_size).map(mean).collect())
    }

    /// The final hidden state at position `position` (absolute), if traced.
    pub fn hidden(&self, position: usize) -> Option<&[f32]> {
        Some(&self.row(position)?.hidden)
    }

    pub fn bytes(&self) -> usize {
        let row = |TracedRow { selection: Selection { entries, queries, heads, .. }, hidden }: &TracedRow| {
            size_of_val(&entries[..]) + (queries.len() + hidden.len() + 1) * 4 + size_of_val(&heads[..])
        };
        self.rows.iter().map(row).sum::<usize>() + self.layers.sums.len() * 8 + self.layers.last.len() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::entropy::{EntropyRule, EntropyState, SoftmaxState};

    fn state(entropy: f32) -> HeadState {
        // Z' = 1, S' = -H
        let entropy = EntropyState { max: 0.0, sum: 1.0, weighted: -entropy };
        HeadState { softmax: SoftmaxState { max: 0.0, sum: 1.0 }, entropy, ..HeadState::EMPTY }
    }

    #[test]
    fn the_lowest_k_win_and_of_equals_the_lower_id() {
        let options = TraceOptions::new(3, 3, EntropyRule::Exact);
        let mut selection = Selection::new(options, 2);
        for (id, h) in [2.0, 1.0, 2.0, 2.0, 0.5, 1.0, 3.0].into_iter().enumerate() {
            selection.offer(id as u32, &state(h), &[id as f32, 0.0]);
        }
        let mut trace = Trace::new(options);
        trace.record(3, selection, &[7.0]);
        let record = trace.head_record(3).unwrap();
        assert_eq!((record.heads, record.entropies, record.gap), (vec![4, 1, 5], vec![0.5, 1.0, 1.0], 1.0));
        assert!(trace.selected(3).iter().all(|(head, of)| of.query[0] == *head as f32));
        assert_eq!((trace.hidden(3), trace.hidden(2), trace.hidden(4)), (Some(&[7.0f32][..]), None, None));
    }

    #[test]
    fn a_head_without_attention_does_not_win() {
        let options = TraceOptions::new(0, 1, EntropyRule::Exact);
        let mut selection = Selection::new(options, 1);
        selection.offer(0, &HeadState::EMPTY, &[0.0]);
        selection.offer(1, &state(5.0), &[1.0]);
        let mut trace = Trace::new(options);
        trace.record(0, selection, &[0.0]);
        assert_eq!(trace.head_record(0).unwrap().heads, [1]);
    }
}
