//! Tests of `gate.cu` and `delta_net.cu`: three rows of one sequence, after a state.

use super::super::abi::{DeltaMix, DeltaNet, DeltaRule, GateRows, RowState, SIGMOID, SILU, SequenceView};
use super::super::error::CudaError;
use super::super::kernel_set::{DELTA_COLUMNS, DELTA_HEADS};
use super::super::launch::{Int, Kernel};
use super::super::memory::DevicePtr;
use super::data::{Bench, Noise, Sum, Tested, U, exact, near, wide};
use crate::backend::reference::activate;
use crate::backend::reference::delta_net::sigmoid;
use crate::model::config::Activation::Silu;

const ROWS: usize = 3;
const TAPS: usize = 4;
/// Value heads of the one key head.
const HEADS: usize = 2;
const KEY_DIM: usize = 20;
const STRIDE: usize = KEY_DIM.next_multiple_of(16);
const VALUE_DIM: usize = 70;
/// Components of queries, keys and values.
const WIDTHS: [usize; 3] = [KEY_DIM, KEY_DIM, HEADS * VALUE_DIM];
const INPUTS: usize = ((TAPS - 1) * (WIDTHS[0] + WIDTHS[1] + WIDTHS[2])).next_multiple_of(4);
const COLUMNS: usize = HEADS * VALUE_DIM;
/// The position of the first row.
const FIRST: i32 = 9;

pub fn gate_rows(kernel: &Kernel<GateRows>, bench: &Bench) -> Tested {
    const WIDTH: usize = 300;
    let ((gate, gates), (x, values)) = (bench.noise(71, ROWS * WIDTH, 6.0)?, bench.noise(72, ROWS * WIDTH, 2.0)?);
    for (step, activation) in [(1, SILU), (0, SIGMOID)] {
        let y = bench.room::<f32>(ROWS * WIDTH)?;
        let (width, gate_step) = (WIDTH.into(), Int(step));
        let parameters = GateRows { gate, gate_stride: width, gate_step, x, x_stride: width, width, activation, y };
        bench.device.launch(kernel, [WIDTH.div_ceil(256), ROWS, 1], &parameters)?;
        let want = values.iter().enumerate().map(|(i, x)| {
            let g = gates[i / WIDTH * WIDTH + i % WIDTH * step as usize];
            let factor = if activation == SILU { activate(Silu, g.into()) } else { sigmoid(g.into()) };
            near(factor * f64::from(*x), f64::from(x.abs()) * factor.abs().max(0.1), 32.0 * U)
        });
        bench.compare("y", y, want)?;
    }
    Ok(())
}

/// The sequence, and a layer whose arrays have no contents yet.
fn layer(bench: &Bench, state: &[f32]) -> Result<(DeltaNet, DevicePtr<f32>), CudaError> {
    let states = bench.put(state)?;
    let row = |i: usize| RowState { position: FIRST + i as i32, ..RowState::default() };
    let net = DeltaNet {
        rows: bench.put(&(0..ROWS).map(row).collect::<Vec<_>>())?,
        sequences: bench.put(&[SequenceView { states, capacity: 64, ..SequenceView::default() }])?,
        raw: [DevicePtr::NULL; 3],
        conv: [DevicePtr::NULL; 3],
        a: DevicePtr::NULL,
        b: DevicePtr::NULL,
        a_log: DevicePtr::NULL,
        dt_bias: DevicePtr::NULL,
        mixed: [bench.room(ROWS * STRIDE)?, bench.room(ROWS * STRIDE)?, bench.room(ROWS * COLUMNS)?],
        rates: bench.room(ROWS * HEADS * 2)?,
        place: 0,
        key_heads: 1,
        value_heads: HEADS as i32,
        key_dim: KEY_DIM as i32,
        value_dim: VALUE_DIM as i32,
        taps: TAPS as i32,
        activation: SILU.0,
        padding: 0,
    };
    Ok((net, states))
}

pub fn mix(kernel: &Kernel<DeltaMix>, bench: &Bench) -> Tested {
    let state = Noise(73).floats(INPUTS + COLUMNS * STRIDE, 1.0);
    let (mut net, _) = layer(bench, &state)?;
    let [a, b, a_log, dt_bias] =
        [(74, ROWS), (75, ROWS), (76, 1), (77, 1)].map(|(seed, n)| Noise(seed).floats(n * HEADS, 1.0));
    (net.a, net.b, net.a_log, net.dt_bias) = (bench.put(&a)?, bench.put(&b)?, bench.put(&a_log)?, bench.put(&dt_bias)?);
    let (mut raw, mut conv) = (Vec::new(), Vec::new());
    for (part, width) in WIDTHS.into_iter().enumerate() {
        let (x, w) =
            (bench.noise(80 + part as u64, ROWS * width, 1.0)?, bench.noise(90 + part as u64, TAPS * width, 1.0)?);
        (net.raw[part], net.conv[part]) = (x.0, w.0);
        (raw, conv) = ([raw, vec![x.1]].concat(), [conv, vec![w.1]].concat());
    }
    bench.device.launch(kernel, [(2 + HEADS).div_ceil(DELTA_HEADS), ROWS, 1], &DeltaMix { net })?;
    let before = [0, KEY_DIM, 2 * KEY_DIM];
    let mixed = |part: usize, row: usize, i: usize| -> Sum {
        let input = |back: usize| match row.checked_sub(back) {
            Some(row) => raw[part][row * WIDTHS[part] + i],
            None => state[(TAPS - 1 - (back - row)) * WIDTHS.iter().sum::<usize>() + before[part] + i],
        };
        let terms =
            (0..TAPS).map(|tap| f64::from(conv[part][tap * WIDTHS[part] + i]) * f64::from(input(TAPS - 1 - tap)));
        let (sum, scale) = terms.fold((0.0, 0.0), |(sum, scale), term| (sum + term, scale + term.abs()));
        (activate(Silu, sum), scale)
    };
    // |silu'| < 1.1; a row of length 1 has its norm's error, too
    for (part, width) in WIDTHS.into_iter().enumerate() {
        for row in 0..ROWS {
            let sums: Vec<Sum> = (0..width).map(|i| mixed(part, row, i)).collect();
            let length = (sums.iter().map(|(x, _)| x * x).sum::<f64>() + 1e-6).sqrt();
            let root = if part == 0 { (KEY_DIM as f64).sqrt() } else { 1.0 };
            let factor = if part < 2 { 1.0 / (length * root) } else { 1.0 };
            let lost = if part < 2 { sums.iter().map(|(_, scale)| scale).sum::<f64>() / length } else { 0.0 };
            let want = sums.iter().map(|(x, scale)| near(x * factor, (scale + x.abs() * lost) * factor, 32.0 * U));
            let at = net.mixed[part].add(row * if part < 2 { STRIDE } else { width });
            bench.compare(["queries", "keys", "values"][part], at, want)?;
        }
    }
    // the exponent of α is within a few U of its size, at most 8
    let rates = (0..ROWS * HEADS).flat_map(|at| {
        let time = f64::from(a[at]) + f64::from(dt_bias[at % HEADS]);
        let decay = (-f64::from(a_log[at % HEADS]).exp() * time.exp().ln_1p()).exp();
        [decay, sigmoid(b[at].into())].map(|rate| near(rate, 1.0, 64.0 * U))
    });
    bench.compare("rates", net.rates, rates)
}

/// Two states: after the second row as a copy, and after the last.
pub fn rule(kernel: &Kernel<DeltaRule>, bench: &Bench) -> Tested {
    let mut state = Noise(73).floats(INPUTS + COLUMNS * STRIDE, 1.0);
    state[INPUTS..].chunks_mut(STRIDE).for_each(|column| column[KEY_DIM..].fill(0.0));
    let (mut net, states) = layer(bench, &state)?;
    let (mut q, mut k) = (Noise(78).floats(ROWS * STRIDE, 0.3), Noise(79).floats(ROWS * STRIDE, 0.3));
    let v = Noise(81).floats(ROWS * COLUMNS, 1.0);
    [&mut q, &mut k].into_iter().for_each(|x| x.chunks_mut(STRIDE).for_each(|key| key[KEY_DIM..].fill(0.0)));
    let rates: Vec<f32> = Noise(82).floats(ROWS * HEADS * 2, 0.5).iter().map(|x| x + 0.5).collect();
    (net.mixed, net.rates) = ([bench.put(&q)?, bench.put(&k)?, bench.put(&v)?], bench.put(&rates)?);
    let mut raw = Vec::new();
    for (part, width) in WIDTHS.into_iter().enumerate() {
        let (x, values) = bench.noise(85 + part as u64, ROWS * width, 1.0)?;
        net.raw[part] = x;
        raw.push(values);
    }
    let (out, copy) = (bench.room::<f32>(ROWS * COLUMNS)?, bench.room::<f32>(state.len())?);
    let keeps = bench.put(&[DevicePtr::NULL, copy, DevicePtr::NULL])?;
    let parameters = DeltaRule { net, keeps, interval: Int(256), out };
    bench.device.launch(kernel, [VALUE_DIM.div_ceil(DELTA_COLUMNS), HEADS, ROWS], &parameters)?;
    // every row's error in S, of a sum of KEY_DIM products and three roundings, enters those after it
    let lost = (ROWS * (KEY_DIM + 8)) as f64 * U;
    let (mut s, mut scales) =
        (wide(&state[INPUTS..]), wide(&state[INPUTS..]).iter().map(|x| x.abs()).collect::<Vec<_>>());
    for row in 0..ROWS {
        let (q, k) = (&q[row * STRIDE..][..STRIDE], &k[row * STRIDE..][..STRIDE]);
        let mut answers = Vec::new();
        for (at, (s, scale)) in s.chunks_mut(STRIDE).zip(scales.chunks_mut(STRIDE)).enumerate() {
            let head = (row * HEADS + at / VALUE_DIM) * 2;
            let (alpha, beta, v) =
                (f64::from(rates[head]), f64::from(rates[head + 1]), f64::from(v[row * COLUMNS + at]));
            let product = |s: &[f64], x: &[f32]| s.iter().zip(x).map(|(s, x)| s * f64::from(*x)).sum::<f64>();
            let sizes = |s: &[f64], x: &[f32]| s.iter().zip(x).map(|(s, x)| s * f64::from(x.abs())).sum::<f64>();
            let correction = beta * (v - alpha * product(s, k));
            let size = beta * (v.abs() + alpha * sizes(scale, k));
            for ((s, scale), k) in s.iter_mut().zip(scale.iter_mut()).zip(k) {
                (*s, *scale) = (alpha * *s + f64::from(*k) * correction, alpha * *scale + f64::from(k.abs()) * size);
            }
            answers.push(near(product(s, q), sizes(scale, q), lost));
        }
        bench.compare(&format!("out of row {row}"), out.add(row * COLUMNS), answers)?;
        let memory = || s.iter().zip(&scales).map(|(s, scale)| near(*s, *scale, lost));
        match row {
            1 => bench.compare("copy", copy.add(INPUTS), memory())?,
            2 => bench.compare("state", states.add(INPUTS), memory())?,
            _ => {}
        }
    }
    // the pass has TAPS - 1 rows, all that the convolutions look back
    let rows = (0..TAPS - 1).flat_map(|row| (0..3).map(move |part| (row, part)));
    let inputs = rows.flat_map(|(row, part)| &raw[part][row * WIDTHS[part]..][..WIDTHS[part]]);
    bench.compare("inputs", states, inputs.map(|x| exact(*x)))
}
