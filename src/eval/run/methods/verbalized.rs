//! Verbalized confidence: the model is asked how confident it is.

use super::{Findings, Found, METHOD, Method, SCORE, Score, Subject};
use crate::engine::{GenerateOptions, Generation, TracedSequence, encode::ResponseText};
use crate::uq::answer::{AnswerForm, AnswerRule, find_in_reply};
use serde_json::json;

/// Max tokens for stating the confidence, as published.
const MAX_TOKENS: usize = 1024;

/// The question asked after the answer, as published, line breaks included.
const QUESTION: &str = "
Please rate your confidence to your previous answer on a scale of 0-10.
0 being not confident at all, 10 being very confident.
Put your confidence score in `\\boxed{ }`.
";

/// A second turn on the response's cache; greedy.
pub(super) const VERBALIZED: Method = Method {
    key: "verbalized",
    about: "Confidence stated by the model in a second turn",
    scores: &[Score {
        key: "verbalized",
        name: "Verbalized",
        meaning: "the confidence stated by the model",
        is_probability: true,
        ..SCORE
    }],
    needs_chat_template: true,
    turns: |engine, subject, sequence| {
        let (max_tokens, thinking_budget) = (MAX_TOKENS, subject.options.budget());
        let generate = GenerateOptions { max_tokens, thinking_budget, trace: None, ..GenerateOptions::default() };
        subject.ask(engine, sequence, QUESTION, generate)
    },
    run,
    ..METHOD
};

fn run(traced: &mut TracedSequence, subject: &Subject, drawn: &[Generation]) -> Found {
    let Some(generation) = drawn.first() else { return Ok(None) };
    let (prompt, response) = generation.tokens.split_at(generation.prompt_len);
    let response = ResponseText::new(traced.engine(), response)?;
    let reply = response.reply(traced.engine(), prompt, &subject.options.parameters.thinking)?;
    let (response, confidence) = (response.text, stated_confidence(&reply.text));
    let details = json!({"response": response, "confidence": confidence});
    Ok(Some(Findings { scores: vec![("verbalized", confidence)], details, ..Findings::default() }))
}

/// The content of a text's last box, or else the whole text, if it is a number from 0 to 10, a percentage or a fraction.
fn stated_confidence(text: &str) -> Option<f64> {
    let boxed = find_in_reply(text, AnswerRule::Boxed).filter(|span| span.form == AnswerForm::Boxed);
    let stated = boxed.map_or(text, |span| &text[span.bytes]);
    let stated = stated.trim_matches(|c: char| c.is_whitespace() || "*$.".contains(c)).replace("\\%", "%");
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let share = match (stated.strip_suffix('%'), stated.split_once('/').or(stated.split_once(" out of "))) {
        (Some(percentage), _) => number(percentage)? / 100.0,
        (_, Some((part, whole))) => number(part)? / number(whole)?,
        _ => number(&stated)? / 10.0,
    };
    Some(share).filter(|share| (0.0..=1.0).contains(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stated_confidences_are_read() {
        let cases = [
            ("\\boxed{8}", Some(0.8)),
            ("I am quite sure: \\boxed{10}.", Some(1.0)),
            ("\\boxed{7.5}", Some(0.75)),
            ("Step 1: \\boxed{3}, no: \\boxed{ 4 }", Some(0.4)),
            ("\\boxed{0}", Some(0.0)),
            ("10", Some(1.0)),
            (" **8**.\n", Some(0.8)),
            ("90%", Some(0.9)),
            ("85 %.", Some(0.85)),
            ("9/10", Some(0.9)),
            ("7 out of 10", Some(0.7)),
            ("\\boxed{85\\%}", Some(0.85)),
            ("\\boxed{9/10}, not 3", Some(0.9)),
            ("110%", None),
            ("0/0", None),
            ("I would say 90%.", None),
            ("My confidence is 9.", None),
            ("\\boxed{nan}", None),
            ("\\boxed{42}", None),
            ("\\boxed{-1}", None),
            ("I am sure.", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(stated_confidence(text), expected, "{text}");
        }
    }
}
