//! Sums of a sequence's hidden states, one per layer input and one after the final norm (`kernels/layer_sums.cu`).

use super::{abi::LayersView, context::Device, error::Result, kernel_set::OVERRUN, memory::Buffer};
use crate::model::ModelSpec;

/// Columns per block of `layer_sums`.
pub const COLUMNS: usize = 256;

/// Latest rows, kept apart from the sums: steps beyond a response's end are dropped, and its last row is left out of the means.
pub const KEPT: usize = OVERRUN + 1;

/// Sums over the traced rows: O(1) memory per sequence.
pub struct LayerSums {
    /// From the embedding to the final norm: L + 1.
    points: usize,
    width: usize,
    /// `[points, width]`
    sums: Buffer<f64>,
    /// `[points, KEPT, width]`
    rows: Buffer<f32>,
    /// `[points, blocks of columns]`
    counts: Buffer<i32>,
}

impl LayerSums {
    pub fn new(device: &Device, spec: &ModelSpec) -> Result<LayerSums> {
        let (points, width) = (spec.layers.len() + 1, spec.hidden_size);
        let (what, size, blocks) = ("the sums of hidden states", points * width, width.div_ceil(COLUMNS));
        let sums = device.upload(what, &vec![0.0; size])?;
        let counts = device.upload(what, &vec![0; points * blocks])?;
        Ok(LayerSums { points, width, sums, rows: device.allocate(what, KEPT * size)?, counts })
    }

    /// Bytes per sequence.
    pub fn expected_bytes(spec: &ModelSpec) -> usize {
        let (points, width) = (spec.layers.len() + 1, spec.hidden_size);
        points * (width * (8 + 4 * KEPT) + 4 * width.div_ceil(COLUMNS))
    }

    pub fn bytes(&self) -> usize {
        self.sums.bytes() + self.rows.bytes() + self.counts.bytes()
    }

    pub fn view(&self) -> LayersView {
        LayersView { sums: self.sums.ptr(), rows: self.rows.ptr(), counts: self.counts.ptr() }
    }

    /// The mean of the first `rows` rows, `[points, width]`. At most `OVERRUN` + 1 rows follow them.
    pub fn means(&self, device: &Device, rows: usize) -> Result<Vec<Vec<f64>>> {
        let count = device.read(&self.counts, 0, 1)?.first().map_or(0, |count| *count as usize);
        let (mut sums, kept) = (device.read(&self.sums, 0, self.points * self.width)?, KEPT * self.width);
        let mut mean = |(sums, kept): (&mut [f64], &[f32])| {
            for row in count.saturating_sub(KEPT)..rows {
                let row = &kept[row % KEPT * self.width..][..self.width];
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            sums.iter().map(|sum| sum / rows as f64).collect()
        };
        let latest = device.read(&self.rows, 0, self.points * kept)?;
        Ok(sums.chunks_mut(self.width).zip(latest.chunks(kept)).map(&mut mean).collect())
    }
}
