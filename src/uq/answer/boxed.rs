//! The content of `\boxed{…}`.

use super::tables::grammar;
use std::ops::Range;

/// Content of the last closed, non-empty box, without surrounding whitespace; of boxes with nothing but commas or "and" between
/// them, all from the first to the last.
///
/// One pass with a stack of open braces, so that a text of nothing but unclosed boxes costs no more than any other.
pub(crate) fn last_box(text: &str) -> Option<Range<usize>> {
    let mut open: Vec<(usize, bool)> = Vec::new(); // where the content starts, and whether it is a box's
    let mut last: Option<Range<usize>> = None;
    let mut list: Option<Range<usize>> = None; // the boxes joined so far, with their commands
    let mut skipped = 0;
    for brace in grammar("brace").find_iter(text).map(|found| found.range()) {
        match &text[brace.clone()] {
            _ if brace.start < skipped => {}
            "{" => open.push((brace.end, false)),
            "}" => {
                let Some((start, true)) = open.pop() else { continue };
                let content = trim(text, start..brace.start);
                let later = last.as_ref().is_none_or(|found| content.start >= found.start);
                if later && !is_blank(&text[content.clone()]) {
                    let command = text[..start].rfind('\\').unwrap_or(start);
                    let joined = list.filter(|list| {
                        list.end <= command && grammar("between boxes").is_match(&text[list.end..command])
                    });
                    list = Some(joined.as_ref().map_or(command, |list| list.start)..brace.end);
                    last = if joined.is_some() { list.clone() } else { Some(content) };
                }
            }
            opened if opened.contains("box") => match closing_brackets(text, brace.end).filter(|_| open.is_empty()) {
                Some(brackets) => (skipped, last) = (brackets.end + 1, Some(trim(text, brackets))),
                None => open.push((brace.end, true)),
            },
            _ => {}
        }
    }
    last
}

/// The content of a box of brackets only, one of which closes the box too early: `] }` in `\boxed{] }}`.
fn closing_brackets(text: &str, start: usize) -> Option<Range<usize>> {
    let run = text[start..].split(|c| !is_bracket(c)).next()?;
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
