//! Choosing the next token. Every choice depends only on (seed, stream, position), so it is the same in any batch.

use super::{cpu::norm::argmax, cpu::simd::Isa};
use std::{collections::BTreeSet, ops::RangeInclusive};

/// Options of drawing a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0: greedy.
    pub temperature: f32,
    /// Only the smallest set of tokens with this total probability can be drawn; 1: all.
    pub top_p: f32,
    /// Only the K most probable tokens can be drawn; 0: all.
    pub top_k: usize,
    pub seed: u64,
    /// Divides positive logits of tokens that the sequence has, and multiplies the others (arXiv 1909.05858); 1: none. Applied
    /// by the engine to the logits of [`Backend::next_logits`](super::Backend::next_logits): likelihoods are those without it.
    pub repetition_penalty: f32,
}

impl Sampling {
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0, repetition_penalty: 1.0 };

    /// Repetition penalties that can be asked for.
    pub const PENALTIES: RangeInclusive<f64> = 0.01..=100.0;

    /// Parses a repetition penalty.
    pub fn penalty(text: &str) -> Result<f32, String> {
        let penalty =
            text.parse().ok().filter(|penalty| Self::PENALTIES.contains(penalty)).map(|penalty| penalty as f32);
        let (least, most) = (Self::PENALTIES.start(), Self::PENALTIES.end());
        penalty.ok_or_else(|| format!("expected a number from {least} to {most}; 1: no penalty"))
    }

    /// Applies the repetition penalty of a sequence of `tokens` to its next logits.
    pub fn penalize(&self, logits: &mut [f32], tokens: &[u32]) {
        for token in BTreeSet::from_iter(tokens) {
            let logit = &mut logits[*token as usize];
            *logit = if *logit < 0.0 { *logit * self.repetition_penalty } else { *logit / self.repetition_penalty };
        }
    }
}

/// One choice: which sequence of a batch draws (`stream`), and for which position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub sampling: Sampling,
    pub stream: u64,
    pub position: usize,
    /// Only ids below this are chosen: embeddings are often padded beyond the tokenizer's vocabulary.
    pub vocabulary: usize,
}

impl Choice {
    /// The token for these logits `[vocab_size]` (softcapped). Greedy: the largest (ties: lowest id). NaN is never chosen.
    pub fn token(&self, logits: &[f32]) -> u32 {
        let logits = &logits[..self.vocabulary.min(logits.len())];
        if self.sampling.temperature <= 0.0 {
            return argmax(Isa::detect(), logits).1 as u32;
        }
        let (mut candidates, total) = self.candidates(logits);
        let mut left = uniform(self.sampling.seed, self.stream, self.position as u64) * total;
        let mut last = 0;
        for rank in 0..candidates.all.len() {
            let candidate = candidates.at(rank);
            left -= candidate.weight;
            last = candidate.token;
            if left < 0.0 {
                break;
            }
        }
        last
    }

    /// Tokens that may be drawn, and the sum of their weights.
    fn candidates(&self, logits: &[f32]) -> (Candidates, f64) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let temperature = f64::from(self.sampling.temperature);
        // even a whole vocabulary of weights below e^-50 is beyond the precision of the sum
        let lowest = -50.0 * temperature;
        let all = (0u32..).zip(logits).filter(|(_, x)| f64::from(*x - max) > lowest);
        let weight = |x: f32| (f64::from(x - max) / temperature).exp();
        let all = all.map(|(token, x)| Candidate { token, weight: weight(*x) }).collect();
        let mut candidates = Candidates { all, sorted: 0 };
        if self.sampling.top_k > 0 && self.sampling.top_k < candidates.all.len() {
            candidates.sort(self.sampling.top_k);
            candidates.all.truncate(self.sampling.top_k);
        }
        let mut total: f64 = candidates.all.iter().map(|c| c.weight).sum();
        if self.sampling.top_p < 1.0 {
            let wanted = f64::from(self.sampling.top_p.max(0.0)) * total;
            let (mut sum, mut kept) = (0.0, 0);
            while kept < candidates.all.len() && (kept == 0 || sum < wanted) {
                sum += candidates.at(kept).weight;
                kept += 1;
            }
            candidates.all.truncate(kept);
            total = sum;
        }
        (candidates, total)
    }
}

/// A token with its weight e^{(x - max) / temperature}.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    weight: f64,
}

/// Tokens by weight, largest first (ties: lower id); sorted only as far as they are read, since almost every draw falls on
/// one of the first few.
struct Candidates {
    all: Vec<Candidate>,
    /// Number of sorted entries.
    sorted: usize,
}

impl Candidates {
    fn at(&mut self, rank: usize) -> Candidate {
        if rank >= self.sorted {
            self.sort((8 * self.sorted).max(32));
        }
        self.all[rank]
    }

    /// Sorts the first `count` entries into place.
    fn sort(&mut self, count: usize) {
        let order = |a: &Candidate, b: &Candidate| b.weight.total_cmp(&a.weight).then(a.token.cmp(&b.token));
        let count = count.min(self.all.len());
        let rest = &mut self.all[self.sorted..];
        let more = count - self.sorted;
        if more < rest.len() {
            rest.select_nth_unstable_by(more, order);
        }
        rest[..more].sort_unstable_by(order);
        self.sorted = count;
    }
}

/// FNV-1a: derives a stream number from the values that identify it.
pub fn stream_of(name: impl IntoIterator<Item = u64>) -> u64 {
    name.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| (hash ^ part).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A number in [0, 1) from three counters, chained through the finalizer of SplitMix64.
pub fn uniform(seed: u64, stream: u64, position: u64) -> f64 {
    let mix = |mut x: u64| {
        x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    };
    let bits = mix(mix(mix(seed) ^ stream) ^ position);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(sampling: Sampling, logits: &[f32], n: usize) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for position in 0..n {
            counts[Choice { sampling, stream: 0, position, vocabulary: 99 }.token(logits) as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_no_nan() {
        let choice = Choice { sampling: Sampling::GREEDY, stream: 0, position: 0, vocabulary: 4 };
        assert_eq!(choice.token(&[f32::NAN, 1.0, 3.0, 3.0, 5.0]), 2, "the fifth is padding");
    }

    #[test]
    fn a_repeated_token_is_penalized_once() {
        let (mut logits, sampling) = ([3.0, -1.0, 2.0], Sampling { repetition_penalty: 2.0, ..Sampling::GREEDY });
        sampling.penalize(&mut logits, &[0, 1, 0]);
        assert_eq!(logits, [1.5, -2.0, 2.0]);
    }

    #[test]
    fn argmax_of_a_long_row_is_the_first_of_the_largest() {
        let value = |i: usize| ((i * 7919) % 1000) as f32;
        for len in [1, 63, 64, 65, 3000] {
            let values: Vec<f32> = (0..len).map(value).collect();
            let max = values.iter().copied().fold(0.0, f32::max);
            assert_eq!(Some(argmax(Isa::detect(), &values).1), values.iter().position(|x| *x == max));
        }
        assert_eq!(argmax(Isa::detect(), &[f32::NEG_INFINITY; 3]).1, 0);
    }

    #[test]
    fn candidates_come_in_the_order_of_a_full_sort() {
        let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 997) as f32 / 100.0).collect();
        let choice = Choice {
            sampling: Sampling { temperature: 1.0, ..Sampling::GREEDY },
            stream: 0,
            position: 0,
            vocabulary: logits.len(),
        };
        let (mut candidates, _) = choice.candidates(&logits);
        let mut sorted: Vec<u32> = (0..5000).collect();
        sorted.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        let found: Vec<u32> = (0..candidates.all.len()).map(|rank| candidates.at(rank).token).collect();
        assert_eq!(found, sorted);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [1.0f32, 0.0, -1.0, f32::NEG_INFINITY];
        let n = 20_000;
        let counts = draws(Sampling { temperature: 0.5, ..Sampling::GREEDY }, &logits, n);
        let z: f64 = logits.iter().map(|x| f64::from(*x / 0.5).exp()).sum();
        for (count, x) in counts.iter().zip(logits) {
            let p = f64::from(x / 0.5).exp() / z;
            // five standard deviations of a binomial
            let bound = 5.0 * (n as f64 * p * (1.0 - p)).sqrt();
            assert!((*count as f64 - n as f64 * p).abs() <= bound, "{counts:?}");
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = [2.0f32, 1.0, 0.0, -1.0];
        let hot = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        assert_eq!(draws(Sampling { top_k: 2, ..hot }, &logits, 500)[2..], [0, 0]);
        // p = 0.644, 0.237, 0.087, 0.032
        assert_eq!(draws(Sampling { top_p: 0.8, ..hot }, &logits, 500)[2..], [0, 0]);
        assert_eq!(draws(Sampling { top_p: 0.6, ..hot }, &logits, 500)[1..], [0, 0, 0]);
    }

    #[test]
    fn a_draw_depends_on_seed_stream_and_position() {
        let values: Vec<f64> = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)].map(|(a, b, c)| uniform(a, b, c)).to_vec();
        for i in 0..4 {
            assert!((0.0..1.0).contains(&values[i]));
            assert!((0..i).all(|j| values[i] != values[j]));
        }
    }
}
