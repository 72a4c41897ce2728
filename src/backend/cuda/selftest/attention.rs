//! Cases of `rope.cu`, `attn_decode.cu`, `attn_prefill.cu`, `attn_places.cu`, `attn_rows.cu`, and of the plain attention: one
//! sequence with a cache, in slot 1 of two, and layer 1 of two.

use super::super::abi::{
    AttnDecode, AttnPlaces, AttnPrefill, AttnRows, AttnSum, HeadPlaces, HeadState, RopeCache, RopeTarget, RoundedRows,
    RowState, SHARING, SequenceView, TraceView, type_number,
};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::kernel_set::{DECODE_GROUP, SUMMED, TESTED_HEADS as HEADS, TESTED_LAYERS as LAYERS};
use super::super::launch::{Int, Kernel};
use super::super::memory::Buffer;
use super::super::noise::Noise;
use super::super::pass::prefill_parts;
use super::attended::Attended;
use super::data::{Outcome, Rounded, U, Values, bound, decode, decode_keys, unwritten, upload};
use super::elementwise::{EPS, OFFSET, norm};
use crate::backend::entropy::reweighting;
use crate::backend::{Row, SequenceId};
use crate::model::weights::DType;

const KV_HEADS: usize = 2;
const GROUP: usize = HEADS / KV_HEADS;
const CAPACITY: usize = 256;
const LAYER: usize = 1;
const SLOT: i32 = 1;
/// Rows before it have no entropy.
const FIRST_TRACED: usize = 40;
const SPLITS: usize = 4;
/// (window, softcap): without, and with both.
const VARIANTS: [(usize, f32); 2] = [(0, 0.0), (100, 20.0)];

/// A state without positions: two maxima of -∞.
const EMPTY: HeadState = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0, 0.0];

/// A sequence's cache on the device and here.
pub struct Fixture<'a> {
    device: &'a Device,
    head_dim: usize,
    cache: (DType, DType),
    k: Values,
    v: Values,
    views: Buffer<SequenceView>,
}

impl<'a> Fixture<'a> {
    pub fn new(device: &'a Device, head_dim: usize, cache: (DType, DType)) -> Result<Fixture<'a>, CudaError> {
        let mut noise = Noise(31);
        let count = LAYERS * KV_HEADS * CAPACITY * head_dim;
        let (k, v) = (
            Values::keys(device, &noise.floats(count, 1.0), cache.0, head_dim)?,
            Values::new(device, &noise.floats(count, 1.0), cache.1)?,
        );
        let views = views(device, &k, &v, TraceView::default())?;
        Ok(Fixture { device, head_dim, cache, k, v, views })
    }

    /// What the names of the attention kernels say.
    pub fn plain_arguments(&self) -> [Int; 3] {
        [Int(type_number(self.cache.0)), Int(type_number(self.cache.1)), self.head_dim.into()]
    }

    /// Queries for scores of deviation 2.
    fn queries(&self, rows: usize) -> Vec<f32> {
        Noise(32).floats(rows * HEADS * self.head_dim, 6.0 / (self.head_dim as f32).sqrt())
    }

    fn attend(&self, queries: &[f32], index: usize, row: usize, head: usize, variant: (usize, f32)) -> Attended {
        let (d, (window, cap)) = (self.head_dim, (variant.0, f64::from(variant.1)));
        let query = &queries[(index * HEADS + head) * d..][..d];
        let plane = (LAYER * KV_HEADS + head / GROUP) * CAPACITY;
        let first = if window > 0 { (row + 1).saturating_sub(window) } else { 0 };
        let line = |values: &Values, t: usize| -> Vec<f64> {
            values.values[(plane + t) * d..][..d].iter().map(|x| f64::from(*x)).collect()
        };
        let mut products = 0f64;
        let mut score = |t| {
            let terms: Vec<f64> = line(&self.k, t).iter().zip(query).map(|(k, q)| k * f64::from(*q)).collect();
            products = products.max(terms.iter().map(|x| x.abs()).sum());
            let sum: f64 = terms.iter().sum();
            if cap > 0.0 { cap * (sum / cap).tanh() } else { sum }
        };
        let scores: Vec<f64> = (first..=row).map(&mut score).collect();
        let (out, magnitudes) = (vec![0.0; d], vec![0.0; d]);
        let mut attended = Attended { out, magnitudes, scores, first, row, products };
        let lse = attended.lse();
        for t in first..=row {
            let alpha = (attended.scores[t - first] - lse).exp();
            for (i, v) in line(&self.v, t).into_iter().enumerate() {
                attended.out[i] += alpha * v;
                attended.magnitudes[i] += alpha * v.abs();
            }
        }
        attended
    }

    fn rows(positions: &[usize]) -> Vec<RowState> {
        positions.iter().map(|p| RowState { slot: SLOT, position: *p as i32, ..RowState::default() }).collect()
    }

    /// Outputs and states `[positions, HEADS]` of the rows at `positions`.
    fn compare(
        &self,
        outcome: &mut Outcome,
        (queries, positions, variant): (&[f32], &[usize], (usize, f32)),
        (out, states): (&[f32], &[HeadState]),
        entropy: bool,
    ) {
        for (index, row) in positions.iter().enumerate() {
            for head in 0..HEADS {
                let want = self.attend(queries, index, *row, head, variant);
                let lost = want.score_bound(self.head_dim);
                let at = index * HEADS + head;
                // the weights' terms over the values of all positions, two products for each 16
                let weights = bound(2 * want.scores.len().div_ceil(16), 64) + 16.0 * U;
                for (i, got) in out[at * self.head_dim..][..self.head_dim].iter().enumerate() {
                    outcome.compare(*got, want.out[i], want.magnitudes[i], 2.0 * lost + weights);
                }
                let [m, z, mw, zw, sw] = states[at].map(f64::from);
                let sums = lost + 256.0 * U;
                outcome.compare((m + z.ln()) as f32, want.lse(), 1.0 + want.lse().abs(), sums);
                if !entropy || *row < FIRST_TRACED {
                    outcome.same(zw, 0.0);
                    continue;
                }
                let weight = |t| f64::from(reweighting(*row, t));
                let log_sum = want.log_sum(weight);
                outcome.compare((mw + zw.ln()) as f32, log_sum, 1.0 + log_sum.abs(), sums);
                // dH/ds_t = -α' (ln α' + H), and |ln α' + H| ≤ 20 here; S'/Z' is at most 20, with a rounding a position
                outcome.compare((zw.ln() - sw / zw) as f32, want.entropy(), 1.0, 20.0 * (lost + 256.0 * U));
            }
        }
    }

    /// Rows before and after the trace begins, of one split and of several, and one that is not in use.
    pub fn decode(&self, kernel: &Kernel<AttnDecode>, entropy: bool) -> Result<Outcome, CudaError> {
        let (device, positions) = (self.device, [37, 200]);
        let (n, used) = (positions.len() + 1, positions.len() * HEADS);
        let queries = self.queries(n);
        let mut rows = Fixture::rows(&positions);
        rows.push(RowState { position: -1, ..rows[0] });
        let (q, rows, heads) = (upload(device, &queries)?, upload(device, &rows)?, n * HEADS);
        let grid = [SPLITS, KV_HEADS * GROUP.div_ceil(DECODE_GROUP), n];
        let arrivals = upload(device, &vec![0u32; grid[1] * n])?; // zeros again after each launch
        let mut outcome = Outcome::default();
        for variant in VARIANTS {
            let partial_out = unwritten::<f32>(device, heads * SPLITS * self.head_dim)?;
            let partial_states = unwritten::<HeadState>(device, heads * SPLITS)?;
            let (out, states) = (unwritten::<f32>(device, heads * self.head_dim)?, unwritten(device, heads)?);
            let (window, softcap): (Int, f32) = (variant.0.into(), variant.1);
            let parameters = AttnDecode {
                queries: q.ptr(),
                rows: rows.ptr(),
                sequences: self.views.ptr(),
                layer: LAYER.into(),
                heads: HEADS.into(),
                kv_heads: KV_HEADS.into(),
                window,
                softcap,
                partial_out: partial_out.ptr(),
                partial_states: partial_states.ptr(),
                arrivals: arrivals.ptr(),
                out: out.ptr(),
                states: states.ptr(),
            };
            device.launch(kernel, grid, &parameters)?;
            let (out, states) = (device.read(&out, 0, heads * self.head_dim)?, device.read(&states, 0, heads)?);
            self.compare(&mut outcome, (&queries, &positions, variant), (&out, &states), entropy);
            outcome.same(out[used * self.head_dim..].iter().all(|x| *x == 0.0), true);
            outcome.same(states[used..].iter().all(|state| *state == EMPTY), true);
        }
        Ok(outcome)
    }

    /// Two runs of consecutive rows, the first of more than fill a block with their heads, over the beginning of the trace;
    /// then the same, rounded.
    pub fn prefill(&self, kernel: &Kernel<AttnPrefill>) -> Result<Outcome, CudaError> {
        let (device, positions) = (self.device, (30..55).chain([60]).collect::<Vec<usize>>());
        let n = positions.len();
        let in_pass = |position: &usize| Row { sequence: SequenceId(SLOT as usize), position: *position, token: 0 };
        let runs = prefill_parts(&positions.iter().map(in_pass).collect::<Vec<_>>(), GROUP);
        let (queries, parts) = (self.queries(n), upload(device, &runs)?);
        let (q, rows) = (upload(device, &queries)?, Fixture::rows(&positions));
        let rows = upload(device, &rows)?;
        let mut outcome = Outcome::default();
        for (window, softcap) in VARIANTS.map(|(window, softcap)| (window / 3, softcap)) {
            let (out, states) = (unwritten::<f32>(device, n * HEADS * self.head_dim)?, unwritten(device, n * HEADS)?);
            let mut parameters = AttnPrefill {
                queries: q.ptr(),
                rows: rows.ptr(),
                parts: parts.ptr(),
                sequences: self.views.ptr(),
                layer: LAYER.into(),
                heads: HEADS.into(),
                kv_heads: KV_HEADS.into(),
                window: window.into(),
                softcap,
                out: out.ptr(),
                states: states.ptr(),
                rounded: RoundedRows::default(),
            };
            device.launch(kernel, [runs.len(), KV_HEADS, 1], &parameters)?;
            let got = (device.read(&out, 0, n * HEADS * self.head_dim)?, device.read(&states, 0, n * HEADS)?);
            self.compare(&mut outcome, (&queries, &positions, (window, softcap)), (&got.0, &got.1), true);
            if self.head_dim.is_multiple_of(SHARING) {
                let to = Rounded::unwritten(device, n, HEADS * self.head_dim)?;
                parameters.rounded = to.rows();
                device.launch(kernel, [runs.len(), KV_HEADS, 1], &parameters)?;
                let want: Vec<f64> = got.0.iter().map(|x| f64::from(*x)).collect();
                to.compare(device, &mut outcome, &want, SHARING, 0.0)?;
            }
        }
        Ok(outcome)
    }

    /// Queries and keys normed and rotated, keys and values cached, of rows at two positions.
    pub fn rope_cache(&self, kernel: &Kernel<RopeCache>) -> Result<Outcome, CudaError> {
        let (device, d, positions) = (self.device, self.head_dim, [3, 70]);
        let (n, half, scale) = (positions.len(), d / 2, 0.25f32);
        let mut noise = Noise(33);
        let [q, k, v] = [HEADS, KV_HEADS, KV_HEADS].map(|heads| noise.floats(n * heads * d, 2.0));
        let [q_norm, k_norm] = [(), ()].map(|()| noise.floats(d, 1.0));
        let angle = |position: usize, i: usize| position as f64 * 0.9f64.powi(i as i32);
        let table = |f: fn(f64) -> f64| -> Vec<f32> {
            (0..CAPACITY * half).map(|i| f(angle(i / half, i % half)) as f32).collect()
        };
        let (cos, sin) = (table(f64::cos), table(f64::sin));
        let (keys, values) = (self.empty_cache(self.cache.0)?, self.empty_cache(self.cache.1)?);
        let views = views(device, &keys, &values, TraceView::default())?;
        let rows = upload(device, &Fixture::rows(&positions))?;
        let upload = |values: &[f32]| upload(device, values);
        let buffers =
            [upload(&q)?, upload(&k)?, upload(&v)?, upload(&q_norm)?, upload(&k_norm)?, upload(&cos)?, upload(&sin)?];
        let parameters = RopeCache {
            q: buffers[0].ptr(),
            k: buffers[1].ptr(),
            v: buffers[2].ptr(),
            q_norm: buffers[3].ptr(),
            k_norm: buffers[4].ptr(),
            norm_offset: OFFSET,
            eps: EPS,
            to: RopeTarget {
                cos: buffers[5].ptr(),
                sin: buffers[6].ptr(),
                rows: rows.ptr(),
                sequences: views.ptr(),
                layer: LAYER as i32,
                kv_heads: KV_HEADS as i32,
                head_dim: d as i32,
                query_scale: scale,
                k_type: type_number(self.cache.0),
                v_type: type_number(self.cache.1),
            },
            heads: HEADS.into(),
        };
        device.launch(kernel, [(HEADS + 2 * KV_HEADS).div_ceil(4), n, 1], &parameters)?;

        let rotated = |head: &[f32], weight: &[f32], position: usize, scale: f64| -> Vec<(f64, f64)> {
            let x: Vec<f64> = norm(head, weight).into_iter().map(|x| x * scale).collect();
            let turned = |i: usize| {
                let (c, s) = (f64::from(cos[position * half + i % half]), f64::from(sin[position * half + i % half]));
                let (a, b) = if i < half { (x[i] * c, -x[i + half] * s) } else { (x[i] * c, x[i - half] * s) };
                (a + b, a.abs() + b.abs())
            };
            (0..d).map(turned).collect()
        };
        let mut outcome = Outcome::default();
        let got_q: Vec<f32> = device.read(&buffers[0], 0, q.len())?;
        let read = |values: &Values| device.read(&values.buffer, 0, values.buffer.bytes());
        let (got_k, rounded) = decode_keys(&read(&keys)?, self.cache.0, d);
        let got_v = decode(&read(&values)?, self.cache.1);
        for (row, position) in positions.into_iter().enumerate() {
            for head in 0..HEADS {
                let at = (row * HEADS + head) * d;
                let want = rotated(&q[at..at + d], &q_norm, position, scale.into());
                want.iter().zip(&got_q[at..]).for_each(|((w, m), got)| outcome.compare(*got, *w, *m, 32.0 * U));
            }
            for head in 0..KV_HEADS {
                let (at, cached) = ((row * KV_HEADS + head) * d, ((LAYER * KV_HEADS + head) * CAPACITY + position) * d);
                let want = rotated(&k[at..at + d], &k_norm, position, 1.0);
                let lost = 32.0 * U + rounded;
                for ((want, magnitude), got) in want.iter().zip(&got_k[cached..]) {
                    // the lower half of an f32 key is held to 2^-25, half a U: less than `lost` of 1/16
                    outcome.compare(*got, *want, magnitude.max(1.0 / 16.0), lost);
                }
                for (v, got) in v[at..at + d].iter().zip(&got_v[cached..]) {
                    outcome.same(*got, self.cache.1.round(*v));
                }
            }
        }
        Ok(outcome)
    }

    /// A cache of zeros.
    fn empty_cache(&self, dtype: DType) -> Result<Values, CudaError> {
        Values::new(self.device, &vec![0.0; LAYERS * KV_HEADS * CAPACITY * self.head_dim], dtype)
    }

    /// Where the heads of one row attend.
    pub fn places(&self, kernel: &Kernel<AttnPlaces>) -> Result<Outcome, CudaError> {
        let (device, row, variant) = (self.device, 150, VARIANTS[0]);
        let queries = self.queries(1);
        let attended: Vec<Attended> = (0..HEADS).map(|head| self.attend(&queries, 0, row, head, variant)).collect();
        let states: Vec<HeadState> = attended.iter().map(state_of).collect();
        let traced = row - FIRST_TRACED + 1;
        let places = unwritten::<HeadPlaces>(device, traced * LAYERS * HEADS)?;
        let views = views(device, &self.k, &self.v, TraceView { places: places.ptr(), ..TraceView::default() })?;
        let (q, states) = (upload(device, &queries)?, upload(device, &states)?);
        let rows = upload(device, &Fixture::rows(&[row]))?;
        let parameters = AttnPlaces {
            states: states.ptr(),
            queries: q.ptr(),
            rows: rows.ptr(),
            sequences: views.ptr(),
            layer: LAYER.into(),
            layers: LAYERS.into(),
            heads: HEADS.into(),
            kv_heads: KV_HEADS.into(),
            head_dim: self.head_dim.into(),
            window: variant.0.into(),
            softcap: variant.1,
            regularized: false.into(),
        };
        device.launch(kernel, [HEADS, 1, 1], &parameters)?;
        let got: Vec<HeadPlaces> = device.read(&places, ((traced - 1) * LAYERS + LAYER) * HEADS, HEADS)?;
        let mut outcome = Outcome::default();
        for (want, got) in attended.iter().zip(got) {
            let alpha = |t: usize| (want.scores[t] - want.lse()).exp();
            let prompt: f64 = (0..=FIRST_TRACED).map(alpha).sum();
            // a maximum of f32 is right to a few U of its size, which is at most 32
            let lost = want.score_bound(self.head_dim) + 512.0 * U;
            outcome.compare(got[0], want.entropy(), 8.0, 64.0 * U);
            for (got, alpha) in got[1..].iter().zip([alpha(row), alpha(row - 1), alpha(0), prompt]) {
                outcome.compare(*got, alpha, alpha, 2.0 * lost);
            }
        }
        Ok(outcome)
    }

    /// The weights of a row's heads together, with a window and a softcap.
    pub fn sum(&self, kernel: &Kernel<AttnSum>) -> Result<Outcome, CudaError> {
        let (device, row, variant) = (self.device, 150, VARIANTS[1]);
        let queries = self.queries(1);
        let attended: Vec<Attended> = (0..HEADS).map(|head| self.attend(&queries, 0, row, head, variant)).collect();
        let states: Vec<HeadState> = attended.iter().map(state_of).collect();
        let (q, states) = (upload(device, &queries)?, upload(device, &states)?);
        let (rows, count) = (upload(device, &Fixture::rows(&[row]))?, row + 1);
        let out = unwritten::<f32>(device, count)?;
        let parameters = AttnSum {
            states: states.ptr(),
            queries: q.ptr(),
            rows: rows.ptr(),
            sequences: self.views.ptr(),
            layer: LAYER.into(),
            heads: HEADS.into(),
            kv_heads: KV_HEADS.into(),
            head_dim: self.head_dim.into(),
            window: variant.0.into(),
            softcap: variant.1,
            count: count.into(),
            out: out.ptr(),
        };
        device.launch(kernel, [count.div_ceil(SUMMED), 1, 1], &parameters)?;
        let mut outcome = Outcome::default();
        let lost = attended.iter().map(|want| want.score_bound(self.head_dim)).fold(0.0, f64::max) + 512.0 * U;
        for (t, got) in device.read::<f32>(&out, 0, count)?.into_iter().enumerate() {
            let weight = |want: &Attended| Some((want.scores.get(t.checked_sub(want.first)?)? - want.lse()).exp());
            match attended.iter().map(weight).sum::<Option<f64>>() {
                Some(want) => outcome.compare(got, want, want, 2.0 * lost + bound(HEADS, 0)),
                None => outcome.same(got, 0.0),
            }
        }
        Ok(outcome)
    }

    /// α* of a row whose trace has two heads, and of one that is not traced.
    pub fn rows_of_attention(&self, kernel: &Kernel<AttnRows>) -> Result<Outcome, CudaError> {
        let (device, row, d, kept) = (self.device, 150, self.head_dim, [1, 4]);
        let queries = self.queries(1);
        let attended = kept.map(|head| self.attend(&queries, 0, row, head, VARIANTS[1]));
        let traced = row - FIRST_TRACED + 1;
        // the trace's last row is the one that is read
        let last = |values: &[f32]| [vec![f32::NAN; (traced - 1) * values.len()], values.to_vec()].concat();
        let heads: Vec<i32> = (0..traced).flat_map(|_| kept).map(|head| (LAYER * HEADS + head) as i32).collect();
        let sums = attended.each_ref().map(|want| want.log_sum(|t| f64::from(reweighting(row, t))));
        let maxima = sums.map(|sum| sum.ceil() as f32);
        let z: Vec<f32> = sums.iter().zip(maxima).map(|(sum, m)| (sum - f64::from(m)).exp() as f32).collect();
        let kept_queries: Vec<f32> = kept.iter().flat_map(|head| queries[head * d..][..d].to_vec()).collect();
        let heads = upload(device, &heads)?;
        let floats = [last(&maxima), last(&z), last(&kept_queries)];
        let floats = [0, 1, 2].map(|i| upload(device, &floats[i]));
        let [maxima, z, kept_queries] = floats;
        let (maxima, z, kept_queries) = (maxima?, z?, kept_queries?);
        let trace = TraceView {
            heads: heads.ptr(),
            maxima: maxima.ptr(),
            sums: z.ptr(),
            queries: kept_queries.ptr(),
            ..TraceView::default()
        };
        let views = views(device, &self.k, &self.v, trace)?;
        let (asked, stride) = ([row as i32, FIRST_TRACED as i32 - 1], row + 1);
        let windows = upload(device, &[0, VARIANTS[1].0 as i32])?;
        let (asked, out) = (upload(device, &asked)?, unwritten::<f32>(device, 2 * stride)?);
        let parameters = AttnRows {
            sequences: views.ptr(),
            slot: Int(SLOT),
            asked: asked.ptr(),
            windows: windows.ptr(),
            softcap: VARIANTS[1].1,
            heads: HEADS.into(),
            kv_heads: KV_HEADS.into(),
            keep: kept.len().into(),
            stride: stride.into(),
            out: out.ptr(),
        };
        device.launch(kernel, [stride.div_ceil(32), 2, 1], &parameters)?;
        let got: Vec<f32> = device.read(&out, 0, 2 * stride)?;
        let mut outcome = Outcome::default();
        let lost = attended.iter().map(|want| want.score_bound(d)).fold(0.0, f64::max) + 512.0 * U;
        for (t, got) in got.iter().enumerate() {
            match t < stride {
                true => {
                    let want = attended.iter().map(|want| want.reweighted(t)).fold(0.0, f64::max);
                    outcome.compare(*got, want, want, 2.0 * lost);
                }
                false => outcome.same(*got, 0.0),
            }
        }
        Ok(outcome)
    }
}

/// What the attention kernels leave of a head; any maximum will do.
fn state_of(want: &Attended) -> HeadState {
    let sum = want.log_sum(|t| f64::from(reweighting(want.row, t)));
    let (m, entropy) = (want.lse().floor(), want.entropy());
    let (z, zw) = ((want.lse() - m).exp(), (sum - m).exp());
    [m as f32, z as f32, m as f32, zw as f32, (zw * (zw.ln() - entropy)) as f32]
}

/// Two sequences, of which the first has nothing.
fn views(device: &Device, k: &Values, v: &Values, trace: TraceView) -> Result<Buffer<SequenceView>, CudaError> {
    let (k, v, capacity, first_traced_row) = (k.ptr(), v.ptr(), CAPACITY as u32, FIRST_TRACED as i32);
    let view = SequenceView { k, v, capacity, first_traced_row, trace };
    upload(device, &[SequenceView::default(), view])
}
