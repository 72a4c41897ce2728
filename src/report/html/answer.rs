//! One answer with its chain drawn on the response, for a notebook or as a page of its own: `answer.html`, without a script.

use super::page::environment;
use super::tokens::segments;
use crate::report::term::{AskReport, HOW_TO_CALIBRATE, confidence, number, origin, token_of};
use crate::uq::scores::as_shown;
use minijinja::value::Serde;
use minijinja::{Error, Value, context};
use serde::Serialize;

const TEMPLATE: &str = include_str!("answer.html");

/// A piece of the response.
#[derive(Serialize)]
struct Segment {
    text: String,
    /// What a token is to the answer; empty where it is nothing.
    class: &'static str,
    /// What is known of a token.
    title: String,
}

/// An answer as HTML: the confidence, the response with chain, kept tokens and answer marked, and the scores. Without
/// `page`, the part of a page that a notebook shows.
///
/// # Errors
/// The template's own, of which none depends on the data.
pub fn answer(report: &AskReport, page: bool) -> Result<String, Error> {
    let confidence_value = report.outcome.map(|outcome| report.value(outcome));
    let label = if report.confidence.is_some() { "confidence" } else { "UQAC P, uncalibrated" };
    let origin = report.confidence.map_or_else(|| HOW_TO_CALIBRATE.to_owned(), origin);
    let scores: Vec<(&str, String, &str)> = report.outcome.map_or_else(Vec::new, |outcome| {
        let shown = as_shown().iter().filter_map(|score| Some((score, outcome.scores.get(score.key)?)));
        shown.map(|(score, value)| (score.key, number(value), score.meaning)).collect()
    });
    environment().render_str(
        TEMPLATE,
        context! {
            page,
            label,
            origin,
            answer => report.outcome.map(|outcome| report.answer_text(outcome).trim().to_owned()),
            confidence => confidence_value.map(confidence),
            value => confidence_value.filter(|value| value.is_finite()),
            segments => Value::from(Serde(&pieces(report))),
            scores => Value::from(Serde(&scores)),
        },
    )
}

/// The response cut up along its tokens.
fn pieces(report: &AskReport) -> Vec<Segment> {
    let offsets: Vec<[usize; 2]> = report.ranges.iter().map(|range| [range.start, range.end]).collect();
    let cut = segments(report.text, &offsets);
    let mut gaps = cut.gaps.into_iter().peekable();
    let mut pieces = Vec::new();
    for (j, text) in cut.tokens.into_iter().enumerate() {
        while let Some((_, gap)) = gaps.next_if(|(before, _)| *before == j) {
            pieces.push(Segment { text: gap, class: "", title: String::new() });
        }
        let (class, similarity) = role(report, j);
        let similarity = similarity.map_or(String::new(), |similarity| format!(", similarity {}", number(similarity)));
        pieces.push(Segment { text, class, title: format!("p {}{similarity}", number(report.p(Some(j)))) });
    }
    pieces.extend(gaps.map(|(_, text)| Segment { text, class: "", title: String::new() }));
    pieces
}

/// What token j is to the answer, and its similarity to it where it is in the chain.
fn role(report: &AskReport, j: usize) -> (&'static str, Option<f64>) {
    let Some(outcome) = report.outcome else { return ("", None) };
    let link = outcome.chain.iter().find(|link| token_of(link.row) == Some(j));
    let kept = outcome.kept.iter().any(|row| token_of(*row) == Some(j));
    let class = match (report.answer_tokens(outcome).contains(&j), kept, link) {
        (true, ..) => "answer",
        (_, true, _) => "kept",
        (.., Some(_)) => "chain",
        _ => "",
    };
    (class, link.map(|link| link.similarity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn text_is_escaped_and_a_response_without_an_answer_says_so() {
        let (token_text, range) = ("<b>".to_owned(), 0..3);
        let report = AskReport {
            text: "<b>",
            ranges: from_ref(&range),
            token_texts: from_ref(&token_text),
            logprobs: &[0.25_f64.ln()],
            prompt_len: 1,
            outcome: None,
            confidence: None,
        };
        let (part, page) = (answer(&report, false).unwrap(), answer(&report, true).unwrap());
        assert!(part.contains("&lt;b&gt;</span>") && !part.contains("<b>"), "{part}");
        assert!(part.contains("title=\"p 0.250\"") && part.contains("No final answer"), "{part}");
        assert!(page.starts_with("<!doctype html>") && page.contains(&part) && page.ends_with("</html>\n"), "{page}");
    }
}
