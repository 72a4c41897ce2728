//! γ, the reweighting of the nearest positions, measured on a model's own attention, as in the paper.
//!
//! A row attends most to its nearest tokens, whatever they are. The method discounts the C = 10 nearest positions by γ so
//! that they count as much as more distant ones: the mean attention a at each distance, over rows and heads, excluding the
//! first token and the row's own position (as the method does); a line through a at the distances C + 1 and 20, extrapolated
//! to the nearest ones; and γ_i = line(i) / a_i, from 0 to 1.
//!
//! `cargo run --release --example fit_gamma MODEL SAMPLES.jsonl [RESPONSES [C]]`, with the samples of a run of `uqac eval`,
//! prints the JSON object that `--gamma FILE` takes: attention by distance, the line, γ and the published γ.

use std::error::Error;
use uqac::internals::Sample;
use uqac::{DeviceChoice, Engine, EngineOptions, Gamma, TraceParts};

/// C: how many of the nearest positions are discounted.
const NEAREST: usize = 10;

/// The largest C.
const MAX_NEAREST: usize = Gamma::MAX_NEAREST;

/// Distances measured: two beyond the largest C, to draw a line through.
const SPAN: usize = MAX_NEAREST + 2;

/// Attention by distance, summed over rows and heads.
#[derive(Clone, Debug, Default)]
struct AttentionByDistance {
    /// Σ of shares at distance i + 1
    sums: [f64; SPAN],
    /// Rows times heads.
    rows: usize,
}

/// γ as measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
struct GammaFit {
    /// Rows times heads that were averaged.
    rows: usize,
    /// Mean share of a row's attention at distance i + 1.
    attention: Vec<f64>,
    /// The line at distance i + 1, through the mean shares at C + 1 and 20.
    line: Vec<f64>,
    /// γ_i, nearest first: C of them.
    gamma: Vec<f64>,
    /// The published γ_i.
    published: Vec<f64>,
    /// Root mean square of their difference, over the entries both define.
    difference: f64,
}

impl AttentionByDistance {
    /// Adds a head's reweighted attention α' of row T, `[T + 1]`. Rows too short for all distances are skipped, as are heads
    /// without attention.
    fn add(&mut self, reweighted: &[f32]) {
        let row = reweighted.len().saturating_sub(1);
        if row <= SPAN {
            return;
        }
        let share = |t: usize| f64::from(reweighted[t]) / f64::from(Gamma::PUBLISHED.weight(row, t));
        let total: f64 = (1..row).map(share).sum();
        if total > 0.0 {
            for (sum, t) in self.sums.iter_mut().zip((0..row).rev()) {
                *sum += share(t) / total;
            }
            self.rows += 1;
        }
    }

    /// γ of the `nearest` C positions (1 to [`MAX_NEAREST`]), if anything was added.
    fn fit(&self, nearest: usize) -> Option<GammaFit> {
        if self.rows == 0 || !(1..=MAX_NEAREST).contains(&nearest) {
            return None;
        }
        let attention: Vec<f64> = self.sums.iter().map(|sum| sum / self.rows as f64).collect();
        let (first, last) = (attention[nearest], attention[SPAN - 1]);
        let slope = (last - first) / (SPAN - 1 - nearest) as f64;
        let line: Vec<f64> = (0..SPAN).map(|i| first + slope * (i as f64 - nearest as f64)).collect();
        let ratio = |(line, a): (&f64, &f64)| if *a > 0.0 { (line / a).clamp(0.0, 1.0) } else { 1.0 };
        let gamma: Vec<f64> = line.iter().zip(&attention).take(nearest).map(ratio).collect();
        let squares: Vec<f64> = gamma
            .iter()
            .zip(Gamma::PUBLISHED.values())
            .map(|(ours, theirs)| (ours - f64::from(*theirs)).powi(2))
            .collect();
        let difference = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
        Some(GammaFit {
            rows: self.rows,
            attention,
            line,
            gamma,
            published: Gamma::PUBLISHED.values().iter().map(|gamma| f64::from(*gamma)).collect(),
            difference,
        })
    }
}

/// Adds every row of a response, for every head.
fn measure(engine: &mut Engine, sample: &Sample, attention: &mut AttentionByDistance) -> Result<(), Box<dyn Error>> {
    let (tokens, prompt_len) = sample.sequence(engine.tokenizer())?;
    if tokens.len() == prompt_len {
        return Ok(());
    }
    let entropy = sample.uq.reading.rules.head_entropy;
    let every_head = TraceParts { heads: engine.spec().total_heads(), entropy, ..TraceParts::default() };
    let mut traced = engine.trace(&tokens, prompt_len, every_head)?;
    for row in prompt_len..tokens.len() {
        traced.head_rows(row)?.iter().for_each(|head| attention.add(head));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, samples, ..] = &arguments[..] else {
        return Err("fit_gamma MODEL SAMPLES.jsonl [RESPONSES [C]]".into());
    };
    let number = |i: usize, default| arguments.get(i).map_or(Ok(default), |text| text.parse());
    let (responses, nearest) = (number(2, 50)?, number(3, NEAREST)?);
    // every head's rows are there on the CPU only
    let options = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
    let mut engine = Engine::load(&uqac::locate_model(model)?, options)?;
    let mut attention = AttentionByDistance::default();
    for line in std::fs::read_to_string(samples)?.lines().take(responses) {
        measure(&mut engine, &serde_json::from_str(line)?, &mut attention)?;
    }
    let fit = attention.fit(nearest).ok_or("no response is longer than 20 tokens, or C is not from 1 to 18")?;
    println!("{}", serde_json::to_string_pretty(&fit)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// α' of a row whose attention at distance d is `attention(d)`.
    fn reweighted(row: usize, attention: impl Fn(usize) -> f64) -> Vec<f32> {
        let weights: Vec<f64> =
            (0..=row).map(|t| f64::from(Gamma::PUBLISHED.weight(row, t)) * attention(row - t)).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|w| (w / total) as f32).collect()
    }

    #[test]
    fn the_attention_that_was_reweighted_comes_out() {
        // flat from distance 11 on, 1/γ before: exactly what γ undoes
        let mut attention = AttentionByDistance::default();
        for row in [25, 60, 300] {
            attention.add(&reweighted(row, |d| {
                d.checked_sub(1).and_then(|i| Gamma::PUBLISHED.values().get(i)).map_or(1.0, |g| 1.0 / f64::from(*g))
            }));
        }
        let fit = attention.fit(NEAREST).unwrap();
        assert_eq!(fit.rows, 3);
        // α' is in f32: relative errors of 2^-24 per share and of their sum
        assert!(fit.difference < 1e-6, "{fit:?}");
    }

    /// a falls along a line from distance C + 1 on; before that it is the line over γ. The line is not flat, and γ is
    /// measured against it.
    #[test]
    fn the_nearest_are_measured_against_the_line_through_the_others() {
        let line = |d: usize| 3.0 - 0.05 * d as f64;
        for nearest in [1, 4, NEAREST, MAX_NEAREST] {
            let gamma: Vec<f64> = (0..nearest).map(|i| (i as f64 + 1.0) / (nearest as f64 + 1.0)).collect();
            let mut attention = AttentionByDistance::default();
            let at = |d: usize| {
                if d > SPAN { 0.0 } else { line(d) / d.checked_sub(1).and_then(|i| gamma.get(i)).unwrap_or(&1.0) }
            };
            for row in [30, 200] {
                attention.add(&reweighted(row, at));
            }
            let fit = attention.fit(nearest).unwrap();
            assert_eq!(fit.gamma.len(), nearest);
            // f32 shares: 2^-24 each, over a line that is extrapolated nine of its own lengths at most
            assert!(fit.gamma.iter().zip(&gamma).all(|(found, wanted)| (found - wanted).abs() < 1e-5), "{fit:?}");
        }
        assert_eq!(AttentionByDistance::default().fit(NEAREST), None);
    }

    #[test]
    fn rows_that_say_nothing_are_left_out() {
        let mut attention = AttentionByDistance::default();
        attention.add(&[]);
        attention.add(&[0.0; 21]);
        attention.add(&[0.0; 200]);
        assert_eq!(attention.fit(NEAREST), None);
        // attention that lies on the line needs no discount
        attention.add(&reweighted(50, |d| d as f64));
        let fit = attention.fit(NEAREST).unwrap();
        assert!(fit.gamma.iter().all(|g| (*g - 1.0).abs() < 1e-5), "{fit:?}");
        assert!(attention.fit(0).is_none() && attention.fit(MAX_NEAREST + 1).is_none());
    }
}
