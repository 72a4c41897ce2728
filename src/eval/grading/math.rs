//! Answers in competition mathematics: numbers, expressions, equations, sets, intervals, tuples, words.

use super::{reference::hendrycks_form, words};
use crate::uq::answer::value::{Form, Rational, clean, group, nesting, number, parse, split, without_thousands};
use crate::uq::answer::{grammar, pattern};
use std::collections::BTreeSet;

/// The possible readings of an answer.
#[derive(Default)]
pub(super) struct Readings {
    /// A string that equal answers share.
    pub normal: String,
    /// Alternative readings: equal to an answer whose normal form is among them.
    others: Vec<String>,
    /// Values of a list or tuple in order, and whether they are named: `x=1, y=2` equals `(1,2)`.
    sequence: Option<(String, bool)>,
    /// Whether the answer could be parsed; if not, `normal` is its text without spaces.
    understood: bool,
    percent: bool,
}

/// Whether two answers are the same.
pub(super) fn equal(answer: &str, target: &str) -> bool {
    let (a, b) = (readings(answer), readings(target));
    let other = |from: &Readings, to: &Readings| from.others.contains(&to.normal) && !(from.percent && to.percent);
    let one_named = |((a, a_named), (b, b_named)): (&(String, bool), &(String, bool))| a == b && a_named != b_named;
    a.normal == b.normal
        || other(&a, &b)
        || other(&b, &a)
        || a.sequence.iter().zip(&b.sequence).any(one_named)
        || (!(a.understood && b.understood) && equal_as_text(answer, target))
}

/// The dataset authors' comparison, for answers that cannot be parsed. It ignores the text after a `\text{ `, which is
/// incorrect where that is more than a unit.
fn equal_as_text(answer: &str, target: &str) -> bool {
    let says_more = [answer, target].iter().any(|text| grammar("more than a unit").is_match(text));
    let (a, b) = (hendrycks_form(answer), hendrycks_form(target));
    !says_more && a.is_some_and(|a| !a.is_empty() && Some(a) == b)
}

pub(super) fn readings(answer: &str) -> Readings {
    let fallback = || answer.split_whitespace().collect::<String>();
    let Some((text, percent)) = &clean(answer) else { return Readings { normal: fallback(), ..Readings::default() } };
    let joined = without_thousands(text);
    let read_joined = |text: &str| read(&without_thousands(text), 0);
    let normal = read(&joined, 0);
    let understood = normal.is_some();
    let normal = normal.unwrap_or_else(fallback);
    let hundredth = || Some(parse(text)?.mul(Form::number(Rational::new(1, 100)?))?.key());
    let spelled = !text.contains(|c: char| c.is_ascii_digit());
    let others = [
        percent.then(hundredth).flatten(),
        read(text, 0), // "100,200" as two numbers
        equation(text),
        pattern!(r"^\s*([0-9]+)\s*_[{} ]*[0-9]+[{} ]*$").captures(text).and_then(|found| read(&found[1], 0)), // `1011_2`
        residue(text).map(|(residue, _)| residue.to_string()),
        split(text, &['≈'])[1..].last().and_then(|last| read_joined(last)), // 70/9 ≈ 7.78
        indexed(text).and_then(|values| read_joined(&values)),
        asked_value(text).and_then(read_joined),
        spelled.then(|| number(text)).flatten().map(|(value, _)| value.to_string()),
    ];
    let others = others.into_iter().flatten().filter(|other| *other != normal).collect();
    Readings { normal, others, sequence: sequence(&joined), understood, percent: *percent }
}

/// Residue and modulus of `x ≡ 10 (mod 7)` and `10 mod 7`: 3 and 7.
fn residue(text: &str) -> Option<(i128, i128)> {
    let found = grammar("residue").captures(text)?;
    let modulus = found["modulus"].parse().ok().filter(|modulus: &i128| *modulus > 0)?;
    let sides = split(found["value"].trim_end_matches([' ', '(']), &['≡', '=']);
    let (value, _) = sides.split_last().filter(|(_, names)| names.iter().all(|name| is_name(name)))?;
    Some((parse(value)?.as_rational()?.whole()?.rem_euclid(modulus), modulus))
}

/// The sides of an equation.
fn sides(text: &str) -> Option<[&str; 2]> {
    split(text, &['=']).try_into().ok()
}

/// `y = 2x` as an equation; letters may be on both sides.
fn equation(text: &str) -> Option<String> {
    let [left, right] = sides(text)?;
    let difference = parse(left)?.add(parse(right)?.negated()?)?.monic()?;
    Some(format!("0={}", difference.key()))
}

/// The right side of `m + n = 7` or `\frac{a}{b} = 2`: a question may ask for the sum or the ratio; a product says no factor.
fn asked_value(text: &str) -> Option<&str> {
    let [left, right] = sides(text)?;
    let number = parse(right)?.as_f64().is_some_and(|value| value != 0.0); // `x + y = 0` is an equation
    (number && grammar("sum or ratio").is_match(&parse(left)?.key())).then_some(right)
}

/// The values of `x_1 = 2, x_2 = 3` as a list: they are of one unknown.
fn indexed(text: &str) -> Option<String> {
    let names = pattern!(r"(^|[,;]\s*|\band\b\}?\s*)([A-Za-z])_(?:\w|\{\w+\})\s*=\s*");
    let letters: Vec<&str> = names.captures_iter(text).filter_map(|found| Some(found.get(2)?.as_str())).collect();
    let one = letters.len() > 1 && letters.windows(2).all(|pair| pair[0] == pair[1]);
    one.then(|| names.replace_all(text, "$1").into_owned())
}

/// The normal form of a cleaned answer.
fn read(text: &str, depth: usize) -> Option<String> {
    const MAX_DEPTH: usize = 6;
    let text = text.trim();
    if depth > MAX_DEPTH || text.is_empty() {
        return None;
    }
    if grammar("all reals").is_match(text) {
        return Some(String::from("(-1*∞,∞)"));
    }
    if let Some((value, modulus)) = residue(text) {
        return Some(format!("{value} mod {modulus}"));
    }
    if let Some(form) = as_words(text).or_else(|| alternatives(text)) {
        return Some(form);
    }
    if let Some(value) = value_in(text) {
        return read(value, depth + 1);
    }
    let (items, unions, ratios) = (list_items(text), split(text, &['∪']), split(text, &[':']));
    match enclosed(text).map(|(open, inside, close)| (open, list_items(inside), close)) {
        _ if items.len() > 1 => set(&items, depth),
        Some(('{', items, _)) if items.iter().all(|item| item.trim().is_empty()) => Some(String::from("∅")),
        Some(('{', items, _)) => set(&items, depth),
        Some((open, items, close)) if items.len() > 1 => {
            Some(format!("{open}{}{close}", read_all(&items, depth)?.join(",")))
        }
        _ if text.contains(['±', '∓']) => set(&[text], depth),
        _ if unions.len() > 1 => {
            let mut parts = read_all(&unions, depth)?;
            parts.sort();
            Some(format!("∪{}", parts.join("∪")))
        }
        _ if ratios.len() > 1 => Some(read_all(&ratios, depth)?.join(":")),
        _ => relation(text).or_else(|| value(text, depth)),
    }
}

fn read_all(parts: &[&str], depth: usize) -> Option<Vec<String>> {
    parts.iter().map(|part| read(part, depth + 1)).collect()
}

/// An expression, or the value an equation assigns to a letter.
fn value(text: &str, depth: usize) -> Option<String> {
    let parts = split(text, &['=']);
    let [first, .., last] = parts.as_slice() else { return parse(text).map(|form| form.key()) };
    let is_number = |text: &str| parse(text).is_some_and(|form| form.as_f64().is_some());
    if is_name(first) || (is_number(first) && is_number(last)) {
        return read(last, depth + 1);
    }
    let turned = parts.len() == 2 && is_number(first) && is_name(last);
    if turned { read(first, depth + 1) } else { equation(text) }
}

/// Items in any order, without duplicates. Names are kept if there is more than one: `x=1,y=2`.
fn set(items: &[&str], depth: usize) -> Option<String> {
    let items: Vec<String> = items.iter().flat_map(|item| both_signs(item)).collect();
    let name = |item: &str| match split(item, &['=']).as_slice() {
        [_] if !item.contains('=') => None,
        parts => parts.first().map(|name| name.trim().to_owned()),
    };
    let several = items.iter().filter_map(|item| name(item)).collect::<BTreeSet<_>>().len() > 1;
    let read = |item: &String| {
        let value = read(item, depth + 1)?;
        Some(if several { format!("{}={value}", name(item).unwrap_or_default()) } else { value })
    };
    let read: Vec<String> = items.iter().map(read).collect::<Option<BTreeSet<_>>>()?.into_iter().collect();
    if let [only] = read.as_slice() { Some(only.clone()) } else { Some(format!("{{{}}}", read.join(";"))) }
}

/// Values of a list or tuple in order, and whether they are named; names must be in alphabetical order.
fn sequence(text: &str) -> Option<(String, bool)> {
    let items = match enclosed(text) {
        Some(('(', inside, ')')) => list_items(inside),
        Some(_) => return None,
        None => list_items(text),
    };
    let parts: Vec<(&str, &str)> = items.iter().map(|item| item.split_once('=').unwrap_or(("", item))).collect();
    let named = parts[0].1 != items[0];
    let fits = |pair: &[(&str, &str)]| if named { pair[0].0.trim() < pair[1].0.trim() } else { pair[1].0.is_empty() };
    if parts.len() < 2 || !parts.windows(2).all(fits) {
        return None;
    }
    let values: Option<Vec<String>> = parts.iter().map(|(_, value)| read(value, 1)).collect();
    Some((values?.join(","), named))
}

/// The part of a text that holds the value: in `x ≈ 5`, `1/3 ≈ 0.33`, `A:B = 1:2`, `\text{A, B}`, `x ∈ …`.
fn value_in(text: &str) -> Option<&str> {
    let sides = |sign: char| split(text, &[sign]);
    if let [first, second, ..] = sides('≈').as_slice() {
        return Some(if is_name(first) { second } else { first });
    }
    match (sides('=').as_slice(), sides('∈').as_slice()) {
        ([ratio, value], _) if grammar("whole ratio").is_match(ratio.trim()) => Some(value),
        (_, [_, set]) => Some(set),
        _ => text.strip_prefix("\\text{")?.strip_suffix('}').filter(|inside| !inside.contains(['{', '}'])),
    }
}

/// An item with the upper and with the lower sign of `±`.
fn both_signs(item: &str) -> BTreeSet<String> {
    [["+", "-"], ["-", "+"]].map(|[plus, minus]| item.replace('±', plus).replace('∓', minus)).into()
}

/// Whether an equation's left side merely names the right: a letter, `AB`, `\angle ABC`, words, `(x,y)`, and what is applied to
/// something: `f^{-1}(x)`, `P(X=2)`, `E[X]`, `\gcd(4,6)`, `|A|`, `\frac{dy}{dx}`, `\int_0^1 x dx`.
fn is_name(text: &str) -> bool {
    let is_symbol = |text: &str| parse(text).is_some_and(|form| form.is_symbol());
    let text = text.trim();
    text.is_empty()
        || grammar("whole name").is_match(text)
        || enclosed(text).is_some_and(|(_, inside, _)| split(inside, &[',']).into_iter().all(is_symbol))
        || as_words(text).is_some()
        || is_symbol(text)
}

/// Inequalities combined: a union if joined by `or`, one interval if joined by `and`.
fn alternatives(text: &str) -> Option<String> {
    let parts = |words: [&str; 2]| -> Option<Vec<String>> {
        let word = words.into_iter().find(|word| text.contains(word))?;
        let interval = |part: &str| relation(part.trim()).filter(|interval| interval.starts_with(['(', '[']));
        text.split(word).map(interval).collect()
    };
    if let Some(mut intervals) = parts([" or ", "\\text{or}"]) {
        intervals.sort();
        return Some(format!("∪{}", intervals.join("∪")));
    }
    let mut intervals = parts([" and ", "\\text{and}"])?;
    intervals.sort_by_key(|interval| interval.starts_with("(-1*∞,"));
    let [above, below] = intervals.as_slice() else { return None };
    let (lower, upper) = (above.strip_suffix("∞)")?, below.strip_prefix("(-1*∞,")?);
    (!lower.contains('∞')).then(|| format!("{lower}{upper}"))
}

/// The normal form of words: `\text{Tuesday}`, `no solution`. Single letters do not count as words.
fn as_words(text: &str) -> Option<String> {
    let only_text = pattern!(r"^\\text\{[^{}\\]*\}$").is_match(text);
    let plain = text.replace("\\text{", " ").replace(['{', '}'], " ");
    let word = if only_text { pattern!(r"\p{Alphabetic}{2}") } else { grammar("word") };
    let is_words = word.is_match(&plain) && !grammar("no words").is_match(&plain);
    is_words.then(|| format!("\"{}\"", words::normal_form(&plain)))
}

/// Items of a list, separated by commas, semicolons, "and" or "or".
fn list_items(text: &str) -> Vec<&str> {
    let words = pattern!(r"\\text\{(?:, )?(?:and|or)\}| and | or ");
    let items = split(text, &[',', ';']).into_iter().flat_map(|item| words.split(item));
    let items = items.map(str::trim).map(|item| item.strip_prefix("and ").unwrap_or(item));
    let items = items.map(|item| match group(item) {
        Some((inside, "")) if !inside.contains([',', ';']) => inside.trim(),
        _ => item,
    });
    let filled: Vec<&str> = items.filter(|item| !item.is_empty()).collect();
    if filled.len() > 1 { filled } else { vec![text] }
}

/// The brackets around a text and their content: `(a,b]`, `\{a\}`, `⟨a,b⟩` (as parentheses).
fn enclosed(text: &str) -> Option<(char, &str, char)> {
    if let Some(inside) = text.strip_prefix("\\{").and_then(|rest| rest.strip_suffix("\\}")) {
        return (!inside.contains("\\{")).then_some(('{', inside, '}'));
    }
    if let Some((inside, "")) = group(text) {
        return inside.contains([',', ';']).then_some(('{', inside, '}'));
    }
    let mut inside = text.chars();
    let (open, close) = (inside.next()?, inside.next_back()?);
    let (inside, mut depth) = (inside.as_str(), 0);
    let whole = inside.chars().all(|c| {
        depth += nesting(c);
        depth >= 0
    });
    (matches!(open, '(' | '[') && matches!(close, ')' | ']') && whole).then_some((open, inside, close))
}

/// Inequalities with the smaller side first; a letter between numbers as an interval: `x>2` as `(2,∞)`.
fn relation(text: &str) -> Option<String> {
    const SIGNS: [char; 5] = ['<', '>', '≤', '≥', '≠'];
    let sides = split(text, &SIGNS);
    let mut signs: Vec<char> = text.chars().filter(|c| SIGNS.contains(c)).collect();
    if sides.len() < 2 || signs.len() + 1 != sides.len() {
        return None; // no sign, or one inside brackets
    }
    let sides = sides.into_iter().map(parse).collect::<Option<Vec<Form>>>()?;
    // `-2x < 6` as `-3 < x`, if one side is a multiple of a letter and the others are numbers
    let mut symbolic = sides.iter().filter(|side| side.as_f64().is_none());
    let factor = symbolic.next().and_then(Form::symbol_factor).filter(|_| symbolic.next().is_none());
    let inverse = factor.and_then(|factor| factor.power(-1)).unwrap_or(Rational::ONE);
    let scaled = sides.into_iter().map(|side| side.mul(Form::number(inverse)));
    let mut sides = scaled.collect::<Option<Vec<Form>>>()?;
    let descending = signs.iter().all(|sign| matches!(sign, '>' | '≥'));
    if descending {
        signs.iter_mut().for_each(|sign| *sign = if *sign == '>' { '<' } else { '≤' });
    }
    if descending != (inverse.to_f64() < 0.0) {
        sides.reverse();
        signs.reverse();
    }
    interval(&sides, &signs).or_else(|| {
        let signs = std::iter::once(String::new()).chain(signs.iter().map(char::to_string));
        Some(signs.zip(sides).map(|(sign, side)| sign + &side.key()).collect())
    })
}

/// The interval of ascending inequalities around a letter: `2 < x` as `(2,∞)`.
fn interval(sides: &[Form], signs: &[char]) -> Option<String> {
    let is_variable = |form: &Form| form.is_symbol() && form.key() != "∞";
    let x = sides.iter().position(is_variable).filter(|x| sides.len() == 2 || (sides.len() == 3 && *x == 1))?;
    let is_number = |form: &Form| form.as_f64().is_some() || form.key().trim_start_matches("-1*") == "∞";
    let numbers = sides.iter().filter(|side| is_number(side)).count() + 1 == sides.len();
    let ordered = signs.iter().all(|sign| matches!(sign, '<' | '≤'));
    let below = |i: usize| format!("{}{}", if signs[i] == '<' { '(' } else { '[' }, sides[i].key());
    let above = |side: &Form| format!("{}{}", side.key(), if signs[x] == '<' { ')' } else { ']' });
    let lower = x.checked_sub(1).map_or_else(|| String::from("(-1*∞"), below);
    let upper = sides.get(x + 1).map_or_else(|| String::from("∞)"), above);
    (ordered && numbers).then(|| format!("{lower},{upper}"))
}
