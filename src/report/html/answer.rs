//! One answer with its chain drawn on the response, for a notebook or as a standalone page: `answer.html`, without a
//! script.

use super::page::filled;
use crate::report::term::{
    AskReport, Mark, OUT_OF_RANGE, Piece, UNCALIBRATED, confidence, number, origin, token_of, votes,
};
use crate::{
    io::record::Record, names::Named, uq::Scores, uq::scores::RANKING, uq::scores::Score, uq::scores::as_shown,
};
use minijinja::{Value, context};

/// An answer as HTML: the confidence, the response with chain, kept tokens and answer marked, and the scores. Without
/// `page`, only the fragment that a notebook embeds.
pub fn answer(report: &AskReport, page: bool) -> String {
    let Record { answer, scores, confidence: calibrated, thought, .. } = &report.record;
    let (label, shown, mut notes) = match calibrated {
        Some(found) => ("confidence", confidence(found.value), vec![origin(found)]),
        None => {
            let (key, value) = scores.as_ref().map_or((RANKING, f64::NAN), Scores::ranking);
            let p = scores.as_ref().and_then(|scores| scores.get("p"));
            let ranking = format!("rank by {key}: {}", number(value));
            ("UQAC P", number(p.unwrap_or(f64::NAN)), vec![ranking, UNCALIBRATED.to_owned()])
        }
    };
    let out_of_range = calibrated.as_ref().is_some_and(|found| found.out_of_range);
    notes.extend(report.record.samples.as_ref().map(|samples| format!("samples: {}", votes(samples, usize::MAX))));
    notes.extend(out_of_range.then(|| OUT_OF_RANGE.to_owned()));
    let scores = scores.iter().flat_map(|scores| {
        let shown = as_shown().iter().filter_map(|score| Some((score, scores.get(score.key)?)));
        let row =
            |score: &Score, value| [score.key.to_owned(), number(value), format!("{} ({})", score.meaning, score.name)];
        shown.map(move |(score, value)| Value::from(row(score, value).to_vec()))
    });
    let data = context! {
        page, thought, label, shown, notes,
        withheld => report.record.withheld.as_ref().map(|withheld| &withheld.why),
        answer => answer.as_ref().map(|_| report.answer_text().trim().to_owned()),
        value => calibrated.as_ref().filter(|_| !out_of_range).map(|found| found.value),
        segments => report.pieces().into_iter().map(|(mark, piece)| segment(report, mark, piece)).collect::<Value>(),
        scores => scores.collect::<Value>(),
    };
    filled(include_str!("answer.html"), data)
}

/// A piece of the response: its text and, for a token, its role in the answer and its values.
fn segment(report: &AskReport, mark: Option<Mark>, Piece { token, text }: Piece) -> Value {
    let title = token.map(|j| {
        let link = report.record.chain.iter().find(|link| token_of(link.row) == Some(j));
        let similarity = link.map_or(String::new(), |link| format!(", similarity {}", number(link.similarity)));
        format!("p {}{similarity}", number(report.p(Some(j))))
    });
    let replies = token == Some(report.record.thought) && token != Some(0);
    context! { text, class => mark.map(Named::name), title, replies }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uq::Profile;

    #[test]
    fn text_is_escaped_and_a_response_without_an_answer_says_so() {
        let report = AskReport {
            text: "<b>".to_owned(),
            ranges: std::iter::once(0..3).collect(),
            token_texts: vec!["<b>".to_owned()],
            logprobs: vec![0.25_f64.ln()],
            record: Record::no_answer(serde_json::Value::Null, Profile::Corrected, 1),
        };
        let (part, page) = (answer(&report, false), answer(&report, true));
        assert!(part.contains("&lt;b&gt;</span>") && !part.contains("<b>"), "{part}");
        assert!(part.contains("title=\"p 0.250\"") && part.contains("No final answer"), "{part}");
        assert!(page.starts_with("<!doctype html>") && page.contains(&part) && page.ends_with("</html>\n"), "{page}");
    }
}
