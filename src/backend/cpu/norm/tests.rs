#![cfg(test)]

use super::*;

/// Numbers in [-scale, scale).
fn numbers(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next() * scale).collect()
}

fn close(got: f32, exact: f64, relative: f64, absolute: f64) -> bool {
    (got as f64 - exact).abs() <= relative * exact.abs() + absolute
}

#[test]
fn rms_norm_is_exact_to_a_few_roundings() {
    for (width, scale) in [(1, 1.0), (15, 0.1), (16, 3.0), (576, 1.0), (897, 1e-3), (5376, 2e3)] {
        let (x, weight) = (numbers(1, width, scale), numbers(2, width, 2.0));
        for isa in Isa::available() {
            for (offset, eps) in [(0.0f32, 1e-5f32), (1.0, 1e-6)] {
                let mut out = x.clone();
                let mean = rms_norm(isa, &mut out, &weight, offset, eps);
                let exact_mean = x.iter().map(|&v| v as f64 * v as f64).sum::<f64>() / width as f64;
                assert!(close(mean, exact_mean, 1e-6, 0.0), "{isa:?} {width}: {mean} not {exact_mean}");
                for ((&x, &w), &out) in x.iter().zip(&weight).zip(&out) {
                    let exact = x as f64 / (exact_mean + eps as f64).sqrt() * (offset + w) as f64;
                    assert!(close(out, exact, 1e-6, 0.0), "{isa:?} {width}: {out} not {exact}");
                }
            }
        }
    }
    assert!(rms_norm(Isa::detect(), &mut [1.0, f32::NAN], &[1.0; 2], 0.0, 0.0).is_nan());
    assert_eq!(rms_norm(Isa::detect(), &mut [], &[], 0.0, 1e-6), 0.0);
}

/// Values of every size up to 1e4, both signs, and zeros.
fn all_sizes() -> Vec<f32> {
    let mut x = vec![0.0, -0.0, 1e-40, -1e-40];
    for i in -400..=160 {
        let v = 10f64.powf(i as f64 / 40.0) as f32;
        x.extend([v, -v]);
    }
    x.extend((0..2001).map(|i| (i - 1000) as f32 * 0.03));
    x
}

#[test]
fn activations_are_exact_to_1e_6() {
    let x = all_sizes();
    let up = numbers(3, x.len(), 2.0);
    let c = (2.0 / std::f64::consts::PI).sqrt();
    for isa in Isa::available() {
        let (mut silu, mut gelu) = (x.clone(), x.clone());
        activate(isa, Activation::Silu, &mut silu, &up);
        activate(isa, Activation::GeluTanh, &mut gelu, &up);
        for i in 0..x.len() {
            let (x, up) = (x[i] as f64, up[i] as f64);
            let exact = x / (1.0 + (-x).exp()) * up;
            // clamped at e^-87: at 1e4 that is 1e-33
            assert!(close(silu[i], exact, 1e-6, 1e-33), "{isa:?} silu {x}: {} not {exact}", silu[i]);
            let u = c * (x + 0.044715 * x * x * x);
            let exact = x / (1.0 + (-2.0 * u).exp()) * up;
            // the error of e^2u grows with its argument
            let relative = 1e-6 + 2e-7 * (-2.0 * u).clamp(0.0, 88.0);
            assert!(close(gelu[i], exact, relative, 1e-33), "{isa:?} gelu {x}: {} not {exact}", gelu[i]);
        }
    }
}

#[test]
fn softcap_keeps_the_digits_of_small_values() {
    for cap in [30.0f32, 50.0, 1.0] {
        let x = all_sizes();
        for isa in Isa::available() {
            let mut capped = x.clone();
            softcap(isa, &mut capped, cap);
            for (&x, &capped) in x.iter().zip(&capped) {
                let exact = cap as f64 * (x as f64 / cap as f64).tanh();
                assert!(close(capped, exact, 6e-7, 1e-44), "{isa:?} cap {cap}: {x} -> {capped} not {exact}");
            }
            let mut special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
            softcap(isa, &mut special, cap);
            assert!(close(special[0], cap as f64, 6e-7, 0.0) && special[1] == -special[0] && special[2].is_nan());
        }
    }
}

#[test]
fn rotation_turns_pairs() {
    let angles: Vec<f64> = (0..32).map(|i| i as f64 * 0.7).collect();
    let [cos, sin]: [Vec<f32>; 2] =
        [f64::cos, f64::sin].map(|f: fn(f64) -> f64| angles.iter().map(|&a| f(a) as f32).collect());
    let before = numbers(5, 64, 1.0);
    let mut x = before.clone();
    rotate(&mut x, &cos, &sin);
    for i in 0..32 {
        let (a, b) = (before[i] as f64, before[i + 32] as f64);
        let (sin, cos) = angles[i].sin_cos();
        assert!(close(x[i], a * cos - b * sin, 0.0, 3e-7));
        assert!(close(x[i + 32], b * cos + a * sin, 0.0, 3e-7));
    }
}

fn exact_stats(x: &[f32]) -> (f64, f64) {
    let max = x.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(v as f64));
    let z: f64 = x.iter().map(|&v| (v as f64 - max).exp()).sum();
    let lse = max + z.ln();
    let entropy = x.iter().filter(|v| v.is_finite()).map(|&v| -(v as f64 - lse).exp() * (v as f64 - lse)).sum();
    (lse, entropy)
}

#[test]
fn softmax_statistics_are_exact_to_1e_6() {
    for (len, scale) in
        [(1, 5.0), (17, 1.0), (4097, 20.0), (151_936, 8.0), (262_144, 0.0), (262_144, 1.0), (262_144, 60.0)]
    {
        for shift in [0.0, 37.3] {
            let mut x = numbers(6, len, scale);
            x.iter_mut().for_each(|v| *v += shift);
            x.iter_mut().skip(1).step_by(7).for_each(|v| *v = f32::NEG_INFINITY);
            let (lse, entropy) = exact_stats(&x);
            for isa in Isa::available() {
                let got = softmax_stats(isa, &x);
                let best = (0..len).rev().max_by(|&a, &b| x[a].total_cmp(&x[b])).unwrap();
                assert_eq!(got.argmax, best);
                assert!((got.lse - lse).abs() < 1e-6, "{isa:?} {len} {scale}: {} not {lse}", got.lse);
                assert!(
                    (got.entropy - entropy).abs() < 1e-6 * entropy.max(1.0),
                    "{isa:?} {len} {scale} {shift}: {got:?} not {entropy}"
                );
            }
        }
    }
}

#[test]
fn odd_logits_do_no_harm() {
    let none = softmax_stats(Isa::detect(), &[f32::NEG_INFINITY; 20]);
    assert_eq!(none, LogitStats { lse: f64::NEG_INFINITY, entropy: 0.0, argmax: 0 });
    assert_eq!(softmax_stats(Isa::detect(), &[]).argmax, 0);
    for isa in Isa::available() {
        for at in [0, 5, 16, 700] {
            let mut x = numbers(7, 1000, 3.0);
            x[at] = f32::NAN;
            let stats = softmax_stats(isa, &x);
            assert!(stats.lse.is_nan() && stats.entropy.is_nan() && stats.argmax != at, "{isa:?} {at}");
        }
        assert!(softmax_stats(isa, &[f32::NAN; 40]).lse.is_nan());
        assert!(!softmax_stats(isa, &[1.0, f32::INFINITY]).entropy.is_finite());
    }
}

#[test]
fn top_k_is_the_head_of_a_stable_sort() {
    for len in [0, 1, 5, 63, 64, 65, 1000, 20_000] {
        let mut x = numbers(8, len, 30.0);
        x.iter_mut().for_each(|v| *v = v.round()); // many ties
        x.iter_mut().step_by(11).for_each(|v| *v = f32::NAN);
        x.iter_mut().skip(1).step_by(13).for_each(|v| *v = f32::NEG_INFINITY);
        let mut sorted: Vec<(u32, f32)> = (0..).zip(x.iter().copied()).filter(|(_, v)| !v.is_nan()).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        for k in [0, 1, 5, 64] {
            assert_eq!(top_k(&x, k), sorted[..k.min(sorted.len())], "{len} {k}");
        }
    }
}
