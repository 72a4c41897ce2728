//! Finds an answer by a user-supplied regular expression.

use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use std::ops::Range;

/// A regular expression whose match is the answer: its first group, or all of it.
#[derive(Clone, Debug)]
pub struct AnswerPattern {
    regex: Regex,
    matched: AnswerMatch,
}

/// Which match counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerMatch {
    First,
    #[default]
    Last,
}

impl PartialEq for AnswerPattern {
    fn eq(&self, other: &Self) -> bool {
        (self.regex.as_str(), self.matched) == (other.regex.as_str(), other.matched)
    }
}

impl AnswerPattern {
    /// # Errors
    /// The expression's error, on one line.
    pub fn new(regex: &str, matched: AnswerMatch) -> Result<AnswerPattern, String> {
        let built = RegexBuilder::new(regex).size_limit(1 << 20).build();
        let last_line = |error: regex::Error| error.to_string().lines().last().unwrap_or_default().trim().to_owned();
        Ok(AnswerPattern { regex: built.map_err(last_line)?, matched })
    }

    /// Byte range of the answer, never empty.
    pub fn find(&self, text: &str) -> Option<Range<usize>> {
        let answers = self.regex.captures_iter(text).filter_map(|groups| groups.get(1).or(groups.get(0)));
        let mut found = answers.map(|answer| answer.range()).filter(|answer| !answer.is_empty());
        match self.matched {
            AnswerMatch::First => found.next(),
            AnswerMatch::Last => found.last(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_or_the_whole_match_first_or_last() {
        let text = "Answer = 7. Then Answer = 12.";
        let find = |regex, matched| AnswerPattern::new(regex, matched).unwrap().find(text).map(|range| &text[range]);
        assert_eq!(find(r"Answer = (\d+)", AnswerMatch::Last), Some("12"));
        assert_eq!(find(r"Answer = (\d+)", AnswerMatch::First), Some("7"));
        assert_eq!(find(r"\d+", AnswerMatch::First), Some("7"));
        assert_eq!(find("x*", AnswerMatch::First), None, "an empty match is none");
        assert_eq!(AnswerPattern::new("(", AnswerMatch::Last), Err("error: unclosed group".to_owned()));
    }
}
