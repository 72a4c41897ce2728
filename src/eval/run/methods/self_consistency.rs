//! Self-consistency: majority vote over answers sampled from the same prompt.

use super::{Draw, Draws, Findings, Found, METHOD, Method, Reading, Subject};
use crate::engine::{Engine, GenerateOptions, Generation, TracedSequence};
use crate::eval::samples::{self, stream, votes};
use crate::{backend::sampling::Sampling, model::tokenizer::TokenizerError, uq::scores};
use serde_json::json;

/// Responses resampled from the same prompt, whose keys and values come from the response's own cache. Each sample's answer
/// votes with ∏ p(its tokens) / n; answers with the same normal form vote together.
pub(super) const SELF_CONSISTENCY: Method = Method {
    key: "self-consistency",
    about: "Majority vote over sampled answers",
    scores: scores::samples::SCORES,
    samples,
    run,
    ..METHOD
};

fn samples(_: &Engine, subject: &Subject) -> Draws {
    let Subject { task, item, options, prompt_tokens, .. } = subject;
    let sampling =
        Sampling { seed: options.seed, repetition_penalty: options.repetition_penalty(), ..Sampling::GREEDY };
    let (max_tokens, stop, thinking_budget) = (task.max_tokens, task.stop.clone(), options.budget());
    let own = GenerateOptions { max_tokens, stop, sampling, thinking_budget, ..GenerateOptions::default() };
    let draw = |sample| Draw {
        prompt: prompt_tokens.clone(),
        stream: stream(&task.name, item.doc_id as u64, sample),
        generate: samples::options(&own, options.temperature),
    };
    Ok((0..options.samples).map(draw).collect())
}

fn run(traced: &mut TracedSequence, subject: &Subject, drawn: &[Generation]) -> Found {
    let Subject { item, options, .. } = subject;
    let (engine, mut texts) = (traced.engine(), Vec::new());
    let own = subject.answer().map(|answer| answer.text.as_str());
    let found = votes(drawn, own, (options.temperature, &item.target), |generation| {
        let Reading { text, answer, .. } = Reading::of(engine, generation, subject)?;
        texts.push(text.text);
        Ok::<_, TokenizerError>(answer)
    })?;
    let correct = found.majority.as_deref().is_some_and(|answer| item.target.accepts(answer));
    Ok(Some(Findings {
        scores: found.scores().to_vec(),
        metrics: vec![("acc_majority", f64::from(correct))],
        details: json!(found),
        drawn: Some((texts, found.majority)),
    }))
}
