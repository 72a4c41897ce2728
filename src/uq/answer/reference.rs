//! The answer as the authors' code finds it, defects included: the basis of their published results.

use super::{AnswerRule, is_space};
use std::ops::Range;

/// The answer for the `reference` profile, as bytes of the response's decoded text, including the template's end tokens.
///
/// The number rule sees only the last line, ignores signs, and splits digits without separators into threes (`2160` is
/// `216`, then `0`); the box rule searches the whole text for the box's content and takes its last occurrence, in a box
/// or not. Without a number the box decides; [`AnswerRule::Auto`] tries the box first.
pub fn find_answer_reference(text: &str, rule: AnswerRule) -> Option<Range<usize>> {
    match rule {
        AnswerRule::Number => last_number(text).or_else(|| last_box(text)),
        AnswerRule::Boxed => last_box(text),
        AnswerRule::Auto | AnswerRule::Words | AnswerRule::Choice => last_box(text).or_else(|| last_number(text)),
    }
}

/// The last number of the last line, as written.
pub(crate) fn last_number_text(text: &str) -> Option<&str> {
    let pattern = pattern!({
        let number = r"[$£€¥]?\d{1,3}(?:,\d{3})*(?:\.\d+)?%?";
        let space = r"[\s\x1c-\x1f]*";
        format!(r"\\boxed\{{{space}(?P<boxed>{number}){space}\}}|{number}")
    });
    let line = last_line(text.trim_matches(is_space)).trim_matches(is_space);
    let found = pattern.captures_iter(line).last()?;
    found.name("boxed").or_else(|| found.get(0)).map(|number| number.as_str())
}

/// The last number of the last line, without currency and percent signs.
fn last_number(text: &str) -> Option<Range<usize>> {
    let number = last_number_text(text)?;
    let number = number.strip_prefix(['$', '£', '€', '¥']).unwrap_or(number);
    let number = number.strip_suffix('%').unwrap_or(number).trim_matches(is_space);
    // The number's own position is discarded here and searched for again: the last line in the text, then the number in that line.
    let text = text.trim_end_matches(is_space);
    let line = last_line(text);
    let start = text.rfind(line)? + line.rfind(number)?;
    Some(start..start + number.len())
}

/// The text after the last newline.
fn last_line(text: &str) -> &str {
    text.rsplit('\n').next().unwrap_or_default()
}

/// The last occurrence of the last box's content.
fn last_box(text: &str) -> Option<Range<usize>> {
    let content = last_box_text(text)?;
    let start = text.rfind(content)?;
    Some(start..start + content.len())
}

/// The last box's content. A box that contains an empty pair of braces (`\frac{}{2}`) is ignored.
pub(crate) fn last_box_text(text: &str) -> Option<&str> {
    let mut open = Vec::new(); // where the contents start
    let mut last: Option<Range<usize>> = None;
    for (at, brace) in text.match_indices(['{', '}']) {
        if brace == "{" {
            open.push(at + 1);
            continue;
        }
        let Some(start) = open.pop() else { continue };
        let boxed = text[..start - 1].ends_with("\\boxed") && last.as_ref().is_none_or(|found| start > found.start);
        if boxed && start < at && !text[start..at].contains("{}") {
            last = Some(start..at);
        }
    }
    Some(&text[last?])
}
