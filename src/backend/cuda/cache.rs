//! The sequences on the device: each one's KV cache and trace, contiguous, with room for `capacity` positions. They grow
//! in place (`memory.rs`), and their contents are spread over the new room. Kernels find them through an array of
//! `SequenceView`s, so that a captured decode step stays valid.

use super::abi::{LayerShape, SequenceView, TRACE_ARRAYS, TraceView};
use super::delta_net::{self, States};
use super::{context::Device, kernel_set::OVERRUN, layers::LayerSums};
use super::{error::CudaError, error::Result, memory::Buffer, memory::DevicePtr, memory::Floats};
use crate::backend::{BackendError, DType, ExpectedMemory, HeadAttention, Row, SequenceId, TraceOptions};
use crate::{backend::STATE_INTERVAL, model::ModelSpec, model::config::LayerSpec};
use std::collections::HashSet;

/// Capacities are multiples of this, as the kernels require.
const CAPACITY_STEP: usize = 64;

/// Max positions reserved ahead: a long limit is rarely used up. A cache is therefore spread
/// every few thousand positions, which takes about as long as two decode steps.
const MAX_AHEAD: usize = 4096;

/// Initial number of slots.
const FIRST_SLOTS: usize = 16;

/// What the sizes of caches and traces depend on.
struct Shape {
    spec: ModelSpec,
    k: DType,
    v: DType,
    planes: Vec<Planes>,
    /// Elements of a position's keys (or values), over all layers.
    numbers: usize,
    /// Per layer: same-sized layers before it in the cache, or before the one whose keys and values it shares.
    before: Vec<usize>,
}

/// Keys (or values) of the layers of one size: `count` planes `[capacity, head_dim]`.
struct Planes {
    /// Elements per position before them.
    first: usize,
    count: usize,
    head_dim: usize,
}

impl Shape {
    fn new(spec: &ModelSpec, (k, v): (DType, DType)) -> Shape {
        let size = |layer: &LayerSpec| (layer.num_key_value_heads * layer.head_dim, layer.head_dim);
        let mut sizes: Vec<_> = spec.cached_layers().map(|(_, layer)| size(layer)).collect();
        // largest first: the other sizes mostly divide it, so that almost no space is lost between them
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.dedup();
        let (mut planes, mut numbers, mut before) = (Vec::new(), 0_usize, vec![0; spec.layers.len()]);
        for (width, head_dim) in sizes {
            let first = numbers.next_multiple_of(width);
            numbers = first;
            for (index, _) in spec.cached_layers().filter(|(_, layer)| size(layer) == (width, head_dim)) {
                before[index] = numbers / width;
                numbers += width;
            }
            planes.push(Planes { first, count: (numbers - first) / head_dim, head_dim });
        }
        let before = spec.layers.iter().map(|layer| before[layer.kv_layer]).collect();
        Shape { spec: spec.clone(), k, v, planes, numbers, before }
    }

    /// Bytes of the keys or values of `capacity` positions.
    fn bytes(&self, capacity: usize, t: DType) -> usize {
        self.numbers * capacity * t.size()
    }

    /// Moves (from, to, bytes) of a cache's planes when its capacity grows.
    fn spread(&self, t: DType, from: usize, to: usize) -> Vec<(usize, usize, usize)> {
        let of_layers = |planes: &Planes| {
            let (first, head_dim) = (planes.first, planes.head_dim);
            (0..planes.count).map(move |plane| (first + plane * head_dim, head_dim))
        };
        let moved = |(at, head_dim)| (at * from * t.size(), at * to * t.size(), from * head_dim * t.size());
        self.planes.iter().flat_map(of_layers).map(moved).collect()
    }
}

/// One sequence.
#[derive(Default)]
struct Sequence {
    options: Option<TraceOptions>,
    /// The row of position 0 in the rotary tables.
    first_angle: usize,
    capacity: usize,
    /// Expected positions.
    hint: usize,
    room: Option<Room>,
    /// Only in models with delta nets.
    states: Option<States>,
    /// Token counts after which copies of the states are kept, in addition to every [`STATE_INTERVAL`].
    expected: Vec<usize>,
    /// Traced rows so far.
    traced: usize,
}

/// The memory of one sequence.
struct Room {
    /// [`Planes`] one after the other, in both
    keys: Buffer<u8>,
    values: Buffer<u8>,
    /// All arrays of the trace; empty if there is none.
    trace: Buffer<u8>,
    sections: Sections,
    layers: Option<LayerSums>,
}

impl Room {
    /// Empty, with addresses for `max` positions.
    fn new(device: &Device, shape: &Shape, options: Option<TraceOptions>, max: usize) -> Result<Room> {
        let trace = options.map_or(0, |options| Sections::new(max, options, shape).bytes);
        let sums = options.filter(|options| options.parts.layer_means);
        let layers = sums.map(|_| LayerSums::new(device, &shape.spec)).transpose()?;
        Ok(Room {
            keys: device.growing("the keys", shape.bytes(max, shape.k))?,
            values: device.growing("the values", shape.bytes(max, shape.v))?,
            trace: device.growing("the trace", trace)?,
            sections: Sections::default(),
            layers,
        })
    }
}

/// Starts of the arrays of [`TraceView`] in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sections {
    starts: [usize; TRACE_ARRAYS],
    /// Bytes of one row of each array.
    widths: [usize; TRACE_ARRAYS],
    rows: usize,
    bytes: usize,
}

impl Sections {
    /// For a sequence of `capacity` positions.
    fn new(capacity: usize, options: TraceOptions, shape: &Shape) -> Sections {
        let (rows, k) = (capacity.saturating_sub(options.first_row), 4 * options.parts.heads);
        let places =
            if options.parts.head_attention { shape.spec.total_heads() * size_of::<HeadAttention>() } else { 0 };
        let widths = [k, k, k, k, k * shape.spec.widest(|layer| layer.head_dim), 2 * shape.spec.hidden_size, 4, places];
        let (mut starts, mut bytes) = ([0; TRACE_ARRAYS], 0);
        for (start, width) in starts.iter_mut().zip(widths) {
            *start = bytes;
            bytes = (bytes + rows * width).next_multiple_of(256);
        }
        Sections { starts, widths, rows, bytes }
    }

    /// Moves (from, to, bytes) of the arrays when rows are added.
    fn spread(&self, grown: &Sections) -> Vec<(usize, usize, usize)> {
        let moved = |array: usize| (self.starts[array], grown.starts[array], self.rows * self.widths[array]);
        (0..TRACE_ARRAYS).map(moved).collect()
    }
}

/// One array of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceArray {
    Heads = 0,
    Entropies = 1,
    Hidden = 5,
    Gaps = 6,
    Places = 7,
}

/// All sequences, and their views on the device.
pub struct Sequences {
    device: Device,
    shape: Shape,
    sequences: Vec<Option<Sequence>>,
    /// `[slots]`; moves when slots are added.
    pub views: Buffer<SequenceView>,
    /// `[slots]`, the rows of their first positions in the rotary tables.
    pub first_angles: Buffer<i32>,
    pub slots: usize,
    /// Per sequence.
    pub max_positions: usize,
}

impl Sequences {
    pub fn new(device: &Device, spec: &ModelSpec, types: (DType, DType)) -> Result<Sequences> {
        let shape = Shape::new(spec, types);
        let views = device.upload("sequences", &[SequenceView::default(); FIRST_SLOTS])?;
        let first_angles = device.upload("first angles", &[0; FIRST_SLOTS])?;
        let max_positions = (spec.max_position_embeddings + OVERRUN).next_multiple_of(CAPACITY_STEP);
        let (device, sequences, slots) = (device.clone(), Vec::new(), FIRST_SLOTS);
        Ok(Sequences { device, shape, sequences, views, first_angles, slots, max_positions })
    }

    /// A new, empty sequence; except for states, memory is allocated with its first row.
    pub fn open(&mut self, options: Option<TraceOptions>, first_angle: usize) -> Result<SequenceId> {
        let new_states = |_| States::new(&self.device, &self.shape.spec, self.max_positions);
        let states = self.shape.spec.delta_net.map(new_states).transpose()?;
        let free = self.sequences.iter().position(Option::is_none).unwrap_or(self.sequences.len());
        self.sequences.resize_with(self.sequences.len().max(free + 1), || None);
        self.sequences[free] = Some(Sequence { options, first_angle, states, ..Sequence::default() });
        Ok(SequenceId(free))
    }

    pub fn close(&mut self, id: SequenceId) {
        if let Some(slot) = self.sequences.get_mut(id.0) {
            *slot = None;
        }
    }

    pub fn hint(&mut self, id: SequenceId, positions: usize) -> Result<()> {
        let Some(sequence) = self.get_mut(id) else { return Err(not_open(id)) };
        sequence.hint = positions + OVERRUN;
        Ok(())
    }

    fn get(&self, id: SequenceId) -> Option<&Sequence> {
        self.sequences.get(id.0)?.as_ref()
    }

    fn get_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        self.sequences.get_mut(id.0)?.as_mut()
    }

    /// The capacity reserved for a hint of `positions` positions.
    pub fn capacity_for(&self, positions: usize) -> usize {
        (positions + OVERRUN).next_multiple_of(CAPACITY_STEP)
    }

    pub fn options(&self, id: SequenceId) -> Option<TraceOptions> {
        self.get(id)?.options
    }

    /// Whether a sequence has a wide trace.
    pub fn is_wide(&self, id: SequenceId) -> bool {
        self.options(id).is_some_and(|options| options.parts.wide)
    }

    /// The row of position 0 in the rotary tables.
    pub fn first_angle(&self, id: SequenceId) -> usize {
        self.get(id).map_or(0, |s| s.first_angle)
    }

    /// Reserved positions.
    pub fn capacity(&self, id: SequenceId) -> usize {
        self.get(id).map_or(0, |s| s.capacity)
    }

    /// Makes room for positions `0..len`.
    pub fn reserve(&mut self, id: SequenceId, len: usize) -> Result<()> {
        self.reserve_slots(id.0 + 1)?;
        let Some(sequence) = self.get(id) else { return Err(not_open(id)) };
        if sequence.capacity >= len {
            return Ok(());
        }
        let wanted = match sequence.hint {
            hint if hint >= len => hint.min(len + MAX_AHEAD),
            _ => len.max(sequence.capacity + (sequence.capacity / 2).min(MAX_AHEAD)),
        };
        match self.grow(id, wanted.next_multiple_of(CAPACITY_STEP)) {
            // it may fit without the room ahead
            Err(CudaError::OutOfMemory { .. }) if wanted > len => self.grow(id, len.next_multiple_of(CAPACITY_STEP)),
            result => result,
        }
    }

    fn reserve_slots(&mut self, slots: usize) -> Result<()> {
        if slots <= self.slots {
            return Ok(());
        }
        let slots = slots.next_power_of_two();
        let views = self.device.upload("sequences", &vec![SequenceView::default(); slots])?;
        let first_angles = self.device.upload("first angles", &vec![0; slots])?;
        self.device.copy((&views, 0), (&self.views, 0), self.slots)?;
        self.device.copy((&first_angles, 0), (&self.first_angles, 0), self.slots)?;
        self.device.synchronize()?;
        (self.views, self.first_angles, self.slots) = (views, first_angles, slots);
        Ok(())
    }

    /// Raises the capacity. On failure nothing changes.
    fn grow(&mut self, id: SequenceId, capacity: usize) -> Result<()> {
        let Sequences { device, shape, max_positions, sequences, .. } = self;
        let Some(Some(sequence)) = sequences.get_mut(id.0) else { return Ok(()) };
        let max = capacity.max(*max_positions);
        let Room { keys, values, trace, sections, layers: _ } = match &mut sequence.room {
            Some(room) => room,
            none => none.insert(Room::new(device, shape, sequence.options, max)?),
        };
        let grown = sequence.options.map(|options| Sections::new(capacity, options, shape));
        let wanted = [shape.bytes(capacity, shape.k), shape.bytes(capacity, shape.v), grown.map_or(0, |s| s.bytes)];
        let mut buffers = [("keys", &mut *keys), ("values", &mut *values), ("trace", &mut *trace)];
        let held = buffers.each_ref().map(|(_, buffer)| buffer.bytes());
        let all = buffers.iter_mut().zip(wanted).try_for_each(|((part, buffer), bytes)| {
            device.grow(buffer, &format!("the {part} of a sequence of {capacity} positions"), bytes)
        });
        if all.is_err() {
            buffers.iter_mut().zip(held).try_for_each(|((_, buffer), bytes)| device.shrink(buffer, bytes))?;
            return all;
        }
        device.spread(keys, &shape.spread(shape.k, sequence.capacity, capacity))?;
        device.spread(values, &shape.spread(shape.v, sequence.capacity, capacity))?;
        if let Some(grown) = grown {
            device.spread(trace, &sections.spread(&grown))?;
            *sections = grown;
        }
        sequence.capacity = capacity;
        let (view, first_angle) = (sequence.view(), sequence.first_angle as i32);
        device.write(&self.first_angles, id.0, &[first_angle])?;
        device.write(&self.views, id.0, &[view])
    }

    /// The keys and values of a sequence that has some.
    pub fn cached(&self, id: SequenceId) -> Option<[&Buffer<u8>; 2]> {
        self.get(id)?.room.as_ref().map(|room| [&room.keys, &room.values])
    }

    /// The attention of a layer of the model.
    pub fn layer_shape(&self, layer: usize) -> LayerShape {
        let LayerSpec { num_key_value_heads, head_dim, window, .. } = self.shape.spec.layers[layer];
        LayerShape {
            layer: self.shape.before[layer] as i32,
            kv_heads: num_key_value_heads as i32,
            head_dim: head_dim as i32,
            window: window.unwrap_or(0) as i32,
        }
    }

    /// The largest number of tokens, up to `positions`, after which the sequence can continue differently.
    pub fn resumes_at(&self, id: SequenceId, positions: usize) -> usize {
        let states = self.get(id).and_then(|sequence| sequence.states.as_ref());
        states.map_or(positions, |states| states.resumes_at(positions))
    }

    pub fn expect_fork(&mut self, id: SequenceId, positions: usize) {
        self.get_mut(id).into_iter().for_each(|sequence| sequence.expected.push(positions));
    }

    /// Checks that the states that the rows of a pass continue from are held; the rows of a sequence must be consecutive.
    pub fn check_states(&self, rows: &[Row]) -> Result<(), BackendError> {
        let mut seen = HashSet::new();
        let runs = rows.chunk_by(Row::precedes).filter_map(|run| run.first());
        for Row { sequence, position, .. } in runs.filter(|_| self.shape.spec.delta_net.is_some()) {
            if !seen.insert(*sequence) || self.resumes_at(*sequence, *position) != *position {
                return Err(BackendError::NotHeld { position: *position });
            }
        }
        Ok(())
    }

    /// Rewinds to the states before the rows of a pass; returns where the states after each row are copied to.
    pub fn begin_states(&mut self, rows: &[Row], record: bool) -> Result<Vec<Floats>> {
        let mut keeps = Vec::new();
        for (i, Row { sequence, position, .. }) in rows.iter().enumerate() {
            let Some(Sequence { states: Some(states), expected, .. }) = self.get_mut(*sequence) else { continue };
            if i == 0 || rows[i - 1].sequence != *sequence {
                states.resume(*position)?;
            }
            let tokens = position + 1;
            let kept = record && (tokens.is_multiple_of(STATE_INTERVAL) || expected.contains(&tokens));
            keeps.push(if kept { states.keep(tokens)? } else { DevicePtr::NULL });
        }
        Ok(keeps)
    }

    /// The states of a sequence, in a model with delta nets.
    pub fn states(&mut self, id: SequenceId) -> Option<&mut States> {
        self.get_mut(id)?.states.as_mut()
    }

    /// Copies the first `positions` keys and values of `from` to `to`, which has room for them, and its states at that point.
    pub fn copy_prefix(&mut self, from: SequenceId, to: SequenceId, positions: usize) -> Result<()> {
        let both = self.sequences.get_disjoint_mut([from.0, to.0]);
        let Ok([Some(source), Some(target)]) = both else { return Ok(()) };
        if let (Some(from), Some(to)) = (&source.states, &mut target.states) {
            to.copy(from, positions)?;
        }
        let (Some(from), Some(to)) = (&source.room, &target.room) else { return Ok(()) };
        let (shape, positions) = (&self.shape, positions.min(source.capacity));
        for (to, from, t) in [(&to.keys, &from.keys, shape.k), (&to.values, &from.values, shape.v)] {
            for Planes { first, count, head_dim } in &shape.planes {
                let (before, row) = (first * t.size(), head_dim * t.size());
                let place = |capacity: usize| (before * capacity, row * capacity);
                let ((to_start, to_pitch), (from_start, from_pitch)) = (place(target.capacity), place(source.capacity));
                let (to, from) = ((to, to_start, to_pitch), (from, from_start, from_pitch));
                self.device.copy_rows(to, from, positions * row, *count)?;
            }
        }
        Ok(())
    }

    /// Records that the current pass traces row `row` (absolute): the next row, or an earlier one again; others are ignored.
    /// Returns whether it is traced.
    pub fn note_traced(&mut self, id: SequenceId, row: usize) -> bool {
        let Some(sequence) = self.get_mut(id) else { return false };
        let Some(options) = sequence.options else { return false };
        let Some(index) = row.checked_sub(options.first_row).filter(|i| *i <= sequence.traced) else { return false };
        sequence.traced = sequence.traced.max(index + 1);
        true
    }

    /// Drops traced rows from `row` (absolute) on; keys and values from there on are overwritten by later rows.
    pub fn truncate(&mut self, id: SequenceId, row: usize) {
        let Some(Sequence { options: Some(options), traced, .. }) = self.get_mut(id) else { return };
        *traced = (*traced).min(row.saturating_sub(options.first_row));
    }

    /// Index of a traced row (absolute) in its trace.
    pub fn trace_index(&self, id: SequenceId, row: usize) -> Option<usize> {
        let sequence = self.get(id)?;
        row.checked_sub(sequence.options?.first_row).filter(|index| *index < sequence.traced)
    }

    /// Reads `count` values of a trace array, of the row with this index.
    pub fn read_trace<T: bytemuck::Pod>(
        &self,
        id: SequenceId,
        array: TraceArray,
        index: usize,
        count: usize,
    ) -> Result<Vec<T>> {
        let Some(room) = self.get(id).and_then(|s| s.room.as_ref()) else { return Ok(Vec::new()) };
        let (start, width) = (room.sections.starts[array as usize], room.sections.widths[array as usize]);
        self.device.read_at(&room.trace, start + index * width, count)
    }

    /// The mean hidden states of all traced rows but the last, if recorded: `[L + 1, hidden_size]`
    pub fn layer_means(&self, id: SequenceId) -> Result<Option<Vec<Vec<f64>>>> {
        let Some(Sequence { room: Some(Room { layers: Some(layers), .. }), traced, .. }) = self.get(id) else {
            return Ok(None);
        };
        let rows = traced.checked_sub(1).filter(|rows| *rows > 0);
        rows.map(|rows| layers.means(&self.device, rows)).transpose()
    }

    /// Sizes in bytes: (KV cache, trace).
    pub fn bytes(&self, id: SequenceId) -> (usize, usize) {
        let Some(Sequence { room, states, .. }) = self.get(id) else { return (0, 0) };
        let states = states.as_ref().map_or(0, States::bytes);
        let Some(Room { keys, values, trace, layers, .. }) = room else { return (states, 0) };
        let sums = layers.as_ref().map_or(0, LayerSums::bytes);
        (keys.bytes() + values.bytes() + states, trace.bytes() + sums)
    }

    /// Bytes that a sequence of `positions` positions will take if all are traced with these options.
    pub fn expected_bytes(&self, positions: usize, options: TraceOptions) -> ExpectedMemory {
        let (shape, capacity) = (&self.shape, self.capacity_for(positions));
        let rounded = |bytes: usize| bytes.next_multiple_of(self.device.granularity.unwrap_or(1));
        let trace = Sections::new(capacity, options, shape);
        let sums = if options.parts.layer_means { LayerSums::expected_bytes(&shape.spec) } else { 0 };
        ExpectedMemory {
            cache: [shape.k, shape.v].map(|t| rounded(shape.bytes(capacity, t))).iter().sum(),
            cache_row: shape.bytes(1, shape.k) + shape.bytes(1, shape.v),
            // the current ones, a copy where the response begins, and one for every interval
            states: 4 * delta_net::numbers(&shape.spec) * (2 + positions / STATE_INTERVAL),
            trace: rounded(trace.bytes) + sums,
            trace_row: trace.widths.iter().sum(),
            working: 0,
        }
    }
}

fn not_open(id: SequenceId) -> CudaError {
    CudaError::Unsupported(format!("sequence {} is not open", id.0))
}

impl Sequence {
    fn view(&self) -> SequenceView {
        let (mut k, mut v, mut trace) = (DevicePtr::NULL, DevicePtr::NULL, TraceView::default());
        if let Some(room) = &self.room {
            (k, v) = (room.keys.ptr().cast(), room.values.ptr().cast());
            if self.options.is_some() {
                let Sections { starts, widths, .. } = room.sections;
                let place =
                    |array| if widths[array] > 0 { room.trace.ptr().add(starts[array]) } else { DevicePtr::NULL };
                let layers = room.layers.as_ref().map(LayerSums::view).unwrap_or_default();
                trace = TraceView { arrays: std::array::from_fn(place), layers };
            }
        }
        let first_traced_row = self.options.map_or(i32::MAX, |o| i32::try_from(o.first_row).unwrap_or(i32::MAX));
        let (states, snapshots) = self.states.as_ref().map(States::view).unwrap_or_default();
        SequenceView { k, v, capacity: self.capacity as u32, first_traced_row, trace, states, snapshots }
    }
}
