//! Contextualized sequence likelihood (Lin et al. 2024, arXiv 2406.01806; LM-Polygraph's CSL): Σ_t w_t ln p(y_t), where w is
//! the model's attention to the response's tokens when it is about to judge the answer: the softmax weights of the question's
//! last token, averaged over all layers and heads and normalized to sum to 1. The paper selects heads on a validation set; this
//! uses all of them, as LM-Polygraph does, and asks P(True)'s question, in its own turn, in place of the paper's examples.
//! Input: one more turn of no tokens, on the response's cache.

use super::p_true::QUESTION;
use super::{Findings, Found, METHOD, Method, SCORE, Score, Subject};
use crate::engine::{Generation, TracedSequence};
use crate::uq::predictions::chosen;

/// Requests a judgement, and reads the attention of its first token.
pub(super) const CSL: Method = Method {
    key: "csl",
    about: "Log-probabilities weighted by the attention to their tokens when the model is asked whether its answer is true",
    scores: &[Score {
        key: "csl",
        name: "CSL",
        meaning: "mean log-probability, tokens weighted by the attention of a question about the answer",
        ..SCORE
    }],
    needs_chat_template: true,
    run,
    ..METHOD
};

fn run(traced: &mut TracedSequence, subject: &Subject, _: &[Generation]) -> Found {
    let Some(answer) = subject.answer() else { return Ok(None) };
    let (tokens, prompt_len) = traced.tokens();
    let response = prompt_len..answer.tokens.end;
    let asked = subject.next_reply(traced.engine(), tokens, QUESTION)?;
    let mut csl = None;
    // a template may drop the reasoning from the response: then there is nothing to attend to
    if asked.starts_with(&tokens[..response.end]) {
        let weights = traced.mean_attention(&asked)?;
        let given = traced.parts().0;
        let chosen: Vec<usize> = chosen(&given, response).collect();
        let terms = chosen.iter().map(|position| weights[*position] * given.logprob_at(*position));
        let total = chosen.iter().map(|position| weights[*position]).sum::<f64>();
        csl = Some(terms.sum::<f64>() / total).filter(|csl| csl.is_finite());
    }
    Ok(Some(Findings { scores: vec![("csl", csl)], ..Findings::default() }))
}
