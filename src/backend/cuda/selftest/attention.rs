//! Cases of `rope.cu`, `attn_decode.cu`, `attn_prefill.cu`, `attn_places.cu`, `attn_rows.cu` and the plain attention: layer 1
//! of 2 of one sequence, in slot 1 of 2.

use super::super::abi::{
    AttnDecode, AttnPlaces, AttnPrefill, AttnRows, AttnSum, HeadPlaces, HeadState, RopeCache, RopeTarget, RoundedRows,
    RowState, SHARING, SequenceView, TraceView, type_number,
};
use super::super::error::CudaError;
use super::super::kernel_set::{DECODE_GROUP, SUMMED, TESTED_HEADS as HEADS, TESTED_LAYERS as LAYERS};
use super::super::launch::{Int, Kernel};
use super::super::memory::DevicePtr;
use super::super::noise::Noise;
use super::super::pass::prefill_parts;
use super::data::{Bench, U, Want, bound, exact, near, rounding, wide};
use super::rows::{EPS, OFFSET, norm};
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
/// The row of the cases of one row.
const ROW: usize = 150;
const SPLITS: usize = 4;

/// Window (0: none) and softcap (0: none).
#[derive(Clone, Copy)]
struct Mask {
    window: usize,
    softcap: f32,
}
const PLAIN: Mask = Mask { window: 0, softcap: 0.0 };
const MASKED: Mask = Mask { window: 100, softcap: 20.0 };

/// The state of no positions.
const EMPTY: HeadState = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0, 0.0];

/// The variant of the attention kernels.
pub struct Attention {
    pub head_dim: usize,
    pub cache: (DType, DType),
}

/// A sequence's cache as stored, and queries.
struct Fixture<'b> {
    bench: &'b Bench<'b>,
    head_dim: usize,
    queries: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    on_device: SequenceView,
}

/// The reference of one row and head.
struct Attended {
    /// Values, and Σ α |v|.
    out: Vec<(f64, f64)>,
    scores: Vec<f64>,
    /// The first position in the window.
    first: usize,
    row: usize,
    /// Error of a score: three products of terms per 16 dimensions, and 2^-22 for the product of two second terms, which is
    /// left out; the same again for the query's terms.
    lost: f64,
}

impl Attended {
    fn log_sum(&self, weight: impl Fn(usize) -> f64) -> f64 {
        let positions = || self.scores.iter().enumerate().map(|(i, s)| (*s, weight(self.first + i)));
        let max = positions().filter(|(_, w)| *w > 0.0).map(|(s, _)| s).fold(f64::NEG_INFINITY, f64::max);
        max + positions().map(|(s, w)| w * (s - max).exp()).sum::<f64>().ln()
    }

    /// ln Σ e^s
    fn lse(&self) -> f64 {
        self.log_sum(|_| 1.0)
    }

    /// ln Σ w e^s
    fn weighted_lse(&self) -> f64 {
        self.log_sum(|t| f64::from(reweighting(self.row, t)))
    }

    /// α_t; `None` outside the window.
    fn alpha(&self, t: usize) -> Option<f64> {
        Some((self.scores.get(t.checked_sub(self.first)?)? - self.lse()).exp())
    }

    /// α'_t; 0 outside the window.
    fn reweighted(&self, t: usize) -> f64 {
        let to = self.lse() - self.weighted_lse();
        self.alpha(t).map_or(0.0, |alpha| f64::from(reweighting(self.row, t)) * alpha * to.exp())
    }

    fn entropy(&self) -> f64 {
        let alpha = (self.first..=self.row).map(|t| self.reweighted(t)).filter(|a| *a > 0.0);
        -alpha.map(|a| a * a.ln()).sum::<f64>()
    }

    /// As attention kernels leave it, with other maxima.
    fn state(&self) -> HeadState {
        let m = self.lse().floor();
        let (z, zw) = ((self.lse() - m).exp(), (self.weighted_lse() - m).exp());
        [m, z, m, zw, zw * (zw.ln() - self.entropy())].map(|x| x as f32)
    }
}

impl Fixture<'_> {
    fn attend(&self, index: usize, row: usize, head: usize, mask: Mask) -> Attended {
        let (d, cap) = (self.head_dim, f64::from(mask.softcap));
        let query = &self.queries[(index * HEADS + head) * d..][..d];
        let plane = (LAYER * KV_HEADS + head / GROUP) * CAPACITY;
        let first = if mask.window > 0 { (row + 1).saturating_sub(mask.window) } else { 0 };
        let line = |values: &[f32], t: usize| wide(&values[(plane + t) * d..][..d]);
        let mut products = 0f64;
        let mut score = |t| {
            let terms: Vec<f64> = line(&self.k, t).iter().zip(query).map(|(k, q)| k * f64::from(*q)).collect();
            products = products.max(terms.iter().map(|x| x.abs()).sum());
            let sum: f64 = terms.iter().sum();
            if cap > 0.0 { cap * (sum / cap).tanh() } else { sum }
        };
        let scores = (first..=row).map(&mut score).collect();
        let lost = products * (bound(3 * d.div_ceil(16), d / 8 + 8) + 8.0 * U);
        let mut attended = Attended { out: vec![(0.0, 0.0); d], scores, first, row, lost };
        let lse = attended.lse();
        for t in first..=row {
            let alpha = (attended.scores[t - first] - lse).exp();
            for (out, v) in attended.out.iter_mut().zip(line(&self.v, t)) {
                *out = (out.0 + alpha * v, out.1 + alpha * v.abs());
            }
        }
        attended
    }

    /// All heads of the first query's row.
    fn heads(&self, mask: Mask) -> Vec<Attended> {
        (0..HEADS).map(|head| self.attend(0, ROW, head, mask)).collect()
    }

    /// This sequence, with a trace, after one that has nothing.
    fn sequences(&self, trace: TraceView) -> Result<DevicePtr<SequenceView>, CudaError> {
        self.bench.put(&[SequenceView::default(), SequenceView { trace, ..self.on_device }])
    }

    fn rows(&self, positions: &[usize]) -> Result<DevicePtr<RowState>, CudaError> {
        let row = |p: &usize| RowState { slot: SLOT, position: *p as i32, ..RowState::default() };
        self.bench.put(&positions.iter().map(row).collect::<Vec<_>>())
    }

    /// Compares `out` `[positions, HEADS, head_dim]` and states `[positions, HEADS]`.
    fn compare(
        &self,
        (positions, mask): (&[usize], Mask),
        (out, states): (DevicePtr<f32>, DevicePtr<HeadState>),
        entropy: bool,
    ) -> Result<(), CudaError> {
        let states = self.bench.get(states, positions.len() * HEADS)?;
        for (at, state) in states.iter().enumerate() {
            let (row, head) = (positions[at / HEADS], at % HEADS);
            let want = self.attend(at / HEADS, row, head, mask);
            // the weights' terms times the values of all positions, two products per 16
            let lost = 2.0 * want.lost + bound(2 * want.scores.len().div_ceil(16), 64) + 16.0 * U;
            let case = |what| format!("{what} of row {row}, head {head}, window {}", mask.window);
            let outs = want.out.iter().map(|(x, scale)| near(*x, *scale, lost));
            self.bench.compare(&case("out"), out.add(at * self.head_dim), outs)?;
            let [m, z, mw, zw, sw] = state.map(f64::from);
            let log_sum = |want: f64, lost: f64| near(want, 1.0 + want.abs(), lost + 256.0 * U);
            self.bench.check(&case("ln Z"), [m + z.ln()], [log_sum(want.lse(), want.lost)]);
            if entropy && row >= FIRST_TRACED {
                self.bench.check(&case("ln Z'"), [mw + zw.ln()], [log_sum(want.weighted_lse(), want.lost)]);
                // dH/ds_t = -α' (ln α' + H), |ln α' + H| ≤ 20; S'/Z' ≤ 20, with one rounding per position
                let near = near(want.entropy(), 1.0, 20.0 * (want.lost + 256.0 * U));
                self.bench.check(&case("entropy"), [zw.ln() - sw / zw], [near]);
            } else {
                self.bench.check(&case("Z'"), [zw], [exact(0.0)]);
            }
        }
        Ok(())
    }
}

impl Attention {
    /// The types and the size in the kernels' names.
    pub fn plain_arguments(&self) -> [Int; 3] {
        [Int(type_number(self.cache.0)), Int(type_number(self.cache.1)), self.head_dim.into()]
    }

    fn fixture<'b>(&self, bench: &'b Bench<'b>, rows: usize) -> Result<Fixture<'b>, CudaError> {
        let (mut noise, d) = (Noise(31), self.head_dim);
        let count = LAYERS * KV_HEADS * CAPACITY * d;
        let (keys, k) = bench.put_keys(&noise.floats(count, 1.0), self.cache.0, d)?;
        let (values, v) = bench.put_as(&noise.floats(count, 1.0), self.cache.1)?;
        let (capacity, first_traced_row) = (CAPACITY as u32, FIRST_TRACED as i32);
        let on_device = SequenceView { k: keys, v: values, capacity, first_traced_row, trace: TraceView::default() };
        // scores of standard deviation 2
        let queries = Noise(32).floats(rows * HEADS * d, 6.0 / (d as f32).sqrt());
        Ok(Fixture { bench, head_dim: d, queries, k, v, on_device })
    }

    /// A row before the trace and one in it, one split and several, and an unused row.
    pub fn decode(&self, kernel: &Kernel<AttnDecode>, bench: &Bench, entropy: bool) -> Result<(), CudaError> {
        let (positions, n, d) = ([37, 200], 3, self.head_dim);
        let (fixture, used) = (self.fixture(bench, n)?, positions.len() * HEADS);
        let rows = fixture.rows(&[positions[0], positions[1], usize::MAX])?; // position -1: unused
        let grid = [SPLITS, KV_HEADS * GROUP.div_ceil(DECODE_GROUP), n];
        let arrivals = bench.put(&vec![0u32; grid[1] * n])?; // a launch leaves zeros
        for mask in [PLAIN, MASKED] {
            let (out, states) = (bench.room(n * HEADS * d)?, bench.room(n * HEADS)?);
            let parameters = AttnDecode {
                queries: bench.put(&fixture.queries)?,
                rows,
                sequences: fixture.sequences(TraceView::default())?,
                layer: LAYER.into(),
                heads: HEADS.into(),
                kv_heads: KV_HEADS.into(),
                window: mask.window.into(),
                softcap: mask.softcap,
                partial_out: bench.room(n * HEADS * SPLITS * d)?,
                partial_states: bench.room(n * HEADS * SPLITS)?,
                arrivals,
                out,
                states,
            };
            bench.device.launch(kernel, grid, &parameters)?;
            fixture.compare((&positions, mask), (out, states), entropy)?;
            bench.compare("out of an unused row", out.add(used * d), vec![exact(0.0); HEADS * d])?;
            let unused = bench.get(states.add(used), HEADS)?.into_iter().flatten();
            bench.check("states of an unused row", unused, [EMPTY; HEADS].concat().into_iter().map(exact));
        }
        Ok(())
    }

    /// Two runs of consecutive rows, the first longer than a block with its heads, across the trace's first row; then the
    /// same, rounded.
    pub fn prefill(&self, kernel: &Kernel<AttnPrefill>, bench: &Bench) -> Result<(), CudaError> {
        let positions: Vec<usize> = (30..55).chain([60]).collect();
        let (n, width) = (positions.len(), HEADS * self.head_dim);
        let fixture = self.fixture(bench, n)?;
        let row = |position: &usize| Row { sequence: SequenceId(SLOT as usize), position: *position, token: 0 };
        let parts = prefill_parts(&positions.iter().map(row).collect::<Vec<_>>(), GROUP);
        let grid = [parts.len(), KV_HEADS, 1];
        for mask in [PLAIN, Mask { window: MASKED.window / 3, ..MASKED }] {
            let (out, states) = (bench.room(n * width)?, bench.room(n * HEADS)?);
            let mut parameters = AttnPrefill {
                queries: bench.put(&fixture.queries)?,
                rows: fixture.rows(&positions)?,
                parts: bench.put(&parts)?,
                sequences: fixture.sequences(TraceView::default())?,
                layer: LAYER.into(),
                heads: HEADS.into(),
                kv_heads: KV_HEADS.into(),
                window: mask.window.into(),
                softcap: mask.softcap,
                out,
                states,
                rounded: RoundedRows::default(),
            };
            bench.device.launch(kernel, grid, &parameters)?;
            fixture.compare((&positions, mask), (out, states), true)?;
            if self.head_dim.is_multiple_of(SHARING) {
                parameters.rounded = bench.rounded_room(n, width)?;
                bench.device.launch(kernel, grid, &parameters)?;
                let want = wide(&bench.get(out, n * width)?);
                bench.compare_rounded("rounded out", (parameters.rounded, width), &want, SHARING, 0.0)?;
            }
        }
        Ok(())
    }

    /// Norm and rotation of queries and keys, and the cache.
    pub fn rope_cache(&self, kernel: &Kernel<RopeCache>, bench: &Bench) -> Result<(), CudaError> {
        let (d, positions, scale) = (self.head_dim, [3, 70], 0.25f32);
        let (half, n, mut noise) = (d / 2, positions.len(), Noise(33));
        let fixture = self.fixture(bench, 0)?;
        let [queries, keys, values] = [HEADS, KV_HEADS, KV_HEADS].map(|heads| noise.floats(n * heads * d, 2.0));
        let [q_norm, k_norm] = [(), ()].map(|()| noise.floats(d, 1.0));
        let angle = |i: usize| (i / half) as f64 * 0.9f64.powi((i % half) as i32);
        let table = |f: fn(f64) -> f64| (0..CAPACITY * half).map(|i| f(angle(i)) as f32).collect::<Vec<f32>>();
        let (cos, sin, q) = (table(f64::cos), table(f64::sin), bench.put(&queries)?);
        let parameters = RopeCache {
            q,
            k: bench.put(&keys)?,
            v: bench.put(&values)?,
            q_norm: bench.put(&q_norm)?,
            k_norm: bench.put(&k_norm)?,
            norm_offset: OFFSET,
            eps: EPS,
            to: RopeTarget {
                cos: bench.put(&cos)?,
                sin: bench.put(&sin)?,
                rows: fixture.rows(&positions)?,
                sequences: fixture.sequences(TraceView::default())?,
                layer: LAYER as i32,
                kv_heads: KV_HEADS as i32,
                head_dim: d as i32,
                query_scale: scale,
                k_type: type_number(self.cache.0),
                v_type: type_number(self.cache.1),
            },
            heads: HEADS.into(),
        };
        bench.device.launch(kernel, [(HEADS + 2 * KV_HEADS).div_ceil(4), n, 1], &parameters)?;

        let rotated = |x: &[f32], weight: &[f32], position: usize, by: f32, least: f64, bound: f64| -> Vec<Want> {
            let x: Vec<f64> = norm(x, weight).into_iter().map(|x| x * f64::from(by)).collect();
            let turned = |i: usize| {
                let at = position * half + i % half;
                let other = if i < half { -x[i + half] } else { x[i - half] };
                let (a, b) = (x[i] * f64::from(cos[at]), other * f64::from(sin[at]));
                near(a + b, (a.abs() + b.abs()).max(least), bound)
            };
            (0..d).map(turned).collect()
        };
        let rows = queries.chunks(d).enumerate();
        let want = rows.flat_map(|(i, x)| rotated(x, &q_norm, positions[i / HEADS], scale, 0.0, 32.0 * U));
        bench.compare("rotated queries", q, want)?;
        let halves = self.cache.0 == DType::F32;
        let key_bound = 32.0 * U + if halves { 8.0 * U } else { rounding(self.cache.0) };
        for (i, (key, value)) in keys.chunks(d).zip(values.chunks(d)).enumerate() {
            let position = positions[i / KV_HEADS];
            let cached = ((LAYER * KV_HEADS + i % KV_HEADS) * CAPACITY + position) * d;
            let SequenceView { k, v, .. } = fixture.on_device;
            let bytes = |dtype: DType, at: usize| at * dtype.size();
            let k = k.cast::<u8>().add(bytes(self.cache.0, cached)).cast();
            let found = match halves {
                true => {
                    let parts = bench.get_as(k, DType::F16, 2 * d)?;
                    (0..d).map(|i| parts[i] + parts[i + d]).collect()
                }
                false => bench.get_as(k, self.cache.0, d)?,
            };
            // the lower half of an f32 key is held to 2^-25, half a U: less than the bound of 1/16
            bench.check("cached keys", found, rotated(key, &k_norm, position, 1.0, 1.0 / 16.0, key_bound));
            let v = v.cast::<u8>().add(bytes(self.cache.1, cached)).cast();
            let found = bench.get_as(v, self.cache.1, d)?;
            bench.check("cached values", found, value.iter().map(|x| exact(self.cache.1.round(*x))));
        }
        Ok(())
    }

    /// Where the heads of a row attend.
    pub fn places(&self, kernel: &Kernel<AttnPlaces>, bench: &Bench) -> Result<(), CudaError> {
        let fixture = self.fixture(bench, 1)?;
        let (attended, traced) = (fixture.heads(PLAIN), ROW - FIRST_TRACED + 1);
        let places = bench.room::<HeadPlaces>(traced * LAYERS * HEADS)?;
        let parameters = AttnPlaces {
            states: bench.put(&attended.iter().map(Attended::state).collect::<Vec<_>>())?,
            queries: bench.put(&fixture.queries)?,
            rows: fixture.rows(&[ROW])?,
            sequences: fixture.sequences(TraceView { places, ..TraceView::default() })?,
            layer: LAYER.into(),
            layers: LAYERS.into(),
            heads: HEADS.into(),
            kv_heads: KV_HEADS.into(),
            head_dim: self.head_dim.into(),
            window: PLAIN.window.into(),
            softcap: PLAIN.softcap,
            regularized: false.into(),
        };
        bench.device.launch(kernel, [HEADS, 1, 1], &parameters)?;
        let found = bench.get(places.add(((traced - 1) * LAYERS + LAYER) * HEADS), HEADS)?;
        let want = attended.iter().flat_map(|want| {
            let alpha = |t| want.alpha(t).unwrap_or(0.0);
            let prompt = (0..=FIRST_TRACED).map(alpha).sum();
            // an f32 maximum is within a few U of its size, at most 32
            let bound = 2.0 * (want.lost + 512.0 * U);
            let weights = [alpha(ROW), alpha(ROW - 1), alpha(0), prompt].map(|alpha| near(alpha, alpha, bound));
            [near(want.entropy(), 8.0, 64.0 * U)].into_iter().chain(weights)
        });
        bench.check("places", found.into_iter().flatten(), want);
        Ok(())
    }

    /// The summed weights of a row's heads.
    pub fn sum(&self, kernel: &Kernel<AttnSum>, bench: &Bench) -> Result<(), CudaError> {
        let fixture = self.fixture(bench, 1)?;
        let (attended, count) = (fixture.heads(MASKED), ROW + 1);
        let out = bench.room::<f32>(count)?;
        let parameters = AttnSum {
            states: bench.put(&attended.iter().map(Attended::state).collect::<Vec<_>>())?,
            queries: bench.put(&fixture.queries)?,
            rows: fixture.rows(&[ROW])?,
            sequences: fixture.sequences(TraceView::default())?,
            layer: LAYER.into(),
            heads: HEADS.into(),
            kv_heads: KV_HEADS.into(),
            head_dim: self.head_dim.into(),
            window: MASKED.window.into(),
            softcap: MASKED.softcap,
            count: count.into(),
            out,
        };
        bench.device.launch(kernel, [count.div_ceil(SUMMED), 1, 1], &parameters)?;
        let lost = attended.iter().map(|want| want.lost).fold(0.0, f64::max) + 512.0 * U;
        let want = (0..count).map(|t| {
            let sum: f64 = attended.iter().filter_map(|want| want.alpha(t)).sum();
            near(sum, sum, 2.0 * lost + bound(HEADS, 0))
        });
        bench.compare("weights", out, want)
    }

    /// α* of a row whose trace has two heads, and of a row that is not traced.
    pub fn rows_of_attention(&self, kernel: &Kernel<AttnRows>, bench: &Bench) -> Result<(), CudaError> {
        let (fixture, d, kept) = (self.fixture(bench, 1)?, self.head_dim, [1, 4]);
        let attended = kept.map(|head| fixture.attend(0, ROW, head, MASKED));
        let traced = ROW - FIRST_TRACED + 1;
        // only the trace's last row is read
        let last = |values: &[f32]| bench.put(&[vec![f32::NAN; (traced - 1) * values.len()], values.to_vec()].concat());
        let sums = attended.each_ref().map(Attended::weighted_lse);
        let z: Vec<f32> = sums.iter().map(|sum| (sum - sum.ceil()).exp() as f32).collect();
        let trace = TraceView {
            heads: bench.put(&vec![kept.map(|head| (LAYER * HEADS + head) as i32); traced])?.cast(),
            maxima: last(&sums.map(|sum| sum.ceil() as f32))?,
            sums: last(&z)?,
            queries: last(&kept.map(|head| &fixture.queries[head * d..][..d]).concat())?,
            ..TraceView::default()
        };
        let stride = ROW + 1;
        let out = bench.room::<f32>(2 * stride)?;
        let parameters = AttnRows {
            sequences: fixture.sequences(trace)?,
            slot: Int(SLOT),
            asked: bench.put(&[ROW as i32, FIRST_TRACED as i32 - 1])?,
            windows: bench.put(&[0, MASKED.window as i32])?,
            softcap: MASKED.softcap,
            heads: HEADS.into(),
            kv_heads: KV_HEADS.into(),
            keep: kept.len().into(),
            stride: stride.into(),
            out,
        };
        bench.device.launch(kernel, [stride.div_ceil(32), 2, 1], &parameters)?;
        let lost = attended.iter().map(|want| want.lost).fold(0.0, f64::max) + 512.0 * U;
        let want = (0..2 * stride).map(|t| match t < stride {
            true => attended.iter().map(|want| want.reweighted(t)).fold(0.0, f64::max),
            false => 0.0,
        });
        bench.compare("α*", out, want.map(|alpha| near(alpha, alpha, 2.0 * lost)))
    }
}
