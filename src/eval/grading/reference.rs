//! Grading as the authors' code does it, defects included: what their published numbers rest on.

use super::Scheme;
use crate::uq::answer::{is_space, last_box_text, last_number_text};

/// Their label; `None` where their code fails, in which case they leave the item out.
pub(super) fn label(response: &str, target: &str, scheme: Scheme) -> Option<bool> {
    match scheme {
        Scheme::Gsm8k => gsm8k(response, target),
        Scheme::Math => math(response, target),
        Scheme::Bbh => bbh(response, target),
    }
}

/// The last number of the last line, else the box, as a float.
fn gsm8k(response: &str, target: &str) -> Option<bool> {
    let answer = last_number_text(response).or_else(|| last_box_text(response))?;
    let target = target.split_once("####").map_or(target, |(_, rest)| rest.trim_start_matches(is_space));
    let target = target.lines().next().unwrap_or_default().trim_matches(is_space);
    Some(float(answer) == float(target)) // two that are no numbers are equal
}

/// As Python's `float` reads it, after a currency sign and before a percent sign.
fn float(text: &str) -> Option<f64> {
    let text = text.strip_prefix(['$', '£', '€', '¥']).unwrap_or(text);
    let (text, divisor) = text.strip_suffix('%').map_or((text, 1.0), |text| (text, 100.0));
    let text: String = text.replace(',', "").trim_matches(is_space).chars().map(ascii_digit).collect();
    text.parse::<f64>().ok().map(|value| value / divisor)
}

/// The digit of another script as ours.
fn ascii_digit(c: char) -> char {
    const ZEROS: [u32; 6] = [0x660, 0x6f0, 0x966, 0x9e6, 0xe50, 0xff10];
    let digit = ZEROS.iter().filter_map(|zero| u32::from(c).checked_sub(*zero)).find(|digit| *digit < 10);
    digit.and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c)
}

/// The boxes' contents, but for case and one pair of parentheses.
fn bbh(response: &str, target: &str) -> Option<bool> {
    let answer = last_box_text(response)?.to_lowercase();
    Some(without_parentheses(&answer) == without_parentheses(&target.to_lowercase()))
}

fn without_parentheses(text: &str) -> String {
    let (line, end) = text.strip_suffix('\n').map_or((text, ""), |line| (line, "\n"));
    let inside = line.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).filter(|inside| !inside.contains('\n'));
    inside.map_or_else(|| text.to_owned(), |inside| format!("{inside}{end}"))
}

/// The boxes' contents in the MATH dataset's own normal form, or as they are where that has none.
fn math(response: &str, target: &str) -> Option<bool> {
    let answer = last_box_text(response)?;
    let target = if target.contains("\\boxed") { last_box_text(target)? } else { target };
    match (hendrycks_form(answer), hendrycks_form(target)) {
        (Some(answer), Some(target)) => Some(answer == target),
        _ => Some(answer == target),
    }
}

/// The normal form of the MATH dataset's authors (Hendrycks et al., "Measuring Mathematical Problem Solving With the MATH
/// Dataset", 2021); `None` where their code fails.
pub(super) fn hendrycks_form(text: &str) -> Option<String> {
    let mut text = text.to_owned();
    let removed = ["\n", "\\!"];
    removed.iter().for_each(|part| text = text.replace(part, ""));
    text = text.replace("\\\\", "\\").replace("tfrac", "frac").replace("dfrac", "frac");
    for part in ["\\left", "\\right", "^{\\circ}", "^\\circ", "\\$"] {
        text = text.replace(part, "");
    }
    text = without_units(text)?;
    text = text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.");
    if text.is_empty() {
        return Some(text);
    }
    if text.starts_with('.') {
        text.insert(0, '0');
    }
    if let Some((name, value)) = text.split_once('=')
        && !value.contains('=')
        && name.chars().count() <= 2
    {
        text = value.to_owned();
    }
    text = braced_roots(&text)?.replace(' ', "");
    text = braced_fractions(text)?;
    if text == "0.5" {
        text = String::from("\\frac{1}{2}");
    }
    Some(slash_as_fraction(text))
}

/// Without the one `\text{ ` and what follows it.
fn without_units(text: String) -> Option<String> {
    let mut parts = text.split("\\text{ ");
    let (first, second, third) = (parts.next()?, parts.next(), parts.next());
    match (second, third) {
        (_, Some(_)) => None,
        (Some(_), None) => Some(first.to_owned()),
        (None, None) => Some(text),
    }
}

/// `\sqrt3` as `\sqrt{3}`.
fn braced_roots(text: &str) -> Option<String> {
    let mut parts = text.split("\\sqrt");
    let mut braced = parts.next()?.to_owned();
    for part in parts {
        let first = part.chars().next()?;
        braced.push_str("\\sqrt");
        match first {
            '{' => braced.push_str(part),
            _ => braced.extend(["{", &part[..first.len_utf8()], "}", &part[first.len_utf8()..]]),
        }
    }
    Some(braced)
}

/// `\frac12` and `\frac1{2}` as `\frac{1}{2}`.
fn braced_fractions(text: String) -> Option<String> {
    let mut parts = text.split("\\frac");
    let mut braced = parts.next()?.to_owned();
    for part in parts {
        braced.push_str("\\frac");
        let mut chars = part.chars();
        let above = chars.next()?;
        if above == '{' {
            braced.push_str(part);
            continue;
        }
        let Some(below) = chars.next() else { return Some(text) };
        match below {
            '{' => braced.push_str(&format!("{{{above}}}{below}{}", chars.as_str())),
            _ => braced.push_str(&format!("{{{above}}}{{{below}}}{}", chars.as_str())),
        }
    }
    Some(braced)
}

/// `3/4`, of whole numbers and nothing else, as `\frac{3}{4}`.
fn slash_as_fraction(text: String) -> String {
    let whole = |part: &str| {
        let digits = part.strip_prefix('-').unwrap_or(part);
        let leading_zero = digits.starts_with('0') && part != "0";
        !digits.is_empty() && !leading_zero && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    match text.split_once('/') {
        Some((above, below)) if whole(above) && whole(below) => format!("\\frac{{{above}}}{{{below}}}"),
        _ => text,
    }
}
