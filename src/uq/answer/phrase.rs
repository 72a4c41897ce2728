//! Answers announced in words: "the answer is X", "Answer: X", "#### X".

use super::boxed::{is_blank, is_bracket, trim};
use super::number::{Number, last_number, numbers_in, only_number};
use super::{AnswerRule, SMALL_NUMBERS, TENS};
use std::ops::Range;

/// Max bytes searched for an announced answer.
const MAX_STATEMENT: usize = 400;

/// As [`MAX_STATEMENT`], for a formula between delimiters: the most the grader reads.
const MAX_FORMULA: usize = 2000;

/// The answer of the last announcement that contains one.
pub(super) fn announced(text: &str, numbers: &[Number], rule: AnswerRule) -> Option<Range<usize>> {
    announcements(text, numbers, rule).into_iter().rev().find_map(|start| {
        let Statement { whole, inner, is_formula } = Statement::at(text, start);
        match rule {
            AnswerRule::Number => number_like(text, &inner, numbers)
                .or_else(|| last_number(numbers, &whole))
                .or_else(|| spelled_number(text, &whole)),
            _ if is_formula => formula(text, inner, numbers),
            AnswerRule::Words => words(text, &inner),
            AnswerRule::Boxed | AnswerRule::Auto => number_like(text, &inner, numbers)
                .or_else(|| said(text, &inner, numbers))
                .or_else(|| words(text, &inner)),
        }
    })
}

/// The formula, if the text consists of one and nothing else.
pub(super) fn only_formula(text: &str, numbers: &[Number]) -> Option<Range<usize>> {
    let whole = trim(text, 0..text.len());
    let (inner, end) = math(text, whole.clone())?;
    formula(text, inner, numbers).filter(|_| text[end..whole.end].trim_matches(['.', ' ']).is_empty())
}

/// The word, if the text has only one.
pub(super) fn single_word(text: &str) -> Option<Range<usize>> {
    let word = bare(text, Statement::unwrapped(text, 0..text.len()).0);
    let inside = &text[word.clone()];
    let is_word = inside.contains(char::is_alphabetic) && !inside.contains(['\\', '{', '<', '>']);
    (is_word && !inside.contains(char::is_whitespace) && inside.len() <= MAX_STATEMENT).then_some(word)
}

/// The letter of the option a text ends with: its last line is `C) Paris`, `**(C) Paris**` or `Option C is correct`, and not
/// the last item of a list.
pub(super) fn option_line(text: &str) -> Option<Range<usize>> {
    let pattern = pattern!(
        r"^[\s*_`>]*(?:\((?P<bracketed>[A-Z])\)|(?P<single>[A-Z])[).:])[*_]*(?:\s+\S.*)?$|",
        r"(?i)^[\s*_`]*(?:so,?\s+)?(?:option|choice)\s+[(*_]*(?P<named>[a-z])[)*_]*\s+is\s+(?:the\s+)?(?:correct|right|best)\b"
    );
    let letter = |line: &str| {
        let found = pattern.captures(line)?;
        let letter = found.name("bracketed").or_else(|| found.name("single")).or_else(|| found.name("named"))?;
        Some(letter.range())
    };
    let mut lines = text.lines().rev().filter(|line| !line.trim().is_empty());
    let last = lines.next().filter(|line| line.len() <= MAX_STATEMENT)?;
    let start = text.rfind(last)?;
    let found = letter(last).filter(|_| lines.next().is_none_or(|line| letter(line).is_none()))?;
    Some(start + found.start..start + found.end)
}

/// The number spelled out in a statement: `twelve`, `twenty-one`, `three hundred`.
fn spelled_number(text: &str, statement: &Range<usize>) -> Option<Range<usize>> {
    let words = pattern!({
        let words = [SMALL_NUMBERS, TENS, "hundred thousand million"].join(" ").replace(' ', "|");
        let word = format!("(?:{words})");
        format!(r"(?i)\b{word}(?:(?:\s+and)?[\s-]+{word})*\b")
    });
    let found = words.find(&text[statement.clone()])?;
    let part_of = text[statement.start + found.end()..statement.end].trim_start().starts_with("of ");
    (!part_of).then(|| statement.start + found.start()..statement.start + found.end())
}

/// Starts of announced answers, in order.
fn announcements(text: &str, numbers: &[Number], rule: AnswerRule) -> Vec<usize> {
    let spoken = pattern!(
        r"(?i)(?P<other>\b(?:this|that|your|each|every|any|an)[\s*_]+)?", // "I hope this answer is clear"
        r"\banswers?\b[*_]*(?:[ \t]+(?:to|for|of)\b[^.:=\n]{0,80}?)?(?:[ \t]*\([^()\n]{0,40}\))?[*_\s]*",
        r"(?:\b(?:is|are|was|(?:would|will|should|must)[ ]be)\b",
        r"(?:[ ](?:therefore|thus|hence|then|simply|indeed|clearly))?[*_\s]*[:=]?|[:=：])"
    );
    let spoken = spoken.captures_iter(text).filter(|found| found.name("other").is_none());
    let spoken = spoken.filter_map(|found| found.get(0)).map(|found| found.end());
    let headings = pattern!(r"(?im)^[ \t]*(?:#+|\*\*)[ \t*]*(?:the[ ])?(?:final[ ])?answer[ \t*_]*\n")
        .find_iter(text)
        .map(|found| found.end());
    let hashes = pattern!(r"(?m)(?:^|[^#])####[ \t]*(?P<line>[^#\n].*)$")
        .captures_iter(text)
        .filter_map(|found| found.name("line"));
    let hashes = hashes.filter(|line| is_answer_line(text, line.range(), numbers)).map(|line| line.start());
    let choices = pattern!(
        r"(?i)\b(?:correct|right|best)[ \t]+(?:answer[ \t]+)?(?:option|choice)[*_]*(?:[ \t]+is\b|:)[ \t*_]*:?"
    )
    .find_iter(text)
    .map(|found| found.end())
    .filter(|start| {
        let named = || option(text, clause(text, &Statement::at(text, *start).inner));
        rule != AnswerRule::Number && named().is_some()
    });
    let mut starts: Vec<usize> = spoken.chain(headings).chain(hashes).chain(choices).collect();
    starts.sort_unstable();
    starts
}

/// Whether the line after `####` is an answer as in GSM8K rather than a level-four heading: it starts with a number that is
/// not a section number, or nothing follows it.
fn is_answer_line(text: &str, line: Range<usize>, numbers: &[Number]) -> bool {
    let first = numbers_in(numbers, &line).first().filter(|number| !number.weak);
    let marks = |lead: &str| lead.chars().all(|c| matches!(c, '*' | '_' | '`' | '$' | '£' | '€' | '¥' | '\\' | '('));
    first.is_some_and(|number| marks(&text[line.start..number.range.start])) || text[line.end..].trim().is_empty()
}

/// The answer of an announcement.
struct Statement {
    /// Up to the end of its sentence.
    whole: Range<usize>,
    /// For a formula, the content between its delimiters; else the same.
    inner: Range<usize>,
    is_formula: bool,
}

impl Statement {
    /// The statement that starts after an announcement.
    fn at(text: &str, start: usize) -> Self {
        let lead = |c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`' | '>' | ':');
        let start = text.len() - text[start..].trim_start_matches(lead).len();
        let limit =
            |length: usize| (start + length..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        // A formula may contain periods and newlines.
        let formula_end = math(text, start..limit(MAX_FORMULA)).map_or(start, |(_, end)| end);
        let whole = start..sentence_end(text, formula_end..formula_end.max(limit(MAX_STATEMENT)));
        let (inner, is_formula) = Self::unwrapped(text, whole.clone());
        Self { whole, inner, is_formula }
    }

    /// The content of a formula at the start of a range, unless the expression continues after it, and whether it is one.
    fn unwrapped(text: &str, range: Range<usize>) -> (Range<usize>, bool) {
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

/// The content and the end of the formula at the start of a range: `$…$`, `$$…$$`, `\(…\)`, `\[…\]`.
fn math(text: &str, range: Range<usize>) -> Option<(Range<usize>, usize)> {
    const DELIMITERS: [(&str, &str); 3] = [("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]")];
    let inside = &text[range.clone()];
    if let Some((open, close)) = DELIMITERS.iter().find(|(open, _)| inside.starts_with(open)) {
        let start = range.start + open.len();
        let end = start + closing(&inside[open.len()..], close)?;
        return Some((start..end, end + close.len()));
    }
    // Unlike an amount in dollars, a formula closes on its line, with no space just inside and no digit after it.
    let rest = inside.strip_prefix('$')?;
    let length = closing(rest, "$")?;
    let (formula, after) = (&rest[..length], &rest[length + 1..]);
    let tight = !formula.is_empty() && formula.trim() == formula && !formula.contains('\n');
    let end = range.start + 1 + length;
    (tight && !after.starts_with(|c: char| c.is_ascii_digit())).then_some((range.start + 1..end, end + 1))
}

/// Position of the delimiter that closes a formula: not after an unescaped backslash, as in `\$` and `\\]`.
fn closing(text: &str, close: &str) -> Option<usize> {
    let mut at = 0;
    while !text[at..].starts_with(close) {
        let mut rest = text[at..].chars();
        at += rest.next()?.len_utf8();
        if text[..at].ends_with('\\') {
            at += rest.next()?.len_utf8();
        }
    }
    Some(at)
}

/// The answer in a formula: all of it, without trailing punctuation; for `x = 5` and `3 + 4 = 7`, the number.
fn formula(text: &str, inner: Range<usize>, numbers: &[Number]) -> Option<Range<usize>> {
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
fn said(text: &str, statement: &Range<usize>, numbers: &[Number]) -> Option<Range<usize>> {
    let clause = clause(text, statement);
    let subject =
        pattern!(r"(?i)^(?:(?:so|thus|hence|therefore),?\s+)?(?:the|there|its|our)\b.*\s(?:is|are|equals)\s+")
            .find(&text[clause.clone()])?;
    let (tail, is_formula) = Statement::unwrapped(text, clause.start + subject.end()..clause.end);
    if is_formula {
        return formula(text, tail, numbers);
    }
    number_like(text, &tail, numbers).or_else(|| option(text, tail))
}

/// End of the sentence or line at the start of a range, without its punctuation.
fn sentence_end(text: &str, range: Range<usize>) -> usize {
    let closes = |at: usize| {
        let after = text[at + 1..].trim_start_matches(['"', '\'', '”', '’', ')', ']', '*', '_', '`', '$']);
        after.is_empty() || after.starts_with(char::is_whitespace)
    };
    let ends = |at: usize, c: char| match c {
        '\n' | '。' | '！' | '？' => true,
        '.' => closes(at) && !is_abbreviation(&text[range.start..at]),
        '!' | '?' | ';' => closes(at),
        _ => false,
    };
    let mut inside = text[range.clone()].char_indices().map(|(offset, c)| (range.start + offset, c));
    inside.find(|(at, c)| ends(*at, *c)).map_or(range.end, |(at, _)| at)
}

/// Whether a period after `before` belongs to its last word.
fn is_abbreviation(before: &str) -> bool {
    const KNOWN: [&str; 8] = ["approx", "ca", "dr", "mr", "mrs", "ms", "st", "vs"];
    let word = before.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    KNOWN.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// The number, if that is what a statement is: the only one, after at most a few qualifying words or the last `=`, and
/// followed by at most a unit.
fn number_like(text: &str, statement: &Range<usize>, numbers: &[Number]) -> Option<Range<usize>> {
    let lead = pattern!(
        r"(?i)^(?:\s|\b(?:about|approximately|approx|exactly|roughly|around|only|just|US)\b|\\approx\b|\\?[$]|",
        r#"\\[(\[]|[.*_`"'“‘~≈£€¥(:])*$"#
    );
    let unit = pattern!(
        r"^(?:\s*$|\s*(?:\\?[%$]|[°£€¥]|\^\\circ|\^\{\\circ\}|\\(?:text|mathrm|mbox)\b|\\[, )\]])|",
        r#"\s*[.,;:!?)\]"'”’*_`]|\s*\p{Alphabetic}{2}|\s+\p{Alphabetic})"#
    );
    // `15, as always` and `15 minutes (0.25 hours)`
    let mut clause = clause(text, statement);
    if let Some(aside) = pattern!(r",\s+\p{Alphabetic}|\d\s*\p{Alphabetic}+(\s+\()").captures(&text[clause.clone()]) {
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
fn option(text: &str, statement: Range<usize>) -> Option<Range<usize>> {
    let option = pattern!(
        r#"^["'“‘*_]*(?:(?i:option|choice|letter)[ *_]+[(\[]?(?P<named>[A-Za-z])\b|[(\[](?P<bracketed>[A-Za-z])[)\]]|"#,
        r#"(?P<single>[A-Z])["'”’*_]*(?:[).:,]|\s*$|\s+[-–—(]))"#
    );
    let found = option.captures(&text[statement.clone()])?;
    let letter = found.name("named").or_else(|| found.name("bracketed")).or_else(|| found.name("single"))?;
    Some(statement.start + letter.start()..statement.start + letter.end())
}

/// The words of a statement that form its answer.
fn words(text: &str, statement: &Range<usize>) -> Option<Range<usize>> {
    let verdict = pattern!(
        r#"(?i)^["'“‘*_]*(?P<verdict>yes|no|true|false|valid|invalid|plausible|implausible)"#,
        r#"["'”’*_]*(?:\s*$|\s*[,;:.!(–—]|\s+-)"#
    );
    if let Some(letter) = option(text, statement.clone()) {
        return Some(letter);
    }
    if let Some(verdict) = verdict.captures(&text[statement.clone()]).iter().find_map(|found| found.name("verdict")) {
        return Some(statement.start + verdict.start()..statement.start + verdict.end());
    }
    let only_brackets = trim(text, statement.clone());
    if !only_brackets.is_empty() && text[only_brackets.clone()].chars().all(is_bracket) {
        return Some(only_brackets); // a bracket sequence of `dyck_languages`
    }
    let words = bare(text, clause(text, statement));
    // A formula may consist of symbols only; a statement of just dashes and dots has no answer.
    let says = |c: char| c.is_alphanumeric() || matches!(c, '\\' | '∅' | '∞' | 'π' | '[' | '(' | '{' | '<' | '>');
    text[words.clone()].contains(says).then_some(words)
}

/// A statement up to the reason given for it.
fn clause(text: &str, statement: &Range<usize>) -> Range<usize> {
    let reason = pattern!(
        r"(?i)[*_]*(?:,\s+(?:because|since|as|so|which|where|but|meaning|due|given|not)\b|",
        r"\s+(?:because|since|due to|so that|which)\b|\s+[(—–]\s*\p{Alphabetic}|—)"
    );
    let inside = &text[statement.clone()];
    let length = reason.find(inside).map(|found| found.start()).filter(|start| *start > 0).unwrap_or(inside.len());
    statement.start..statement.start + length
}

/// A range without the punctuation, quotes and whole or stray brackets at its ends; `(2, 3)` keeps its brackets.
fn bare(text: &str, mut range: Range<usize>) -> Range<usize> {
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
