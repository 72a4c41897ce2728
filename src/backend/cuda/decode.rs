//! Decoding as one CUDA graph: a step is captured once per number of rows and replayed; position, token and sampler live
//! on the device. Results arrive a few steps late: while the device runs [`DECODE_STEPS`] steps, the host reads the previous
//! ones. Steps after a stop token are dropped; their rows in cache and trace lie beyond the sequence's
//! end.

use super::CudaBackend;
use super::abi::{RowState, Sampler};
use super::context::Device;
use super::error::{Context, CudaError};
use super::kernel_set::{DECODE_ROWS, DECODE_STEPS};
use super::lm_head::{HeadRun, LmHead, Log, needs_mass, row_state, sampler};
use super::memory::{Buffer, DevicePtr, Pinned};
use super::pass::{PassState, shared_trace};
use super::scratch::HeadScratch;
use crate::backend::forward;
use crate::backend::{BackendError, DecodeRow, Row, Step, TraceOptions};
use cudarc::driver::{CudaEvent, CudaGraph};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// Results per slot: more than are in flight.
const RING: usize = 4 * DECODE_STEPS;

/// First size of the buffers for steps with more rows than a narrow pass; then doubled.
const FIRST_ROOM: usize = 64;

/// The key of a captured step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    rows: usize,
    /// Of all traced rows, but for their first.
    trace: Option<TraceOptions>,
    /// A row draws from the whole vocabulary.
    mass: bool,
}

pub struct Decoder {
    samplers: Buffer<Sampler>,
    log: Log,
    slots: usize,
    /// Results of two batches.
    arrivals: [(Pinned, CudaEvent); 2],
    graphs: HashMap<Shape, CudaGraph>,
    /// The stream on which a captured step selects heads while the logits are computed.
    beside: Device,
}

impl Decoder {
    pub fn new(device: &Device, slots: usize) -> Result<Decoder, CudaError> {
        let log = Log::new(device, slots * RING, RING)?;
        let arrival = || Ok((device.pinned(log.bytes())?, device.event()?));
        let arrivals = [arrival()?, arrival()?];
        let samplers = device.allocate("samplers", DECODE_ROWS)?;
        Ok(Decoder { samplers, log, slots, arrivals, graphs: HashMap::new(), beside: device.beside()? })
    }

    /// Size on the device in bytes.
    pub fn bytes(&self) -> usize {
        self.samplers.bytes() + self.log.bytes()
    }

    /// The result of a row in a copy of the log's bytes; `None` if it was not finite.
    fn result(&self, bytes: &[u8], row: &DecodeRow, wide: bool) -> Option<(Step, u32)> {
        let at = row.row.sequence.0 * RING + row.row.position % RING;
        let (step, token) = self.log.entry(bytes, at, row.detail, wide)?;
        Some((step, token?))
    }

    /// Drops captured steps after an address in them has changed.
    pub fn forget(&mut self) {
        self.graphs.clear();
    }
}

/// The rows of a batch of steps.
struct Group {
    /// Index in the caller's list, and the next row; `None` after its end.
    rows: Vec<Option<(usize, DecodeRow)>>,
    states: Vec<RowState>,
}

/// Called with the result of every step.
pub type OnStep<'a> = dyn FnMut(usize, Step, u32) -> ControlFlow<()> + 'a;

impl Group {
    fn new(rows: Vec<(usize, DecodeRow)>) -> Group {
        let states = rows.iter().map(|(_, r)| row_state(&r.row, r.stream)).collect();
        Group { rows: rows.into_iter().map(Some).collect(), states }
    }
}

impl CudaBackend {
    /// Makes room for steps of up to `rows` rows, as far as memory allows. Returns the number of rows.
    pub(super) fn room_for(&mut self, rows: usize) -> Result<usize, CudaError> {
        let mut room = rows.next_power_of_two().max(FIRST_ROOM);
        while rows > self.scratch.heads.rows && room > self.scratch.heads.rows {
            match self.enlarge(room) {
                Err(CudaError::OutOfMemory { .. }) if room > FIRST_ROOM => room /= 2,
                result => result?,
            }
        }
        Ok(room.min(rows))
    }

    fn enlarge(&mut self, rows: usize) -> Result<(), CudaError> {
        let heads = HeadScratch::new(&self.device, &self.spec, self.splits, rows)?;
        self.head = LmHead::of(&self.device, &self.spec, rows)?;
        self.scratch.heads = heads;
        self.decoder.forget();
        Ok(())
    }

    /// Steps of a batch. With delta nets one, which is waited for: a state cannot be taken back, and none may be beyond its row.
    fn steps(&self) -> usize {
        if self.spec.delta_net.is_some() { 1 } else { DECODE_STEPS }
    }

    /// Runs rows until one of them ends; returns the others.
    pub(super) fn decode_group(
        &mut self,
        rows: Vec<(usize, DecodeRow)>,
        vocabulary: usize,
        on_step: &mut OnStep,
    ) -> Result<Vec<(usize, DecodeRow)>, BackendError> {
        let mut group = Group::new(rows);
        let shape = self.begin_group(&group, vocabulary)?;
        let (mut started, mut finished, ahead) = (0, 0, self.steps().min(2));
        loop {
            let ended = group.rows.iter().any(Option::is_none);
            if !ended && started < finished + ahead {
                self.start_steps(&group, shape, started)?;
                started += 1;
            } else if finished < started {
                self.finish_steps(&mut group, finished, on_step)?;
                finished += 1;
            } else {
                return Ok(group.rows.into_iter().flatten().collect());
            }
        }
    }

    /// Whether a row's sequence has a wide trace.
    fn of_wide(&self, row: &DecodeRow) -> bool {
        self.sequences.options(row.row.sequence).is_some_and(|options| options.wide)
    }

    /// One step, and its results at once: [`Backend::step`](crate::backend::Backend::step).
    pub(super) fn single_step(
        &mut self,
        rows: &[DecodeRow],
        vocabulary: usize,
    ) -> Result<Vec<(Step, u32)>, BackendError> {
        let group = Group::new(rows.iter().copied().enumerate().collect());
        let shape = self.begin_group(&group, vocabulary)?;
        self.replay(shape, 1)?;
        rows.iter().for_each(|row| self.entered(&row.row));
        let log = &self.decoder.log;
        let words: Vec<u32> = self.device.read(&log.data, 0, log.bytes() / 4)?;
        let result = |row| self.decoder.result(bytemuck::cast_slice(&words), row, self.of_wide(row));
        let found: Vec<_> = rows.iter().map(result).collect();
        let unfit = |(row, found): (&DecodeRow, Option<_>)| found.ok_or(row.row.position);
        rows.iter().zip(found).map(unfit).collect::<Result<_, _>>().or_else(|position| self.unfit(position))
    }

    /// Notes that a row has entered its sequence.
    fn entered(&mut self, row: &Row) {
        self.sequences.note_traced(row.sequence, row.position);
        self.sequences.states(row.sequence).into_iter().for_each(|states| states.enter(row.position + 1));
    }

    /// Clears the flag of states that are not finite.
    fn unfit<T>(&self, position: usize) -> Result<T, BackendError> {
        self.device.fill(&self.scratch.not_finite, 0)?;
        Err(self.not_finite(position))
    }

    /// Writes the rows and samplers; returns the shape of the steps.
    fn begin_group(&mut self, group: &Group, vocabulary: usize) -> Result<Shape, BackendError> {
        let rows: Vec<Row> = group.rows.iter().flatten().map(|(_, r)| r.row).collect();
        self.check_tokens(&rows)?;
        self.sequences.check_states(&rows)?;
        self.sequences.begin_states(&rows, false)?;
        let samplers: Vec<Sampler> = group
            .rows
            .iter()
            .flatten()
            .map(|(_, r)| sampler(&r.choice(vocabulary), r.row.position))
            .collect::<Result<_, _>>()?;
        self.make_room(&rows, 1)?;
        let trace = shared_trace(&mut self.sequences, &rows, true)?;
        self.device.write(&self.scratch.rows, 0, &group.states)?;
        self.device.write(&self.decoder.samplers, 0, &samplers)?;
        let shape = Shape {
            rows: rows.len(),
            trace: trace.map(|trace| TraceOptions { first_row: 0, ..trace }),
            mass: samplers.iter().any(needs_mass),
        };
        self.pass = PassState { rows, trace, captured: true, ..PassState::default() };
        Ok(shape)
    }

    /// Starts batch `batch` of steps, and the copy of its results.
    fn start_steps(&mut self, group: &Group, shape: Shape, batch: usize) -> Result<(), BackendError> {
        let reached: Vec<Row> = group
            .states
            .iter()
            .zip(&self.pass.rows)
            .map(|(state, row)| Row { position: state.position as usize + batch * self.steps(), ..*row })
            .collect();
        self.make_room(&reached, self.steps())?;
        self.replay(shape, self.steps())?;
        let Decoder { arrivals, log, .. } = &mut self.decoder;
        let (arrival, event) = &mut arrivals[batch % 2];
        self.device.read_pinned(arrival, &log.data, log.bytes())?;
        self.device.record(event).map_err(BackendError::from)
    }

    /// Starts steps, which are captured if none was before.
    fn replay(&mut self, shape: Shape, steps: usize) -> Result<(), BackendError> {
        if !self.decoder.graphs.contains_key(&shape) {
            let graph = self.capture(shape)?;
            self.decoder.graphs.insert(shape, graph);
        }
        let graph = &self.decoder.graphs[&shape];
        Ok((0..steps).try_for_each(|_| graph.launch()).during("replaying a graph")?)
    }

    /// Waits for batch `batch` and passes its results on.
    fn finish_steps(&mut self, group: &mut Group, batch: usize, on_step: &mut OnStep) -> Result<(), BackendError> {
        let (_, event) = &self.decoder.arrivals[batch % 2];
        event.synchronize().during("waiting for the device")?;
        for _ in 0..self.steps() {
            for entry in &mut group.rows {
                let Some((index, row)) = entry else { continue };
                self.entered(&row.row);
                let (arrival, _) = &self.decoder.arrivals[batch % 2];
                let Some((step, token)) = self.decoder.result(arrival.bytes(), row, self.of_wide(row)) else {
                    return self.unfit(row.row.position);
                };
                let index = *index;
                row.row = Row { position: row.row.position + 1, token, ..row.row };
                if on_step(index, step, token).is_break() {
                    *entry = None;
                }
            }
        }
        Ok(())
    }

    /// Makes room for `steps` more positions of every row, and for its results.
    fn make_room(&mut self, rows: &[Row], steps: usize) -> Result<(), CudaError> {
        for row in rows {
            self.reserve_positions(row.sequence, row.position + steps)?;
            if let Some(states) = self.sequences.states(row.sequence) {
                states.prepare(row.position + 1, row.position + steps)?;
            }
        }
        if self.decoder.slots < self.sequences.slots {
            self.decoder = Decoder::new(&self.device, self.sequences.slots)?;
        }
        Ok(())
    }

    /// Captures one step of the rows of `self.pass`.
    fn capture(&mut self, shape: Shape) -> Result<CudaGraph, BackendError> {
        self.device.clone().capture("capturing a decode step", || self.launch_step(shape))
    }

    /// One step: the rows enter, and the next ones replace them. Heads are selected in parallel with the logits.
    fn launch_step(&mut self, shape: Shape) -> Result<(), BackendError> {
        forward::run(self)?;
        let beside = &self.decoder.beside;
        if shape.trace.is_some() {
            beside.join(&self.device)?;
            self.finish_selection(beside)?;
        }
        let run = HeadRun {
            n: shape.rows,
            rows: &self.scratch.rows,
            samplers: &self.decoder.samplers,
            given: DevicePtr::NULL,
            next_rows: self.scratch.rows.ptr(),
            mass: shape.mass,
            wide: shape.trace.is_some_and(|trace| trace.wide),
            log: self.decoder.log.view(),
            not_finite: self.scratch.not_finite.ptr(),
        };
        self.logits(self.scratch.h.ptr(), shape.rows)?;
        self.head.reduce(&self.device, &self.kernels.head, &run)?;
        if shape.trace.is_some() {
            self.device.join(beside)?; // the selection reads the rows that are replaced now
        }
        Ok(self.head.finish(&self.device, &self.kernels.head, &run)?)
    }
}
