//! Keys and values in the device's cache, as f32.

use super::super::{CudaBackend, error::Result, memory::Buffer};
use crate::{backend::Row, model::weights::DType};

/// Keys and values of consecutive rows, `[rows][heads · head_dim]` each.
pub type Numbers = [Vec<Vec<f32>>; 2];

/// The keys (part 0) or values of one head.
struct Plane<'a> {
    part: usize,
    head: usize,
    buffer: &'a Buffer<u8>,
    /// Byte offset of the first row.
    start: usize,
    /// Each value is the sum of `terms` elements of this type (two: `Halves` in `kernels/common.cuh`).
    stored: DType,
    terms: usize,
}

/// All heads of a layer, from `row` on; and head_dim.
fn planes<'a>(backend: &'a CudaBackend, layer: usize, row: &Row) -> (Vec<Plane<'a>>, usize) {
    let (shape, capacity) = (backend.sequences.layer_shape(layer), backend.sequences.capacity(row.sequence));
    let (heads, head_dim) = (shape.kv_heads as usize, shape.head_dim as usize);
    let plane = |head: usize, part: usize, buffer| {
        let dtype = [backend.cache.0, backend.cache.1][part];
        let (stored, terms) = if part == 0 && dtype == DType::F32 { (DType::F16, 2) } else { (dtype, 1) };
        let before = (shape.layer as usize * heads + head) * capacity + row.position;
        Plane { part, head, buffer, start: before * head_dim * dtype.size(), stored, terms }
    };
    let buffers = backend.sequences.cached(row.sequence).into_iter().flatten().enumerate();
    let planes = buffers.flat_map(|(part, buffer)| (0..heads).map(move |head| plane(head, part, buffer)));
    (planes.collect(), head_dim)
}

/// Reads the keys and values that the device holds.
pub fn read(backend: &CudaBackend, layer: usize, rows: &[Row]) -> Result<Numbers> {
    let (device, (planes, d)) = (&backend.device, planes(backend, layer, &rows[0]));
    let mut held = [(); 2].map(|()| vec![Vec::new(); rows.len()]);
    for Plane { part, buffer, start, stored, terms, .. } in planes {
        let count = rows.len() * terms * d;
        let numbers = device.read_numbers(buffer, start, count, stored)?;
        for (row, numbers) in held[part].iter_mut().zip(numbers.chunks(terms * d)) {
            row.extend((0..d).map(|i| numbers[i..].iter().step_by(d).sum::<f32>()));
        }
    }
    Ok(held)
}

/// Writes keys and values, keys rounded to one term.
pub fn write(backend: &CudaBackend, layer: usize, rows: &[Row], numbers: &Numbers) -> Result<()> {
    let ((planes, d), mut bytes) = (planes(backend, layer, &rows[0]), Vec::new());
    for Plane { part, head, buffer, start, stored, terms } in planes {
        let terms = |row: &Vec<f32>| [&row[head * d..][..d], &vec![0.0; (terms - 1) * d]].concat();
        let terms: Vec<f32> = numbers[part].iter().flat_map(terms).collect();
        stored.encode(&terms, &mut bytes);
        backend.device.write(buffer, start, &bytes)?;
    }
    Ok(())
}
