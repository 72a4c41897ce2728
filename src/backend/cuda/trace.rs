//! Readings of a traced response, computed from the KV cache and the trace on the device.

use super::CudaBackend;
use super::abi::{AttnRows, AttnSum, Cosines, HeadPlaces};
use super::cache::TraceArray;
use super::context::Device;
use super::error::CudaError;
use super::kernel_set::SUMMED;
use super::memory::Buffer;
use crate::backend::{HeadAttention, HeadRecord, SequenceId};
use std::ops::Range;

/// Rows of α* per launch, and positions per launch of cosines.
const ROWS: usize = 64;

/// Buffers of these readings, reused.
pub struct Queries {
    /// Positions: rows and columns of the result.
    rows: Buffer<i32>,
    columns: Buffer<i32>,
    /// `[rows, columns]`
    out: Buffer<f32>,
}

impl Queries {
    pub fn new(device: &Device) -> Result<Queries, CudaError> {
        let what = "scratch memory (queries)";
        Ok(Queries {
            rows: device.allocate(what, ROWS)?,
            columns: device.allocate(what, 0)?,
            out: device.allocate(what, 0)?,
        })
    }
}

/// Makes room for `count` elements; the contents are lost.
fn reserve<T>(device: &Device, buffer: &mut Buffer<T>, count: usize) -> Result<(), CudaError> {
    if buffer.bytes() < count * size_of::<T>() {
        *buffer = device.allocate("scratch memory (queries)", count.next_power_of_two())?;
    }
    Ok(())
}

impl CudaBackend {
    /// α* of rows (absolute): T + 1 weights for row T; zeros if it was not traced.
    pub(super) fn attention_rows(&mut self, id: SequenceId, rows: &[usize]) -> Result<Vec<Vec<f32>>, CudaError> {
        let mut result: Vec<Vec<f32>> = rows.iter().map(|row| vec![0.0; row + 1]).collect();
        let Some(options) = self.sequences.options(id) else { return Ok(result) };
        let traced: Vec<usize> =
            (0..rows.len()).filter(|i| self.sequences.trace_index(id, rows[*i]).is_some()).collect();
        for some in traced.chunks(ROWS) {
            let asked: Vec<i32> = some.iter().map(|i| rows[*i] as i32).collect();
            let stride = some.iter().map(|i| rows[*i] + 1).max().unwrap_or(0);
            for (i, row) in some.iter().zip(self.rows_on_device(id, &asked, stride, options.heads)?.chunks(stride)) {
                let len = result[*i].len();
                result[*i].copy_from_slice(&row[..len]);
            }
        }
        Ok(result)
    }

    /// `[asked, stride]`
    fn rows_on_device(
        &mut self,
        id: SequenceId,
        asked: &[i32],
        stride: usize,
        keep: usize,
    ) -> Result<Vec<f32>, CudaError> {
        reserve(&self.device, &mut self.queries.out, asked.len() * stride)?;
        let (s, Queries { rows, out, .. }) = (&self.spec, &self.queries);
        self.device.write(rows, 0, asked)?;
        let parameters = AttnRows {
            sequences: self.sequences.views().ptr(),
            slot: id.0.into(),
            asked: rows.ptr(),
            windows: self.windows.ptr(),
            softcap: s.attn_logit_softcapping.unwrap_or(0.0),
            heads: s.num_attention_heads.into(),
            kv_heads: s.num_key_value_heads.into(),
            keep: keep.into(),
            stride: stride.into(),
            out: out.ptr(),
        };
        self.device.launch(&self.kernels.rows, [stride.div_ceil(32), asked.len(), 1], &parameters)?;
        self.device.read(out, 0, asked.len() * stride)
    }

    /// Attention weights of the pass's first row, summed over a layer's heads, right after the layer's attention: T + 1 values.
    pub(super) fn layer_attention(&mut self, layer: usize) -> Result<Vec<f32>, CudaError> {
        let count = self.pass.rows.first().map_or(0, |row| row.position + 1);
        reserve(&self.device, &mut self.queries.out, count)?;
        let (s, scratch, out) = (&self.spec, &self.scratch, &self.queries.out);
        let parameters = AttnSum {
            states: scratch.heads.states.ptr().add(self.heads_before(layer)),
            queries: self.layer_queries(layer),
            rows: scratch.rows.ptr(),
            sequences: self.sequences.views().ptr(),
            layer: layer.into(),
            heads: s.num_attention_heads.into(),
            kv_heads: s.num_key_value_heads.into(),
            head_dim: s.head_dim.into(),
            window: self.window(layer),
            softcap: self.softcap(),
            count: count.into(),
            out: out.ptr(),
        };
        self.device.launch(&self.kernels.sum, [count.div_ceil(SUMMED), 1, 1], &parameters)?;
        self.device.read(out, 0, count)
    }

    /// Cosines of traced hidden states, `[positions, answer]`; 0 where a position was not traced.
    pub(super) fn cosines(
        &mut self,
        id: SequenceId,
        positions: &[usize],
        answer: Range<usize>,
    ) -> Result<Vec<f32>, CudaError> {
        let traced = self.sequences.traced(id);
        if traced == 0 || positions.is_empty() || answer.is_empty() {
            return Ok(vec![0.0; positions.len() * answer.len()]);
        }
        let ints = |positions: &mut dyn Iterator<Item = usize>| -> Vec<i32> { positions.map(|p| p as i32).collect() };
        reserve(&self.device, &mut self.queries.columns, answer.len())?;
        reserve(&self.device, &mut self.queries.out, ROWS.min(positions.len()) * answer.len())?;
        let Queries { rows, columns, out } = &self.queries;
        self.device.write(columns, 0, &ints(&mut answer.clone()))?;
        let mut result = Vec::with_capacity(positions.len() * answer.len());
        for some in positions.chunks(ROWS) {
            self.device.write(rows, 0, &ints(&mut some.iter().copied()))?;
            let parameters = Cosines {
                sequences: self.sequences.views().ptr(),
                slot: id.0.into(),
                traced: traced.into(),
                hidden_size: self.spec.hidden_size.into(),
                positions: rows.ptr(),
                answer: columns.ptr(),
                out: out.ptr(),
            };
            self.device.launch(&self.kernels.cosines, [answer.len(), some.len(), 1], &parameters)?;
            result.extend(self.device.read::<f32>(out, 0, some.len() * answer.len())?);
        }
        Ok(result)
    }

    /// Attention targets of every head of a row (absolute), if recorded.
    pub(super) fn head_attention(&self, id: SequenceId, row: usize) -> Result<Option<Vec<HeadAttention>>, CudaError> {
        let (Some(index), Some(options)) = (self.sequences.trace_index(id, row), self.sequences.options(id)) else {
            return Ok(None);
        };
        if !options.head_attention {
            return Ok(None);
        }
        let count = self.spec.total_heads();
        let places: Vec<HeadPlaces> = self.sequences.read_trace(id, TraceArray::Places, index, count)?;
        let attention = |[entropy, own, previous, first, prompt]: HeadPlaces| HeadAttention {
            entropy,
            own,
            previous,
            first,
            prompt,
        };
        Ok(Some(places.into_iter().map(attention).collect()))
    }

    /// The heads selected at a row (absolute).
    pub(super) fn head_record(&self, id: SequenceId, row: usize) -> Result<Option<HeadRecord>, CudaError> {
        let (Some(index), Some(options)) = (self.sequences.trace_index(id, row), self.sequences.options(id)) else {
            return Ok(None);
        };
        let keep = options.heads;
        let heads: Vec<i32> = self.sequences.read_trace(id, TraceArray::Heads, index, keep)?;
        let mut entropies: Vec<f32> = self.sequences.read_trace(id, TraceArray::Entropies, index, keep)?;
        let gap: Vec<f32> = self.sequences.read_trace(id, TraceArray::Gaps, index, 1)?;
        // a model with fewer heads than K keeps them all
        let heads: Vec<u32> = heads.into_iter().map_while(|head| u32::try_from(head).ok()).collect();
        entropies.truncate(heads.len());
        let all = heads.len() == self.spec.total_heads();
        let gap = if all { f32::INFINITY } else { gap.first().copied().unwrap_or(f32::NAN) };
        Ok(Some(HeadRecord { heads, entropies, gap }))
    }
}
