//! Tests of `rope.cu`, `attn_decode.cu`, `attn_prefill.cu`, `attn_places.cu`, `attn_rows.cu` and the plain
//! attention: layer 1 of 2 of one sequence, in slot 1 of 2.

use super::super::abi::{
    AttnDecode, AttnPlaces, AttnPrefill, AttnRows, AttnSum, HeadPlaces, HeadState, LayerShape, RopeCache, RopeTarget,
    RoundedRows, RowState, SHARING, SequenceView, TraceView, type_number,
};
use super::super::error::CudaError;
use super::super::kernel_set::{
    DECODE_GROUP, Lines, SUMMED, TESTED_HEADS as HEADS, TESTED_LAYERS as LAYERS, prefill_lines,
};
use super::super::launch::{Int, Kernel};
use super::super::memory::DevicePtr;
use super::super::pass::prefill_parts;
use super::data::{Bench, Noise, Sum, Tested, U, Want, bound, exact, near, rounding, wide};
use super::rows::{norm, norm_of};
use crate::backend::entropy::{EntropyRule::Exact, Gamma, reweighting};
use crate::backend::reference::{log_sum_exp, places, reweighted, softcap, softmax};
use crate::backend::{HeadAttention, Row, SequenceId};
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

/// The variant of the attention kernels.
#[derive(Clone, Copy)]
pub struct Attention {
    pub head_dim: usize,
    pub cache: (DType, DType),
}

/// A sequence's cache as stored, and queries.
pub struct Fixture<'b> {
    bench: &'b Bench<'b>,
    attention: Attention,
    queries: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    view: SequenceView,
}

/// The reference of one row and head.
struct Attended {
    /// Values, and Σ α |v|.
    out: Vec<Sum>,
    /// -∞ outside the window: `[row + 1]`
    scores: Vec<f64>,
    /// Error of a score: three products of terms per 16 dimensions, and 2^-22 for the product of two second terms, which is
    /// left out; the same again for the query's terms.
    lost: f64,
}

impl Attended {
    /// ln Σ e^s and ln Σ w e^s
    fn sums(&self) -> [f64; 2] {
        let weight = |t: usize| f64::from(reweighting(self.scores.len() - 1, t)).ln();
        let weighted: Vec<f64> = self.scores.iter().enumerate().map(|(t, s)| s + weight(t)).collect();
        [log_sum_exp(&self.scores), log_sum_exp(&weighted)]
    }

    /// α' and its entropy
    fn reweighted(&self) -> (Vec<f32>, f64) {
        let (alpha, entropy) = reweighted(&self.scores, Exact, &Gamma::PUBLISHED);
        (alpha, entropy.into())
    }

    /// As attention kernels leave it, with other maxima.
    fn state(&self) -> HeadState {
        let [z, zw] = self.sums();
        let (m, sum) = (z.floor(), (zw - z.floor()).exp());
        [m, (z - m).exp(), m, sum, sum * (sum.ln() - self.reweighted().1)].map(|x| x as f32)
    }

    /// Error bound of a weight: an f32 maximum is within a few U of its size, at most 32.
    fn bound(heads: &[Attended]) -> f64 {
        2.0 * (heads.iter().map(|head| head.lost).fold(0.0, f64::max) + 512.0 * U)
    }
}

impl Fixture<'_> {
    fn attend(&self, index: usize, row: usize, head: usize, mask: Mask) -> Attended {
        let d = self.attention.head_dim;
        let query = &self.queries[(index * HEADS + head) * d..][..d];
        let plane = (LAYER * KV_HEADS + head / GROUP) * CAPACITY;
        let first = if mask.window > 0 { (row + 1).saturating_sub(mask.window) } else { 0 };
        let line = |values: &[f32], t: usize| wide(&values[(plane + t) * d..][..d]);
        let (mut products, mut scores) = (0f64, vec![f64::NEG_INFINITY; row + 1]);
        for (t, score) in scores.iter_mut().enumerate().skip(first) {
            let terms: Vec<f64> = line(&self.k, t).iter().zip(query).map(|(k, q)| k * f64::from(*q)).collect();
            products = products.max(terms.iter().map(|x| x.abs()).sum());
            *score = softcap(terms.iter().sum(), Some(mask.softcap).filter(|cap| *cap > 0.0));
        }
        let lost = products * (bound(3 * d.div_ceil(16), d / 8 + 8) + 8.0 * U);
        let mut out = vec![(0.0, 0.0); d];
        for (t, alpha) in softmax(&scores).into_iter().enumerate().skip(first) {
            out.iter_mut()
                .zip(line(&self.v, t))
                .for_each(|(out, v)| *out = (out.0 + alpha * v, out.1 + alpha * v.abs()));
        }
        Attended { out, scores, lost }
    }

    /// All heads of the first query's row.
    fn heads(&self, mask: Mask) -> Vec<Attended> {
        (0..HEADS).map(|head| self.attend(0, ROW, head, mask)).collect()
    }

    /// This sequence, with a trace, after one that has nothing.
    fn sequences(&self, trace: TraceView) -> Result<DevicePtr<SequenceView>, CudaError> {
        self.bench.put(&[SequenceView::default(), SequenceView { trace, ..self.view }])
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
    ) -> Tested {
        let states = self.bench.get(states, positions.len() * HEADS)?;
        for (at, state) in states.iter().enumerate() {
            let (row, head) = (positions[at / HEADS], at % HEADS);
            let want = self.attend(at / HEADS, row, head, mask);
            // the weights' terms times the values of all positions, two products per 16
            let seen = if mask.window > 0 { mask.window.min(row + 1) } else { row + 1 };
            let lost = 2.0 * want.lost + bound(2 * seen.div_ceil(16), 64) + 16.0 * U;
            let case = |what| format!("{what} of row {row}, head {head}, window {}", mask.window);
            let outs = want.out.iter().map(|(x, scale)| near(*x, *scale, lost));
            self.bench.compare(&case("out"), out.add(at * self.attention.head_dim), outs)?;
            let ([m, z, mw, zw, sw], [sum, weighted]) = (state.map(f64::from), want.sums());
            let log_sum = |sum: f64| near(sum, 1.0 + sum.abs(), want.lost + 256.0 * U);
            self.bench.check(&case("ln Z"), [m + z.ln()], [log_sum(sum)]);
            if entropy && row >= FIRST_TRACED {
                self.bench.check(&case("ln Z'"), [mw + zw.ln()], [log_sum(weighted)]);
                // dH/ds_t = -α' (ln α' + H), |ln α' + H| ≤ 20; S'/Z' ≤ 20, with one rounding per position
                let near = near(want.reweighted().1, 1.0, 20.0 * (want.lost + 256.0 * U));
                self.bench.check(&case("entropy"), [zw.ln() - sw / zw], [near]);
            } else {
                self.bench.check(&case("Z'"), [zw], [exact(0.0)]);
            }
        }
        Ok(())
    }

    /// The rotation of rows at `positions`, and its tables.
    pub fn rotation(
        &self,
        positions: &[usize],
        kv_heads: usize,
        query_scale: f32,
    ) -> Result<(RopeTarget, [Vec<f32>; 2]), CudaError> {
        let half = self.attention.head_dim / 2;
        let angle = |i: usize| (i / half) as f64 * 0.9f64.powi((i % half) as i32);
        let table = |f: fn(f64) -> f64| (0..CAPACITY * half).map(|i| f(angle(i)) as f32).collect::<Vec<f32>>();
        let tables = [table(f64::cos), table(f64::sin)];
        let to = RopeTarget {
            cos: self.bench.put(&tables[0])?,
            sin: self.bench.put(&tables[1])?,
            rows: self.rows(positions)?,
            sequences: self.sequences(TraceView::default())?,
            layer: LAYER as i32,
            kv_heads: kv_heads as i32,
            head_dim: self.attention.head_dim as i32,
            query_scale,
            k_type: type_number(self.attention.cache.0),
            v_type: type_number(self.attention.cache.1),
        };
        Ok((to, tables))
    }

    /// Compares queries and the cache with the rotation of `q` and `k`, whose relative error is `lost`, and with `v`: `[positions, heads, head_dim]` each.
    pub fn compare_rotated(
        &self,
        (to, tables): (RopeTarget, [Vec<f32>; 2]),
        positions: &[usize],
        queries: DevicePtr<f32>,
        (q, k, v): (&[Sum], &[Sum], &[Want]),
        lost: f64,
    ) -> Tested {
        let (bench, Attention { head_dim: d, cache }) = (self.bench, self.attention);
        let (half, kv_heads) = (d / 2, to.kv_heads as usize);
        let rotated = |x: &[Sum], position: usize, by: f32, least: f64, bound: f64| -> Vec<Want> {
            let turned = |i: usize| {
                let [cos, sin] = [0, 1].map(|table| f64::from(tables[table][position * half + i % half]));
                let (own, other, sign) = (x[i], x[(i + half) % d], if i < half { -1.0 } else { 1.0 });
                let (sum, scale) = (own.0 * cos + sign * other.0 * sin, own.1 * cos.abs() + other.1 * sin.abs());
                near(sum * f64::from(by), (scale * f64::from(by)).max(least), bound)
            };
            (0..d).map(turned).collect()
        };
        let heads = q.len() / d / positions.len();
        let want = |(i, x)| rotated(x, positions[i / heads], to.query_scale, 0.0, lost);
        bench.compare("rotated queries", queries, q.chunks(d).enumerate().flat_map(want))?;
        let halves = cache.0 == DType::F32;
        let key_bound = lost + if halves { 8.0 * U } else { rounding(cache.0) };
        for (i, (key, value)) in k.chunks(d).zip(v.chunks(d)).enumerate() {
            let position = positions[i / kv_heads];
            let cached = ((LAYER * kv_heads + i % kv_heads) * CAPACITY + position) * d;
            let at = |cached_as: DType, base: DevicePtr<_>| base.cast::<u8>().add(cached * cached_as.size()).cast();
            let found = match halves {
                true => {
                    let parts = bench.get_as(at(cache.0, self.view.k), DType::F16, 2 * d)?;
                    (0..d).map(|i| parts[i] + parts[i + d]).collect()
                }
                false => bench.get_as(at(cache.0, self.view.k), cache.0, d)?,
            };
            // the lower half of an f32 key is held to 2^-25, half a U: less than the bound of 1/16
            bench.check("cached keys", found, rotated(key, position, 1.0, 1.0 / 16.0, key_bound));
            let found = bench.get_as(at(cache.1, self.view.v), cache.1, d)?;
            bench.check("cached values", found, value.iter().copied());
        }
        Ok(())
    }
}

impl Attention {
    pub fn fixture<'b>(self, bench: &'b Bench<'b>, rows: usize) -> Result<Fixture<'b>, CudaError> {
        let (mut noise, d) = (Noise(31), self.head_dim);
        let [keys, v] = [(); 2].map(|()| noise.floats(LAYERS * KV_HEADS * CAPACITY * d, 1.0));
        let (keys, k) = match self.cache.0 {
            // as `Halves` of `kernels/common.cuh`
            DType::F32 => {
                let high = |x: &f32| DType::F16.round(*x);
                let low = |x: &f32| DType::F16.round(x - high(x));
                let parts = keys.chunks(d).flat_map(|key| key.iter().map(high).chain(key.iter().map(low)));
                let (ptr, _) = bench.put_as(&parts.collect::<Vec<f32>>(), DType::F16)?;
                (ptr, keys.iter().map(|x| high(x) + low(x)).collect())
            }
            dtype => bench.put_as(&keys, dtype)?,
        };
        let (values, v) = bench.put_as(&v, self.cache.1)?;
        let (capacity, first_traced_row) = (CAPACITY as u32, FIRST_TRACED as i32);
        let view = SequenceView { k: keys, v: values, capacity, first_traced_row, ..SequenceView::default() };
        // scores of standard deviation 2
        let queries = Noise(32).floats(rows * HEADS * d, 6.0 / (d as f32).sqrt());
        Ok(Fixture { bench, attention: self, queries, k, v, view })
    }

    /// A row before the trace and one in it, one split and several, and an unused row.
    pub fn decode(self, kernel: &Kernel<AttnDecode>, bench: &Bench, entropy: bool) -> Tested {
        /// The state of no positions.
        const EMPTY: HeadState = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0, 0.0];
        let (positions, n, d) = ([37, 200], 3, self.head_dim);
        let (fixture, used) = (self.fixture(bench, n)?, positions.len() * HEADS);
        let rows = fixture.rows(&[positions[0], positions[1], usize::MAX])?; // position -1: unused
        let grid = [KV_HEADS * GROUP.div_ceil(DECODE_GROUP), SPLITS, n];
        let arrivals = bench.put(&vec![0u32; grid[0] * n])?; // a launch leaves zeros
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
    pub fn prefill(self, kernel: &Kernel<AttnPrefill>, bench: &Bench) -> Tested {
        let positions: Vec<usize> = (30..55).chain([60]).collect();
        let (n, width) = (positions.len(), HEADS * self.head_dim);
        let fixture = self.fixture(bench, n)?;
        let row = |position: &usize| Row { sequence: SequenceId(SLOT as usize), position: *position, token: 0 };
        let lines = Lines { of_row: GROUP, of_block: prefill_lines(self.head_dim) };
        let parts = prefill_parts(&positions.iter().map(row).collect::<Vec<_>>(), lines);
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
    pub fn rope_cache(self, kernel: &Kernel<RopeCache>, bench: &Bench) -> Tested {
        let (d, positions, mut noise) = (self.head_dim, [3, 70], Noise(33));
        let (n, fixture) = (positions.len(), self.fixture(bench, 0)?);
        let [queries, keys, values] = [HEADS, KV_HEADS, KV_HEADS].map(|heads| noise.floats(n * heads * d, 2.0));
        let [q_norm, k_norm] = [(); 2].map(|()| noise.floats(d, 1.0));
        let (q, (to, tables)) = (bench.put(&queries)?, fixture.rotation(&positions, KV_HEADS, 0.25)?);
        let parameters = RopeCache {
            q,
            k: bench.put(&keys)?,
            v: bench.put(&values)?,
            v_norm: DevicePtr::NULL,
            q_norm: bench.put(&q_norm)?,
            k_norm: norm_of(bench.put(&k_norm)?),
            to,
            heads: HEADS.into(),
        };
        bench.device.launch(kernel, [(HEADS + 2 * KV_HEADS).div_ceil(4), n, 1], &parameters)?;
        let normed =
            |x: &[f32], weight: &[f32]| -> Vec<Sum> { norm(x, weight).into_iter().map(|x| (x, x.abs())).collect() };
        let (q_want, k_want) = (normed(&queries, &q_norm), normed(&keys, &k_norm));
        let v_want: Vec<Want> = values.iter().map(|x| exact(self.cache.1.round(*x))).collect();
        fixture.compare_rotated((to, tables), &positions, q, (&q_want, &k_want, &v_want), 32.0 * U)
    }

    /// Attention targets of a row's heads.
    pub fn places(self, kernel: &Kernel<AttnPlaces>, bench: &Bench) -> Tested {
        let fixture = self.fixture(bench, 1)?;
        let (attended, traced) = (fixture.heads(PLAIN), ROW - FIRST_TRACED + 1);
        let to = bench.room::<HeadPlaces>(traced * LAYERS * HEADS)?;
        let parameters = AttnPlaces {
            states: bench.put(&attended.iter().map(Attended::state).collect::<Vec<_>>())?,
            queries: bench.put(&fixture.queries)?,
            rows: fixture.rows(&[ROW])?,
            sequences: fixture.sequences(TraceView { places: to, ..TraceView::default() })?,
            layer: LAYER.into(),
            place: LAYER.into(),
            layers: LAYERS.into(),
            heads: HEADS.into(),
            kv_heads: KV_HEADS.into(),
            head_dim: self.head_dim.into(),
            window: PLAIN.window.into(),
            softcap: PLAIN.softcap,
            regularized: false.into(),
        };
        bench.device.launch(kernel, [HEADS, 1, 1], &parameters)?;
        let found = bench.get(to.add(((traced - 1) * LAYERS + LAYER) * HEADS), HEADS)?;
        let bound = Attended::bound(&attended);
        let want = attended.iter().flat_map(|want| {
            let entropy = want.reweighted().1;
            let HeadAttention { own, previous, first, prompt, .. } = places(&want.scores, 0.0, FIRST_TRACED);
            let weights = [own, previous, first, prompt].map(|alpha| near(alpha.into(), alpha.into(), bound));
            [near(entropy, 8.0, 64.0 * U)].into_iter().chain(weights)
        });
        bench.check("places", found.into_iter().flatten(), want);
        Ok(())
    }

    /// The summed weights of a row's heads.
    pub fn sum(self, kernel: &Kernel<AttnSum>, bench: &Bench) -> Tested {
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
        let alphas: Vec<Vec<f64>> = attended.iter().map(|want| softmax(&want.scores)).collect();
        let want = (0..count).map(|t| alphas.iter().map(|alpha| alpha[t]).sum());
        let bound = Attended::bound(&attended) + bound(HEADS, 0);
        bench.compare("weights", out, want.map(|sum: f64| near(sum, sum, bound)))
    }

    /// α* of a row whose trace has two heads, and of a row that is not traced.
    pub fn rows_of_attention(self, kernel: &Kernel<AttnRows>, bench: &Bench) -> Tested {
        let (fixture, d, kept) = (self.fixture(bench, 1)?, self.head_dim, [1, 4]);
        let attended = kept.map(|head| fixture.attend(0, ROW, head, MASKED));
        let traced = ROW - FIRST_TRACED + 1;
        // only the trace's last row is read
        let last = |values: &[f32]| bench.put(&[vec![f32::NAN; (traced - 1) * values.len()], values.to_vec()].concat());
        let sums = attended.each_ref().map(|want| want.sums()[1]);
        let trace = TraceView {
            heads: bench.put(&vec![kept.map(|head| (LAYER * HEADS + head) as i32); traced])?.cast(),
            maxima: last(&sums.map(|sum| sum.ceil() as f32))?,
            sums: last(&sums.map(|sum| (sum - sum.ceil()).exp() as f32))?,
            queries: last(&kept.map(|head| &fixture.queries[head * d..][..d]).concat())?,
            ..TraceView::default()
        };
        let stride = ROW + 1;
        let out = bench.room::<f32>(2 * stride)?;
        let shape = |layer: usize, window| LayerShape {
            layer: layer as i32,
            kv_heads: KV_HEADS as i32,
            head_dim: d as i32,
            window,
        };
        let parameters = AttnRows {
            sequences: fixture.sequences(trace)?,
            slot: Int(SLOT),
            asked: bench.put(&[ROW as i32, FIRST_TRACED as i32 - 1])?,
            shapes: bench.put(&[shape(0, 0), shape(LAYER, MASKED.window as i32)])?,
            softcap: MASKED.softcap,
            heads: HEADS.into(),
            keep: kept.len().into(),
            stride: stride.into(),
            out,
        };
        bench.device.launch(kernel, [stride.div_ceil(32), 2, 1], &parameters)?;
        let [a, b] = attended.each_ref().map(|want| want.reweighted().0);
        let (alpha, bound) = (a.iter().zip(&b).map(|(a, b)| a.max(*b).into()), Attended::bound(&attended));
        let want = alpha.chain(vec![0.0; stride]).map(|alpha: f64| near(alpha, alpha, bound));
        bench.compare("α*", out, want)
    }
}
