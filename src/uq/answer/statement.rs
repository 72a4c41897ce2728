//! What a statement after an announcement says: a number, a formula, an option's letter, a verdict, words.

use super::announce::{Found, Then};
use super::boxed::{is_blank, is_bracket, trim};
use super::number::{self, Number, last_number, numbers_in, only_number};
use super::value::spoken;
use super::{AnswerRule, digit};
use std::ops::Range;

/// Max bytes searched for an announced answer.
pub(super) const MAX_STATEMENT: usize = 400;

/// As [`MAX_STATEMENT`], for a formula between delimiters: the most the grader reads.
const MAX_FORMULA: usize = 2000;

/// The answer of an announcement, if it has one.
pub(super) fn announced(text: &str, found: &Found, numbers: &[Number], rule: AnswerRule) -> Option<Range<usize>> {
    let statement = Statement::of(text, found, rule)?;
    match (found.then, rule) {
        (Then::Letter, _) => statement.letter(text),
        (Then::Value, _) => statement.value(text, numbers, rule),
        (_, AnswerRule::Number) => {
            let clause = clause(text, &statement.inner);
            // `12 apples, bought in 3 shops`
            let aside = pattern!(r",\s+(\p{Alphabetic}{2,})").captures(&text[clause.clone()]);
            let aside = aside.filter(|found| !matches!(&found[1], "and" | "or")).and_then(|found| found.get(0));
            let main = clause.start..aside.map_or(clause.end, |aside| clause.start + aside.start());
            number::said(text, numbers, &clause)
                .or_else(|| number::said(text, numbers, &main))
                .filter(|said| !number::is_part(text, said))
                .or_else(|| number::is_list(text, numbers, &clause).then_some(clause))
                .or_else(|| last_number(text, numbers, &statement.whole, true, |_| true))
                .or_else(|| spelled_number(text, &statement.whole))
        }
        _ if statement.is_formula => formula(text, statement.inner, numbers),
        (_, AnswerRule::Words) => words(text, &statement.inner, rule),
        _ => number_like(text, &statement.inner, numbers)
            .or_else(|| said(text, &statement.inner, numbers, rule))
            .or_else(|| words(text, &statement.inner, rule)),
    }
}

/// [`announced`], if what is said is nothing but that answer, exactly: it replaces an earlier one.
pub(super) fn concluded(text: &str, found: &Found, numbers: &[Number], rule: AnswerRule) -> Option<Range<usize>> {
    let statement = Statement::of(text, found, rule)?;
    let about = pattern!(r"(?i)\b(?:about|approx\w*|roughly|around|nearly)\b|[≈~]|\\(?:approx|sim)\b");
    let name = |answer: &Range<usize>| {
        let words = &text[answer.clone()];
        matches!(rule, AnswerRule::Words | AnswerRule::Auto)
            && words.starts_with(char::is_uppercase)
            && words.split_whitespace().count() <= 4
    };
    match found.then {
        Then::Letter => statement.letter(text),
        _ if about.is_match(&text[statement.whole.clone()]) => None,
        _ => statement.value(text, numbers, rule).or_else(|| announced(text, found, numbers, rule).filter(name)),
    }
}

/// The first number spelled out in a statement: `twelve`, `twenty-one`, `three hundred`; none in `one of them`.
pub(super) fn spelled_number(text: &str, statement: &Range<usize>) -> Option<Range<usize>> {
    let (found, _) = spoken(&text[statement.clone()]).next()?;
    let part_of = text[statement.start + found.end..statement.end].trim_start().starts_with("of ");
    (!part_of).then(|| statement.start + found.start..statement.start + found.end)
}

/// GSM8K's `#### 18`, in order.
pub(super) fn hashes(text: &str, numbers: &[Number]) -> impl Iterator<Item = Found> {
    let lines = pattern!(r"(?m)(?:^|[^#])####[ \t]*(?P<line>[^#\n].*)$").captures_iter(text);
    let lines = lines.filter_map(|found| found.name("line"));
    let starts = lines.filter(|line| is_answer_line(text, line.range(), numbers)).map(|line| line.start());
    starts.map(|start| Found { at: start..start, then: Then::Anything })
}

/// Whether the line after `####` is an answer as in GSM8K rather than a level-four heading: it starts with a number that is
/// not a section number, or nothing follows it.
fn is_answer_line(text: &str, line: Range<usize>, numbers: &[Number]) -> bool {
    let first = numbers_in(numbers, &line).first().filter(|number| !number.weak);
    let marks = |lead: &str| lead.chars().all(|c| matches!(c, '*' | '_' | '`' | '$' | '£' | '€' | '¥' | '\\' | '('));
    first.is_some_and(|number| marks(&text[line.start..number.range.start])) || text[line.end..].trim().is_empty()
}

/// The words after an announcement.
pub(super) struct Statement {
    /// Up to the end of its sentence.
    whole: Range<usize>,
    /// For a formula, the content between its delimiters; else the same.
    inner: Range<usize>,
    is_formula: bool,
}

impl Statement {
    /// The statement of an announcement; `None` for a question, and for what the answer is not.
    fn of(text: &str, found: &Found, rule: AnswerRule) -> Option<Self> {
        if !found.at.is_empty() {
            let pronoun = pattern!(r"(?i)^(?:this|that|it|here|there|which|what|who|he|she|one|below|above|\W*)$");
            let (inner, is_formula) = Self::unwrapped(text, found.at.clone());
            return (!pronoun.is_match(&text[inner.clone()])).then(|| Statement {
                whole: found.at.clone(),
                inner,
                is_formula,
            });
        }
        let statement = Self::at(text, found.at.start, rule);
        let said = &text[statement.whole.clone()];
        let not = pattern!(
            r"(?i)^(?:not|neither)\b(?:[^.;\n]{1,80}?(?:\bbut\b|[,;—–-] ?(?:it|that) ?(?:'s|is)|[,;] ?rather)\s+)?"
        )
        .find(said);
        match not {
            _ if text[statement.whole.end..].trim_start_matches(['*', '_', '`', ')', '"']).starts_with(['?', '？']) => {
                None
            }
            Some(not) if not.len() < 8 && rule != AnswerRule::Number => None,
            Some(not) if rule != AnswerRule::Number => Some(Self::at(text, statement.whole.start + not.end(), rule)),
            _ => Some(statement),
        }
    }

    /// The option's letter, if that is what is said.
    fn letter(&self, text: &str) -> Option<Range<usize>> {
        let clause = clause(text, &self.inner);
        if clause.len() == 1 {
            return Some(clause).filter(|letter| text[letter.clone()].starts_with(char::is_alphabetic));
        }
        let letter = option(text, clause.clone(), AnswerRule::Choice)?;
        let more = text[letter.end..clause.end].trim_start_matches([')', ']', '"', '\'', '*', '_']);
        let goes_on = pattern!(r"^\s+(?:is|are|was|that|who|which|has|had|would|could|can|cannot|may|might|isn't)\b");
        (!goes_on.is_match(more)).then_some(letter)
    }

    /// The number, formula, option's letter or verdict, if nothing else is said.
    fn value(&self, text: &str, numbers: &[Number], rule: AnswerRule) -> Option<Range<usize>> {
        let (clause, number) = (clause(text, &self.inner), AnswerRule::Number);
        if self.is_formula {
            let content = formula(text, self.inner.clone(), numbers)?;
            return if rule == number { number_like(text, &content, numbers) } else { Some(content) };
        }
        let sum = text[clause.clone()].contains(['=', '≈']);
        let value = number_like(text, &clause, numbers).filter(|_| !sum);
        let value = if rule == number { value } else { value.or_else(|| option(text, clause.clone(), rule)) };
        value.or_else(|| verdict(text, &clause).filter(|_| rule != number))
    }

    /// The statement that starts after an announcement.
    fn at(text: &str, start: usize, rule: AnswerRule) -> Self {
        let lead = |c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`' | '>' | ':');
        let start = text.len() - text[start..].trim_start_matches(lead).len();
        let limit =
            |length: usize| (start + length..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        // A formula may contain periods and newlines.
        let formula_end = math(text, start..limit(MAX_FORMULA)).map_or(start, |(_, end)| end);
        let within = formula_end..formula_end.max(limit(MAX_STATEMENT));
        let quoted = text[within.clone()].strip_prefix('"').and_then(|rest| rest.find(['"', '\n']));
        let (start, end) = match quoted.filter(|end| text[within.start + 1 + end..].starts_with('"')) {
            Some(end) => (start + 1, start + 1 + end),
            None => (start, sentence_end(text, within, rule)),
        };
        let whole = start..end;
        let (inner, is_formula) = Self::unwrapped(text, whole.clone());
        Self { whole, inner, is_formula }
    }

    /// The content of a formula at the start of a range, unless the expression continues after it, and whether it is one.
    pub(super) fn unwrapped(text: &str, range: Range<usize>) -> (Range<usize>, bool) {
        let range = trim(text, range);
        let alone = |end: usize| {
            let rest = text[end..clause(text, &(end - 1..range.end)).end].trim_start();
            !rest.contains(['$', '\\']) && !rest.starts_with(['=', '≈', '<', '>', '+', '-', '/', '^', '_'])
        };
        match math(text, range.clone()) {
            Some((inner, end)) if alone(end) => (trim(text, inner), true),
            _ => (range, false),
        }
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
    let formula = pattern!(
        r"(?s)\\\$|\$\$((?:\\.|[^\\])*?)\$\$|\\\[((?:\\.|[^\\])*?)\\\]|\\\(((?:\\.|[^\\])*?)\\\)|",
        r"\$((?:\\[^\n]|[^$\s\\])(?:(?:\\[^\n]|[^$\n\\])*(?:\\[^\n]|[^$\s\\]))?)\$"
    );
    formula.captures_iter(&text[within.clone()]).filter_map(move |found| {
        let place = |part: regex::Match| within.start + part.start()..within.start + part.end();
        let whole = place(found.get(0)?);
        let amount = found.get(4).is_some() && text[whole.end..within.end].starts_with(|c: char| digit(c).is_some());
        let inner = found.iter().skip(1).flatten().next().filter(|_| !amount)?;
        Some((whole, place(inner)))
    })
}

/// The answer in a formula: all of it, without trailing punctuation; for `x = 5` and `3 + 4 = 7`, the number.
pub(super) fn formula(text: &str, inner: Range<usize>, numbers: &[Number]) -> Option<Range<usize>> {
    let left = pattern!(
        r"^\s*(?:(?:\\?[A-Za-z]|\\[A-Za-z]+|[A-Z]{2,3})'?(?:_(?:\w|\{\w+\}))?(?:\([^()=]*\))?|",
        r"(?:[-−+*/0-9\s.,(){}^=×·÷]|\\(?:[dt]?frac|cdot|times|div|sqrt|left|right)\b)+)\s*$"
    );
    let mut inner = trim(text, inner);
    while text[inner.clone()].ends_with(['.', ',', ';']) && !text[..inner.end - 1].ends_with('\\') {
        inner = trim(text, inner.start..inner.end - 1);
    }
    if let Some(at) = text[inner.clone()].rfind('=')
        && left.is_match(&text[inner.start..inner.start + at])
    {
        let right = trim(text, inner.start + at + 1..inner.end);
        if only_number(numbers, &right).is_some_and(|number| number == right) {
            return Some(right);
        }
    }
    (!is_blank(&text[inner.clone()])).then_some(inner)
}

/// The predicate of a statement such as `the largest n is 34`: a number, a formula, an option's letter.
fn said(text: &str, statement: &Range<usize>, numbers: &[Number], rule: AnswerRule) -> Option<Range<usize>> {
    let clause = clause(text, statement);
    let subject =
        pattern!(r"(?i)^(?:(?:so|thus|hence|therefore),?\s+)?(?:the|there|its|our)\b.*\s(?:is|are|equals)\s+")
            .find(&text[clause.clone()])?;
    let (tail, is_formula) = Statement::unwrapped(text, clause.start + subject.end()..clause.end);
    if is_formula {
        return formula(text, tail, numbers);
    }
    number_like(text, &tail, numbers).or_else(|| option(text, tail, rule))
}

/// End of the sentence, line or tag at the start of a range, without its punctuation.
pub(super) fn sentence_end(text: &str, range: Range<usize>, rule: AnswerRule) -> usize {
    let closes = |at: usize| {
        let after = text[at + 1..].trim_start_matches(['"', '\'', '”', '’', ')', ']', '*', '_', '`', '$']);
        after.is_empty() || after.starts_with(char::is_whitespace)
    };
    let ends = |at: usize, c: char| match c {
        '\n' | '。' | '！' | '？' => true,
        '<' => text[at..].starts_with("</") || text[at..].starts_with("<|"),
        '[' => text[at..].starts_with("[/"),
        '.' => closes(at) && !is_abbreviation(&text[range.start..at], &text[at + 1..], rule),
        '!' | '?' | ';' => closes(at),
        _ => false,
    };
    let mut inside = text[range.clone()].char_indices().map(|(offset, c)| (range.start + offset, c));
    inside.find(|(at, c)| ends(*at, *c)).map_or(range.end, |(at, _)| at)
}

/// Whether a period between `before` and `after` belongs to the word before it: `Dr. Who`, `No. 5`, `J. K. Rowling`, `E. coli`,
/// `U.S. Army`. Where options may be meant, one letter is an initial only beside another.
pub(super) fn is_abbreviation(before: &str, after: &str, rule: AnswerRule) -> bool {
    const KNOWN: &str = "approx ca cf dr e.g fig ft gen gov hon i.e inc jr lt mr mrs ms mt prof rev sgt sr st vol vs";
    let word =
        before.rsplit(|c: char| c.is_whitespace() || matches!(c, '(' | '*' | '_' | '"')).next().unwrap_or_default();
    let after = after.trim_start();
    let known = KNOWN.split(' ').any(|known| word.eq_ignore_ascii_case(known));
    let number = matches!(word, "No" | "no" | "Nos" | "nr" | "Nr" | "p" | "pp")
        && after.starts_with(|c: char| c.is_ascii_digit());
    known || number || is_initial(before, word, after, rule)
}

/// Whether a word before a period is an initial of the name that goes on in `after`.
fn is_initial(before: &str, word: &str, after: &str, rule: AnswerRule) -> bool {
    let letters = || word.split('.').all(|part| part.chars().count() == 1 && part.starts_with(char::is_uppercase));
    if rule == AnswerRule::Choice || after.is_empty() || !letters() {
        return false;
    }
    let beside = word.contains('.')
        || pattern!(r"^\p{Lu}\.").is_match(after)
        || pattern!(r"\p{Lu}\.\s*\p{Lu}$").is_match(before);
    // one or two more words, none of which starts a sentence
    let name =
        pattern!(r"^(?P<first>\p{L}[\p{L}'’-]+)(?:\s+\p{L}[\p{L}'’-]+)?[*_\x22]*(?:[.,;:!?()]|\s*$)").captures(after);
    let opener = pattern!(
        r"(?i)^(?:the|an?|it|its|this|that|these|those|he|she|they|because|since|as|so|i|we|you|in|on|if|there|all|explanation|reason|option|both|no|yes)$"
    );
    let one = name.is_some_and(|name| !opener.is_match(&name["first"]));
    (beside && after.starts_with(char::is_alphabetic)) || (rule == AnswerRule::Words && one)
}

/// The number, if that is what a statement is: the only one, after at most a few qualifying words or the last `=`, and
/// followed by at most a unit.
pub(super) fn number_like(text: &str, statement: &Range<usize>, numbers: &[Number]) -> Option<Range<usize>> {
    let lead = pattern!(
        r"(?i)^(?:\s|\b(?:about|approximately|approx|exactly|roughly|around|only|just|US)\b|\\approx\b|\\?[$]|",
        r#"\\[(\[]|[.*_`"'“‘~≈£€¥(:])*$"#
    );
    let unit = pattern!(
        r"^(?:\s*$|\s*(?:\\?[%$]|[°£€¥]|\^\\circ|\^\{\\circ\}|\\(?:text|mathrm|mbox)\b|\\[, )\]])|",
        r#"\s*[.,;:!?)\]"'”’*_`]|\s*\p{Alphabetic}{2}|\s+\p{Alphabetic}|[\p{Han}\p{Hangul}\p{Hiragana}])"#
    );
    // `15, as always` and `15 minutes (0.25 hours)`
    let mut clause = clause(text, statement);
    if let Some(aside) = pattern!(r",\s+\p{Alphabetic}|\d\s*\p{Alphabetic}*(\s*\([^()]*[=\p{Alphabetic}])")
        .captures(&text[clause.clone()])
    {
        clause.end = clause.start + aside.get(1).or(aside.get(0)).map_or(0, |end| end.start());
    }
    let equals = text[clause.clone()].rfind(['=', '≈']);
    let tail = equals.map_or(clause.start, |at| {
        clause.start + at + text[clause.start + at..].chars().next().map_or(0, char::len_utf8)
    });
    let tail = tail..clause.end;
    let number = only_number(numbers, &tail)?;
    let alone = numbers_in(numbers, &tail).len() == 1;
    let fits = lead.is_match(&text[tail.start..number.start]) && unit.is_match(&text[number.end..tail.end]);
    (alone && fits).then_some(number)
}

/// The letter of the option at the start of a statement.
fn any_option(text: &str, statement: Range<usize>, rule: AnswerRule) -> Option<Range<usize>> {
    let option = pattern!(
        r#"^["'“‘*_]*(?:(?i:option|choice|letter)[ *_]+[(\[]?(?P<named>[A-Za-z])\b|"#,
        r#"(?:(?i:statement|answer|antwort|option|réponse|(?:l')?(?:option|opzione)|la|el|a|o|(?:la |a )?(?:opción|opção|alternativa|opzione)|вариант|选项|選択肢)[ *_]*)?"#,
        r#"(?:[(\[](?P<bracketed>[A-Za-z])[)\]]|\b(?P<single>[A-Z])["'”’*_]*(?:[):,、]|\.(?:\W|$)|\s*$|\s+[-–—(]|[\p{Han}\p{Hiragana}\p{Hangul}]))"#,
        ")"
    );
    let inside = &text[statement.clone()];
    let found = option.captures(inside)?;
    let letter = found.name("named").or_else(|| found.name("bracketed")).or_else(|| found.name("single"))?.range();
    let rest = &inside[letter.end..];
    let initial = rest.starts_with('.') && is_abbreviation(&inside[..letter.end], &rest[1..], rule);
    (!initial).then_some(statement.start + letter.start..statement.start + letter.end)
}

/// [`any_option`], unless others follow on its line: `A, C` is a list.
pub(super) fn option(text: &str, statement: Range<usize>, rule: AnswerRule) -> Option<Range<usize>> {
    any_option(text, statement, rule).filter(|letter| !is_list(text[letter.end..].lines().next().unwrap_or_default()))
}

/// Whether what follows an option's letter is another's: `, C`, ` and (C)`, `: red, C: green`.
pub(crate) fn is_list(rest: &str) -> bool {
    pattern!(
        r#"^["'”’*_)\]]*(?:\s*(?:[,;/&+、]|\b(?:and|or|und|oder|et|ou|y|o|e|и|или)\b|和|与|或|と|및)\s*(?:(?:and|or)\s+)?(?i:option\s+)?"#,
        r#"["'“‘*_(\[]*[A-Z]["'”’*_)\]]*(?:\s*$|\s*[,;/&+.:)、]|\s+(?:and|or)\b)|"#,
        r"\s*[:.)]?[^,;\n]{0,40}?(?:[,;]\s*(?:and\s+)?|\s(?:and|or|und|et|y|e|и)\s+)(?:\([A-Z]\)|[A-Z][):]))"
    )
    .is_match(rest)
}

/// The yes or no at the start of a statement, unless it is part of a name: `No. 5`, `Yes, Minister`.
pub(super) fn verdict(text: &str, statement: &Range<usize>) -> Option<Range<usize>> {
    let verdict = pattern!(
        r#"(?i)^["'“‘*_]*(?P<verdict>yes|no|true|false|valid|invalid|plausible|implausible)"#,
        r#"["'”’*_]*(?P<rest>\s*$|\s*[,;:.!(–—}]|\s+-)"#
    );
    let inside = &text[statement.clone()];
    let found = verdict.captures(inside)?;
    let (verdict, rest) = (found.name("verdict")?, &inside[found.name("rest")?.start()..]);
    let name = pattern!(r"^(?:\.\s*[0-9]|,\s+\p{Lu}\p{L}+(?:\s+\p{Lu}\p{L}+)?\s*$)").is_match(rest);
    (!name).then_some(statement.start + verdict.start()..statement.start + verdict.end())
}

/// The words of a statement that form its answer.
pub(super) fn words(text: &str, statement: &Range<usize>, rule: AnswerRule) -> Option<Range<usize>> {
    if let Some(found) = option(text, statement.clone(), rule).or_else(|| verdict(text, statement)) {
        return Some(found);
    }
    let only_brackets = trim(text, statement.clone());
    if !only_brackets.is_empty() && text[only_brackets.clone()].chars().all(is_bracket) {
        return Some(only_brackets); // a bracket sequence of `dyck_languages`
    }
    // several options: the line
    let listed = any_option(text, statement.clone(), rule).is_some();
    let line = || statement.start..statement.start + text[statement.start..].lines().next().map_or(0, str::len);
    let mut words = bare(text, if listed { line() } else { clause(text, statement) });
    let tail = pattern!(r"(?:です|である|になります|となります|입니다|이다|이에요|예요|\s+\[[0-9][0-9, ]*\])[。.\s]*$");
    let end = tail.find(&text[words.clone()]).map(|tail| words.start + tail.start()).filter(|end| *end > words.start);
    words.end = end.unwrap_or(words.end);
    // A formula may consist of symbols only; a statement of just dashes and dots has no answer.
    let says = |c: char| c.is_alphanumeric() || matches!(c, '\\' | '∅' | '∞' | 'π' | '[' | '(' | '{' | '<' | '>');
    text[words.clone()].contains(says).then_some(words)
}

/// A statement up to the reason given for it.
pub(super) fn clause(text: &str, statement: &Range<usize>) -> Range<usize> {
    let reason = pattern!(
        r"(?i)[*_]*(?:,\s+(?:because|since|as|so|which|who|whose|where|but|meaning|due|given|not)\b|",
        r"\s+(?:because|since|due to|so that|which|rather than|instead of)\b|\s+[(—–]\s*\p{Alphabetic}|—)"
    );
    let inside = &text[statement.clone()];
    let length = reason.find(inside).map(|found| found.start()).filter(|start| *start > 0).unwrap_or(inside.len());
    statement.start..statement.start + length
}

/// A range without the punctuation, quotes and whole or stray brackets at its ends; `(2, 3)` keeps its brackets.
pub(super) fn bare(text: &str, mut range: Range<usize>) -> Range<usize> {
    const BRACKETS: [(char, char); 3] = [('(', ')'), ('[', ']'), ('{', '}')];
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
        let (first, last) = BRACKETS.iter().map(stray).find(|(a, b)| *a || *b).unwrap_or_default();
        if !first && !last {
            return range;
        }
        range = range.start + usize::from(first)..range.end - usize::from(last);
    }
}
