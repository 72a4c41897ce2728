//! The record of one traced response: the method, the calibrated confidence if there is a calibration, and a description of
//! its chain's rows. `ask`, `score` and the Python package build their records here.

use super::samples::{TEMPERATURE, votes};
use super::{calibration::Calibration, calibration::CalibrationError, run::fingerprint::Fingerprint};
use crate::engine::encode::{EncodeError, ResponseText, encode, encode_prompt, prompt_end};
use crate::engine::{Engine, EngineError, FinishReason, Generation, TracedSequence};
use crate::io::record::{CutOff, Record, RowTrace, Samples, top_entries};
use crate::uq::answer::{AnswerRule, Finder, Grader, lists_options};
use crate::uq::{Link, Parameters, Reading, Scores, Traced, pipeline};
use crate::{backend::entropy::Gamma, io::target::Target};
use crate::{io::item::Content, io::item::Item, uq::rules::FirstRow, uq::rules::Rules};
use serde_json::Value;
use std::{ops::Range, path::Path};

/// The calibration of a model for a reading of the method, if there is one; `known`: the model's fingerprint, if already
/// computed. `abstain`: a certified threshold is required.
///
/// # Errors
/// A model file that cannot be read, an existing file that is not a calibration, or no certified threshold.
pub fn calibration(
    folder: &Path,
    engine: &Engine,
    known: Option<&Fingerprint>,
    reading: &Reading,
    abstain: bool,
) -> Result<Option<Calibration>, CalibrationError> {
    let found = if !Calibration::may_exist(folder) || engine.options().gamma != Gamma::PUBLISHED {
        None
    } else {
        let model = known.cloned().map_or_else(|| Fingerprint::of(folder, engine), Ok)?;
        Calibration::find(folder, &model, reading)?
    };
    match &found {
        Some(Calibration { certified: Some(_), .. }) => Ok(found),
        _ if abstain => Err(CalibrationError::NotCertified { calibrated: found.is_some() }),
        _ => Ok(found),
    }
}

/// A sequence, the start of its response, and its answer's tokens if known.
pub type Sequence = (Vec<u32>, usize, Option<Range<usize>>);

/// The sequence of an item to be scored; `chat`: apply the model's chat template.
///
/// # Errors
/// Text that cannot be tokenized.
pub fn sequence(engine: &Engine, item: &Item, chat: bool, method: &Parameters) -> Result<Sequence, EncodeError> {
    match &item.content {
        Content::Tokens { input_ids, prompt_len, answer_span } => {
            Ok((input_ids.clone(), *prompt_len, answer_span.clone()))
        }
        Content::Text { conversation, thought, response, rendered } => {
            let chat = chat && !rendered;
            let (mut tokens, tokenizer) = (encode_prompt(engine, conversation, chat)?, engine.tokenizer());
            let prompt_len = tokens.len();
            let template = engine.chat_template().map_or("", |template| template.source());
            let joined = |thought: &String| -> Result<String, EncodeError> {
                Ok(method.thinking.join(&prompt_end(tokenizer, &tokens)?, template, thought, response))
            };
            let joined = thought.as_ref().map(joined).transpose()?;
            let response = joined.as_ref().unwrap_or(response);
            if item.is_cut_off {
                tokens.extend(tokenizer.encode(response, false)?); // without the template's end
            } else {
                tokens = encode(engine, conversation, response, chat, method.rules().encoding)?.0;
            }
            Ok((tokens, prompt_len, None))
        }
    }
}

/// What to measure on a response.
#[derive(Clone)]
pub struct Request<'a> {
    pub parameters: &'a Parameters,
    pub calibration: Option<&'a Calibration>,
    /// Whether answers not above the calibration's certified threshold are withheld.
    pub abstain: bool,
    /// How the answer is found.
    pub finder: Finder<'a>,
    /// The correct answer, if known.
    pub target: Option<&'a Target>,
    /// Whether the response ended at a limit.
    pub is_cut_off: bool,
    /// The answer's positions (absolute, within the response), if known.
    pub answer: Option<Range<usize>>,
    /// Whether to describe the chain's rows.
    pub trace: bool,
    /// Responses sampled beside it.
    pub samples: &'a [Generation],
}

impl<'a> Request<'a> {
    /// Without a calibration, for a response about which nothing is known.
    pub fn of(parameters: &'a Parameters) -> Self {
        let finder = Finder::Rule(AnswerRule::Auto);
        let (calibration, target, answer) = (None, None, None);
        let (abstain, is_cut_off, trace, samples) = (false, false, false, &[][..]);
        Request { parameters, calibration, abstain, finder, target, is_cut_off, answer, trace, samples }
    }

    /// For a response from the input, whose answer may be known.
    pub fn of_item(self, item: &'a Item, answer: Option<Range<usize>>) -> Self {
        Request { finder: item.finder(), target: item.target.as_ref(), is_cut_off: item.is_cut_off, answer, ..self }
    }
}

/// The record of a response: [`pipeline::assess`], plus what else is requested.
///
/// # Errors
/// The engine's.
pub fn assess(traced: &mut TracedSequence<'_>, id: Value, request: &Request<'_>) -> Result<Record, EngineError> {
    let (parameters, reading) = (request.parameters, request.parameters.reading);
    if request.is_cut_off {
        traced.set_finish(FinishReason::Length);
    }
    let (tokens, prompt_len) = traced.tokens();
    let response = ResponseText::new(traced.engine(), &tokens[prompt_len..])?;
    let reply = response.reply(traced.engine(), &tokens[..prompt_len], &parameters.thinking)?;
    let assessed = pipeline::assess(traced, request.finder, request.answer.clone(), parameters)?;
    let samples = samples(traced, assessed.as_ref().map(|found| found.answer.text.as_str()), request)?;
    let of_samples = samples.as_ref().map(Samples::scores).unwrap_or_default();
    let fits = |found: &&Calibration| found.samples.is_none_or(|drawn| drawn.is_of(samples.as_ref()));
    let calibration = request.calibration.filter(fits);
    let undrawn = request.calibration.filter(|_| calibration.is_none()).and_then(|found| Some(found.samples?.samples));
    let record = match assessed {
        Some(pipeline::Assessed { answer, mut outcome, .. }) => {
            outcome.scores.add(&of_samples);
            let correct = request.target.map(|target| target.accepts(&answer.text));
            let trace =
                if request.trace { Some(row_traces(traced, &outcome.chain, parameters.rules())?) } else { None };
            let confidence = calibration.and_then(|found| found.confidence(|key| outcome.scores.get(key)));
            Record { correct, trace, confidence, ..Record::ok(id, reading, prompt_len, answer.text, outcome) }
        }
        // scores that need no answer
        None => {
            let mut scores = Scores::of_response(&traced.parts().0, parameters.rules());
            scores.add(&of_samples);
            let correct = match request.target {
                Some(target) if target.grader == Grader::Contains => Some(target.accepts(&reply.text)),
                other => other.map(|_| false),
            };
            Record { scores: Some(scores), correct, ..Record::no_answer(id, reading, prompt_len) }
        }
    };
    // without an answer there is nothing to return
    let certified = record.confidence.as_ref().is_some_and(|confidence| confidence.certified);
    let (cut_off, forced) = (CutOff::of(traced.is_cut_off(), &reply), traced.forced());
    let (thought, weights) = (response.thought(&reply), traced.engine().options().weights);
    let record = Record { thought, cut_off, forced, samples, weights, ..record };
    Ok(match request.abstain {
        true if !certified => record.withhold(response.text, undrawn),
        abstain => Record { abstained: abstain.then_some(false), ..record },
    })
}

/// The votes of the samples; `None` without any. Nothing is known of the answers' kind but what the question shows.
fn samples(traced: &TracedSequence, own: Option<&str>, request: &Request) -> Result<Option<Samples>, EngineError> {
    if request.samples.is_empty() {
        return Ok(None);
    }
    let (engine, (tokens, prompt_len)) = (traced.engine(), traced.tokens());
    let question = engine.tokenizer().decode(&tokens[..prompt_len])?;
    let grader = if lists_options(&question) { Grader::Choice } else { Grader::Math };
    let read = |Generation { tokens, prompt_len, finish, .. }: &Generation| {
        pipeline::find_in(engine, tokens, *prompt_len, finish.is_cut_off(), request.finder, request.parameters)
    };
    Ok(Some(votes(request.samples, own, (TEMPERATURE, &Target::new(&question, "", grader)), read)?))
}

/// The selected heads and the largest entries of α* for every row of the chain. The authors' code has no row -1, so neither
/// does this under [`FirstRow::Wrapped`].
fn row_traces(traced: &mut TracedSequence, chain: &[Link], rules: &Rules) -> Result<Vec<RowTrace>, EngineError> {
    let first = if rules.first_row == FirstRow::Wrapped { 0 } else { -1 };
    let relative = chain.iter().map(|link| link.row).filter(|row| *row >= first);
    let (response, mut queries) = traced.parts();
    let absolute = |row: i64| response.prompt_len.checked_add_signed(row as isize);
    let (relative, rows): (Vec<i64>, Vec<usize>) = relative.filter_map(|row| Some((row, absolute(row)?))).unzip();
    let weights = queries.attention_rows(&rows)?;
    let describe = |((row, absolute), weights): ((&i64, &usize), &Vec<f32>)| {
        let record = traced.head_record(*absolute)?.unwrap_or_default();
        Ok(RowTrace {
            row: *row,
            heads: record.heads,
            entropies: record.entropies,
            gap: Some(record.gap).filter(|gap| gap.is_finite()),
            top: top_entries(weights),
        })
    };
    relative.iter().zip(&rows).zip(&weights).map(describe).collect()
}
