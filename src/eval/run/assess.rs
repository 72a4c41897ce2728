//! Turns a response that has just ended into its sample: answer, grade, confidences.

use super::methods::{Method, MethodError, Reading, Subject};
use super::{controls::controls, manifest::EvalOptions};
use crate::engine::running::{Measure, RunningConfidence, WINDOW};
use crate::engine::{FinishReason, Generation, TracedSequence};
use crate::eval::sample::{EnsembleMember, ResponseTokens, Sample, Similarity, Uq, score_map};
use crate::eval::tasks::{Grader, Question, Task};
use crate::io::record::{CutOff, Status};
use crate::{engine::encode::ResponseText, eval::grading, names::Named, uq::Outcome, uq::pipeline};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, time::Instant};

/// A method, its responses for an item (samples, then turns), and the seconds they took.
pub type Drawn = (&'static Method, Vec<Generation>, f64);

/// The sample of an item whose responses have ended; `generate` is the seconds its own response took.
pub fn assess(
    traced: &mut TracedSequence,
    subject: &Subject,
    Reading { finish, text: response_text, reply, answer }: &Reading,
    (generate, drawn): (f64, &[Drawn]),
) -> Result<Sample, MethodError> {
    let &Subject { task, item, options, ref prompt, .. } = subject;
    let ResponseText { text, ranges } = response_text;
    let parameters = &options.parameters;
    let mut sample = failed(task, item, options, None);
    sample.uq.seconds.insert("generate".to_owned(), generate);

    sample.uq.forced = traced.forced();
    let (response, _) = traced.parts();
    let prompt_len = response.prompt_len;
    let ids = response.tokens[prompt_len..].to_vec();
    let steps = &response.steps[..ids.len().min(response.steps.len())];
    let logprobs = steps.iter().map(|step| step.logprob).collect();
    if parameters.wide_trace {
        let lows = |measure: Measure| {
            let running = RunningConfidence { measure, window: WINDOW, stop_below: None };
            (measure.name().to_owned(), running.lows(steps))
        };
        sample.uq.running_lows = Measure::VALUES.iter().map(|(measure, ..)| lows(*measure)).collect();
    }
    let offsets = (0..ids.len()).map(|i| ranges.get(i).map_or([text.len(); 2], |r| [r.start, r.end])).collect();
    (sample.uq.prompt_len, sample.uq.finish, sample.uq.thought) = (prompt_len, *finish, response_text.thought(reply));
    sample.uq.cut_off = CutOff::of(finish.is_cut_off(), reply);
    sample.uq.tokens = ResponseTokens { ids, offsets, logprobs };
    sample.arguments.push((prompt.clone(), arguments(task, options, None)));
    sample.resps.push(vec![text.clone()]);
    sample.filtered_resps.push(answer.as_ref().map(|answer| answer.text.clone()));
    (sample.uq.status, sample.uq.answer) = (Status::NoAnswer, answer.clone());

    for (method, responses, seconds) in drawn {
        let begun = Instant::now();
        let Some(found) = (method.run)(traced, subject, responses)? else { continue };
        sample.uq.seconds.insert(method.field(), seconds + begun.elapsed().as_secs_f64());
        sample.uq.details.insert(method.field(), found.details);
        sample.uq.scores.extend(found.scores.into_iter().map(|(key, score)| (key.to_owned(), score)));
        sample.metrics.extend(found.metrics.into_iter().map(|(key, value)| (key.to_owned(), value)));
        if let Some((texts, answer)) = found.drawn {
            sample.arguments.push((prompt.clone(), arguments(task, options, Some(options.temperature))));
            sample.resps.push(texts);
            sample.filtered_resps.push(answer);
        }
    }
    if let Some(answer) = answer {
        sample.uq.status = Status::Ok;
        sample.metrics.insert("acc".to_owned(), f64::from(grading::correct_for(&item.target, &answer.text)));
        let (response, mut queries) = traced.parts();
        let (outcome, seconds) = pipeline::run(&response, answer.tokens.clone(), None, parameters, &mut queries)?;
        sample.uq.seconds.extend([("chain".to_owned(), seconds.chain), ("ensemble".to_owned(), seconds.ensemble)]);
        let begun = Instant::now();
        sample.uq.sweep = controls(traced, &outcome, options)?;
        if !sample.uq.sweep.is_empty() {
            sample.uq.seconds.insert("controls".to_owned(), begun.elapsed().as_secs_f64());
        }
        sample.uq.similarity = similarity(traced, &outcome)?;
        sample.uq.scores.extend(score_map(&outcome.scores));
        let tokenizer = traced.engine().tokenizer();
        for member in outcome.ensemble {
            let text = member.token.map(|token| tokenizer.decode_token(token)).transpose()?;
            sample.uq.ensemble.push(EnsembleMember { member, text });
        }
        (sample.uq.chain, sample.uq.kept) = (outcome.chain, outcome.kept);
    } else if item.target.grader == Grader::Contains {
        sample.metrics.insert("acc".to_owned(), f64::from(grading::correct_for(&item.target, &reply.text)));
    }
    // the authors skip what their code cannot grade
    if let Some(right) = grading::label_reference(text, item.target.shown(), &task.name, item.target.grader) {
        sample.metrics.insert("acc_reference".to_owned(), f64::from(right));
    }
    Ok(sample)
}

/// The sample of an item without a response, with the reason.
pub fn failed(task: &Task, item: &Question, options: &EvalOptions, why: Option<String>) -> Sample {
    let profile = options.parameters.reading.profile;
    Sample {
        doc_id: item.doc_id,
        id: item.doc.get("id").cloned(),
        task: task.name.clone(),
        doc: item.doc.clone(),
        target: item.target.shown().to_owned(),
        arguments: Vec::new(),
        resps: Vec::new(),
        filtered_resps: Vec::new(),
        metrics: BTreeMap::from([("acc".to_owned(), 0.0)]),
        uq: Uq { status: Status::Error, error: why, profile, finish: FinishReason::Interrupted, ..Uq::default() },
    }
}

/// Similarity to the answer: of the chain, and of the whole response before it.
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

/// Generation arguments, in lm-evaluation-harness's terms.
fn arguments(task: &Task, options: &EvalOptions, temperature: Option<f32>) -> Map<String, Value> {
    let mut fields = super::limits(task);
    fields.insert("do_sample".to_owned(), json!(temperature.is_some()));
    fields.insert("temperature".to_owned(), json!(temperature.unwrap_or(0.0)));
    if temperature.is_some() {
        fields.insert("seed".to_owned(), json!(options.seed));
    }
    fields
}
