//! P(True) (Kadavath et al. 2022, "Language Models (Mostly) Know What They Know", arXiv 2207.05221, section 3): the model is
//! asked whether its answer is true: p = p(True) / (p(True) + p(False)), over the first token of the reply, counting tokens
//! with p > 0.01, and at least twenty. Input: one more turn of one token, on the response's cache.

use super::{Draw, Findings, Found, METHOD, Method, SCORE, Score, Subject};
use crate::engine::{GenerateOptions, Generation, TracedSequence};
use crate::{model::tokenizer::TokenizerError, uq::predictions::chosen};
use serde_json::json;

/// The question asked after the answer: the paper's two options, in their own turn.
const QUESTION: &str =
    "Is your final answer:\n (A) True\n (B) False\nReply with the letter alone, A or B. The final answer is:";

/// A second turn on the response's cache; reads the first token's distribution.
pub(super) const P_TRUE: Method = Method {
    key: "p-true",
    about: "Probability of True in a second turn that asks whether the answer is true",
    scores: &[Score {
        key: "p_true",
        name: "P(True)",
        meaning: "probability of \"True\" when asked, out of that of \"True\" or \"False\"",
        is_probability: true,
        ..SCORE
    }],
    needs_chat_template: true,
    turns: |engine, subject, sequence| {
        // traced, because its steps list the most probable tokens; the item's own trace, so that one pass can serve both
        let (trace, running) = (Some(subject.options.parameters.trace_parts()), subject.options.running);
        let generate = GenerateOptions { max_tokens: 1, trace, running, ..GenerateOptions::default() };
        let ask = |_| Ok(Draw { prompt: subject.next_reply(engine, sequence, QUESTION)?, stream: 0, generate });
        subject.answer().map(ask).into_iter().collect()
    },
    run,
    ..METHOD
};

fn run(traced: &mut TracedSequence, _: &Subject, drawn: &[Generation]) -> Found {
    let Some(step) = drawn.first().and_then(|generation| generation.steps.first()) else { return Ok(None) };
    let tokenizer = traced.engine().tokenizer();
    let texts = step.top.iter().map(|t| Ok((tokenizer.decode_token(t.token)?, libm::exp(t.logprob))));
    let listed: Vec<(String, f64)> = texts.collect::<Result<_, TokenizerError>>()?;
    let [yes, no] = [["a", "true"], ["b", "false"]].map(|names| mass(&listed, names));
    let p_true = (yes + no > 0.0).then(|| yes / (yes + no));
    let details = json!({ "true": yes, "false": no });
    Ok(Some(Findings { scores: vec![("p_true", p_true)], details, ..Findings::default() }))
}

/// Total probability of tokens whose text, ignoring brackets, whitespace and case, is one of `names`.
fn mass(listed: &[(String, f64)], names: [&str; 2]) -> f64 {
    let bare = |text: &str| {
        text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | '.' | '*')).to_lowercase()
    };
    listed.iter().filter(|(text, _)| names.contains(&&*bare(text))).map(|(_, p)| p).sum()
}

// Contextualized sequence likelihood (Lin et al. 2024, arXiv 2406.01806; LM-Polygraph's CSL): Σ_t w_t ln p(y_t), where w is
// the model's attention to the response's tokens when it is about to judge the answer: the softmax weights of the question's
// last token, averaged over all layers and heads and normalized to sum to 1. The paper selects heads on a validation set; this
// uses all of them, as LM-Polygraph does, and asks P(True)'s question, in its own turn, in place of the paper's examples.
// Input: one more turn of no tokens, on the response's cache.

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
    run: csl,
    ..METHOD
};

fn csl(traced: &mut TracedSequence, subject: &Subject, _: &[Generation]) -> Found {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_and_words_count_however_they_are_written() {
        let listed = [("A", 0.5), (" (B", 0.25), ("True", 0.0625), (" a)", 0.0625), ("Answer", 0.1), ("**B**", 0.01)];
        let listed = listed.map(|(text, p)| (text.to_owned(), p));
        assert_eq!(mass(&listed, ["a", "true"]), 0.625);
        assert_eq!(mass(&listed, ["b", "false"]), 0.26);
        assert_eq!(mass(&[], ["a", "true"]), 0.0);
    }
}
