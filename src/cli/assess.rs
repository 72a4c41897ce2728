//! The method on one traced response, with what `--trace` shows of its chain.

use std::ops::Range;
use uqac::engine::{EngineError, TracedSequence};
use uqac::io::record::{Record, RowTrace, top_entries};
use uqac::uq::answer::AnswerRule;
use uqac::uq::chain::attention_chain;
use uqac::uq::confidence::assess_with_chain;
use uqac::uq::pipeline::find;
use uqac::uq::{Link, Outcome, Parameters, Profile, Traced};

/// What is to be found out about a response.
pub struct Request<'a> {
    pub parameters: &'a Parameters,
    pub dataset: Option<&'a str>,
    /// The answer's positions (absolute, within the response) if they are known.
    pub answer: Option<Range<usize>>,
    /// Whether the chain's rows are to be described.
    pub trace: bool,
}

/// What was found out.
pub struct Assessed {
    pub answer_text: String,
    pub outcome: Outcome,
    pub trace: Option<Vec<RowTrace>>,
}

/// [`uqac::uq::pipeline::assess`] with a look at the rows of the chain on the way: the ensemble overwrites the cache that they
/// come from. `None` where the response has no final answer.
pub fn assess(traced: &mut TracedSequence<'_>, request: &Request<'_>) -> Result<Option<Assessed>, EngineError> {
    let (parameters, rule) = (request.parameters, AnswerRule::for_dataset(request.dataset));
    let Some(answer) = find(traced, rule, request.answer.clone(), parameters.profile)? else { return Ok(None) };
    let (response, mut questions) = traced.parts();
    let chain = attention_chain(&response, answer.tokens.clone(), parameters, &mut questions)?;
    let trace = if request.trace { Some(row_traces(traced, &chain, parameters.profile)?) } else { None };
    let (response, mut questions) = traced.parts();
    let outcome = assess_with_chain(&response, answer.tokens, chain, parameters, &mut questions)?;
    Ok(Some(Assessed { answer_text: answer.text, outcome, trace }))
}

/// The chosen heads and the largest entries of α* of every row of the chain. In the authors' code there is no row -1, so
/// `reference` has none here.
fn row_traces(traced: &mut TracedSequence<'_>, chain: &[Link], profile: Profile) -> Result<Vec<RowTrace>, EngineError> {
    let first = if profile == Profile::Reference { 0 } else { -1 };
    let relative: Vec<i64> = chain.iter().map(|link| link.row).filter(|row| *row >= first).collect();
    let (response, mut questions) = traced.parts();
    let prompt_len = response.prompt_len;
    let rows: Vec<usize> = relative.iter().filter_map(|row| prompt_len.checked_add_signed(*row as isize)).collect();
    let weights = questions.attention_rows(&rows)?;
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

impl Assessed {
    /// As a line of output.
    pub fn into_record(self, id: serde_json::Value, profile: Profile, prompt_len: usize) -> Record {
        Record { trace: self.trace, ..Record::ok(id, profile, prompt_len, self.answer_text, self.outcome) }
    }
}
