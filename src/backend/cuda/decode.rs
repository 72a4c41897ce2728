//! A decode step as one CUDA graph, captured once per shape (number of rows, trace, sampler sums) and replayed; position,
//! token and sampler live on the device. Results arrive a few steps late: while the device runs [`DECODE_STEPS`] steps, the host
//! reads the previous ones. Steps after a stop token are dropped; their rows in cache and trace lie beyond the sequence's end.

use super::lm_head::{LmHead, Log, needs_mass, row_state, sampler};
use super::pass::{PassState, shared_trace};
use super::{CudaBackend, context::Device, kernel_set::DECODE_STEPS, memory::Pinned, scratch::HeadScratch};
use super::{abi::HeadFinish, abi::RowState, abi::Sampler, error::Context, error::CudaError, error::Result};
use crate::backend::{Backend, BackendError, DecodeRow, OnStep, Row, Step, TraceParts, forward};
use cudarc::driver::{CudaEvent, CudaGraph};
use std::collections::HashMap;

/// Result entries per slot: more than are in flight.
const RING: usize = 4 * DECODE_STEPS;

/// Initial size of the buffers for steps with more rows than a narrow pass; doubled from there.
const FIRST_ROOM: usize = 64;

/// The key of a captured step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    rows: usize,
    /// The trace options that all traced rows share: all but `first_row`.
    trace: Option<TraceParts>,
    /// Whether a row draws from the whole vocabulary.
    mass: bool,
}

pub struct Decoder {
    pub log: Log,
    slots: usize,
    /// Results of two batches.
    arrivals: [(Pinned, CudaEvent); 2],
    graphs: HashMap<Shape, CudaGraph>,
    /// The stream on which a captured step selects heads while the logits are computed.
    beside: Device,
}

impl Decoder {
    pub fn new(device: &Device, slots: usize) -> Result<Decoder> {
        let log = Log::new(device, slots * RING, RING)?;
        let arrival = || Ok((device.pinned(log.words.bytes())?, device.event()?));
        let arrivals = [arrival()?, arrival()?];
        Ok(Decoder { log, slots, arrivals, graphs: HashMap::new(), beside: device.beside()? })
    }

    /// Drops captured steps after an address in them has changed.
    pub fn forget(&mut self) {
        self.graphs.clear();
    }
}

/// A row of a batch of steps: its index in the caller's list, and the next row; `None` after its end.
type Running = Option<(usize, DecodeRow)>;

impl CudaBackend {
    /// Makes room for steps of up to `rows` rows, as far as memory allows. Returns the number of rows.
    pub(super) fn room_for(&mut self, rows: usize) -> Result<usize> {
        let mut room = rows.next_power_of_two().max(FIRST_ROOM);
        while rows > self.scratch.heads.rows && room > self.scratch.heads.rows {
            match self.enlarge(room) {
                Err(CudaError::OutOfMemory { .. }) if room > FIRST_ROOM => room /= 2,
                result => result?,
            }
        }
        Ok(room.min(rows))
    }

    fn enlarge(&mut self, rows: usize) -> Result<()> {
        let heads = HeadScratch::new(&self.device, &self.spec, self.splits, rows)?;
        self.head = LmHead::new(&self.device, &self.spec, rows)?;
        self.scratch.heads = heads;
        self.decoder.forget();
        Ok(())
    }

    /// Steps per batch. With delta nets just one, which is waited for: a state cannot be rewound, and none may run ahead of its row.
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
        let first: Vec<DecodeRow> = rows.iter().map(|(_, row)| *row).collect();
        let shape = self.begin_group(&first, vocabulary)?;
        let mut rows: Vec<Running> = rows.into_iter().map(Some).collect();
        let (mut started, mut finished, ahead) = (0, 0, self.steps().min(2));
        let mut failed = Vec::new();
        loop {
            let ended = rows.iter().any(Option::is_none);
            if !ended && started < finished + ahead {
                self.start_steps(shape, started)?;
                started += 1;
            } else if finished < started {
                self.finish_steps(&mut rows, finished, &mut failed, on_step)?;
                finished += 1;
            } else if failed.is_empty() {
                return Ok(rows.into_iter().flatten().collect());
            } else {
                return Err(BackendError::Rows(failed));
            }
        }
    }

    /// The result of a row in a copy of the log's words.
    pub(super) fn result(&self, words: &[u32], row: &DecodeRow) -> Result<(Step, u32), BackendError> {
        let DecodeRow { row, detail, .. } = *row;
        let at = row.sequence.0 * RING + row.position % RING;
        let entry = self.decoder.log.entry(words, at, detail, self.sequences.is_wide(row.sequence));
        let Some((step, Some(token))) = entry else { return Err(self.not_finite(row.position)) };
        Ok((step, token))
    }

    /// Records that a row has entered its sequence.
    pub(super) fn entered(&mut self, row: &Row) {
        self.sequences.note_traced(row.sequence, row.position);
        self.sequences.states(row.sequence).into_iter().for_each(|states| states.enter(row.position + 1));
    }

    /// Writes the rows and samplers; returns the shape of the steps.
    pub(super) fn begin_group(&mut self, group: &[DecodeRow], vocabulary: usize) -> Result<Shape, BackendError> {
        let rows: Vec<Row> = group.iter().map(|r| r.row).collect();
        self.check_tokens(&rows)?;
        self.sequences.check_states(&rows)?;
        // before the states are taken out: a sequence without room leaves the others theirs
        rows.iter().try_for_each(|row| self.reserve_positions(row.sequence, row.position + 1))?;
        self.sequences.begin_states(&rows, false)?;
        let states: Vec<RowState> = group.iter().map(|r| row_state(&r.row, r.stream)).collect();
        let samplers = group.iter().map(|r| sampler(&r.choice(vocabulary), r.row.position));
        let samplers: Vec<Sampler> = samplers.collect::<Result<_, _>>()?;
        self.make_room(&rows, 1)?;
        let trace = shared_trace(&mut self.sequences, &rows, true)?;
        self.device.write(&self.scratch.rows, 0, &states)?;
        self.device.write(&self.head.samplers, 0, &samplers)?;
        let shape = Shape { rows: rows.len(), trace, mass: samplers.iter().any(needs_mass) };
        self.device.fill(&self.scratch.not_finite, 0)?;
        self.pass = PassState { rows, trace, captured: true, ..PassState::default() };
        Ok(shape)
    }

    /// Launches batch `batch` of steps, and the copy of its results.
    fn start_steps(&mut self, shape: Shape, batch: usize) -> Result<(), BackendError> {
        let reached = |row: &Row| Row { position: row.position + batch * self.steps(), ..*row };
        let reached: Vec<Row> = self.pass.rows.iter().map(reached).collect();
        self.make_room(&reached, self.steps())?;
        self.replay(shape, self.steps())?;
        let Decoder { arrivals, log, .. } = &mut self.decoder;
        let (arrival, event) = &mut arrivals[batch % 2];
        self.device.read_pinned(arrival, &log.words)?;
        self.device.record(event).map_err(BackendError::from)
    }

    /// Launches steps, capturing one first if none of this shape has been captured.
    pub(super) fn replay(&mut self, shape: Shape, steps: usize) -> Result<(), BackendError> {
        if !self.decoder.graphs.contains_key(&shape) {
            let graph = self.device.clone().capture(|| self.launch_step(shape))?;
            self.decoder.graphs.insert(shape, graph);
        }
        let graph = &self.decoder.graphs[&shape];
        Ok((0..steps).try_for_each(|_| graph.launch()).during("replaying a graph")?)
    }

    /// Waits for batch `batch` and passes its results on; rows with an error end, in `failed`.
    fn finish_steps(
        &mut self,
        rows: &mut [Running],
        batch: usize,
        failed: &mut Vec<(usize, BackendError)>,
        on_step: &mut OnStep,
    ) -> Result<(), BackendError> {
        let (_, event) = &self.decoder.arrivals[batch % 2];
        event.synchronize().during("waiting for the device")?;
        for _ in 0..self.steps() {
            for entry in rows.iter_mut() {
                let Some((index, row)) = entry else { continue };
                self.entered(&row.row);
                let (arrival, _) = &self.decoder.arrivals[batch % 2];
                let index = *index;
                let goes_on = match self.result(bytemuck::cast_slice(arrival.bytes()), row) {
                    Ok((step, token)) => {
                        row.row = Row { position: row.row.position + 1, token, ..row.row };
                        on_step(index, step, token).is_continue()
                    }
                    Err(error) => {
                        failed.push((index, error));
                        false
                    }
                };
                if !goes_on {
                    *entry = None;
                }
            }
        }
        Ok(())
    }

    /// Makes room for `steps` more positions of every row, and for its results.
    fn make_room(&mut self, rows: &[Row], steps: usize) -> Result<()> {
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

    /// One step of the rows of `self.pass`: they enter, and are replaced by the next ones. Heads are selected in parallel with
    /// the logits.
    fn launch_step(&mut self, shape: Shape) -> Result<(), BackendError> {
        forward::run(self)?;
        let beside = &self.decoder.beside;
        if shape.trace.is_some() {
            beside.join(&self.device)?;
            self.finish_selection(beside)?;
        }
        let run = HeadFinish {
            rows: self.scratch.rows.ptr(),
            samplers: self.head.samplers.ptr(),
            next_rows: self.scratch.rows.ptr(),
            log: self.decoder.log.view(),
            ..self.head_run(shape.trace.is_some_and(|trace| trace.wide))
        };
        self.logits(self.scratch.h.ptr(), shape.rows)?;
        self.reduce(&run, shape.rows, shape.mass)?;
        if shape.trace.is_some() {
            self.device.join(beside)?; // the selection reads the rows that are about to be replaced
        }
        Ok(self.device.launch(&self.kernels.head.finish, [shape.rows, 1, 1], &run)?)
    }
}
