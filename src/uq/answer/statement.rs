//! What a statement after an announcement says: a number, a formula, an option's letter, a verdict, words.

use super::announce::{Found, Then, grammar, phrase};
use super::boxed::{is_blank, is_bracket, trim};
use super::number::Number;
use super::value::{list, spoken};
use super::{AnswerRule, boundary, digit};
use std::ops::Range;

/// Max bytes searched for an announced answer.
pub(super) const MAX_STATEMENT: usize = 400;

/// As [`MAX_STATEMENT`], for a formula between delimiters: the most the grader reads.
const MAX_FORMULA: usize = 2000;

/// A reply, and what is looked for in it.
pub(super) struct Text<'t> {
    pub text: &'t str,
    pub numbers: Vec<Number>,
    pub rule: AnswerRule,
}

/// The words after an announcement.
pub(super) struct Statement {
    /// Up to the end of its sentence.
    whole: Range<usize>,
    /// For a formula, the content between its delimiters; else the same.
    pub inner: Range<usize>,
    pub is_formula: bool,
}

impl Text<'_> {
    /// Whether the answer has to be a number.
    pub fn is_number(&self) -> bool {
        self.rule == AnswerRule::Number
    }

    /// The answer of an announcement, if it has one.
    pub fn announced(&self, found: &Found) -> Option<Range<usize>> {
        let statement = self.announced_statement(found)?;
        match found.then {
            Then::Letter => self.letter(&statement),
            Then::Value => self.value(&statement),
            Then::Anything if self.is_number() => self.announced_number(&statement),
            Then::Anything => self.says(&statement),
        }
    }

    /// [`Self::announced`], if what is said is nothing but that answer, exactly: it replaces an earlier one.
    pub fn concluded(&self, found: &Found) -> Option<Range<usize>> {
        let statement = self.announced_statement(found)?;
        let name = |answer: &Range<usize>| {
            let words = &self.text[answer.clone()];
            let names = matches!(self.rule, AnswerRule::Words | AnswerRule::Auto);
            names && words.starts_with(char::is_uppercase) && words.split_whitespace().count() <= 4
        };
        match found.then {
            Then::Letter => self.letter(&statement),
            _ if grammar("about").is_match(&self.text[statement.whole.clone()]) => None,
            _ => self.value(&statement).or_else(|| self.announced(found).filter(name)),
        }
    }

    /// The number of a statement that has to have one.
    fn announced_number(&self, statement: &Statement) -> Option<Range<usize>> {
        let clause = self.clause(&statement.inner);
        // `12 apples, bought in 3 shops`
        let aside = pattern!(r",\s+(\p{Alphabetic}{2,})").captures(&self.text[clause.clone()]);
        let aside = aside.filter(|found| !matches!(&found[1], "and" | "or")).and_then(|found| found.get(0));
        let main = clause.start..aside.map_or(clause.end, |aside| clause.start + aside.start());
        let said = self.said(&clause).or_else(|| self.said(&main)).filter(|said| !self.is_part(said));
        said.or_else(|| self.is_list(&clause).then_some(clause))
            .or_else(|| self.last_number(&statement.whole, true, |_| true))
            .or_else(|| self.spelled_number(&statement.whole))
    }

    /// What a statement says: its formula, its number, what it says something is, its words.
    pub fn says(&self, statement: &Statement) -> Option<Range<usize>> {
        let inner = &statement.inner;
        match self.rule {
            AnswerRule::Number => self.number_like(inner),
            _ if statement.is_formula => self.formula(inner.clone()),
            AnswerRule::Words => self.words(inner),
            _ => self.number_like(inner).or_else(|| self.predicate(inner)).or_else(|| self.words(inner)),
        }
    }

    /// The predicate of a statement such as `the largest n is 34`: a number, a formula, an option's letter.
    fn predicate(&self, statement: &Range<usize>) -> Option<Range<usize>> {
        let clause = self.clause(statement);
        let subject =
            pattern!(r"(?i)^(?:(?:so|thus|hence|therefore),?\s+)?(?:the|there|its|our)\b.*\s(?:is|are|equals)\s+")
                .find(&self.text[clause.clone()])?;
        let said = self.statement(clause.start + subject.end()..clause.end);
        if said.is_formula {
            return self.formula(said.inner);
        }
        self.number_like(&said.inner).or_else(|| self.option(&said.inner))
    }

    /// The first number spelled out in a statement: `twelve`, `minus three hundred`; none in `one of them`.
    pub fn spelled_number(&self, statement: &Range<usize>) -> Option<Range<usize>> {
        let (found, _) = spoken(&self.text[statement.clone()]).next()?;
        let found = statement.start + found.start..statement.start + found.end;
        let part_of = self.text[found.end..statement.end].trim_start().starts_with("of ");
        (!part_of).then_some(found)
    }

    /// GSM8K's `#### 18`, in order.
    pub fn hashes(&self) -> impl Iterator<Item = Found> {
        let lines = pattern!(r"(?m)(?:^|[^#])####[ \t]*(?P<line>[^#\n].*)$").captures_iter(self.text);
        let starts = lines.filter_map(|found| {
            let line = found.name("line")?.range();
            // else a level-four heading, whose number is a section's
            let first = self.numbers_in(&line).first().filter(|number| !number.weak);
            let mark = |c| matches!(c, '*' | '_' | '`' | '$' | '£' | '€' | '¥' | '\\' | '(');
            let number = first.is_some_and(|first| self.text[line.start..first.range.start].chars().all(mark));
            (number || self.text[line.end..].trim().is_empty()).then_some(line.start)
        });
        starts.map(|start| Found { from: start, at: start..start, then: Then::Anything })
    }

    /// The statement of an announcement; `None` for a question, and for what the answer is not.
    fn announced_statement(&self, found: &Found) -> Option<Statement> {
        if !found.at.is_empty() {
            let statement = self.statement(found.at.clone());
            return (!grammar("pronoun").is_match(&self.text[statement.inner.clone()])).then_some(statement);
        }
        let statement = self.statement_at(found.at.start);
        let Range { start, end } = statement.whole;
        if self.text[end..].trim_start_matches(['*', '_', '`', ')', '"']).starts_with(['?', '？']) {
            return None;
        }
        let announcement = found.from..boundary(self.text, (start + 8).min(end).max(found.from));
        let is_not = phrase("not").is_match(&self.text[announcement]);
        let instead = phrase(if is_not { "but" } else { "instead" }).find(&self.text[start..end]);
        match instead {
            Some(instead) => Some(self.statement_at(start + instead.end())),
            None => (!is_not).then_some(statement),
        }
    }

    /// The option's letter, if that is what is said.
    fn letter(&self, statement: &Statement) -> Option<Range<usize>> {
        let clause = self.clause(&statement.inner);
        if clause.len() == 1 {
            return Some(clause).filter(|letter| self.text[letter.clone()].starts_with(char::is_alphabetic));
        }
        let letter = self.option(&clause)?;
        let more = self.text[letter.end..clause.end].trim_start_matches([')', ']', '"', '\'', '*', '_']);
        (!grammar("goes on").is_match(more)).then_some(letter)
    }

    /// The number, formula, option's letter or verdict, if nothing else is said.
    fn value(&self, statement: &Statement) -> Option<Range<usize>> {
        let clause = self.clause(&statement.inner);
        if statement.is_formula {
            let content = self.formula(statement.inner.clone())?;
            return if self.is_number() { self.number_like(&content) } else { Some(content) };
        }
        let sum = self.text[clause.clone()].contains(['=', '≈']);
        let value = self.number_like(&clause).filter(|_| !sum);
        if self.is_number() { value } else { value.or_else(|| self.option(&clause)).or_else(|| self.verdict(&clause)) }
    }

    /// The statement that starts after an announcement.
    fn statement_at(&self, start: usize) -> Statement {
        let text = self.text;
        let lead = |c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`' | '>' | ':');
        let start = text.len() - text[start..].trim_start_matches(lead).len();
        // a formula may contain periods and newlines
        let formula_end = math(text, start..boundary(text, start + MAX_FORMULA)).map_or(start, |(_, end)| end);
        let within = formula_end..formula_end.max(boundary(text, start + MAX_STATEMENT));
        let quoted = text[within.clone()].strip_prefix('"').and_then(|rest| rest.find(['"', '\n']));
        match quoted.filter(|end| text[within.start + 1 + end..].starts_with('"')) {
            Some(end) => self.statement(start + 1..start + 1 + end),
            None => self.statement(start..self.sentence_end(within)),
        }
    }

    /// A range as a statement: if a formula is at its start, and the expression does not continue after it, that formula.
    pub fn statement(&self, whole: Range<usize>) -> Statement {
        let range = trim(self.text, whole.clone());
        let alone = |end: usize| {
            let rest = self.text[end..self.clause(&(end - 1..range.end)).end].trim_start();
            !rest.contains(['$', '\\']) && !rest.starts_with(['=', '≈', '<', '>', '+', '-', '/', '^', '_'])
        };
        match math(self.text, range.clone()) {
            Some((inner, end)) if alone(end) => Statement { whole, inner: trim(self.text, inner), is_formula: true },
            _ => Statement { whole, inner: range, is_formula: false },
        }
    }

    /// The answer in a formula: all of it, without trailing punctuation; for `x = 5` and `3 + 4 = 7`, the number.
    pub fn formula(&self, inner: Range<usize>) -> Option<Range<usize>> {
        let mut inner = trim(self.text, inner);
        while self.text[inner.clone()].ends_with(['.', ',', ';']) && !self.text[..inner.end - 1].ends_with('\\') {
            inner = trim(self.text, inner.start..inner.end - 1);
        }
        if let Some(at) = self.text[inner.clone()].rfind('=').map(|at| inner.start + at)
            && grammar("left side").is_match(&self.text[inner.start..at])
        {
            let right = trim(self.text, at + 1..inner.end);
            if self.only_number(&right).is_some_and(|number| number == right) {
                return Some(right);
            }
        }
        (!is_blank(&self.text[inner.clone()])).then_some(inner)
    }

    /// End of the sentence, line or tag at the start of a range, without its punctuation.
    pub fn sentence_end(&self, range: Range<usize>) -> usize {
        let closes = |at: usize| {
            let after = self.text[at + 1..].trim_start_matches(['"', '\'', '”', '’', ')', ']', '*', '_', '`', '$']);
            after.is_empty() || after.starts_with(char::is_whitespace)
        };
        let ends = |at: usize, c: char| match c {
            '\n' | '。' | '！' | '？' => true,
            '<' => self.text[at..].starts_with("</") || self.text[at..].starts_with("<|"),
            '[' => self.text[at..].starts_with("[/"),
            '.' => closes(at) && !self.is_abbreviation(&self.text[range.start..at], &self.text[at + 1..]),
            '!' | '?' | ';' => closes(at),
            _ => false,
        };
        let mut inside = self.text[range.clone()].char_indices().map(|(offset, c)| (range.start + offset, c));
        inside.find(|(at, c)| ends(*at, *c)).map_or(range.end, |(at, _)| at)
    }

    /// Whether a period between `before` and `after` belongs to the word before it: `Dr. Who`, `No. 5`, `J. K. Rowling`,
    /// `E. coli`, `U.S. Army`. Where options may be meant, one letter is an initial only beside another.
    pub fn is_abbreviation(&self, before: &str, after: &str) -> bool {
        let apart = |c: char| c.is_whitespace() || matches!(c, '(' | '*' | '_' | '"');
        let word = before.rsplit(apart).next().unwrap_or_default();
        let after = after.trim_start();
        let known = list("abbreviations").contains(&&*word.to_lowercase());
        let numbered = matches!(word, "No" | "no" | "Nos" | "nr" | "Nr" | "p" | "pp");
        let initial = |part: &str| part.chars().count() == 1 && part.starts_with(char::is_uppercase);
        if known || (numbered && after.starts_with(|c: char| c.is_ascii_digit())) {
            return true;
        }
        if self.rule == AnswerRule::Choice || after.is_empty() || !word.split('.').all(initial) {
            return false;
        }
        let beside = word.contains('.')
            || pattern!(r"^\p{Lu}\.").is_match(after)
            || pattern!(r"\p{Lu}\.\s*\p{Lu}$").is_match(before);
        // one or two more words, none of which starts a sentence
        let name = pattern!(r"^(?P<first>\p{L}[\p{L}'’-]+)(?:\s+\p{L}[\p{L}'’-]+)?[*_\x22]*(?:[.,;:!?()]|\s*$)");
        let opens = |word: &str| list("sentence openers").contains(&&*word.to_lowercase());
        let one = || name.captures(after).is_some_and(|name| !opens(&name["first"]));
        (beside && after.starts_with(char::is_alphabetic)) || (self.rule == AnswerRule::Words && one())
    }

    /// The number, if that is what a statement is: the only one, after at most a few qualifying words or the last `=`, and
    /// followed by at most a unit.
    pub fn number_like(&self, statement: &Range<usize>) -> Option<Range<usize>> {
        // `15, as always` and `15 minutes (0.25 hours)`
        let aside = pattern!(r",\s+\p{Alphabetic}|\d\s*\p{Alphabetic}*(\s*\([^()]*[=\p{Alphabetic}])");
        let mut tail = self.clause(statement);
        if let Some(aside) = aside.captures(&self.text[tail.clone()]) {
            tail.end = tail.start + aside.get(1).or(aside.get(0)).map_or(0, |end| end.start());
        }
        if let Some(equals) = pattern!("[=≈]").find_iter(&self.text[tail.clone()]).last() {
            tail.start += equals.end();
        }
        let number = self.only_number(&tail)?;
        let alone = self.numbers_in(&tail).len() == 1;
        let fits = grammar("before a number").is_match(&self.text[tail.start..number.start])
            && grammar("after a number").is_match(&self.text[number.end..tail.end]);
        (alone && fits).then_some(number)
    }

    /// The letter of the option at the start of a statement.
    fn any_option(&self, statement: &Range<usize>) -> Option<Range<usize>> {
        let inside = &self.text[statement.clone()];
        let found = grammar("option").captures(inside)?;
        let letter = ["named", "bracketed", "single"].iter().find_map(|name| found.name(name))?.range();
        let rest = &inside[letter.end..];
        let initial = rest.starts_with('.') && self.is_abbreviation(&inside[..letter.end], &rest[1..]);
        (!initial).then_some(statement.start + letter.start..statement.start + letter.end)
    }

    /// [`Self::any_option`], unless others follow on its line: `A, C` is a list.
    pub fn option(&self, statement: &Range<usize>) -> Option<Range<usize>> {
        let is_list = |letter: &Range<usize>| is_list(self.text[letter.end..].lines().next().unwrap_or_default());
        self.any_option(statement).filter(|letter| !is_list(letter))
    }

    /// The yes or no at the start of a statement, unless it is part of a name: `No. 5`, `Yes, Minister`.
    pub fn verdict(&self, statement: &Range<usize>) -> Option<Range<usize>> {
        let verdict = pattern!({
            let words = ["yes", "no", "verdicts"].map(list).concat().join("|");
            format!(r#"(?i)^["'“‘*_]*(?P<verdict>{words})["'”’*_]*(?P<rest>\s*$|\s*[,;:.!(–—}}，、。！]|\s+-)"#)
        });
        let inside = &self.text[statement.clone()];
        let found = verdict.captures(inside)?;
        let (verdict, rest) = (found.name("verdict")?, &inside[found.name("rest")?.start()..]);
        let name = pattern!(r"^(?:\.\s*[0-9]|,\s+\p{Lu}\p{L}+(?:\s+\p{Lu}\p{L}+)?\s*$)").is_match(rest);
        (!name).then_some(statement.start + verdict.start()..statement.start + verdict.end())
    }

    /// The words of a statement that form its answer.
    pub fn words(&self, statement: &Range<usize>) -> Option<Range<usize>> {
        if let Some(found) = self.option(statement).or_else(|| self.verdict(statement)) {
            return Some(found);
        }
        let only_brackets = trim(self.text, statement.clone());
        if !only_brackets.is_empty() && self.text[only_brackets.clone()].chars().all(is_bracket) {
            return Some(only_brackets); // a bracket sequence of `dyck_languages`
        }
        // several options: the line, up to its tag
        let tagged = self.text[statement.end..].starts_with('<');
        let line = || self.text[statement.start..].lines().next().map_or(0, str::len);
        let mut words = bare(
            self.text,
            match self.any_option(statement) {
                Some(_) if !tagged => statement.start..statement.start + line(),
                Some(_) => statement.clone(),
                None => self.clause(statement),
            },
        );
        let ending = phrase("ending").find(&self.text[words.clone()]).map(|ending| words.start + ending.start());
        words.end = ending.filter(|end| *end > words.start).unwrap_or(words.end);
        // A formula may consist of symbols only; a statement of just dashes and dots has no answer.
        let says = |c: char| c.is_alphanumeric() || matches!(c, '\\' | '∅' | '∞' | 'π' | '[' | '(' | '{' | '<' | '>');
        self.text[words.clone()].contains(says).then_some(words)
    }

    /// A statement up to the reason given for it.
    pub fn clause(&self, statement: &Range<usize>) -> Range<usize> {
        let reason = phrase("reason").find(&self.text[statement.clone()]).map(|found| found.start());
        let reason = reason.filter(|length| *length > 0).map(|length| statement.start + length);
        let end = reason.unwrap_or(statement.end);
        statement.start..statement.start + self.text[statement.start..end].trim_end_matches(['*', '_']).len()
    }
}

/// The content and the end of the formula at the start of a range.
pub(super) fn math(text: &str, range: Range<usize>) -> Option<(Range<usize>, usize)> {
    let starts = text[range.clone()].starts_with(['$', '\\']);
    let first = if starts { formulas(text, range.clone()).next() } else { None };
    first.filter(|(whole, _)| whole.start == range.start).map(|(whole, inner)| (inner, whole.end))
}

/// The formulas within a range, in order, with their delimiters and without: `$…$`, `$$…$$`, `\(…\)`, `\[…\]`.
pub(super) fn formulas(text: &str, within: Range<usize>) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    // unlike an amount in dollars, `$…$` closes on its line, with no space just inside and no digit after it
    grammar("formula").captures_iter(&text[within.clone()]).filter_map(move |found| {
        let place = |part: regex::Match| within.start + part.start()..within.start + part.end();
        let whole = place(found.get(0)?);
        let amount = found.get(4).is_some() && text[whole.end..within.end].starts_with(|c: char| digit(c).is_some());
        let inner = found.iter().skip(1).flatten().next().filter(|_| !amount)?;
        Some((whole, place(inner)))
    })
}

/// Whether what follows an option's letter is another's: `, C`, ` and (C)`, `: red, C: green`.
pub(crate) fn is_list(rest: &str) -> bool {
    grammar("more options").is_match(rest)
}

/// A range without the punctuation, quotes and whole or stray brackets at its ends; `(2, 3)` keeps its brackets.
pub(super) fn bare(text: &str, mut range: Range<usize>) -> Range<usize> {
    let loose = |c: char| {
        let quote = matches!(c, '"' | '\'' | '“' | '”' | '‘' | '’' | '«' | '»' | '`' | '*' | '_');
        let decoration = matches!(c, '\u{2600}'..='\u{27bf}' | '\u{fe0f}' | '\u{1f300}'..='\u{1faff}' | '。' | '！');
        quote || decoration || c.is_whitespace() || matches!(c, '.' | ',' | ';' | ':' | '!' | '?')
    };
    loop {
        let inside = &text[range.clone()];
        let start = range.start + (inside.len() - inside.trim_start_matches(loose).len());
        range = start..start + inside.trim_matches(loose).len();
        let inside = &text[range.clone()];
        let stray = |(open, close): &(char, char)| {
            let (opens, closes) = (inside.starts_with(*open), inside.ends_with(*close));
            let pair = opens && closes && inside.matches(*open).count() == 1 && inside.matches(*close).count() == 1;
            (pair || (opens && !inside.contains(*close)), pair || (closes && !inside.contains(*open)))
        };
        if inside.starts_with(['(', '[']) && inside.ends_with([')', ']']) && inside.contains([',', ';']) {
            return range; // a pair, an interval, a list
        }
        let (first, last) =
            [('(', ')'), ('[', ']'), ('{', '}')].iter().map(stray).find(|(a, b)| *a || *b).unwrap_or_default();
        if !first && !last {
            return range;
        }
        range = range.start + usize::from(first)..range.end - usize::from(last);
    }
}
