//! Grading as in the authors' code, defects included: the basis of their published results. A label is `None` where their
//! code fails, in which case they skip the item.

use crate::uq::answer::value::rewritten;
use crate::uq::answer::{ascii_digit, is_space, last_box_text, last_number_text, pattern};

/// The last number of the last line, else the box, as a float.
pub(super) fn gsm8k(response: &str, target: &str) -> Option<bool> {
    let answer = last_number_text(response).or_else(|| last_box_text(response))?;
    let target = target.split_once("####").map_or(target, |(_, rest)| rest.trim_start_matches(is_space));
    let target = target.lines().next().unwrap_or_default().trim_matches(is_space);
    Some(float(answer) == float(target)) // two non-numbers are equal
}

/// Parsed like Python's `float`, after dropping a currency sign and applying a percent sign.
fn float(text: &str) -> Option<f64> {
    let text = text.strip_prefix(['$', '£', '€', '¥']).unwrap_or(text);
    let (text, divisor) = text.strip_suffix('%').map_or((text, 1.0), |text| (text, 100.0));
    let text: String = text.replace(',', "").trim_matches(is_space).chars().map(ascii_digit).collect();
    text.parse::<f64>().ok().map(|value| value / divisor)
}

/// Compares the boxes' contents, ignoring case and one pair of parentheses.
pub(super) fn bbh(response: &str, target: &str) -> Option<bool> {
    let plain = |text: &str| pattern!(r"^\((.*)\)(\n?)$").replace(&text.to_lowercase(), "$1$2").into_owned();
    Some(plain(last_box_text(response)?) == plain(target))
}

/// Compares the boxes' contents in the MATH dataset's own normal form, or verbatim where that fails.
pub(super) fn math(response: &str, target: &str) -> Option<bool> {
    let answer = last_box_text(response)?;
    let target = if target.contains("\\boxed") { last_box_text(target)? } else { target };
    Some(hendrycks_form(answer).zip(hendrycks_form(target)).map_or(answer == target, |(a, b)| a == b))
}

/// The normal form of the MATH dataset's authors (Hendrycks et al., "Measuring Mathematical Problem Solving With the MATH
/// Dataset", 2021); `None` where their code fails.
pub(super) fn hendrycks_form(text: &str) -> Option<String> {
    let mut text = rewritten("MATH", text);
    if let Some((value, unit)) = text.split_once("\\text{ ") {
        text = (!unit.contains("\\text{ ")).then(|| value.to_owned())?;
    }
    text = pattern!(r"(^|[ {])\.").replace_all(&text.replace("\\%", ""), "${1}0.").into_owned();
    if let Some((name, value)) = text.split_once('=')
        && !value.contains('=')
        && name.chars().count() <= 2
    {
        text = value.to_owned();
    }
    if pattern!(r"\\sqrt(?:\\sqrt|$)").is_match(&text) {
        return None;
    }
    text = pattern!(r"\\sqrt([^{])").replace_all(&text, r"\sqrt{$1}").replace(' ', "");
    text = braced_fractions(text)?;
    if text == "0.5" {
        text = String::from("\\frac{1}{2}");
    }
    Some(pattern!("^(-?[1-9][0-9]*|0)/(-?[1-9][0-9]*|0)$").replace(&text, r"\frac{$1}{$2}").into_owned())
}

/// `\frac12` and `\frac1{2}` as `\frac{1}{2}`; unchanged where a denominator is missing, `None` for an empty fraction.
fn braced_fractions(text: String) -> Option<String> {
    if let Some(broken) = pattern!(r"\\frac([^{]?)(?:\\frac|$)").captures(&text) {
        return (!broken[1].is_empty()).then(|| text.clone());
    }
    let text = pattern!(r"\\frac([^{])([^{])").replace_all(&text, r"\frac{$1}{$2}");
    Some(pattern!(r"\\frac([^{])\{").replace_all(&text, r"\frac{$1}{").into_owned())
}
