//! From a response that has just ended to its sample: answer, grade, confidences.

use super::controls::controls;
use super::manifest::EvalOptions;
use super::methods::{Context, Findings, Method, MethodError};
use crate::engine::encode::ResponseText;
use crate::engine::running::{Measure, RunningConfidence, WINDOW};
use crate::engine::{Engine, FinishReason, Generation, TracedSequence};
use crate::eval::grading;
use crate::eval::sample::{EnsembleMember, ResponseTokens, Sample, ScoreMap, Similarity, Uq, score_map};
use crate::eval::tasks::{Question, Task};
use crate::io::record::Status;
use crate::model::tokenizer::TokenizerError;
use crate::uq::Outcome;
use crate::uq::pipeline::{self, Answer};
use crate::uq::rules::Rules;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// An item's prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// As the chat template renders it.
    pub text: String,
    pub tokens: Vec<u32>,
}

/// A response that was read: why it ended, its text, and the answer that it gives.
pub struct Reading {
    pub finish: FinishReason,
    pub text: ResponseText,
    pub answer: Option<Answer>,
}

impl Reading {
    pub fn of(engine: &Engine, response: &Generation, task: &Task, rules: &Rules) -> Result<Reading, TokenizerError> {
        let Generation { tokens, prompt_len, .. } = response;
        let text = ResponseText::new(engine, &tokens[*prompt_len..])?;
        let answer = pipeline::find_in(engine, tokens, *prompt_len, response.is_cut_off(), task.rule, rules)?;
        Ok(Reading { finish: response.finish, text, answer })
    }
}

/// What a method has drawn for an item.
pub struct Drawn {
    pub method: &'static dyn Method,
    /// Its samples, then its turns.
    pub responses: Vec<Generation>,
    /// How long they took.
    pub seconds: f64,
}

/// The sample of an item whose responses have ended; `generate` is how long its own took, in seconds.
pub fn assess(
    traced: &mut TracedSequence,
    task: &Task,
    item: &Question,
    prompt: &Prompt,
    Reading { finish, text: ResponseText { text, ranges }, answer }: Reading,
    options: &EvalOptions,
    (generate, drawn): (f64, &[Drawn]),
) -> Result<Sample, MethodError> {
    let parameters = &options.parameters;
    let mut sample = empty(task, item, options);
    sample.uq.seconds.insert("generate".to_owned(), generate);

    let (response, _) = traced.parts();
    let prompt_len = response.prompt_len;
    let logprobs = response.steps.iter().take(response.tokens.len() - prompt_len).map(|step| step.logprob).collect();
    let ids = response.tokens[prompt_len..].to_vec();
    if parameters.wide_trace {
        let lows = |measure: Measure| {
            let running = RunningConfidence { measure, window: WINDOW, stop_below: None };
            (measure.name().to_owned(), running.lows(&response.steps[..ids.len()]))
        };
        sample.uq.running_lows = Measure::ALL.map(lows).into();
    }
    let offsets = (0..ids.len()).map(|i| ranges.get(i).map_or([text.len(); 2], |r| [r.start, r.end])).collect();
    (sample.uq.prompt_len, sample.uq.finish) = (prompt_len, finish);
    sample.uq.tokens = ResponseTokens { ids, offsets, logprobs };
    sample.arguments = vec![(prompt.text.clone(), arguments(task, options, None))];

    let mut found: Vec<(&dyn Method, Findings)> = Vec::new();
    for &Drawn { method, ref responses, seconds } in drawn {
        let mut context = Context { traced, task, item, options, text: &text, answer: answer.as_ref() };
        let begun = Instant::now();
        if let Some(findings) = method.run(&mut context, responses)? {
            sample.uq.seconds.insert(field(method), seconds + begun.elapsed().as_secs_f64());
            found.push((method, findings));
        }
    }
    if let Some(answer) = &answer {
        let (response, mut queries) = traced.parts();
        let (outcome, seconds) = pipeline::run(&response, answer.tokens.clone(), None, parameters, &mut queries)?;
        sample.uq.seconds.extend([("chain".to_owned(), seconds.chain), ("ensemble".to_owned(), seconds.ensemble)]);
        let begun = Instant::now();
        sample.uq.sweep = controls(traced, &outcome, options)?;
        if !sample.uq.sweep.is_empty() {
            sample.uq.seconds.insert("controls".to_owned(), begun.elapsed().as_secs_f64());
        }
        sample.uq.similarity = similarity(traced, &outcome)?;
        fill_outcome(&mut sample.uq, traced, outcome)?;
    }

    let correct = |answer: &str| f64::from(u8::from(grading::correct_for(item, answer)));
    let metrics = &mut sample.metrics;
    metrics.insert("acc".to_owned(), answer.as_ref().map_or(0.0, |answer| correct(&answer.text)));
    // the authors leave out what their code cannot grade
    if let Some(right) = grading::label_reference(&text, &item.target, &task.name, item.grader) {
        metrics.insert("acc_reference".to_owned(), f64::from(u8::from(right)));
    }
    sample.resps.push(vec![text]);
    sample.filtered_resps.push(answer.as_ref().map(|answer| answer.text.clone()));
    for (method, findings) in found {
        add(&mut sample, method, findings, prompt, (task, options));
    }
    sample.uq.status = if answer.is_some() { Status::Ok } else { Status::NoAnswer };
    sample.uq.answer = answer;
    Ok(sample)
}

/// The sample of an item that failed, and why.
pub fn failed(task: &Task, item: &Question, options: &EvalOptions, why: String) -> Sample {
    let mut sample = empty(task, item, options);
    sample.uq.error = Some(why);
    sample.metrics = BTreeMap::from([("acc".to_owned(), 0.0)]);
    sample
}

fn empty(task: &Task, item: &Question, options: &EvalOptions) -> Sample {
    Sample {
        doc_id: item.doc_id,
        task: task.name.clone(),
        doc: item.doc.clone(),
        target: item.target.clone(),
        arguments: Vec::new(),
        resps: Vec::new(),
        filtered_resps: Vec::new(),
        metrics: BTreeMap::new(),
        uq: Uq {
            status: Status::Error,
            error: None,
            profile: options.parameters.reading.profile,
            finish: FinishReason::Interrupted,
            prompt_len: 0,
            tokens: ResponseTokens::default(),
            answer: None,
            chain: Vec::new(),
            kept: Vec::new(),
            ensemble: Vec::new(),
            similarity: None,
            scores: ScoreMap::new(),
            running_lows: BTreeMap::new(),
            details: Map::new(),
            sweep: Vec::new(),
            seconds: BTreeMap::new(),
        },
    }
}

/// What a method with passes of its own found.
fn add(
    sample: &mut Sample,
    method: &dyn Method,
    findings: Findings,
    prompt: &Prompt,
    (task, options): (&Task, &EvalOptions),
) {
    sample.uq.details.insert(field(method), findings.details);
    sample.uq.scores.extend(findings.scores.into_iter().map(|(key, score)| (key.to_owned(), score)));
    sample.metrics.extend(findings.metrics.into_iter().map(|(key, value)| (key.to_owned(), value)));
    if let Some(drawn) = findings.drawn {
        sample.arguments.push((prompt.text.clone(), arguments(task, options, Some(drawn.temperature))));
        sample.resps.push(drawn.texts);
        sample.filtered_resps.push(drawn.answer);
    }
}

/// A method's key in `uq` and in `seconds`.
fn field(method: &dyn Method) -> String {
    method.key().replace('-', "_")
}

/// What the method found.
fn fill_outcome(uq: &mut Uq, traced: &TracedSequence, outcome: Outcome) -> Result<(), MethodError> {
    let tokenizer = traced.engine().tokenizer();
    uq.scores.extend(score_map(&outcome.scores));
    for member in outcome.ensemble {
        let text = member.token.map(|token| tokenizer.decode_token(token)).transpose()?;
        uq.ensemble.push(EnsembleMember { member, text });
    }
    (uq.chain, uq.kept) = (outcome.chain, outcome.kept);
    Ok(())
}

/// How near the chain and the whole response are to the answer.
fn similarity(traced: &mut TracedSequence, outcome: &Outcome) -> Result<Option<Similarity>, MethodError> {
    let (response, mut queries) = traced.parts();
    let before: Vec<usize> = (response.prompt_len..outcome.answer.start).collect();
    let links: Vec<f64> = outcome.chain.iter().filter(|link| link.from.is_some()).map(|link| link.similarity).collect();
    if before.is_empty() || links.is_empty() {
        return Ok(None);
    }
    let cosines = queries.cosines(&before, outcome.answer.clone())?;
    let whole = cosines.iter().map(|cosine| f64::from(*cosine)).sum::<f64>() / cosines.len() as f64;
    Ok(Some(Similarity { chain: links.iter().sum::<f64>() / links.len() as f64, response: whole }))
}

/// How a request was generated, in lm-evaluation-harness's terms.
fn arguments(task: &Task, options: &EvalOptions, temperature: Option<f32>) -> Map<String, Value> {
    let mut fields = super::limits(task);
    fields.insert("do_sample".to_owned(), json!(temperature.is_some()));
    fields.insert("temperature".to_owned(), json!(temperature.unwrap_or(0.0)));
    if temperature.is_some() {
        fields.insert("seed".to_owned(), json!(options.seed));
    }
    fields
}
