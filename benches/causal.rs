//! Is the chain causal? (R7 of `EVIDENCE.md`.) Replaces one token of a response by its runner-up, keeps the rest, and
//! writes the effect on P(answer): for tokens of the attention chain that contain a digit and, paired with each, the
//! nearest token off the chain that contains a digit and the nearest one that contains a letter but no digit.
//! `cargo bench --bench causal -- MODEL SAMPLES.jsonl[.gz] > TRIPLETS.jsonl`, with the samples of a run of `uqac eval`
//! with the same model; `evidence/causal.py` prints the table.

use flate2::read::MultiGzDecoder;
use serde_json::json;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use uqac::internals::{Sample, Variant};
use uqac::{Conversation, Engine, EngineOptions, Response, TraceParts, Traced};

/// Chain tokens per response, chosen at random.
const TRIPLETS: usize = 2;

fn lines(path: &str) -> Result<impl BufRead, Box<dyn Error>> {
    let file = File::open(path)?;
    let text: Box<dyn Read> = if path.ends_with(".gz") { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    Ok(BufReader::new(text))
}

/// A chain token with a digit, and the off-chain tokens it is compared with: one with a digit, one with letters but no digit.
struct Triplet {
    chain: usize,
    digit: usize,
    word: usize,
}

/// The triplets of a response, in an order determined by `seed`; no off-chain token occurs in two of them.
fn triplets(response: &Response, answer: &Range<usize>, chain: &[usize], seed: u64) -> Vec<Triplet> {
    let before = response.prompt_len..answer.start;
    let word = |at: &usize| response.token_text(*at).contains(char::is_alphabetic) && !response.has_digit(*at);
    let off_chain = before.clone().filter(|at| !chain.contains(at));
    let (mut digits, others): (Vec<usize>, Vec<usize>) = off_chain.partition(|at| response.has_digit(*at));
    let mut words: Vec<usize> = others.into_iter().filter(word).collect();
    let mut chain: Vec<usize> =
        chain.iter().copied().filter(|at| before.contains(at) && response.has_digit(*at)).collect();
    // a multiplicative hash of (seed, position)
    chain.sort_by_key(|at| (seed * 1_000_003 + *at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let nearest = |from: &mut Vec<usize>, to: usize| {
        let place = (0..from.len()).min_by_key(|i| from[*i].abs_diff(to))?;
        Some(from.swap_remove(place))
    };
    let triplet =
        |chain| Some(Triplet { chain, digit: nearest(&mut digits, chain)?, word: nearest(&mut words, chain)? });
    chain.into_iter().map_while(triplet).take(TRIPLETS).collect()
}

/// The most probable alternative token at a position, and its ln p.
fn runner_up(response: &Response, position: usize) -> Option<(Variant, f64)> {
    let other = response.step(position - 1).top.iter().find(|top| top.token != response.tokens[position])?;
    Some((Variant { position, token: other.token }, other.logprob))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [model, samples] = arguments.as_slice() else { return Err("expected MODEL SAMPLES.jsonl[.gz]".into()) };
    let mut engine = Engine::load(&uqac::locate_model(model)?, EngineOptions::default())?;
    for line in lines(samples)?.lines() {
        let sample: Sample = serde_json::from_str(&line?)?;
        let (uq, id) = (&sample.uq, sample.doc_id);
        let Some(found) = &uq.answer else { continue };
        let (prompt, _) = sample.arguments.first().ok_or("a sample without a prompt")?;
        let mut tokens = uqac::encode_prompt(&engine, &Conversation::Prompt(prompt.clone()), false)?;
        if tokens.len() != uq.prompt_len {
            return Err(
                format!("item {id}: {} prompt tokens, where the run has {}", tokens.len(), uq.prompt_len).into()
            );
        }
        tokens.extend(&uq.tokens.ids);
        let mut traced = engine.trace(&tokens, uq.prompt_len, TraceParts::PUBLISHED)?;
        let (response, mut queries) = traced.parts();
        let answer: Vec<usize> = found.tokens.clone().collect();
        let chain: Vec<usize> = uq.chain.iter().map(|link| response.position_after(link.row)).collect();
        let before: f64 = answer.iter().map(|at| response.logprob_at(*at)).sum();
        for Triplet { chain, digit, word } in triplets(&response, &found.tokens, &chain, id as u64) {
            let of = |at| runner_up(&response, at).ok_or("a step without an alternative");
            let replaced = [of(chain)?, of(digit)?, of(word)?];
            let after = queries.score_variants(&replaced.map(|(variant, _)| variant), &answer)?;
            let members = replaced.iter().zip(after).map(|((variant, alternative), after)| {
                let text = response.token_text(variant.position);
                json!({
                    "position": variant.position - response.prompt_len, "token": text, "logprob": response.logprob_at(variant.position),
                    "alternative": alternative, "in_answer": found.text.contains(text.trim()),
                    "change": after.iter().sum::<f64>() - before,
                })
            });
            let members: Vec<_> = members.collect();
            let correct = sample.metrics.get("acc");
            println!("{}", json!({"doc_id": id, "logprob": before, "correct": correct, "members": members}));
        }
    }
    Ok(())
}
