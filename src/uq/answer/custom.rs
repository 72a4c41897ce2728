//! An answer found by a regular expression of one's own.

use regex::{Regex, RegexBuilder};
use std::ops::Range;

/// A regular expression whose match is the answer: its first group, or all of it.
#[derive(Clone, Debug)]
pub struct AnswerPattern {
    regex: Regex,
    /// The first match counts, not the last one.
    first: bool,
}

impl PartialEq for AnswerPattern {
    fn eq(&self, other: &Self) -> bool {
        (self.regex.as_str(), self.first) == (other.regex.as_str(), other.first)
    }
}

impl AnswerPattern {
    /// # Errors
    /// What is wrong with the expression, in one line.
    pub fn new(regex: &str, first: bool) -> Result<AnswerPattern, String> {
        let built = RegexBuilder::new(regex).size_limit(1 << 20).build();
        let last_line = |error: regex::Error| error.to_string().lines().last().unwrap_or_default().trim().to_owned();
        Ok(AnswerPattern { regex: built.map_err(last_line)?, first })
    }

    /// Bytes of the answer, which is never empty.
    pub fn find(&self, text: &str) -> Option<Range<usize>> {
        let mut found = self.regex.captures_iter(text).filter_map(|groups| {
            let range = groups.get(1).or_else(|| groups.get(0))?.range();
            (!range.is_empty()).then_some(range)
        });
        if self.first { found.next() } else { found.last() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_or_the_whole_match_first_or_last() {
        let text = "Answer = 7. Then Answer = 12.";
        let find = |regex, first| AnswerPattern::new(regex, first).unwrap().find(text).map(|range| &text[range]);
        assert_eq!(find(r"Answer = (\d+)", false), Some("12"));
        assert_eq!(find(r"Answer = (\d+)", true), Some("7"));
        assert_eq!(find(r"\d+", true), Some("7"));
        assert_eq!(find("x*", true), None, "an empty match is none");
        assert_eq!(AnswerPattern::new("(", false), Err("error: unclosed group".to_owned()));
    }
}
