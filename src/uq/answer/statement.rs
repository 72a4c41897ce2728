//! What a statement after an announcement says: a number, a formula, an option's letter, a verdict, words.
//!
//! Parts of a reply are slices of its text.

use super::{AnswerRule, boundary, digit, tables::grammar, value::spoken};
use super::{announce::Found, announce::Then, boxed::is_blank, boxed::is_bracket};

/// Max bytes searched for an announced answer.
pub(super) const MAX_STATEMENT: usize = 400;

/// As [`MAX_STATEMENT`], for a formula between delimiters: the most the grader reads.
const MAX_FORMULA: usize = 2000;

/// A number in a text.
pub(super) struct Number<'t> {
    /// Sign, digits, separators, decimals; for a compound (`3/4`, `2^{10}`), all of it.
    pub text: &'t str,
    /// Part of a word, an index, an ordinal, a list mark or a version: a number only if there is no other.
    pub weak: bool,
}

/// A reply, and what is looked for in it.
pub(super) struct Text<'t> {
    pub text: &'t str,
    pub numbers: Vec<Number<'t>>,
    pub rule: AnswerRule,
}

/// The words after an announcement.
pub(super) struct Statement<'t> {
    /// Up to the end of its sentence.
    pub whole: &'t str,
    /// For a formula, the content between its delimiters; else the same, trimmed.
    pub inner: &'t str,
    pub is_formula: bool,
}

impl<'t> Text<'t> {
    /// Whether the answer has to be a number.
    pub fn is_number(&self) -> bool {
        self.rule == AnswerRule::Number
    }

    /// The text before and after a part of it.
    pub fn around(&self, part: &str) -> (&'t str, &'t str) {
        around(self.text, part)
    }

    /// The answer of an announcement, if it has one.
    pub fn announced(&self, found: &Found<'t>) -> Option<&'t str> {
        let statement = self.announced_statement(found)?;
        match found.then {
            Then::Letter => self.letter(&statement),
            Then::Value => self.value(&statement),
            Then::Anything if self.is_number() => self.announced_number(&statement),
            Then::Anything => self.says(&statement),
        }
    }

    /// [`Self::announced`], if what is said is nothing but that answer, exactly: it replaces an earlier one.
    pub fn concluded(&self, found: &Found<'t>) -> Option<&'t str> {
        let statement = self.announced_statement(found)?;
        let names = matches!(self.rule, AnswerRule::Words | AnswerRule::Auto);
        let is_name = |answer: &&str| names && answer.starts_with(char::is_uppercase) && count(answer) <= 4;
        match found.then {
            Then::Letter => self.letter(&statement),
            _ if grammar("about").is_match(statement.whole) => None,
            _ => self.value(&statement).or_else(|| self.announced(found).filter(is_name)),
        }
    }

    /// The number of a statement that has to have one.
    fn announced_number(&self, statement: &Statement<'t>) -> Option<&'t str> {
        let clause = self.clause(statement.inner);
        let second = grammar("second clause").captures(clause).filter(|second| !matches!(&second[1], "and" | "or"));
        let main = second.and_then(|second| second.get(0)).map_or(clause, |second| &clause[..second.start()]);
        let said = self.said(clause).or_else(|| self.said(main)).filter(|said| !self.is_part(said));
        said.or_else(|| self.is_list(clause).then_some(clause))
            .or_else(|| self.last_number(statement.whole, true, |_| true))
            .or_else(|| self.spelled_number(statement.whole))
    }

    /// What a statement says: its formula, its number, what it says something is, its words.
    pub fn says(&self, statement: &Statement<'t>) -> Option<&'t str> {
        match (self.rule, statement.inner) {
            (AnswerRule::Number, inner) => self.number_like(inner).or_else(|| self.said(inner)),
            (_, inner) if statement.is_formula => self.formula(inner),
            (AnswerRule::Words, inner) => self.words(inner),
            (_, inner) => self.number_like(inner).or_else(|| self.predicate(inner)).or_else(|| self.words(inner)),
        }
    }

    /// The predicate of a statement such as `the largest n is 34`: a number, a formula, an option's letter.
    fn predicate(&self, statement: &'t str) -> Option<&'t str> {
        let clause = self.clause(statement);
        self.value(&self.statement(&clause[grammar("of a predicate").find(clause)?.end()..]))
    }

    /// The first number spelled out in a statement: `twelve`, `one third of it`; none in `one of them`.
    pub fn spelled_number(&self, statement: &'t str) -> Option<&'t str> {
        let (found, value) = spoken(statement).next()?;
        let of = value.whole().is_some() && statement[found.end..].trim_start().starts_with("of ");
        (!of).then(|| &statement[found])
    }

    /// The statement of an announcement; `None` for a question, and for what the answer is not.
    fn announced_statement(&self, found: &Found<'t>) -> Option<Statement<'t>> {
        if !found.at.is_empty() {
            return Some(self.statement(found.at)).filter(|statement| !grammar("pronoun").is_match(statement.inner));
        }
        let statement = self.statement_at(found.at);
        let (before, rest) = self.around(statement.whole);
        if rest.trim_start_matches(['*', '_', '`', ')', '"']).starts_with(['?', '？']) {
            return None;
        }
        let first = before.len() + boundary(statement.whole, 8);
        let announcement = &self.text[self.around(found.words).0.len()..first];
        let is_not = grammar("not").is_match(announcement);
        match grammar(if is_not { "but" } else { "instead" }).find(statement.whole) {
            Some(instead) => Some(self.statement_at(&statement.whole[instead.end()..])),
            None => (!is_not).then_some(statement),
        }
    }

    /// The option's letter, if that is what is said.
    fn letter(&self, statement: &Statement<'t>) -> Option<&'t str> {
        let clause = self.clause(statement.inner);
        let letter = self.option(clause)?;
        (!grammar("goes on").is_match(around(clause, letter).1)).then_some(letter)
    }

    /// The number, formula, option's letter or verdict, if nothing else is said.
    fn value(&self, statement: &Statement<'t>) -> Option<&'t str> {
        let clause = self.clause(statement.inner);
        if statement.is_formula {
            let content = self.formula(statement.inner)?;
            return if self.is_number() { self.number_like(content) } else { Some(content) };
        }
        let value = self.number_like(clause).filter(|_| !clause.contains(['=', '≈']));
        if self.is_number() { value } else { value.or_else(|| self.option(clause)).or_else(|| self.verdict(clause)) }
    }

    /// The statement that starts where a part of the text does.
    fn statement_at(&self, part: &str) -> Statement<'t> {
        let lead = |c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`' | ':');
        let rest = self.text[self.around(part).0.len()..].trim_start_matches(lead);
        // a formula may contain periods and newlines
        let formula = leading_formula(&rest[..boundary(rest, MAX_FORMULA)]).map_or(0, |(whole, _)| whole.len());
        let within = &rest[formula..boundary(rest, MAX_STATEMENT).max(formula)];
        let quoted = within.strip_prefix('"').and_then(|quoted| quoted.split_once(['"', '\n']));
        match quoted.filter(|(quoted, _)| formula == 0 && within[1 + quoted.len()..].starts_with('"')) {
            Some((quoted, _)) => self.statement(quoted),
            None => self.statement(&rest[..formula + self.sentence(within).len()]),
        }
    }

    /// A part as a statement: if a formula is at its start, and the expression does not continue after it, that formula.
    pub fn statement(&self, whole: &'t str) -> Statement<'t> {
        let part = whole.trim();
        let alone = |(formula, _): &(&str, &str)| {
            let rest = self.clause(&part[formula.len() - 1..])[1..].trim_start();
            !rest.contains(['$', '\\']) && !rest.starts_with(['=', '≈', '<', '>', '+', '-', '/', '^', '_'])
        };
        match leading_formula(part).filter(alone) {
            Some((_, inner)) => Statement { whole, inner: inner.trim(), is_formula: true },
            None => Statement { whole, inner: part, is_formula: false },
        }
    }

    /// The answer in a formula: all of it, without trailing punctuation; for `x = 5` and `3 + 4 = 7`, the number.
    pub fn formula(&self, inner: &'t str) -> Option<&'t str> {
        let mut inner = inner.trim();
        while let Some(shorter) = inner.strip_suffix(['.', ',', ';']).filter(|shorter| !shorter.ends_with('\\')) {
            inner = shorter.trim();
        }
        let right = inner.rsplit_once('=').filter(|(left, _)| grammar("left side").is_match(left));
        let right = right.map(|(_, right)| right.trim()).filter(|right| self.only_number(right) == Some(*right));
        right.or_else(|| (!is_blank(inner)).then_some(inner))
    }

    /// The sentence, or the rest of the line or tag, at the start of a part, without its punctuation.
    pub fn sentence(&self, part: &'t str) -> &'t str {
        let rest = &self.text[self.around(part).0.len()..];
        let closes = |at: usize| {
            let after = rest[at + 1..].trim_start_matches(['"', '\'', '”', '’', ')', ']', '*', '_', '`', '$']);
            after.is_empty() || after.starts_with(char::is_whitespace)
        };
        let ends = |at: usize, c: char| match c {
            '\n' | '。' | '！' | '？' => true,
            '<' => rest[at..].starts_with("</") || rest[at..].starts_with("<|"),
            '[' => rest[at..].starts_with("[/"),
            '.' => closes(at) && !self.is_abbreviation(&rest[..at], &rest[at + 1..]),
            '!' | '?' | ';' => closes(at),
            _ => false,
        };
        let end = part.char_indices().find(|(at, c)| ends(*at, *c));
        &part[..end.map_or(part.len(), |(at, _)| at)]
    }

    /// Whether a period between `before` and `after` belongs to the word before it: `Dr. Who`, `No. 5`, `J. K. Rowling`,
    /// `E. coli`, `U.S. Army`. Where options may be meant, one letter is an initial only beside another.
    pub fn is_abbreviation(&self, before: &str, after: &str) -> bool {
        let near = [&before[boundary(before, before.len().saturating_sub(16))..], ".\0", &after[..boundary(after, 60)]]
            .concat();
        let is = |name| grammar(name).is_match(&near);
        let initials = || is("initials") || (self.rule == AnswerRule::Words && is("initial") && !is("sentence opener"));
        is("abbreviation") || (self.rule != AnswerRule::Choice && initials())
    }

    /// The number, if that is what a statement is: the only one, after at most a few qualifying words or the last `=`, and
    /// followed by at most a unit.
    pub fn number_like(&self, statement: &'t str) -> Option<&'t str> {
        let mut tail = self.clause(statement);
        if self.is_list(tail) {
            return None;
        }
        if let Some(aside) = grammar("after the number").captures(tail) {
            tail = &tail[..aside.get(1).or(aside.get(0))?.start()];
        }
        tail = tail.rsplit(['=', '≈']).next().unwrap_or_default();
        let [Number { text: number, weak: false }] = self.numbers_in(tail) else { return None };
        let (before, after) = around(tail, number);
        let fits = grammar("before a number").is_match(before) && grammar("after a number").is_match(after);
        fits.then_some(number)
    }

    /// The letter of the option at the start of a part, by a pattern of the grammar.
    fn any_option(&self, pattern: &'static str, part: &'t str) -> Option<&'t str> {
        let found = grammar(pattern).captures(part)?;
        let letter = ["named", "bracketed", "single"].iter().find_map(|name| found.name(name))?;
        let after = part[letter.end()..].strip_prefix('.');
        let initial = after.is_some_and(|after| self.is_abbreviation(&part[..letter.end()], after));
        (!initial).then_some(letter.as_str())
    }

    /// [`Self::any_option`], unless others follow on its line: `A, C` is a list.
    pub fn option_by(&self, pattern: &'static str, part: &'t str) -> Option<&'t str> {
        let rest = |letter: &str| self.around(letter).1.lines().next().unwrap_or_default();
        self.any_option(pattern, part).filter(|letter| !grammar("more options").is_match(rest(letter)))
    }

    /// The letter of the only option at the start of a statement.
    pub fn option(&self, statement: &'t str) -> Option<&'t str> {
        self.option_by("option", statement)
    }

    /// The yes or no at the start of a statement, unless it is part of a name: `No. 5`, `Yes, Minister`.
    pub fn verdict(&self, statement: &'t str) -> Option<&'t str> {
        let found = grammar("verdict").captures(statement)?;
        let in_name = grammar("verdict in a name").is_match(&statement[found.name("rest")?.start()..]);
        found.name("verdict").map(|verdict| verdict.as_str()).filter(|_| !in_name)
    }

    /// The words of a statement that form its answer.
    pub fn words(&self, statement: &'t str) -> Option<&'t str> {
        if let Some(found) = self.option(statement).or_else(|| self.verdict(statement)) {
            return Some(found);
        }
        let only_brackets = statement.trim();
        if !only_brackets.is_empty() && only_brackets.chars().all(is_bracket) {
            return Some(only_brackets); // a bracket sequence of `dyck_languages`
        }
        let (before, after) = self.around(statement);
        let mut words = bare(match self.any_option("option", statement) {
            // several options: the line, up to its tag
            Some(_) if !after.starts_with('<') => self.text[before.len()..].lines().next().unwrap_or_default(),
            Some(_) => statement,
            None => self.clause(statement),
        });
        if let Some(ending) = grammar("ending").find(words).filter(|ending| ending.start() > 0) {
            words = &words[..ending.start()];
        }
        // A formula may consist of symbols only; a statement of just dashes and dots has no answer.
        let says = |c: char| c.is_alphanumeric() || matches!(c, '\\' | '∅' | '∞' | 'π' | '[' | '(' | '{' | '<' | '>');
        words.contains(says).then_some(words)
    }

    /// A statement up to the reason given for it.
    pub fn clause(&self, statement: &'t str) -> &'t str {
        let reason = grammar("reason").find(statement).map(|found| found.start()).filter(|length| *length > 0);
        statement[..reason.unwrap_or(statement.len())].trim_end_matches(['*', '_'])
    }
}

/// Number of words.
pub(super) fn count(text: &str) -> usize {
    text.split_whitespace().count()
}

/// What is before and after a slice of a text.
pub(super) fn around<'t>(text: &'t str, part: &str) -> (&'t str, &'t str) {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    (&text[..start], &text[start + part.len()..])
}

/// The formula at the start of a text, with its delimiters and without.
pub(super) fn leading_formula(text: &str) -> Option<(&str, &str)> {
    let first = if text.starts_with(['$', '\\']) { formulas(text).next() } else { None };
    first.filter(|(whole, _)| text.as_ptr() == whole.as_ptr())
}

/// The formulas of a text, in order, with their delimiters and without: `$…$`, `$$…$$`, `\(…\)`, `\[…\]`.
pub(super) fn formulas(text: &str) -> impl Iterator<Item = (&str, &str)> {
    grammar("formula").captures_iter(text).filter_map(|found| {
        let whole = found.get(0)?;
        let amount = found.get(4).is_some() && text[whole.end()..].starts_with(|c| digit(c).is_some()); // `$5 and $6`
        Some((whole.as_str(), found.iter().skip(1).flatten().next().filter(|_| !amount)?.as_str()))
    })
}

/// A text without the punctuation, quotes and whole or stray brackets at its ends; `(2, 3)` keeps its brackets.
pub(super) fn bare(text: &str) -> &str {
    let loose = |c: char| grammar("loose").is_match(c.encode_utf8(&mut [0; 4]));
    let mut inside = text;
    loop {
        inside = inside.trim_matches(loose);
        let stray = |(open, close): &(char, char)| {
            let (opens, closes) = (inside.starts_with(*open), inside.ends_with(*close));
            let pair = opens && closes && inside.matches(*open).count() == 1 && inside.matches(*close).count() == 1;
            (pair || (opens && !inside.contains(*close)), pair || (closes && !inside.contains(*open)))
        };
        let is_tuple = inside.starts_with(['(', '[']) && inside.ends_with([')', ']']) && inside.contains([',', ';']);
        match [('(', ')'), ('[', ']'), ('{', '}')].iter().map(stray).find(|(first, last)| *first || *last) {
            Some((first, last)) if !is_tuple => inside = &inside[usize::from(first)..inside.len() - usize::from(last)],
            _ => return inside,
        }
    }
}
