//! P(True) (Kadavath et al. 2022, "Language Models (Mostly) Know What They Know", arXiv 2207.05221, section 3): the model is
//! asked whether its answer is true: p = p(True) / (p(True) + p(False)), over the first token of the reply, counting tokens
//! with p > 0.01, and at least twenty. Input: one more turn of one token, on the response's cache.

use super::{Draw, Findings, Found, METHOD, Method, SCORE, Score, Subject};
use crate::engine::{GenerateOptions, Generation, TracedSequence};
use crate::model::tokenizer::TokenizerError;
use serde_json::json;

/// The question asked after the answer: the paper's two options, in their own turn.
pub const QUESTION: &str =
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
    let texts = step.top.iter().map(|t| Ok((tokenizer.decode_token(t.token)?, t.logprob.exp())));
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
