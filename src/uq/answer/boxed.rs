//! The content of `\boxed{…}`.

use super::announce::grammar;
use std::ops::Range;

/// Content of the last closed, non-empty box, without surrounding whitespace; of boxes with nothing but commas or "and" between
/// them, all from the first to the last.
///
/// One pass with a stack of open braces, so that a text of nothing but unclosed boxes costs no more than any other.
pub(crate) fn last_box(text: &str) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let mut open: Vec<(usize, bool)> = Vec::new(); // where the content starts, and whether it is a box's
    let mut last: Option<Range<usize>> = None;
    let mut list: Option<Range<usize>> = None; // the boxes joined so far, with their commands
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => {
                if let Some(content) = box_opened_at(text, at) {
                    if let Some(brackets) = closing_brackets(text, content).filter(|_| open.is_empty()) {
                        at = brackets.end + 1;
                        last = Some(trim(text, brackets));
                        continue;
                    }
                    open.push((content, true));
                    at = content;
                } else {
                    // `\{` is not a brace; but for `\\boxed` only the first backslash is skipped.
                    at += if box_opened_at(text, at + 1).is_some() { 1 } else { 2 };
                }
                continue;
            }
            b'{' => open.push((at + 1, false)),
            b'}' => {
                if let Some((start, true)) = open.pop() {
                    let content = trim(text, start..at);
                    let later = last.as_ref().is_none_or(|found| content.start >= found.start);
                    if later && !is_blank(&text[content.clone()]) {
                        let command = text[..start].rfind('\\').unwrap_or(start);
                        let joined = list.filter(|list| list.end <= command && joins(&text[list.end..command]));
                        let first = joined.as_ref().map_or(command, |list| list.start);
                        list = Some(first..at + 1);
                        last = Some(if joined.is_some() { first..at + 1 } else { content });
                    }
                }
            }
            _ => {}
        }
        at += 1;
    }
    last
}

/// Whether a text between two boxes makes them a list.
fn joins(between: &str) -> bool {
    /// Bytes of the longest separator, with its spaces and delimiters.
    const MAX_SEPARATOR: usize = 60;
    let separated = between.is_empty() || between.contains([',', ';', 'n', 'r']);
    separated && between.len() <= MAX_SEPARATOR && grammar("between boxes").is_match(between)
}

/// The content of a box of brackets only, one of which closes the box too early: `] }` in `\boxed{] }}`.
fn closing_brackets(text: &str, start: usize) -> Option<Range<usize>> {
    let rest = &text[start..];
    let run = &rest[..rest.find(|c| !is_bracket(c)).unwrap_or(rest.len())];
    let content = &run[..run.rfind('}')?];
    let mut depth = 0_i32;
    let closes_early = content.chars().any(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth < 0
    });
    closes_early.then(|| start..start + content.len())
}

/// Whether a character may occur in a bracket sequence.
pub(super) fn is_bracket(c: char) -> bool {
    matches!(c, '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | ' ')
}

/// Start of the content if there is a `\boxed{` or `\fbox{` at `at`.
fn box_opened_at(text: &str, at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let after = rest.strip_prefix("\\boxed").or_else(|| rest.strip_prefix("\\fbox"))?;
    let content = after.trim_start().strip_prefix('{')?;
    Some(text.len() - content.len())
}

/// Whether a box contains only a placeholder for an answer, as in "put it into \boxed{...}".
pub(super) fn is_blank(content: &str) -> bool {
    content.chars().all(|c| c.is_whitespace() || matches!(c, '.' | '…' | '_'))
}

/// A range without surrounding whitespace.
pub(super) fn trim(text: &str, range: Range<usize>) -> Range<usize> {
    let inner = &text[range.clone()];
    let start = range.start + (inner.len() - inner.trim_start().len());
    start..start + inner.trim().len()
}
