//! The single path from a traced response to its confidence, for every command, benchmark and test: find the answer →
//! follow the attention chain → finish with similarity filter, ensemble and scores.

use super::answer::{self, AnswerForm, AnswerRule, AnswerSpan, Finder};
use super::{
    Link, Outcome, Parameters, Response, Scores, Traced, chain, ensemble, rules::Extraction, scores::Found, similarity,
};
use crate::engine::{Engine, EngineError, TracedSequence};
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use crate::{engine::encode::ResponseText, model::reply::Reply, order::sort_by};
use serde::{Deserialize, Serialize};
use std::{ops::Range, time::Instant};

/// The final answer as written in the response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub text: String,
    /// Positions over the whole sequence; in JSON `[start, end]`, the end exclusive.
    #[serde(with = "pair")]
    pub tokens: Range<usize>,
}

/// A range as a pair.
mod pair {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::ops::Range;

    pub fn serialize<S: Serializer>(range: &Range<usize>, serializer: S) -> Result<S::Ok, S::Error> {
        [range.start, range.end].serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Range<usize>, D::Error> {
        <[usize; 2]>::deserialize(deserializer).map(|[start, end]| start..end)
    }
}

/// Run time of the method, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds {
    /// Backtracking.
    pub chain: f64,
    /// The stages after the chain: similarities, re-scoring of the variants, scores.
    pub ensemble: f64,
}

/// The method's findings for a response.
#[derive(Clone, Debug)]
pub struct Assessed {
    pub answer: Answer,
    pub outcome: Outcome,
    pub seconds: Seconds,
}

/// UQAC over a traced response: find → chain → finish. `given` are the answer's tokens (absolute positions); without them
/// `finder` searches the text. `None`: no answer was found, or the given span is not in the response.
///
/// # Errors
/// Only if the engine fails.
pub fn assess<'f>(
    traced: &mut TracedSequence,
    finder: impl Into<Finder<'f>>,
    given: Option<Range<usize>>,
    parameters: &Parameters,
) -> Result<Option<Assessed>, EngineError> {
    let Some(answer) = find(traced, finder.into(), given, parameters)? else { return Ok(None) };
    let (response, mut queries) = traced.parts();
    let (outcome, seconds) = run(&response, answer.tokens.clone(), None, parameters, &mut queries)?;
    Ok(Some(Assessed { answer, outcome, seconds }))
}

/// Chain → similarity filter → ensemble → scores, over any implementation of [`Traced`].
///
/// `answer` are the positions (absolute) of the answer's tokens, clamped to the response; an answer without tokens has
/// confidence 0. A given `chain` replaces backtracking, for ablations (random tokens, the chain of another profile): its
/// rows may be in any order, those outside the response are dropped, duplicates count once, and similarities are computed
/// here.
///
/// # Errors
/// Only if a query fails.
pub fn run<T: Traced>(
    response: &Response,
    answer: Range<usize>,
    chain: Option<Vec<Link>>,
    parameters: &Parameters,
    traced: &mut T,
) -> Result<(Outcome, Seconds), T::Error> {
    let answer = inside_response(response, answer);
    let begun = Instant::now();
    let mut chain = match chain {
        Some(chain) => inside_chain(response, chain),
        None => chain::attention_chain(response, answer.clone(), parameters, traced)?,
    };
    let backtracked = Instant::now();
    similarity::measure(response, answer.clone(), &mut chain, traced)?;
    let kept = similarity::filter(response, answer.clone(), &chain, parameters);
    let mut ensemble = Vec::new();
    if parameters.ensemble {
        let variants = ensemble::candidates(response, &kept, parameters);
        ensemble = ensemble::score(response, answer.clone(), &kept, &variants, parameters, traced)?;
    }
    let rules = parameters.rules();
    let scores =
        Scores::compute(&Found { response, answer: &answer, chain: &chain, kept: &kept, ensemble: &ensemble, rules });
    let seconds = Seconds { chain: (backtracked - begun).as_secs_f64(), ensemble: backtracked.elapsed().as_secs_f64() };
    Ok((Outcome { answer, chain, kept, ensemble, scores }, seconds))
}

/// The part of `answer` inside the response; no row predicts the sequence's very first token.
fn inside_response(response: &Response, answer: Range<usize>) -> Range<usize> {
    let end = answer.end.min(response.tokens.len());
    let start = answer.start.max(response.prompt_len).max(1).min(end.max(1));
    start..end.max(start)
}

/// The links of a given chain inside the response, deduplicated, ascending.
fn inside_chain(response: &Response, mut chain: Vec<Link>) -> Vec<Link> {
    let last = response.relative_row(response.tokens.len());
    chain.retain(|link| (-1..last).contains(&link.row));
    sort_by(&mut chain, |a, b| a.row.cmp(&b.row));
    chain.dedup_by_key(|link| link.row);
    chain
}

/// The answer of a response: the given tokens (absolute positions), or the one found in the text.
///
/// # Errors
/// Tokens that the tokenizer cannot decode.
pub fn find(
    traced: &TracedSequence,
    finder: Finder,
    given: Option<Range<usize>>,
    parameters: &Parameters,
) -> Result<Option<Answer>, TokenizerError> {
    let ((tokens, prompt_len), engine) = (traced.tokens(), traced.engine());
    let cut_off = traced.is_cut_off();
    let Some(span) = given else { return find_in(engine, tokens, prompt_len, cut_off, finder, parameters) };
    if span.start < prompt_len || span.end > tokens.len() || span.is_empty() {
        return Ok(None);
    }
    let text = engine.tokenizer().decode(&tokens[span.clone()])?;
    Ok(Some(Answer { text: text.trim().to_owned(), tokens: span }))
}

/// The answer found in the response `tokens[prompt_len..]`, outside of its thought. By a rule, a `cut_off` response has an
/// answer only if that is boxed, or announced and not at the very end, where it might continue: its last number is a step on
/// the way.
///
/// # Errors
/// Tokens that the tokenizer cannot decode.
pub fn find_in(
    engine: &Engine,
    tokens: &[u32],
    prompt_len: usize,
    cut_off: bool,
    finder: Finder,
    parameters: &Parameters,
) -> Result<Option<Answer>, TokenizerError> {
    let (prompt, response) = tokens.split_at(prompt_len);
    let found = match (parameters.rules().extraction, finder) {
        (Extraction::Published, Finder::Rule(rule)) => find_published(engine.tokenizer(), response, rule)?,
        _ => {
            let response = ResponseText::new(engine, response)?;
            let reply = response.reply(engine, prompt, &parameters.thinking)?;
            let options = matches!(finder, Finder::Rule(AnswerRule::Auto))
                && answer::lists_options(&engine.tokenizer().decode(prompt)?);
            let finder = if options { Finder::Rule(AnswerRule::Choice) } else { finder };
            find_full(&response, &reply, cut_off, finder)
        }
    };
    Ok(found.map(|(text, span)| Answer { text, tokens: prompt_len + span.start..prompt_len + span.end }))
}

/// [`Extraction::Full`]: searches the reply, using the tokens' own offsets.
fn find_full(
    ResponseText { text, ranges }: &ResponseText,
    reply: &Reply,
    cut_off: bool,
    finder: Finder,
) -> Option<(String, Range<usize>)> {
    let is_final = |span: &AnswerSpan| !cut_off || is_final(&reply.text, span);
    let found = match finder {
        Finder::Rule(rule) => answer::find_in_reply(&reply.text, rule).filter(is_final).map(|span| span.bytes),
        Finder::Pattern(pattern) => pattern.find(&reply.text),
    }?;
    let bytes = reply.start + found.start..reply.start + found.end;
    let tokens = answer::tokens_of_span(ranges, &bytes)?;
    Some((with_percent_sign(text, bytes).to_owned(), tokens))
}

/// An answer's text, with a percent sign right after it if there is one: that is outside a number's tokens, but 50 % may be
/// graded as 0.5.
fn with_percent_sign(text: &str, answer: Range<usize>) -> &str {
    let is_number = text[answer.clone()].ends_with(|c: char| c.is_ascii_digit());
    let sign = ["%", "\\%"].into_iter().find(|sign| is_number && text[answer.end..].starts_with(sign));
    &text[answer.start..answer.end + sign.map_or(0, str::len)]
}

/// Whether the answer found in a truncated text is the response's final one.
fn is_final(text: &str, span: &AnswerSpan) -> bool {
    match span.form {
        AnswerForm::Boxed => true,
        AnswerForm::Phrase => span.bytes.end < text.trim_end().len(),
        AnswerForm::Number => false,
    }
}

/// [`Extraction::Published`]: the decoded response, template end included, is re-tokenized, and the answer's characters are
/// mapped through the texts of those tokens.
fn find_published(
    tokenizer: &Tokenizer,
    response: &[u32],
    rule: AnswerRule,
) -> Result<Option<(String, Range<usize>)>, TokenizerError> {
    let text = tokenizer.decode(response)?;
    let Some(span) = answer::find_answer_reference(&text, rule) else { return Ok(None) };
    let again = tokenizer.encode(&text, false)?;
    let texts: Vec<String> = again.iter().map(|id| tokenizer.decode_token(*id)).collect::<Result<_, _>>()?;
    let tokens = answer::tokens_of_span_reference(&texts, &text, &span);
    Ok(tokens.filter(|t| t.end <= response.len()).map(|tokens| (text[span].to_owned(), tokens)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_sign_stays_for_the_grader() {
        for (text, answer, shown) in [
            ("It is 50%.", 6..8, "50%"),
            ("It is 50\\% of it.", 6..8, "50\\%"),
            ("It is 50 of 60%", 6..8, "50"),
            ("x%", 0..1, "x"),
            ("7", 0..1, "7"),
        ] {
            assert_eq!(with_percent_sign(text, answer), shown, "{text}");
        }
    }

    #[test]
    fn a_response_that_was_cut_off_has_an_answer_only_if_it_says_so() {
        let cases = [
            ("5 + 7 = 12, and then 12 + 3", None),
            ("So it is \\boxed{15}, which we check: 15 - 3 = 12 and", Some("15")),
            ("The answer is 15. To check: 15 - 3 = 12 and", Some("15")),
            ("The answer is 15", None), // or 150
            ("yes", None),
        ];
        for (text, expected) in cases {
            let found = answer::find_answer(text, AnswerRule::Auto).filter(|span| is_final(text, span));
            assert_eq!(found.map(|span| &text[span.bytes]), expected, "{text}");
        }
    }
}
