//! Laws that hold for every response, checked on random small language models with known exact probabilities: the next
//! token depends on the two before it, so copies of a response are re-scored exactly.

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Range;
use test_support::tiny;
use uqac::backend::DeviceChoice;
use uqac::backend::entropy::Gamma;
use uqac::engine::{Engine, EngineOptions, TraceParts};
use uqac::uq::pipeline;
use uqac::uq::rules::RULES;
use uqac::uq::{Outcome, Parameters, Profile, Reading, Response, Step, TokenLogprob, Traced, Variant};
use uqac::uq::{rules::StopWords, stopwords::is_stop_word};

/// Texts of the vocabulary; two of them are stop words.
const VOCABULARY: [&str; 7] = [" zebra", " the", " cello", " 42", ".", " maple", " tundra"];

/// A pseudo-random value in [0, 1) that depends only on `seed` and `key`.
fn hashed(seed: u64, key: [usize; 3]) -> f64 {
    let mut x = seed ^ 0x9E37_79B9_7F4A_7C15;
    for part in key {
        x = (x ^ part as u64).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x ^= x >> 29;
        x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^= x >> 32;
    }
    (x >> 11) as f64 / (1u64 << 53) as f64
}

/// A random language model, the response under test, and random attention and hidden states for it.
#[derive(Clone, Debug)]
struct World {
    seed: u64,
    /// How far the model's predictions are from uniform.
    sharpness: f64,
    tokens: Vec<u32>,
    prompt_len: usize,
    answer: Range<usize>,
}

impl World {
    /// ln p(· | the last two tokens of `before`), `[vocabulary]`.
    fn predict(&self, before: &[u32]) -> Vec<f64> {
        let context = |back: usize| before.len().checked_sub(back).map_or(99, |at| before[at] as usize);
        let score = |token| self.sharpness * hashed(self.seed, [context(1), context(2), token]);
        let scores: Vec<f64> = (0..VOCABULARY.len()).map(score).collect();
        let z = scores.iter().map(|score| score.exp()).sum::<f64>().ln();
        scores.iter().map(|score| score - z).collect()
    }

    /// ln p(token at `position` | the tokens before it), in any sequence.
    fn logprob(&self, tokens: &[u32], position: usize) -> f64 {
        self.predict(&tokens[..position])[tokens[position] as usize]
    }

    fn step(&self, row: usize) -> Step {
        let predicted = self.predict(&self.tokens[..=row]);
        let mut top: Vec<TokenLogprob> =
            (0..).zip(&predicted).map(|(token, &logprob)| TokenLogprob { token, logprob }).collect();
        top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        Step {
            logprob: self.tokens.get(row + 1).map(|&next| predicted[next as usize]),
            entropy: predicted.iter().map(|logprob| -logprob.exp() * logprob).sum(),
            top,
            ..Step::default()
        }
    }

    fn assess(&self, reading: impl Into<Reading>) -> Outcome {
        let texts: Vec<String> =
            self.tokens[self.prompt_len..].iter().map(|&token| VOCABULARY[token as usize].into()).collect();
        let steps: Vec<Step> = (self.prompt_len - 1..self.tokens.len()).map(|row| self.step(row)).collect();
        let response = Response {
            tokens: &self.tokens,
            prompt_len: self.prompt_len,
            token_texts: &texts,
            steps: &steps,
            layer_means: &[],
        };
        let parameters = Parameters::published(reading);
        let Ok((outcome, _)) = pipeline::run(&response, self.answer.clone(), None, &parameters, &mut self.clone());
        outcome
    }
}

impl Traced for World {
    type Error = Infallible;

    fn attention_rows(&mut self, rows: &[usize]) -> Result<Vec<Vec<f32>>, Infallible> {
        let weight = |row: usize, position: usize| match position {
            0 => 0.0,
            _ if position == row => 0.0,
            _ => hashed(self.seed, [row, position, 1]).powi(6) as f32,
        };
        Ok(rows.iter().map(|&row| (0..=row).map(|position| weight(row, position)).collect()).collect())
    }

    fn cosines(&mut self, positions: &[usize], answer: Range<usize>) -> Result<Vec<f32>, Infallible> {
        let cosine = |position, of| (1.5 * hashed(self.seed, [position, of, 2]) - 0.5) as f32;
        Ok(positions.iter().flat_map(|&p| answer.clone().map(move |of| cosine(p, of))).collect())
    }

    fn score_variants(&mut self, variants: &[Variant], positions: &[usize]) -> Result<Vec<Vec<f64>>, Infallible> {
        let score = |variant: &Variant| {
            let mut tokens = self.tokens.clone();
            assert_ne!(std::mem::replace(&mut tokens[variant.position], variant.token), variant.token);
            positions.iter().map(|&position| self.logprob(&tokens, position)).collect()
        };
        assert!(positions.is_sorted_by(|a, b| a < b));
        Ok(variants.iter().map(score).collect())
    }
}

prop_compose! {
    fn world()(length in 1usize..60, prompt_len in 1usize..12)(
        seed in any::<u64>(),
        sharpness in 0.0..12.0f64,
        tokens in prop::collection::vec(0..VOCABULARY.len() as u32, prompt_len + length),
        first in prompt_len..prompt_len + length,
        answer_length in 1usize..5,
        prompt_len in Just(prompt_len),
    ) -> World {
        let answer = first..(first + answer_length).min(tokens.len());
        World { seed, sharpness, tokens, prompt_len, answer }
    }
}

fn check_chain(world: &World, outcome: &Outcome, profile: Profile) {
    let text = |token: u32| VOCABULARY[token as usize];
    let answer_text: String = world.tokens[world.answer.clone()].iter().map(|token| text(*token)).collect();
    let rule = match profile {
        Profile::Corrected => StopWords::AnswerAware,
        Profile::Reference | Profile::Paper => StopWords::List,
    };
    let is_stop = |token: u32| is_stop_word(rule, text(token), answer_text.trim());
    let n = world.prompt_len as i64;
    let rows: Vec<i64> = outcome.chain.iter().map(|link| link.row).collect();
    assert!(rows.is_sorted_by(|a, b| a < b));
    let answer_rows: Vec<i64> = world.answer.clone().map(|position| position as i64 - 1 - n).collect();
    assert_eq!(rows[rows.len() - answer_rows.len()..], answer_rows);
    let all: BTreeSet<i64> = rows.iter().copied().collect();
    for link in &outcome.chain[..rows.len() - answer_rows.len()] {
        let token = world.tokens[(link.row + 1 + n) as usize];
        assert!(!is_stop(token) && link.score > 0.0 && link.row >= -1);
        assert!(link.from.is_some_and(|from| from > link.row && all.contains(&from)));
    }
    let similarity = |row: &i64| outcome.chain.iter().find(|link| link.row == *row).map(|link| link.similarity);
    assert!(outcome.kept.len() <= 10 && outcome.kept.is_sorted_by(|a, b| a < b));
    assert!(outcome.kept.iter().all(|row| !answer_rows.contains(row) && similarity(row).is_some_and(|s| s >= 0.0)));
}

/// P by its definition: the joint probability of the filtered and the answer tokens, in the response and in every copy
/// with one filtered token replaced by any token with p > 0.01.
fn marginal_by_definition(world: &World, kept: &[i64]) -> f64 {
    let kept: Vec<usize> = kept.iter().map(|row| (row + 1 + world.prompt_len as i64) as usize).collect();
    let joint = |tokens: &[u32]| -> f64 {
        kept.iter().copied().chain(world.answer.clone()).map(|p| world.logprob(tokens, p).exp()).product()
    };
    let mut sum = joint(&world.tokens);
    for &position in &kept {
        for (token, logprob) in (0..).zip(world.predict(&world.tokens[..position])) {
            if token != world.tokens[position] && logprob.exp() > 0.01 {
                let mut copy = world.tokens.clone();
                copy[position] = token;
                sum += joint(&copy);
            }
        }
    }
    sum
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_marginal_lies_between_p_sim_and_one(world in world()) {
        for profile in [Profile::Corrected, Profile::Paper] {
            let outcome = world.assess(profile);
            check_chain(&world, &outcome, profile);
            let scores = &outcome.scores;
            // rounding in sums of up to 20 log-probabilities, added in different orders: |ln p| < 400, so at most
            // 22 · 2^-53 · 400 of p
            let at_most = |a: &str, b: &str| scores[a] <= scores[b] * (1.0 + 1e-12);
            prop_assert!(at_most("p_sim", "p") && scores["p"] <= 1.0, "{} ≤ {} ≤ 1", scores["p_sim"], scores["p"]);
            prop_assert!(at_most("p_attn", "p_sim") && at_most("p_sim", "answer_prob"), "{scores:?}");
            let expected = marginal_by_definition(&world, &outcome.kept);
            prop_assert!((scores["p"] - expected).abs() <= 1e-9 * expected, "{} is not {}", scores["p"], expected);
        }
    }

    #[test]
    fn reference_computes_something_for_everything(world in world()) {
        let outcome = world.assess(Profile::Reference);
        check_chain(&world, &outcome, Profile::Reference);
        let positions = outcome.ensemble[1..].iter().filter_map(|member| Some((member.position?, member.token?)));
        let distinct: BTreeSet<(usize, u32)> = positions.collect();
        prop_assert_eq!(distinct.len(), outcome.ensemble.len() - 1);
        prop_assert!(distinct.len() <= 10 + outcome.kept.len());
        let scores = serde_json::to_value(&outcome.scores).unwrap();
        for (name, score) in scores.as_object().unwrap() {
            prop_assert!(score.as_f64().is_some_and(f64::is_finite), "{} is {}", name, score);
        }
        prop_assert!((0.0..=1.0).contains(&outcome.scores["p"]));
    }

    #[test]
    fn every_rule_alone_computes_something_for_everything(world in world()) {
        for rule in RULES {
            for value in (rule.values)() {
                let outcome = world.assess(Reading::new(Profile::Corrected, [(rule.name, value)]).unwrap());
                for (score, value) in outcome.scores.iter() {
                    prop_assert!(value.is_finite(), "{}={}: {} is {}", rule.name, value, score.key, value);
                }
                prop_assert!((0.0..=1.0).contains(&outcome.scores["p"]));
            }
        }
    }
}

// ── another γ ────────────────────────────────────────────────────────────────────────────────────────────────────────

/// α'_t ∝ w_t α_t: with the weights divided out, every γ (and every C) yields the same attention, on both backends that
/// accept one. The f32 values come from scores that the backends round differently: relative errors of some 1e-6, of
/// which up to 36 may accumulate here.
#[test]
fn gamma_only_reweights() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 250).collect();
    let own = Gamma::new(&[0.1, 0.0, 0.7, 0.2, 0.9, 0.3, 0.8, 0.4, 0.6, 0.5, 0.35, 0.95]).unwrap();
    let shares = |device, gamma: Gamma| -> Vec<Vec<Option<f64>>> {
        let options = EngineOptions { device, gamma, threads: 1, ..EngineOptions::default() };
        let mut engine = Engine::load(folder.path(), options).unwrap();
        let heads = engine.spec().total_heads();
        let mut traced = engine.trace(&tokens, 5, TraceParts { heads, ..TraceParts::default() }).unwrap();
        let row = 36;
        let mut by_head: Vec<(u32, Vec<f32>)> =
            traced.head_record(row).unwrap().unwrap().heads.into_iter().zip(traced.head_rows(row).unwrap()).collect();
        by_head.sort_by_key(|(head, _)| *head);
        let share = |alpha: &[f32]| {
            // our γ has 0.0 at distance 2: the hidden position is left out of both
            let kept = |t: usize| gamma.weight(row, t) > 0.0 && t != row - 2;
            let bare = |t: usize| f64::from(alpha[t]) / f64::from(gamma.weight(row, t));
            let total: f64 = (0..row).filter(|t| kept(*t)).map(bare).sum();
            (0..row).map(|t| kept(t).then(|| bare(t) / total)).collect()
        };
        by_head.iter().map(|(_, alpha)| share(alpha)).collect()
    };
    let published = shares(DeviceChoice::Cpu, Gamma::PUBLISHED);
    for device in [DeviceChoice::Cpu, DeviceChoice::Reference] {
        for (head, (a, b)) in published.iter().zip(shares(device, own)).enumerate() {
            for (t, (a, b)) in a.iter().zip(b).enumerate() {
                let (a, b) = (a.unwrap_or(0.0), b.unwrap_or(0.0));
                assert!((a - b).abs() <= 1e-4 * a.max(1e-3), "{device}, head {head}, position {t}: {a} {b}");
            }
        }
    }
}
