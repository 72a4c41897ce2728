//! The sequences on the device: each one's KV cache and trace, contiguous, with room for `capacity` positions; they grow
//! by reallocation and a copy. Kernels find them through an array of `SequenceView`s, so that a captured decode step
//! stays valid when a cache moves.

use super::device::{Buffer, Device};
use super::error::CudaError;
use super::layout::{SequenceView, TraceView};
use crate::backend::{CacheType, SequenceId, TraceOptions};
use crate::model::ModelSpec;

/// Capacities are multiples of this, as the kernels ask.
const STEP: usize = 64;

/// Room that a hint gives at most beyond what is needed: a long limit is rarely used up.
const MOST_AHEAD: usize = 4096;

/// Sequences that there is room for at first.
const FIRST_SLOTS: usize = 16;

/// One element type's part of a position: `[layers, kv_heads, head_dim]`.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// layers · kv_heads
    planes: usize,
    head_dim: usize,
    hidden_size: usize,
    k: CacheType,
    v: CacheType,
}

impl Shape {
    /// Copies keys and values of the first `positions` from one cache to another, each with its capacity.
    fn copy(
        &self,
        device: &Device,
        (to, to_capacity): (&(Buffer, Buffer), usize),
        (from, from_capacity): (&(Buffer, Buffer), usize),
        positions: usize,
    ) -> Result<(), CudaError> {
        for (to, from, t) in [(&to.0, &from.0, self.k), (&to.1, &from.1, self.v)] {
            let row = self.head_dim * t.size();
            for plane in 0..self.planes {
                device.copy((to, plane * to_capacity * row), (from, plane * from_capacity * row), positions * row)?;
            }
        }
        Ok(())
    }
}

/// One sequence.
struct Sequence {
    options: Option<TraceOptions>,
    capacity: usize,
    /// Positions that it is expected to reach.
    hint: usize,
    /// `[layers][kv_heads][capacity][head_dim]`, both
    kv: Option<(Buffer, Buffer)>,
    trace: Option<Trace>,
    /// Rows that have been traced, from the first traced row on.
    traced: usize,
}

/// The trace of one sequence: all arrays in one buffer.
struct Trace {
    data: Buffer,
    sections: Sections,
}

/// Where the arrays of [`TraceView`] start, in bytes, in the order of its fields.
#[derive(Clone, Copy, Debug)]
struct Sections {
    starts: [usize; 7],
    /// Bytes of one row of each array.
    widths: [usize; 7],
    bytes: usize,
}

impl Sections {
    fn new(rows: usize, keep: usize, shape: &Shape) -> Sections {
        let k = 4 * keep;
        let widths = [k, k, k, k, k * shape.head_dim, 4 * shape.hidden_size, 4];
        let (mut starts, mut bytes) = ([0; 7], 0);
        for (start, width) in starts.iter_mut().zip(widths) {
            *start = bytes;
            bytes = (bytes + rows * width).next_multiple_of(256);
        }
        Sections { starts, widths, bytes }
    }
}

/// One array of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceArray {
    Heads = 0,
    Entropies = 1,
    Gaps = 6,
}

/// All sequences, and their views on the device.
pub struct Sequences {
    device: Device,
    shape: Shape,
    sequences: Vec<Option<Sequence>>,
    /// `[slots]`
    views: Buffer,
    slots: usize,
}

impl Sequences {
    pub fn new(device: &Device, spec: &ModelSpec, (k, v): (CacheType, CacheType)) -> Result<Sequences, CudaError> {
        let planes = spec.layers.len() * spec.num_key_value_heads;
        let shape = Shape { planes, head_dim: spec.head_dim, hidden_size: spec.hidden_size, k, v };
        let views = device.upload("sequences", &[SequenceView::default(); FIRST_SLOTS])?;
        Ok(Sequences { device: device.clone(), shape, sequences: Vec::new(), views, slots: FIRST_SLOTS })
    }

    /// A new, empty sequence; memory is taken when its first row comes.
    pub fn open(&mut self, options: Option<TraceOptions>) -> SequenceId {
        let free = self.sequences.iter().position(Option::is_none).unwrap_or(self.sequences.len());
        if free == self.sequences.len() {
            self.sequences.push(None);
        }
        self.sequences[free] = Some(Sequence { options, capacity: 0, hint: 0, kv: None, trace: None, traced: 0 });
        SequenceId(free)
    }

    pub fn close(&mut self, id: SequenceId) {
        if let Some(slot) = self.sequences.get_mut(id.0) {
            *slot = None;
        }
    }

    pub fn hint(&mut self, id: SequenceId, positions: usize) {
        if let Some(sequence) = self.get_mut(id) {
            sequence.hint = positions;
        }
    }

    fn get(&self, id: SequenceId) -> Option<&Sequence> {
        self.sequences.get(id.0)?.as_ref()
    }

    fn get_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        self.sequences.get_mut(id.0)?.as_mut()
    }

    /// The array of views. Moves when slots are added: see [`Sequences::slots`].
    pub fn views(&self) -> &Buffer {
        &self.views
    }

    /// Sequences that the views have room for.
    pub fn slots(&self) -> usize {
        self.slots
    }

    pub fn options(&self, id: SequenceId) -> Option<TraceOptions> {
        self.get(id)?.options
    }

    /// Positions that there is room for.
    pub fn capacity(&self, id: SequenceId) -> usize {
        self.get(id).map_or(0, |s| s.capacity)
    }

    /// Makes room for positions `0..len`.
    pub fn reserve(&mut self, id: SequenceId, len: usize) -> Result<(), CudaError> {
        self.reserve_slots(id.0 + 1)?;
        let Some(sequence) = self.get(id) else {
            return Err(CudaError::Unsupported(format!("sequence {} is not open", id.0)));
        };
        if sequence.capacity >= len {
            return Ok(());
        }
        let wanted = sequence.hint.min(len + MOST_AHEAD).max(sequence.capacity + sequence.capacity / 2).max(len);
        match self.grow(id, wanted.next_multiple_of(STEP)) {
            // without the room ahead it may fit
            Err(CudaError::OutOfMemory { .. }) if wanted > len => self.grow(id, len.next_multiple_of(STEP)),
            result => result,
        }
    }

    fn reserve_slots(&mut self, slots: usize) -> Result<(), CudaError> {
        if slots <= self.slots {
            return Ok(());
        }
        let slots = slots.next_power_of_two();
        let views = self.device.upload("sequences", &vec![SequenceView::default(); slots])?;
        self.device.copy((&views, 0), (&self.views, 0), self.slots * size_of::<SequenceView>())?;
        self.device.synchronize()?;
        (self.views, self.slots) = (views, slots);
        Ok(())
    }

    fn grow(&mut self, id: SequenceId, capacity: usize) -> Result<(), CudaError> {
        let (device, shape) = (self.device.clone(), self.shape);
        let Some(sequence) = self.get_mut(id) else { return Ok(()) };
        let what = |part: &str| format!("{part} of a sequence of {capacity} positions");
        let bytes = |t: CacheType| shape.planes * capacity * shape.head_dim * t.size();
        let kv = (
            device.allocate(&what("the keys"), bytes(shape.k))?,
            device.allocate(&what("the values"), bytes(shape.v))?,
        );
        let trace = sequence.options.map(|options| {
            let sections = Sections::new(capacity.saturating_sub(options.first_row), options.heads, &shape);
            Ok(Trace { data: device.allocate(&what("the trace"), sections.bytes)?, sections })
        });
        let trace: Option<Trace> = trace.transpose()?;
        if let Some(old) = &sequence.kv {
            shape.copy(&device, (&kv, capacity), (old, sequence.capacity), sequence.capacity)?;
        }
        if let (Some(new), Some(old)) = (&trace, &sequence.trace) {
            for array in 0..7 {
                let (to, from) = (new.sections.starts[array], old.sections.starts[array]);
                device.copy((&new.data, to), (&old.data, from), sequence.traced * old.sections.widths[array])?;
            }
        }
        device.synchronize()?; // before the old memory goes
        (sequence.kv, sequence.trace, sequence.capacity) = (Some(kv), trace, capacity);
        let view = sequence.view();
        device.write(&self.views, id.0 * size_of::<SequenceView>(), &[view])
    }

    /// Copies the first `positions` keys and values of `from` to `to`, which has room for them.
    pub fn copy_prefix(&self, from: SequenceId, to: SequenceId, positions: usize) -> Result<(), CudaError> {
        let (Some(source), Some(target)) = (self.get(from), self.get(to)) else { return Ok(()) };
        let (Some(source_kv), Some(target_kv)) = (&source.kv, &target.kv) else { return Ok(()) };
        let (to, from) = ((target_kv, target.capacity), (source_kv, source.capacity));
        self.shape.copy(&self.device, to, from, positions.min(source.capacity))
    }

    /// Notes that row `row` (absolute) is traced by the pass that has begun: the next one, or an earlier one anew. Whether
    /// it is; others are ignored.
    pub fn note_traced(&mut self, id: SequenceId, row: usize) -> bool {
        let Some(sequence) = self.get_mut(id) else { return false };
        let Some(options) = sequence.options else { return false };
        let Some(index) = row.checked_sub(options.first_row).filter(|i| *i <= sequence.traced) else { return false };
        sequence.traced = sequence.traced.max(index + 1);
        true
    }

    /// Rows that were traced, from the first traced row on.
    pub fn traced(&self, id: SequenceId) -> usize {
        self.get(id).map_or(0, |s| s.traced)
    }

    /// Index of a traced row (absolute) in its trace.
    pub fn trace_index(&self, id: SequenceId, row: usize) -> Option<usize> {
        let sequence = self.get(id)?;
        row.checked_sub(sequence.options?.first_row).filter(|index| *index < sequence.traced)
    }

    /// `count` numbers of a trace's array, of the row with this index.
    pub fn read_trace<T: bytemuck::Pod>(
        &self,
        id: SequenceId,
        array: TraceArray,
        index: usize,
        count: usize,
    ) -> Result<Vec<T>, CudaError> {
        let Some(trace) = self.get(id).and_then(|s| s.trace.as_ref()) else { return Ok(Vec::new()) };
        let (start, width) = (trace.sections.starts[array as usize], trace.sections.widths[array as usize]);
        self.device.read(&trace.data, start + index * width, count)
    }

    /// Bytes held: (KV cache, trace).
    pub fn bytes(&self, id: SequenceId) -> (usize, usize) {
        let Some(sequence) = self.get(id) else { return (0, 0) };
        let kv = sequence.kv.as_ref().map_or(0, |(k, v)| k.bytes() + v.bytes());
        (kv, sequence.trace.as_ref().map_or(0, |trace| trace.data.bytes()))
    }
}

impl Sequence {
    fn view(&self) -> SequenceView {
        let (k, v) = self.kv.as_ref().map_or((0, 0), |(k, v)| (k.address(), v.address()));
        let trace = self.trace.as_ref().map_or(TraceView::default(), |trace| {
            let [heads, entropies, maxima, sums, queries, hidden, gaps] =
                trace.sections.starts.map(|start| trace.data.address() + start as u64);
            TraceView { heads, entropies, maxima, sums, queries, hidden, gaps }
        });
        let first_traced_row = self.options.map_or(i32::MAX, |o| i32::try_from(o.first_row).unwrap_or(i32::MAX));
        SequenceView { k, v, capacity: self.capacity as u32, first_traced_row, trace }
    }
}
