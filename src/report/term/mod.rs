//! Output of `ask` under the answer: the confidence, the chain drawn on the response, and the scores.

mod colour;
mod draw;
mod layout;
pub mod sanitize;

pub use colour::{Style, TermStyle};
pub(super) use draw::{Mark, Piece, pieces};
pub use layout::{TextTable, cells, wrap};
pub use sanitize::{escaped_json, one_line, quoted, visible};

use crate::io::record::{Calibrated, Origin, Record, Samples, Withheld};
use crate::{engine::TracedSequence, engine::encode::ResponseText, model::tokenizer::TokenizerError};
use crate::{uq::Link, uq::Scores, uq::scores::RANKING, uq::scores::as_shown, uq::scores::samples::G4_AGREEMENT};
use colour::ramp;
use draw::marked_cells;
use sanitize::{cut, text_width};

/// A response and its assessment by the method.
#[derive(Clone, Debug, Default)]
pub struct AskReport {
    /// The response as text.
    pub text: String,
    /// Byte range of `text` that each response token covers. A token without a range (an end token that is not shown)
    /// is not drawn.
    pub ranges: Vec<std::ops::Range<usize>>,
    /// The text of each response token.
    pub token_texts: Vec<String>,
    /// ln p of each response token.
    pub logprobs: Vec<f64>,
    pub record: Record,
}

/// Number of links up to which the chain's table is shown in full; beyond it, only kept tokens.
const MAX_LINKS: usize = 30;

/// Width of a token in the table, in columns.
const TOKEN_COLUMNS: usize = 18;

/// Widths in columns: the confidence bar, and the labels next to it.
const BAR: usize = 30;
const HEADLINE: usize = 10;

/// Meaning of P and the ranking score without a calibration, and the command that creates one.
pub const UNCALIBRATED: &str = "ranking scores, not probabilities; grade 50 answers and run `uqac calibrate`";

/// For an answer whose score lies outside the calibration's range.
pub const OUT_OF_RANGE: &str = "out of range: no answer of the calibration has such a score; it may not hold here";

/// Basis of a calibrated confidence.
pub(super) fn origin(calibrated: &Calibrated) -> String {
    let Calibrated { score, calibration: Origin { tasks, n, ece }, .. } = calibrated;
    format!("from {score}, calibrated on {n} answers of {} (ECE {ece:.3} on others)", tasks.join(", "))
}

/// The answers of samples, as many as there is room for: `2 of 3 agree: 48 ×2, 36 ×1`
pub(super) fn votes(samples: &Samples, room: usize) -> String {
    let all = samples.answers.len();
    let nothing_to_agree_with = samples.agrees.is_empty();
    let mut text =
        if nothing_to_agree_with { format!("{all} drawn") } else { format!("{} of {all} agree", samples.agreeing()) };
    for (i, (answer, count)) in samples.counts.iter().enumerate() {
        let answer = answer.as_deref().map_or("no answer".to_owned(), |answer| cut(&one_line(answer), room / 3));
        let vote = format!("{} {answer} ×{count}", if i == 0 { ":" } else { "," });
        if text_width(&text) + text_width(&vote) + 3 > room {
            return text + ", …";
        }
        text += &vote;
    }
    text
}

impl AskReport {
    /// Builds the report of an assessed response.
    ///
    /// # Errors
    /// A token that the tokenizer cannot decode.
    pub fn of(traced: &mut TracedSequence, record: Record) -> Result<AskReport, TokenizerError> {
        let (response, _) = traced.parts();
        let token_texts = response.token_texts.to_vec();
        let logprobs = response.steps.iter().filter_map(|step| step.logprob).collect();
        let (tokens, prompt_len) = traced.tokens();
        let ResponseText { text, ranges } = ResponseText::new(traced.engine(), &tokens[prompt_len..])?;
        if record.withheld.is_some() {
            return Ok(AskReport { record, ..AskReport::default() });
        }
        Ok(AskReport { text, ranges, token_texts, logprobs, record })
    }

    /// The whole report, ended with a newline; `all_scores` adds the chain's table and every score.
    pub fn render(&self, all_scores: bool, style: TermStyle) -> String {
        if let Some(Withheld { why, .. }) = &self.record.withheld {
            return format!(
                "The answer is withheld: {why}.\nIt is shown without --abstain, and by --json under \"withheld\".\n"
            );
        }
        let (Some(_), Some(scores)) = (&self.record.answer, &self.record.scores) else {
            let text = visible(self.text.trim_end());
            let none = "No final answer was found in the response, so there is no confidence.";
            return format!("{text}\n\n{none}\n{}", self.samples(style));
        };
        let mut parts = vec![self.headline(scores, style), self.drawing(style)];
        if all_scores {
            parts.push(self.chain_table(style));
        }
        parts.push(scores_table(scores, all_scores, style));
        parts.join("\n")
    }

    /// The confidence with its basis, or P with what it is not; a bar only for a confidence within the calibration's
    /// range.
    fn headline(&self, scores: &Scores, style: TermStyle) -> String {
        let row = |name: &str, value: &str| row(name, value, style);
        let room = style.width.saturating_sub(HEADLINE + 2);
        let dim = |text: &str| format!("{:HEADLINE$}  {}\n", "", style.paint(Style::DIM, &cut(text, room)));
        let out = match &self.record.confidence {
            None => {
                let p = scores.get("p").map_or(String::new(), |p| row("UQAC P", &number(p)));
                let (key, value) = scores.ranking();
                p + &row("rank by", &format!("{}  {key}", number(value))) + &dim(UNCALIBRATED)
            }
            Some(found) if found.out_of_range => {
                row("confidence", &confidence(found.value)) + &dim(OUT_OF_RANGE) + &dim(&origin(found))
            }
            Some(found) => {
                let filled = (found.value.clamp(0.0, 1.0) * BAR as f64).round() as usize;
                let tint = Style { colour: Some(ramp(found.value)), ..Style::BOLD };
                let bar = style.paint(tint, &"█".repeat(filled)) + &style.paint(Style::DIM, &"░".repeat(BAR - filled));
                let number = format!("{}  {bar}", style.paint(tint, &confidence(found.value)));
                row("confidence", &number) + &dim(&origin(found))
            }
        };
        let answer = one_line(&self.answer_text());
        row("answer", &style.paint(Style::BOLD, &cut(answer.trim(), room))) + &out + &self.samples(style)
    }

    /// A line for the samples, if there are any.
    fn samples(&self, style: TermStyle) -> String {
        let room = style.width.saturating_sub(HEADLINE + 2);
        self.record.samples.as_ref().map_or(String::new(), |found| row("samples", &votes(found, room), style))
    }

    /// The answer as it appears in the text.
    pub(super) fn answer_text(&self) -> String {
        let answer = self.pieces().into_iter().filter(|(mark, _)| *mark == Some(Mark::Answer));
        answer.map(|(_, piece)| piece.text).collect()
    }

    /// Probability of a response token; NaN if unknown.
    pub(super) fn p(&self, token: Option<usize>) -> f64 {
        token.and_then(|j| self.logprobs.get(j)).map_or(f64::NAN, |logprob| logprob.exp())
    }

    /// The response split at its tokens, each with its role for the answer. Tokens that share a character show it once,
    /// with the strongest of their marks.
    pub(super) fn pieces(&self) -> Vec<(Option<Mark>, Piece)> {
        let shares = |j: usize, k: usize| self.ranges.get(k).is_some_and(|range| range.start < self.ranges[j].end);
        let mark = |j: usize| (j..).take_while(|k| *k == j || shares(j, *k)).filter_map(|k| self.mark(k)).max();
        let pieces = pieces(&self.text, self.ranges.iter().map(|range| [range.start, range.end]));
        pieces.into_iter().map(|piece| (piece.token.and_then(mark), piece)).collect()
    }

    /// Role of a response token for the answer, if any.
    fn mark(&self, token: usize) -> Option<Mark> {
        let Record { prompt_len, answer, kept, chain, .. } = &self.record;
        let is = |row: i64| token_of(row) == Some(token);
        let position = prompt_len.unwrap_or_default() + token;
        if answer.as_ref().is_some_and(|answer| answer.tokens.contains(&position)) {
            Some(Mark::Answer)
        } else if kept.iter().any(|row| is(*row)) {
            Some(Mark::Kept)
        } else {
            chain.iter().any(|link| is(link.row)).then_some(Mark::Chain)
        }
    }

    /// The response with answer, kept and other chain tokens marked, and a legend.
    fn drawing(&self, style: TermStyle) -> String {
        let cells = marked_cells(&self.pieces(), |j| self.p(j), style.colour);
        draw::legend(style) + "\n" + &wrap(&cells, style)
    }

    fn chain_table(&self, style: TermStyle) -> String {
        let chain = &self.record.chain;
        let mut table = TextTable::new("rlrrll", ["row", "token", "p", "similarity", "reached from", "kept"]);
        let role = |link: &Link| match token_of(link.row).and_then(|token| self.mark(token)) {
            Some(Mark::Answer) => "answer",
            Some(Mark::Kept) => "✓",
            _ => "",
        };
        let whole = chain.len() <= MAX_LINKS;
        let shown: Vec<&Link> = chain.iter().filter(|link| whole || !role(link).is_empty()).collect();
        for link in &shown {
            let p = self.p(token_of(link.row));
            let plain = |text: String| (text, Style::PLAIN);
            let token = if role(link).is_empty() { Style::PLAIN } else { Style::BOLD };
            table.row([
                plain(link.row.to_string()),
                (self.token(link.row), token),
                (number(p), Style { colour: Some(ramp(p)), ..Style::PLAIN }),
                plain(number(link.similarity)),
                plain(link.from.map_or(String::new(), |from| format!("{} at {from}", self.token(from)))),
                plain(role(link).to_owned()),
            ]);
        }
        let left_out = chain.len() - shown.len();
        let more = if left_out == 0 { String::new() } else { format!("  and {left_out} that were not kept\n") };
        table.render(style) + &style.paint(Style::DIM, &more)
    }

    /// The token that a row represents, in quotes.
    fn token(&self, row: i64) -> String {
        let text = token_of(row).and_then(|j| self.token_texts.get(j));
        text.map_or("?".to_owned(), |text| cut(&quoted(text), TOKEN_COLUMNS))
    }
}

/// Index in the response of the token that a row (relative) predicts; the wrap of the first token is row -1.
pub(super) fn token_of(row: i64) -> Option<usize> {
    usize::try_from(row.checked_add(1)?).ok()
}

/// A line beside its label.
fn row(label: &str, value: &str, style: TermStyle) -> String {
    format!("{}  {value}\n", style.paint(Style::BOLD, &format!("{label:HEADLINE$}")))
}

/// A number in a table: three decimals, or an exponent if these would show nothing.
pub(super) fn number(x: f64) -> String {
    match x.abs() {
        _ if !x.is_finite() => "–".to_owned(),
        0.0 => "0".to_owned(),
        a if a < 0.001 => format!("{x:.1e}"),
        a if a < 100.0 && (a <= 1.0 || a.fract() > 0.0) => format!("{x:.3}"),
        _ => format!("{x:.0}"),
    }
}

/// The confidence: two decimals, never rounded to certainty.
pub(super) fn confidence(p: f64) -> String {
    match p {
        p if !p.is_finite() => "–".to_owned(),
        0.0 | 1.0 => format!("{p}"),
        p if p < 0.01 => format!("{p:.0e}"),
        p if p >= 0.995 => ">0.99".to_owned(),
        p => format!("{p:.2}"),
    }
}

/// Scores that are always shown.
const MAIN_SCORES: [&str; 6] = ["p", RANKING, "response_logprob", "min_token_prob", "self_consistency", G4_AGREEMENT];

/// The main scores or all of them, each with its meaning.
fn scores_table(scores: &Scores, all: bool, look: TermStyle) -> String {
    let mut table = TextTable::new("lrl", ["score", "value", "higher is more confident"]);
    let room = look.width.saturating_sub(34); // what the other columns leave
    for score in as_shown().iter().filter(|score| all || MAIN_SCORES.contains(&score.key)) {
        let Some(value) = scores.get(score.key) else { continue };
        let name = if all { format!(" ({})", score.name) } else { String::new() };
        let (key, meaning) = (score.key.to_owned(), cut(&format!("{}{name}", score.meaning), room));
        table.row([(key, Style::PLAIN), (number(value), Style::PLAIN), (meaning, Style::DIM)]);
    }
    let more = look.paint(Style::DIM, "  --scores: all, and the chain's table") + "\n";
    table.render(look) + if all { "" } else { &more }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::record::Answer;
    use crate::uq::{Member, Outcome, Profile};
    use serde_json::Value;

    const PLAIN: TermStyle = TermStyle { colour: false, width: 60 };
    const COLOUR: TermStyle = TermStyle { colour: true, width: 60 };

    fn scores(p: f64) -> Scores {
        Scores::from_fn(|score| match score.key {
            "p" => p,
            "p_sim" => 0.6,
            "response_prob" => 1.5e-9,
            "predictive_entropy" => -123.4,
            "min_token_prob" => f64::NAN,
            _ => 0.5,
        })
    }

    /// A response of these tokens with chain tokens 0 and 3 (3 is kept) and the last token as its answer.
    fn sample(tokens: &[&str], p: f64) -> AskReport {
        let mut ranges = Vec::new();
        let mut text = String::new();
        for token in tokens {
            ranges.push(text.len()..text.len() + token.len());
            text += token;
        }
        let n = tokens.len();
        let chain = vec![
            Link { row: -1, score: 0.7, similarity: 0.25, from: Some(2) },
            Link { row: 2, score: 1.5, similarity: 0.5, from: Some(n as i64 - 2) },
            Link { row: n as i64 - 2, score: 0.0, similarity: 1.0, from: None },
        ];
        let ensemble = vec![Member { position: None, token: None, log_answer: -0.1, log_chain: -0.2 }];
        let outcome = Outcome { answer: 10 + n - 1..10 + n, chain, kept: vec![2], ensemble, scores: scores(p) };
        let record = Record::ok(Value::Null, Profile::Corrected, 10, String::new(), outcome);
        let token_texts = tokens.iter().map(|t| t.to_string()).collect();
        let logprobs = (0..n).map(|i| if i == 0 { 0.4f64.ln() } else { 0.97f64.ln() }).collect();
        AskReport { text, ranges, token_texts, logprobs, record }
    }

    const TOKENS: [&str; 8] = ["Carl", " has", " 4", " marbles", ".\n", "So", ":", " 48"];

    #[test]
    fn without_colour() {
        let sample = sample(&TOKENS, 0.87);
        let expected = "\
answer      48
UQAC P      0.870
rank by     0.500  g4
            ranking scores, not probabilities; grade 50 ans…

‹chain›  «kept»  ⟦answer⟧
  ‹Carl› has 4 «marbles».
  So: ⟦48⟧

  row  token           p  similarity  reached from     kept
   -1  \"Carl\"      0.400       0.250  \" marbles\" at 2
    2  \" marbles\"  0.970       0.500  \" 48\" at 6       ✓
    6  \" 48\"       0.970       1.000                   answer

  score                   value  higher is more confident
  p                       0.870  probability of the answer…
  p_sim                   0.600  probability of the kept c…
";
        let rendered = sample.render(true, PLAIN);
        assert!(rendered.starts_with(expected), "{rendered}");
        assert!(
            rendered.contains("response_prob          1.5e-9  ")
                && rendered.contains("predictive_entropy       -123  ")
        );
        assert!(rendered.contains("min_token_prob              –  "));
        assert!(!rendered.contains('\x1b'));
    }

    #[test]
    fn samples_are_counted_and_ranked_by() {
        let mut sample = sample(&TOKENS, 0.87);
        let counts = vec![(Some("48".to_owned()), 2), (None, 1), (Some("4\n8".to_owned()), 1)];
        let (answers, agrees) = (vec![None; 4], vec![true, false, true, false]);
        let samples = Samples { answers, agrees, counts, weights: vec![0.25; 4], ..Samples::default() };
        sample.record.scores.as_mut().unwrap().add(&samples.scores());
        sample.record.samples = Some(samples);
        let rendered = sample.render(false, PLAIN);
        // 2/4 + σ(0.5)
        assert!(rendered.contains("\nrank by     1.122  g4_agreement\n"), "{rendered}");
        assert!(rendered.contains("\nsamples     2 of 4 agree: 48 ×2, no answer ×1, 4 8 ×1\n"), "{rendered}");
        assert!(rendered.contains("\n  self_consistency  0.500  the weight"), "{rendered}");
        // an answer is shown whole, or not
        let narrow = sample.render(false, TermStyle { width: 46, ..PLAIN });
        assert!(narrow.contains("\nsamples     2 of 4 agree: 48 ×2, …\n"), "{narrow}");
        let none = Record::no_answer(Value::Null, Profile::Corrected, 10);
        let samples = sample.record.samples.take().map(|samples| Samples { agrees: Vec::new(), ..samples });
        let rendered = AskReport { record: Record { samples, ..none }, ..sample }.render(false, PLAIN);
        let end = "no confidence.\nsamples     4 drawn: 48 ×2, no answer ×1, 4 8 ×1\n";
        assert!(rendered.ends_with(end), "{rendered}");
    }

    fn calibrated(value: f64, out_of_range: bool) -> Calibrated {
        let calibration = Origin { tasks: vec!["gsm8k".to_owned()], n: 400, ece: 0.0312 };
        Calibrated { value, score: "response_prob".to_owned(), calibration, out_of_range, certified: false }
    }

    #[test]
    fn a_calibrated_confidence_says_what_it_rests_on() {
        let sample = sample(&TOKENS, 0.87);
        let wide = TermStyle { colour: false, width: 100 };
        let shown = |found: Calibrated| {
            let record = Record { confidence: Some(found), ..sample.record.clone() };
            AskReport { record, ..sample.clone() }.render(true, wide)
        };
        let expected = "\
answer      48
confidence  0.42  █████████████░░░░░░░░░░░░░░░░░
            from response_prob, calibrated on 400 answers of gsm8k (ECE 0.031 on others)

";
        let rendered = shown(calibrated(0.42, false));
        assert!(rendered.starts_with(expected), "{rendered}");
        // no bar for a value that may not hold
        let expected =
            format!("answer      48\nconfidence  0.94\n            {OUT_OF_RANGE}\n            from response_prob,");
        let rendered = shown(calibrated(0.94, true));
        assert!(rendered.starts_with(&expected), "{rendered}");
    }

    #[test]
    fn what_is_withheld_is_not_shown() {
        let sample = sample(&TOKENS, 0.87);
        let with = |confidence| Record { confidence, ..sample.record.clone() };
        let none = Record::no_answer(Value::Null, Profile::Corrected, 10);
        for (record, samples, why) in [
            (with(Some(calibrated(0.42, false))), None, "not above the threshold"),
            (with(Some(calibrated(0.94, true))), None, "no answer of the calibration"),
            (with(None), None, "was not computed"),
            (with(None), Some(5), "beside 5 samples (--samples 5; in requests uqac.samples)"),
            (none, None, "no final answer"),
        ] {
            let answer = record.answer.clone();
            let record = record.withhold(sample.text.clone(), samples);
            let rendered = AskReport { record: record.clone(), ..sample.clone() }.render(true, PLAIN);
            assert!(rendered.contains(why) && rendered.contains("--abstain"), "{rendered}");
            assert!(!rendered.contains("48") && !rendered.contains("0."), "{rendered}");
            let withheld = record.withheld.unwrap();
            assert_eq!((record.answer, withheld.answer, withheld.response), (None, answer, sample.text.clone()));
        }
    }

    #[test]
    fn with_colour() {
        let sample = sample(&TOKENS, 0.87);
        let record = Record { confidence: Some(calibrated(0.87, false)), ..sample.record.clone() };
        let rendered = AskReport { record, ..sample.clone() }.render(true, COLOUR);
        assert!(rendered.contains("\x1b[1;38;5;136m0.87\x1b[0m"), "{rendered:?}");
        // no colour that suggests confidence for a value that is no probability
        assert!(sample.render(true, COLOUR).contains("\n\x1b[1mUQAC P    \x1b[0m  0.870\n"));
        // the chain coloured by its probability, kept tokens bold, the answer inverse; the spaces before them unstyled
        let line = "  \x1b[4;38;5;160mCarl\x1b[0m has 4 \x1b[1;4;38;5;28mmarbles\x1b[0m.\n  So: \x1b[1;7m48\x1b[0m\n";
        assert!(rendered.contains(line), "{rendered:?}");
        assert!(!rendered.contains('‹') && !rendered.contains('«'));
    }

    #[test]
    fn colour_changes_nothing_but_the_markers() {
        let sample = sample(&["x", " y"].repeat(60), 0.5);
        let escape = regex::Regex::new("\x1b\\[[0-9;]*m").unwrap();
        let bare = |text: &str| text.chars().filter(|c| !"‹›«»⟦⟧ \n".contains(*c)).collect::<String>();
        let coloured = sample.render(true, COLOUR);
        let coloured = escape.replace_all(&coloured, "");
        let tail = |text: &str| text[text.find("row").unwrap()..].to_owned();
        assert_eq!(tail(&coloured), tail(&sample.render(true, PLAIN)));
        assert!(bare(&coloured).contains(&"xy".repeat(60)));
    }

    #[test]
    fn every_line_of_the_text_fits() {
        let words = ["word", " another", " 家族", " x"].repeat(50);
        let sample = sample(&words, 0.5);
        for width in [40, 57, 80] {
            let rendered = sample.render(true, TermStyle { colour: false, width });
            let drawing = rendered.split("\n\n").nth(1).unwrap();
            assert!(drawing.lines().skip(1).all(|line| text_width(line) <= width), "{rendered}");
        }
    }

    #[test]
    fn text_cannot_send_escape_sequences() {
        let hostile = ["\x1b[2J", "\x07", "\u{9b}31m", "\x1b]0;title\x07", "\u{202e}", "\r", "\x08", "\x1b[5m7"];
        let rendered = sample(&hostile, 0.5).render(true, PLAIN);
        assert!(rendered.chars().all(|c| c == '\n' || !c.is_control()), "{rendered:?}");
        assert!(!rendered.contains('\u{202e}'));
        assert!(rendered.contains("‹␛[2J›") && rendered.contains("answer      ␛[5m7"), "{rendered}");
    }

    #[test]
    fn tokens_of_nothing_but_space_are_seen() {
        let rendered = sample(&["\n\n", "a", "b", " ", "c", "7"], 0.5).render(true, PLAIN);
        assert!(rendered.contains("\n  ‹⏎⏎›\n\n  ab«␣»c⟦7⟧\n"), "{rendered}");
        assert!(rendered.contains(r#""\n\n""#) && rendered.contains(r#"" ""#));
    }

    #[test]
    fn a_character_of_several_tokens_has_the_mark_of_any() {
        let mut sample = sample(&["a", "b", "😀", "", "7"], 0.5);
        sample.ranges[3] = sample.ranges[2].clone(); // the kept token
        let rendered = sample.render(true, PLAIN);
        assert!(rendered.contains("\n  ‹a›b«😀»⟦7⟧\n"), "{rendered}");
    }

    #[test]
    fn confidences_do_not_claim_certainty() {
        let shown = [0.0, 3e-7, 0.005, 0.01, 0.874, 0.994, 0.997, 1.0, f64::NAN].map(confidence);
        assert_eq!(shown, ["0", "3e-7", "5e-3", "0.01", "0.87", "0.99", ">0.99", "1", "–"]);
    }

    #[test]
    fn a_long_chain_is_shown_in_part() {
        let lines: Vec<String> = (0..100).map(|i| format!("line {i}\n")).chain(["48".to_owned()]).collect();
        let mut sample = sample(&lines.iter().map(String::as_str).collect::<Vec<_>>(), 0.5);
        let link = |row| Link { row, score: 1.0, similarity: 0.1, from: Some(99) };
        sample.record.chain.extend((40..80).map(link));
        let rendered = sample.render(true, PLAIN);
        assert!(rendered.contains("  and 41 that were not kept\n"), "{rendered}");
        assert!(rendered.contains("\n  line 40\n  ‹line 41\n"), "{rendered}");
    }

    #[test]
    fn what_does_not_fit_together_is_no_panic() {
        let mut sample = sample(&TOKENS, f64::NAN);
        sample.record.answer = Some(Answer { text: String::new(), tokens: 3..400 });
        sample.record.kept = vec![i64::MIN, i64::MAX, -7, 5000];
        sample.record.chain.push(Link { row: 9999, score: 0.0, similarity: f64::NAN, from: Some(i64::MAX) });
        sample.ranges[3] = 4000..4100;
        sample.logprobs.truncate(2);
        for style in [PLAIN, COLOUR, TermStyle { colour: true, width: 0 }] {
            sample.render(true, style);
        }
        let record = Record::no_answer(Value::Null, Profile::Corrected, 10);
        let none = AskReport { record, ..sample };
        assert!(none.render(true, PLAIN).contains("no confidence"));
    }
}
