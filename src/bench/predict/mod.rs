//! Predictions of what a decode step and a prefill take on a GPU, before one is there to measure:
//!
//! ```text
//! time = nodes · gap  +  Σ over nodes (ramp + max(bytes / bandwidth, instructions / issue rate))
//! ```
//!
//! with the bytes and bandwidths of memory, of the second cache and of shared memory. Nodes are what a captured step launches,
//! bytes what they must read, instructions those that were counted in the machine code, all else is assumed: `model.rs` says
//! each with how far it may be off. The range of a prediction has everything off the same way. No number here was measured on a GPU, and none of it is to be quoted as if it had been.

pub mod accelerators;
mod counts;
mod model;

use super::roofline::replaced;
use crate::model::ModelSpec;
use accelerators::Accelerator;
use model::{Model, Time};
use serde::{Deserialize, Serialize};

/// The context at which a row of the decode table stands: the mean of a prompt and a response of 512 tokens each.
const CONTEXT: usize = 768;
const LONG: [usize; 2] = [4096, 32_768];
const BATCHES: [usize; 4] = [1, 16, 64, 256];
const PREFILLS: [usize; 2] = [512, 4096];
/// What `benches/gpu/answered.rs` measures: a prompt, the response, and variants of it.
const ANSWERED: (usize, usize, usize) = (512, 500, 8);

/// One row of a prediction; its name and unit are those of the row of `benches/gpu.sh` that measures it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub what: String,
    /// tokens/s, or % of the time without the trace
    pub unit: String,
    pub predicted: f64,
    pub low: f64,
    pub high: f64,
    /// Seconds: of a step, or of the whole prefill.
    pub seconds: Option<f64>,
    /// Of the best that bytes at the copy rate, or operations at the published matrix peak, allow.
    pub share_of_floor: Option<f64>,
    /// Of the time, what passes between nodes.
    pub gap_share: Option<f64>,
    /// The hardware counter that shows whether the reason is the right one, and what it should say.
    pub falsified_by: String,
}

/// What is predicted of one model on one device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prediction {
    /// Said with every output.
    pub note: String,
    pub device: String,
    pub source: String,
    pub shape: String,
    pub rows: Vec<Row>,
}

const NOTE: &str = "predictions from counted instructions and published peaks; not measured, on no GPU";

/// The rows of a model on a device.
pub fn predict(spec: &ModelSpec, shape: &str, device: &'static Accelerator) -> Prediction {
    let mut rows = Vec::new();
    let names = |batch: usize| ["plain", "with UQAC's trace"].map(|what| format!("decode, batch {batch}, {what}"));
    for batch in BATCHES {
        rows.extend(decode_rows(range(spec, device), names(batch), batch, CONTEXT));
        rows.push(overhead(spec, device, format!("UQAC on against off, batch {batch}, decode time"), batch, CONTEXT));
    }
    for context in LONG.into_iter().filter(|context| *context <= spec.max_position_embeddings) {
        let names = ["plain", "with UQAC's trace"].map(|what| format!("decode at {context} tokens, {what}"));
        rows.extend(decode_rows(range(spec, device), names, 1, context));
        rows.push(overhead(spec, device, format!("UQAC on against off at {context} tokens, decode time"), 1, context));
    }
    if device.early_starts() {
        let models = range(spec, device).map(|model| Model { early: false, ..model });
        rows.extend(decode_rows(models, names(1).map(|what| format!("{what}, one by one")), 1, CONTEXT));
    }
    rows.extend(PREFILLS.map(|tokens| prefill_row(spec, device, tokens)));
    rows.push(answered_row(spec, device));
    let [note, name, source] = [NOTE, device.name, device.source].map(str::to_owned);
    Prediction { note, device: name, source, shape: shape.to_owned(), rows }
}

/// A model at the fast end of the assumptions, in the middle, and at the slow end.
fn range<'a>(spec: &'a ModelSpec, device: &'a Accelerator) -> [Model<'a>; 3] {
    [-1.0, 0.0, 1.0].map(|slow| Model { spec, device, slow, early: device.early_starts() })
}

fn rate_row(what: String, tokens: usize, times: [Time; 3], floor: f64) -> Row {
    let [high, predicted, low] = times.map(|time| tokens as f64 / time.total());
    let time = times[1];
    Row {
        what,
        unit: "tokens/s".to_owned(),
        predicted,
        low,
        high,
        seconds: Some(time.total()),
        share_of_floor: Some(floor / time.total()),
        gap_share: Some(time.gaps / time.total()),
        falsified_by: time.falsified_by(),
    }
}

fn decode_rows(models: [Model; 3], names: [String; 2], batch: usize, context: usize) -> [Row; 2] {
    let [plain, traced] = names;
    let row = |what, traced| {
        let times = models.each_ref().map(|model| model.decode(batch, context, traced));
        rate_row(what, batch, times, models[1].step_floor(batch, context))
    };
    [row(plain, false), row(traced, true)]
}

/// A share of a time, at the fast end of the assumptions, in the middle, and at the slow end.
fn percent_row(what: String, mut shares: [f64; 3], falsified_by: &str) -> Row {
    let predicted = shares[1];
    shares.sort_by(f64::total_cmp);
    let [low, _, high] = shares;
    let (seconds, share_of_floor, gap_share) = (None, None, None);
    let [unit, falsified_by] = ["%", falsified_by].map(str::to_owned);
    Row { what, unit, predicted, low, high, seconds, share_of_floor, gap_share, falsified_by }
}

fn overhead(spec: &ModelSpec, device: &Accelerator, what: String, batch: usize, context: usize) -> Row {
    let shares = range(spec, device).map(|model| {
        let [plain, traced] = [false, true].map(|traced| model.decode(batch, context, traced).total());
        100.0 * (traced - plain) / plain
    });
    percent_row(what, shares, "smsp__inst_executed.sum of attn_decode with and without the entropy: as counted")
}

/// What follows an answer, of the time that the answer took.
fn answered_row(spec: &ModelSpec, device: &Accelerator) -> Row {
    let (prompt, tokens, variants) = ANSWERED;
    let replaced = replaced(prompt, tokens, variants);
    let shares = range(spec, device).map(|model| {
        let step = model.decode(1, prompt + tokens / 2, true).total();
        let generation = model.prefill(prompt).total() + tokens as f64 * step;
        100.0 * model.after_answer(&replaced, prompt + tokens - 1).total() / generation
    });
    let what = format!("chain + similarity + ensemble, {variants} variants, {tokens} tokens");
    percent_row(what, shares, "sm__inst_executed_pipe_tensor.sum of gemm_*: as in a prefill of as many rows")
}

fn prefill_row(spec: &ModelSpec, device: &Accelerator, tokens: usize) -> Row {
    let models = range(spec, device);
    let times = models.each_ref().map(|model| model.prefill(tokens));
    let row = rate_row(format!("prefill, {tokens} tokens"), tokens, times, models[1].prefill_floor(tokens));
    let falsified_by = "sm__inst_executed_pipe_tensor.sum and sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active \
                        of gemm_*: instructions as counted, the pipe busy for the share of the floor";
    Row { falsified_by: falsified_by.to_owned(), ..row }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::DECODE_ROWS;
    use crate::bench::shapes::SHAPES;

    #[test]
    fn predictions_stay_between_their_floors_and_their_ranges() {
        for shape in &SHAPES {
            let spec = ModelSpec::from_config(&shape.config()).unwrap();
            for device in &accelerators::ACCELERATORS {
                let prediction = predict(&spec, shape.name, device);
                for row in &prediction.rows {
                    assert!(row.low <= row.predicted && row.predicted <= row.high, "{} {row:?}", shape.name);
                    assert!(
                        row.share_of_floor.is_none_or(|share| share > 0.0 && share < 1.0),
                        "{} {row:?}",
                        shape.name
                    );
                    assert!(row.gap_share.is_none_or(|share| share > 0.0 && share < 0.6), "{} {row:?}", shape.name);
                }
            }
        }
    }

    #[test]
    fn more_work_takes_longer_and_more_bandwidth_less() {
        let spec = ModelSpec::from_config(&SHAPES[0].config()).unwrap();
        let [h100, h200] = ["h100", "h200"].map(|name| accelerators::find(name).unwrap());
        let seconds = |device, batch, context, traced| {
            Model { spec: &spec, device, slow: 0.0, early: true }.decode(batch, context, traced).total()
        };
        assert!(seconds(h100, 1, 768, false) > seconds(h200, 1, 768, false));
        assert!(seconds(h200, 1, 32_768, false) > seconds(h200, 1, 768, false));
        // the entropy's instructions show where attention does not wait for memory: with a B200's, at the slow end
        let b200 = accelerators::find("b200").unwrap();
        let slow =
            |traced| Model { spec: &spec, device: b200, slow: 1.0, early: true }.decode(1, 32_768, traced).total();
        assert!(slow(true) > slow(false) && seconds(h200, 1, 768, true) >= seconds(h200, 1, 768, false));
        // sixteen sequences cost less than twice one, and so on; beyond what a step takes, steps follow each other
        assert!(seconds(h200, 16, 768, false) < 2.0 * seconds(h200, 1, 768, false));
        assert!(seconds(h200, 64, 768, false) < 4.0 * seconds(h200, 16, 768, false));
        assert!(seconds(h200, 256, 768, false) < 4.0 * seconds(h200, 64, 768, false));
        assert!(
            (seconds(h200, 4 * DECODE_ROWS, 768, false) / seconds(h200, DECODE_ROWS, 768, false) - 4.0).abs() < 1e-9
        );
        // of 15.01 GB of weights and 0.15 GB of cache, at nine tenths of 4.8 TB/s
        let floor = Model { spec: &spec, device: h200, slow: 0.0, early: true }.step_floor(1, 768);
        assert!((floor - 15.16e9 / 4.32e12).abs() < 0.01e-3, "{floor}");
    }
}
