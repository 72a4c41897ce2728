//! From a traced response to its confidence: finds the answer, then runs the method of [`crate::uq`].

use crate::engine::{Engine, EngineError, TracedSequence};
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use crate::uq::answer::{self, AnswerRule};
use crate::uq::{Outcome, Parameters, Profile, confidence};
use std::ops::Range;

/// A response's answer: its text, and its tokens' positions in the sequence (absolute).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    pub tokens: Range<usize>,
}

/// Runs the method over a traced response. `answer` gives the answer's tokens (absolute positions); without it they
/// are looked for in the text by `rule`. `None`: no answer was found, or the given span is not in the response.
pub fn assess(
    traced: &mut TracedSequence,
    rule: AnswerRule,
    answer: Option<Range<usize>>,
    parameters: &Parameters,
) -> Result<Option<(Answer, Outcome)>, EngineError> {
    let Some(answer) = find(traced, rule, answer, parameters.profile)? else { return Ok(None) };
    let (response, mut questions) = traced.parts();
    let outcome = confidence::assess(&response, answer.tokens.clone(), parameters, &mut questions)?;
    Ok(Some((answer, outcome)))
}

/// The answer of a response: the given tokens (absolute positions), or what `profile` finds in the text by `rule`.
pub fn find(
    traced: &TracedSequence,
    rule: AnswerRule,
    given: Option<Range<usize>>,
    profile: Profile,
) -> Result<Option<Answer>, TokenizerError> {
    let ((tokens, prompt_len), engine) = (traced.tokens(), traced.engine());
    let Some(span) = given else { return find_in(engine, tokens, prompt_len, rule, profile) };
    if span.start < prompt_len || span.end > tokens.len() || span.is_empty() {
        return Ok(None);
    }
    let text = engine.tokenizer().decode(&tokens[span.clone()])?;
    Ok(Some(Answer { text: text.trim().to_owned(), tokens: span }))
}

/// The answer that `profile` finds by `rule` in the response `tokens[prompt_len..]`.
pub fn find_in(
    engine: &Engine,
    tokens: &[u32],
    prompt_len: usize,
    rule: AnswerRule,
    profile: Profile,
) -> Result<Option<Answer>, TokenizerError> {
    let (tokenizer, response) = (engine.tokenizer(), &tokens[prompt_len..]);
    let found = match profile {
        Profile::Reference => find_reference(tokenizer, response, rule)?,
        Profile::Paper | Profile::Corrected => {
            let ends = |id: &u32| engine.spec().eos_token_ids.contains(id);
            find_corrected(tokenizer, &response[..response.iter().position(ends).unwrap_or(response.len())], rule)?
        }
    };
    Ok(found.map(|(text, span)| Answer { text, tokens: prompt_len + span.start..prompt_len + span.end }))
}

/// In the response before its first end token, by the tokens' own offsets.
fn find_corrected(
    tokenizer: &Tokenizer,
    response: &[u32],
    rule: AnswerRule,
) -> Result<Option<(String, Range<usize>)>, TokenizerError> {
    let (text, offsets) = tokenizer.decode_with_offsets(response)?;
    let Some(span) = answer::find_answer(&text, rule) else { return Ok(None) };
    let tokens = answer::tokens_of_span(&offsets, &span.bytes);
    Ok(tokens.map(|tokens| (text[span.bytes].to_owned(), tokens)))
}

/// As the authors do: the decoded response, template end included, is tokenized anew, and the answer's characters are
/// mapped through the texts of those tokens.
fn find_reference(
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
