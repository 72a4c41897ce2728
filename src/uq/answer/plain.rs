//! Answers that nothing announces: a reply that is its answer, starts with it, or ends with it.

use super::AnswerRule;
use super::boxed::trim;
use super::number::{Number, last_number, numbers_in};
use super::statement::{
    MAX_STATEMENT, Statement, bare, clause, formula, is_abbreviation, is_list, math, number_like, option, sentence_end,
    spelled_number, verdict, words,
};
use std::ops::Range;

/// The formula, if the text consists of one and nothing else.
pub(super) fn only_formula(text: &str, numbers: &[Number]) -> Option<Range<usize>> {
    let whole = trim(text, 0..text.len());
    let (inner, end) = math(text, whole.clone())?;
    formula(text, inner, numbers).filter(|_| text[end..whole.end].trim_matches(['.', ' ']).is_empty())
}

/// The word, if the text has only one; or the name, if it is nothing else.
pub(super) fn single_word(text: &str) -> Option<Range<usize>> {
    let name = pattern!(r"^\s*[*_]*((?:\p{Lu}[\p{L}'’.-]*\s+){1,3}\p{Lu}[\p{L}'’-]*)[*_]*\.?\s*$").captures(text);
    if let Some(name) = name.and_then(|name| name.get(1)) {
        return Some(name.range());
    }

    let word = bare(text, Statement::unwrapped(text, 0..text.len()).0);
    let inside = &text[word.clone()];
    let is_word = inside.contains(char::is_alphabetic) && !inside.contains(['\\', '{', '<', '>']);
    (is_word && !inside.contains(char::is_whitespace) && inside.len() <= MAX_STATEMENT).then_some(word)
}

/// The letter of the option a text ends with: its last line is `C) Paris`, `**(C) Paris**` or `Option C is correct`, and not
/// the last item of a list.
pub(super) fn option_line(text: &str, rule: AnswerRule) -> Option<Range<usize>> {
    let pattern = pattern!(
        r"^[\s*_`>]*(?:\((?P<bracketed>[A-Z])\)|(?P<single>[A-Z])[).:])[*_]*(?:\s+\S.*)?$|",
        r"(?i)^[\s*_`]*(?:so,?\s+)?(?:option|choice)\s+[(*_]*(?P<named>[a-z])[)*_]*(?:\s+is\s+(?:the\s+)?(?:correct|right|best)\b|[:.]|\s*$)"
    );
    let letter = |line: &str| {
        let found = pattern.captures(line)?;
        let letter = found.name("bracketed").or_else(|| found.name("single")).or_else(|| found.name("named"))?;
        let rest = &line[letter.end()..];
        let other = is_list(rest) || (rest.starts_with('.') && is_abbreviation(letter.as_str(), &rest[1..], rule));
        (!other).then_some(letter.range())
    };
    let mut lines = text.lines().rev().filter(|line| !line.trim().is_empty());
    let last = lines.next().filter(|line| line.len() <= MAX_STATEMENT)?;
    let start = text.rfind(last)?;
    let found = letter(last).filter(|_| lines.next().is_none_or(|line| letter(line).is_none()))?;
    Some(start + found.start..start + found.end)
}

/// The answer that a reply starts with, before its explanation: alone on the first line, or before a comma, a colon, a dash or
/// a full stop.
pub(super) fn first(text: &str, numbers: &[Number], rule: AnswerRule) -> Option<Range<usize>> {
    let lead = |c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`' | '#' | '>');
    let start = text.len() - text.trim_start_matches(lead).len();
    let end = start + text[start..].find('\n').unwrap_or(text.len() - start);
    let line = start..start + text[start..end].trim_end_matches(['*', '_', '`', ' ', '\r', '.']).len();
    let rest = &text[end..];
    let apart = rest.starts_with("\n\n") || rest.starts_with("\n\r\n") || explains(rest);
    if line.is_empty() || line.len() > MAX_STATEMENT {
        return None;
    }
    let number = rule == AnswerRule::Number;
    // all of the first line
    if apart && !rest.trim().is_empty() {
        let (inner, is_formula) = Statement::unwrapped(text, line.clone());
        let short = text[line.clone()].split_whitespace().count() <= 4 && !text[line.clone()].contains(['=', '≈']);
        let value = if is_formula && !number { formula(text, inner.clone(), numbers) } else { None };
        let value = value.or_else(|| number_like(text, &inner, numbers).filter(|_| short));
        let value = value.or_else(|| option(text, inner.clone(), rule).filter(|_| !number));
        let named = || bare(text, inner.clone());
        let again = |word: &Range<usize>| {
            let pronoun = pattern!(r"^\s*(?:It|He|She|They|This)\b").is_match(rest);
            let opener = pattern!(
                r"(?i)^(?:sure|ok(?:ay)?|certainly|of course|solution|answer|explanation|hello|hi|step|let|well|hmm)\b"
            );
            explains(rest)
                || rest.trim_start().starts_with(&text[word.clone()])
                || (pronoun && !opener.is_match(&text[word.clone()]))
        };
        let value = value.or_else(|| Some(named()).filter(|word| short && !number && !word.is_empty() && again(word)));
        if value.is_some() {
            return value;
        }
    }
    // its beginning
    let sentence = line.start..sentence_end(text, line.start..end, rule);
    if let Some(verdict) = verdict(text, &(line.start..end)).filter(|_| !number) {
        return Some(verdict);
    }
    if rule == AnswerRule::Choice {
        return option(text, line.start..end, rule);
    }
    let reason = pattern!(
        r"^[*_]*(?:,| ?[:;—–]| -|\.)\s+(?i:because|since|as|for|reason|explanation|that is|which|it|this|they|he|she)\b"
    );
    let part = clause(text, &sentence);
    let said = bare(text, part.clone());
    let explained = reason.is_match(&text[said.end..]) && text[said.clone()].split_whitespace().count() <= 4;
    let value = number_like(text, &part, numbers).filter(|_| explained);
    let name = |said: &Range<usize>| explained && !number && text[said.clone()].starts_with(char::is_uppercase);
    value.or_else(|| Some(said).filter(name))
}

/// Whether a text starts by explaining what comes before it.
fn explains(text: &str) -> bool {
    pattern!(r"(?i)^[\s*_#(>-]*(?:explanation|reason(?:ing)?|because|justification|why|rationale|proof|since|this is because|here's why|erklärung|begründung|explication|explicación|explicação|spiegazione|объяснение|解释|解析|理由|説明|해설|설명)\b").is_match(text)
}

/// The answer in the last sentence: its bold part, or what it says something is (`The capital is Lyon.`).
pub(super) fn last_sentence(text: &str, numbers: &[Number], rule: AnswerRule) -> Option<Range<usize>> {
    let whole = trim(text, 0..text.len());
    let paragraph = whole.start + text[whole.clone()].rfind("\n\n").map_or(0, |at| at + 2)..whole.end;
    let bold = pattern!(r"\*\*([^*\n]{1,80})\*\*").captures_iter(&text[paragraph.clone()]).last();
    if let Some(bold) = bold.and_then(|found| found.get(1)).filter(|bold| !bold.as_str().trim_end().ends_with(':')) {
        let bold = paragraph.start + bold.start()..paragraph.start + bold.end();
        let (inner, is_formula) = Statement::unwrapped(text, bold.clone());
        let value = number_like(text, &inner, numbers);
        match rule {
            AnswerRule::Number => return value,
            _ if is_formula => return formula(text, inner, numbers),
            _ => {}
        }
        let few = text[bold.clone()].split_whitespace().count() <= 6;
        return value.filter(|_| rule != AnswerRule::Words).or_else(|| words(text, &inner, rule).filter(|_| few));
    }
    if rule == AnswerRule::Number {
        return None;
    }
    let mut start = paragraph.start;
    let mut only = paragraph == whole;
    loop {
        let end = sentence_end(text, start..paragraph.end, rule);
        let next = text.len()
            - text[end..].trim_start_matches(['.', '!', '?', ';', ')', '"', '*', '_', '。', ' ', '\n', '\r']).len();
        if next >= paragraph.end || next <= start {
            break;
        }
        (start, only) = (next, false);
    }
    let copula = pattern!(
        r"(?i)^[*_\s]*(?P<so>(?:so|thus|hence|therefore|in short|in conclusion|overall),?\s+)?(?:it|this|that|he|she|they|(?:the|its|his|her|their)\s[^.,;:\n]{1,60}?)(?:'s|\s(?:is|are|was|were))\s"
    );
    let found = copula.captures(&text[start..paragraph.end]).filter(|found| only || found.name("so").is_some())?;
    let said = start + found[0].len()..sentence_end(text, start..paragraph.end, rule);
    let (inner, is_formula) = Statement::unwrapped(text, said);
    if is_formula {
        return formula(text, inner, numbers);
    }
    if rule != AnswerRule::Words && !numbers_in(numbers, &inner).is_empty() {
        return number_like(text, &inner, numbers);
    }
    words(text, &inner, rule).filter(|said| text[said.clone()].split_whitespace().count() <= 6)
}

/// The last formula of a text whose last sentence concludes with it: `Hence $f(x) = x + 2$.`
pub(super) fn concluding_formula(text: &str, numbers: &[Number]) -> Option<Range<usize>> {
    let hence = pattern!(
        r"(?i)(?:^|[.\n]\s*)(?:so|thus|hence|therefore|finally|consequently)\b,?[^.$\n]{0,60}?(?P<formula>\$|\\\(|\\\[)"
    );
    let start = hence.captures_iter(text).last()?.name("formula")?.start();
    let (inner, end) = math(text, start..text.len())?;
    formula(text, inner, numbers).filter(|_| text[end..].trim_matches(['.', ' ', '\n']).is_empty())
}

/// The last number of a text: not of its check or sources, of a citation (`[2]`) or of an aside, if there is another.
pub(super) fn closing_number(text: &str, numbers: &[Number], rule: AnswerRule) -> Option<Range<usize>> {
    let aside = pattern!(
        r"(?im)^[\s*_#>(-]*(?:(?:let me |let's |let us |to |quick |sanity |double[- ])*(?:verify|verification|check)|sources?|references?|note|",
        r"vérification|überprüfung|probe|kontrolle|comprobación|verificación|verificação|verifica|проверка|验证|驗證|检验|検算|確認|검산|확인)[*_]* ?:"
    );
    let end = aside.find_iter(text).map(|found| found.start()).find(|at| !numbers_in(numbers, &(0..*at)).is_empty());
    let end = end.unwrap_or(text.len());
    let brackets = pattern!(r"\[[0-9][0-9, ]*\]|[0-9\p{L}%*]\s+\([^()\n]*(?:[\p{L}=+×*/]|[0-9] ?[-−])[^()\n]*\)")
        .find_iter(&text[..end]);
    let asides: Vec<Range<usize>> = brackets.map(|found| found.start() + 1..found.end()).collect();
    let inside = numbers_in(numbers, &(0..end));
    let apart = |number: &Number| {
        !asides.iter().any(|aside| aside.start <= number.range.start && number.range.end <= aside.end)
    };
    let (only, all) = (rule == AnswerRule::Number, 0..text.len());
    let found = inside.iter().any(|number| !number.weak && apart(number));
    let found = if found { last_number(text, numbers, &(0..end), only, apart) } else { None };
    found.or_else(|| last_number(text, numbers, &all, only, |_| true))
}

/// The last number in words, for a text without digits: `Twelve apples are left.` `one` is a pronoun more often than not.
pub(super) fn counted(text: &str) -> Option<Range<usize>> {
    let start = text.rfind("\n\n").map_or(0, |at| at + 2);
    let one = |found: &Range<usize>| {
        let pronoun = pattern!(r"(?i)\b(?:no|any|every|each|the|this|that|which|right|correct|only|other|some)\s+$")
            .is_match(&text[..found.start])
            || pattern!(r"(?i)^\s+(?:of|who|that|can|is|could|must|may|should)\b").is_match(&text[found.end..]);
        text[found.clone()].eq_ignore_ascii_case("one") && pronoun
    };
    spelled_number(text, &(start..text.len())).filter(|found| !one(found))
}
