//! Answers that nothing announces: a reply that is its answer, starts with it, or ends with it.

use super::statement::{MAX_STATEMENT, Number, Statement, Text, bare, count, leading_formula};
use super::{AnswerRule, tables::grammar};
use std::borrow::Cow;

impl<'t> Text<'t> {
    /// The formula, if the text consists of one and nothing else.
    pub fn only_formula(&self) -> Option<&'t str> {
        let (whole, inner) = leading_formula(self.text.trim())?;
        self.formula(inner).filter(|_| self.around(whole).1.trim_matches(['.', ' ', '\n']).is_empty())
    }

    /// The last formula of a text whose last sentence concludes with it: `Hence $f(x) = x + 2$.`
    pub fn concluding_formula(&self) -> Option<&'t str> {
        let start = grammar("hence").captures_iter(self.text).last()?.name("formula")?.start();
        Text { text: &self.text[start..], numbers: Vec::new(), rule: self.rule }.only_formula()
    }

    /// The word, if the text has only one; or the name, if it is nothing else.
    pub fn single_word(&self) -> Option<&'t str> {
        let word = bare(self.statement(self.text).inner);
        let is_word = count(word) == 1 && word.contains(char::is_alphabetic) && !word.contains(['\\', '{', '<', '>']);
        Some(word).filter(|_| (is_word && word.len() <= MAX_STATEMENT) || grammar("full name").is_match(word))
    }

    /// The letter of the option a text ends with: its last line is `C) Paris`, `**(C) Paris**` or `Option C is correct`, and not
    /// the last item of a list.
    pub fn option_line(&self) -> Option<&'t str> {
        let mut lines = self.text.lines().rev().filter(|line| !line.trim().is_empty());
        let last = lines.next().filter(|line| line.len() <= MAX_STATEMENT)?;
        let letter = |line| self.option_by("option line", line);
        letter(last).filter(|_| lines.next().and_then(letter).is_none())
    }

    /// The answer that a reply starts with, before its explanation: alone on the first line, or before a comma, a colon, a dash or
    /// a full stop.
    pub fn first(&self) -> Option<&'t str> {
        let lead = |c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`' | '#' | '>');
        let text = self.text.trim_start_matches(lead);
        let whole = text.split('\n').next().unwrap_or_default();
        let (line, rest) = (whole.trim_end_matches(['*', '_', '`', ' ', '\r', '.']), &text[whole.len()..]);
        if line.is_empty() || line.len() > MAX_STATEMENT {
            return None;
        }
        let apart = rest.starts_with("\n\n") || rest.starts_with("\n\r\n") || grammar("explains").is_match(rest);
        let alone = if apart && !rest.trim().is_empty() { self.first_line(line, rest) } else { None };
        let alone = alone.or_else(|| self.verdict(whole).filter(|_| !self.is_number()));
        if alone.is_some() || self.rule == AnswerRule::Choice {
            return alone.or_else(|| self.option(whole));
        }
        let part = self.clause(self.sentence(whole));
        let said = bare(part);
        if !grammar("explained").is_match(self.around(said).1) || count(said) > 4 {
            return None;
        }
        let name = !self.is_number() && said.starts_with(char::is_uppercase);
        self.number_like(part).or_else(|| name.then_some(said))
    }

    /// The answer that the whole first line is, `rest` being the text after it.
    fn first_line(&self, line: &'t str, rest: &str) -> Option<&'t str> {
        let statement = self.statement(line);
        if statement.is_formula && !self.is_number() {
            return self.formula(statement.inner);
        }
        let short = count(line) <= 4 && !line.contains(['=', '≈']);
        let number = self.number_like(statement.inner).filter(|_| short);
        if self.is_number() {
            return number;
        }
        let name = bare(statement.inner);
        let again = grammar("explains").is_match(rest)
            || rest.trim_start().starts_with(name)
            || (grammar("pronoun first").is_match(rest) && !grammar("reply opener").is_match(name));
        number.or_else(|| self.option(statement.inner)).or_else(|| (short && again && !name.is_empty()).then_some(name))
    }

    /// The answer in the last sentence: its bold part, or what it says something is (`The capital is Lyon.`).
    pub fn last_sentence(&self) -> Option<&'t str> {
        let whole = self.text.trim();
        let paragraph = whole.rsplit("\n\n").next().unwrap_or_default();
        let answer = |statement: &Statement<'t>| {
            let few = |said: &&str| statement.is_formula || count(said) <= 6 || self.is_list(said);
            self.says(statement).filter(few)
        };
        let bold = pattern!(r"\*\*([^*\n]{1,80})\*\*").captures_iter(paragraph).last().and_then(|bold| bold.get(1));
        if let Some(bold) = bold.filter(|bold| !bold.as_str().trim_end().ends_with(':')) {
            return answer(&self.statement(bold.as_str()));
        }
        if self.is_number() {
            return None;
        }
        let after = ['.', '!', '?', ';', ')', '"', '*', '_', '。', ' ', '\n', '\r'];
        let next = |rest: &&'t str| Some(rest[self.sentence(rest).len()..].trim_start_matches(after));
        let goes_on = |rest: &&'t str| next(rest).filter(|next| !next.is_empty() && next.len() < rest.len());
        let rest = std::iter::successors(Some(paragraph), goes_on).last()?;
        let Some(found) = grammar("subject").captures(rest) else {
            let named = grammar("predicate").captures(whole).filter(|_| self.rule == AnswerRule::Choice)?;
            return Some(named.get(1)?.as_str());
        };
        if rest.len() < whole.len() && found.name("so").is_none() {
            return None;
        }
        let mut said = self.sentence(&rest[found[0].len()..]);
        // `the square root is 8, and the cube root is 4`
        let second = grammar("second subject").captures_iter(said).last();
        let alike = |word: &str| word.len() > 3 && found[0].split_whitespace().any(|other| other == word);
        if let Some(second) = second.filter(|second| second[1].split(' ').any(alike)) {
            said = &said[second.get(0)?.end()..];
        }
        let said = self.statement(said);
        let number = !said.is_formula && self.rule != AnswerRule::Words && !self.numbers_in(said.inner).is_empty();
        let expression = || Some(self.clause(said.inner)).filter(|clause| grammar("expression").is_match(clause));
        if number { self.number_like(said.inner).or_else(expression) } else { answer(&said) }
    }

    /// The last number of a text: not of its check or sources, of a citation (`[2]`) or of an aside, if there is another.
    pub fn closing_number(&self) -> Option<&'t str> {
        let mut checks = grammar("check").find_iter(self.text).map(|found| &self.text[..found.start()]);
        let main = checks.find(|before| !self.numbers_in(before).is_empty()).unwrap_or(self.text);
        let asides = grammar("aside").captures_iter(main);
        let asides: Vec<_> = asides.filter_map(|found| Some(found.iter().skip(1).flatten().next()?.range())).collect();
        let apart = |number: &Number| {
            let start = self.around(number.text).0.len();
            !asides.iter().any(|aside| aside.start <= start && start + number.text.len() <= aside.end)
        };
        let found = self.numbers_in(main).iter().any(|number| !number.weak && apart(number));
        let found = if found { self.last_number(main, self.is_number(), apart) } else { None };
        found.or_else(|| self.last_number(self.text, self.is_number(), |_| true))
    }

    /// The last number in words, for a text without digits: `Twelve apples are left.` `one` is a pronoun more often than not.
    pub fn counted(&self) -> Option<&'t str> {
        let found = self.spelled_number(self.text.rsplit("\n\n").next().unwrap_or_default())?;
        let (before, after) = self.around(found);
        let pronoun = grammar("before one").is_match(before) || grammar("after one").is_match(after);
        (!found.eq_ignore_ascii_case("one") || !pronoun).then_some(found)
    }
}

/// A text with the code in it as spaces: blocks in a programming language, calls in backticks.
pub(super) fn without_code(text: &str) -> Cow<'_, str> {
    grammar("code").replace_all(text, |found: &regex::Captures| {
        let content = found.name("call").or(found.name("code")).map_or("", |content| content.as_str());
        let is_text = found.name("format").is_some() || !grammar("code line").is_match(content);
        let is_code = found.name("language").is_some() || !is_text;
        if is_code { " ".repeat(found[0].len()) } else { found[0].to_owned() }
    })
}
