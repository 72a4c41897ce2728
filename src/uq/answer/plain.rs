//! Answers that nothing announces: a reply that is its answer, starts with it, or ends with it.

use super::AnswerRule;
use super::announce::{grammar, phrase};
use super::boxed::trim;
use super::number::Number;
use super::statement::{MAX_STATEMENT, Text, bare, is_list, math};
use super::value::list;
use std::borrow::Cow;
use std::ops::Range;

impl Text<'_> {
    /// The formula, if the text consists of one and nothing else.
    pub fn only_formula(&self) -> Option<Range<usize>> {
        let whole = trim(self.text, 0..self.text.len());
        let (inner, end) = math(self.text, whole.clone())?;
        self.formula(inner).filter(|_| self.text[end..whole.end].trim_matches(['.', ' ']).is_empty())
    }

    /// The word, if the text has only one; or the name, if it is nothing else.
    pub fn single_word(&self) -> Option<Range<usize>> {
        let name = pattern!(r"^\s*[*_]*((?:\p{Lu}[\p{L}'’.-]*\s+){1,3}\p{Lu}[\p{L}'’-]*)[*_]*\.?\s*$");
        if let Some(name) = name.captures(self.text).and_then(|name| name.get(1)) {
            return Some(name.range());
        }
        let word = bare(self.text, self.statement(0..self.text.len()).inner);
        let inside = &self.text[word.clone()];
        let is_word = inside.contains(char::is_alphabetic) && !inside.contains(['\\', '{', '<', '>']);
        (is_word && !inside.contains(char::is_whitespace) && inside.len() <= MAX_STATEMENT).then_some(word)
    }

    /// The letter of the option a text ends with: its last line is `C) Paris`, `**(C) Paris**` or `Option C is correct`, and not
    /// the last item of a list.
    pub fn option_line(&self) -> Option<Range<usize>> {
        let letter = |line: &str| {
            let found = grammar("option line").captures(line)?;
            let letter = ["bracketed", "single", "named"].iter().find_map(|name| found.name(name))?;
            let rest = &line[letter.end()..];
            let other = is_list(rest) || (rest.starts_with('.') && self.is_abbreviation(letter.as_str(), &rest[1..]));
            (!other).then_some(letter.range())
        };
        let mut lines = self.text.lines().rev().filter(|line| !line.trim().is_empty());
        let last = lines.next().filter(|line| line.len() <= MAX_STATEMENT)?;
        let start = self.text.rfind(last)?;
        let found = letter(last).filter(|_| lines.next().is_none_or(|line| letter(line).is_none()))?;
        Some(start + found.start..start + found.end)
    }

    /// The answer that a reply starts with, before its explanation: alone on the first line, or before a comma, a colon, a dash or
    /// a full stop.
    pub fn first(&self) -> Option<Range<usize>> {
        let text = self.text;
        let lead = |c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`' | '#' | '>');
        let start = text.len() - text.trim_start_matches(lead).len();
        let end = start + text[start..].find('\n').unwrap_or(text.len() - start);
        let line = start..start + text[start..end].trim_end_matches(['*', '_', '`', ' ', '\r', '.']).len();
        let rest = &text[end..];
        if line.is_empty() || line.len() > MAX_STATEMENT {
            return None;
        }
        let apart = rest.starts_with("\n\n") || rest.starts_with("\n\r\n") || explains(rest);
        let whole = if apart && !rest.trim().is_empty() { self.first_line(line.clone(), rest) } else { None };
        let whole = whole.or_else(|| self.verdict(&(start..end)).filter(|_| !self.is_number()));
        if whole.is_some() || self.rule == AnswerRule::Choice {
            return whole.or_else(|| self.option(&(start..end)));
        }
        let part = self.clause(&(start..self.sentence_end(start..end)));
        let said = bare(text, part.clone());
        if !grammar("explained").is_match(&text[said.end..]) || text[said.clone()].split_whitespace().count() > 4 {
            return None;
        }
        let name = !self.is_number() && text[said.clone()].starts_with(char::is_uppercase);
        self.number_like(&part).or_else(|| name.then_some(said))
    }

    /// The answer that the whole first line is, `rest` being the text after it.
    fn first_line(&self, line: Range<usize>, rest: &str) -> Option<Range<usize>> {
        let statement = self.statement(line.clone());
        let number = self.number_like(&statement.inner);
        if statement.is_formula && !self.is_number() {
            return self.formula(statement.inner);
        }
        let words = self.text[line.clone()].split_whitespace();
        let short = words.count() <= 4 && !self.text[line.clone()].contains(['=', '≈']);
        let number = number.filter(|_| short);
        if self.is_number() {
            return number;
        }
        let name = bare(self.text, statement.inner.clone());
        let named = &self.text[name.clone()];
        let first = named.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default().to_lowercase();
        let pronoun = pattern!(r"^\s*(?:It|He|She|They|This)\b").is_match(rest);
        let again = explains(rest)
            || rest.trim_start().starts_with(named)
            || (pronoun && !list("reply openers").contains(&&*first));
        number
            .or_else(|| self.option(&statement.inner))
            .or_else(|| (short && again && !name.is_empty()).then_some(name))
    }

    /// The answer in the last sentence: its bold part, or what it says something is (`The capital is Lyon.`).
    pub fn last_sentence(&self) -> Option<Range<usize>> {
        let text = self.text;
        let whole = trim(text, 0..text.len());
        let paragraph = whole.start + text[whole.clone()].rfind("\n\n").map_or(0, |at| at + 2)..whole.end;
        let few = |answer: &Range<usize>| text[answer.clone()].split_whitespace().count() <= 6;
        let bold = pattern!(r"\*\*([^*\n]{1,80})\*\*").captures_iter(&text[paragraph.clone()]).last();
        if let Some(bold) = bold.and_then(|found| found.get(1)).filter(|bold| !bold.as_str().trim_end().ends_with(':'))
        {
            let bold = self.statement(paragraph.start + bold.start()..paragraph.start + bold.end());
            let number = self.number_like(&bold.inner);
            return match self.rule {
                AnswerRule::Number => number.or_else(|| self.said(&bold.inner)),
                _ if bold.is_formula => self.formula(bold.inner),
                AnswerRule::Words => self.words(&bold.inner).filter(few),
                _ => number.or_else(|| self.words(&bold.inner).filter(few)),
            };
        }
        if self.is_number() {
            return None;
        }
        let (mut start, mut only) = (paragraph.start, paragraph == whole);
        loop {
            let end = self.sentence_end(start..paragraph.end);
            let after = ['.', '!', '?', ';', ')', '"', '*', '_', '。', ' ', '\n', '\r'];
            let next = text.len() - text[end..].trim_start_matches(after).len();
            if next >= paragraph.end || next <= start {
                break;
            }
            (start, only) = (next, false);
        }
        let found = phrase("subject").captures(&text[start..paragraph.end])?;
        if !only && found.name("so").is_none() {
            return None;
        }
        let (subject, said) = (&found[0], start + found[0].len()..self.sentence_end(start..paragraph.end));
        // `the square root is 8, and the cube root is 4`
        let second = grammar("second subject").captures_iter(&text[said.clone()]).last().filter(|second| {
            second[1].split(' ').any(|word| word.len() > 3 && subject.split_whitespace().any(|other| other == word))
        });
        let from = second.and_then(|second| second.get(0)).map_or(0, |second| second.end());
        let said = self.statement(said.start + from..said.end);
        if self.rule != AnswerRule::Words && !said.is_formula && !self.numbers_in(&said.inner).is_empty() {
            return self.number_like(&said.inner);
        }
        if said.is_formula { self.formula(said.inner) } else { self.words(&said.inner).filter(few) }
    }

    /// The last formula of a text whose last sentence concludes with it: `Hence $f(x) = x + 2$.`
    pub fn concluding_formula(&self) -> Option<Range<usize>> {
        let start = grammar("hence").captures_iter(self.text).last()?.name("formula")?.start();
        let (inner, end) = math(self.text, start..self.text.len())?;
        self.formula(inner).filter(|_| self.text[end..].trim_matches(['.', ' ', '\n']).is_empty())
    }

    /// The last number of a text: not of its check or sources, of a citation (`[2]`) or of an aside, if there is another.
    pub fn closing_number(&self) -> Option<Range<usize>> {
        let text = self.text;
        let mut checks = phrase("check").find_iter(text).map(|found| found.start());
        let end = checks.find(|at| !self.numbers_in(&(0..*at)).is_empty()).unwrap_or(text.len());
        let asides = grammar("aside").captures_iter(&text[..end]);
        let asides: Vec<Range<usize>> =
            asides.filter_map(|found| Some(found.iter().skip(1).flatten().next()?.range())).collect();
        let apart = |number: &Number| {
            !asides.iter().any(|aside| aside.start <= number.range.start && number.range.end <= aside.end)
        };
        let found = self.numbers_in(&(0..end)).iter().any(|number| !number.weak && apart(number));
        let found = if found { self.last_number(&(0..end), self.is_number(), apart) } else { None };
        found.or_else(|| self.last_number(&(0..text.len()), self.is_number(), |_| true))
    }

    /// The last number in words, for a text without digits: `Twelve apples are left.` `one` is a pronoun more often than not.
    pub fn counted(&self) -> Option<Range<usize>> {
        let start = self.text.rfind("\n\n").map_or(0, |at| at + 2);
        let found = self.spelled_number(&(start..self.text.len()))?;
        let pronoun = grammar("before one").is_match(&self.text[..found.start])
            || grammar("after one").is_match(&self.text[found.end..]);
        (!self.text[found.clone()].eq_ignore_ascii_case("one") || !pronoun).then_some(found)
    }
}

/// A text with the code in it as spaces: blocks in a programming language, calls in backticks.
pub(super) fn without_code(text: &str) -> Cow<'_, str> {
    grammar("code").replace_all(text, |found: &regex::Captures| {
        let known = found
            .name("language")
            .is_some_and(|language| list("text formats").contains(&&*language.as_str().to_lowercase()));
        let content = found.name("call").or(found.name("code").filter(|_| &found["language"] == ""));
        let is_code = content.map_or(!known, |content| grammar("code line").is_match(content.as_str()));
        if is_code { " ".repeat(found[0].len()) } else { found[0].to_owned() }
    })
}

/// Whether a text starts by explaining what comes before it.
fn explains(text: &str) -> bool {
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || "*_#(>-".contains(c));
    phrase("explanation").find(text).is_some_and(|found| {
        found.start() == 0 && !text[found.end()..].starts_with(|c: char| c.is_ascii_alphanumeric())
    })
}
