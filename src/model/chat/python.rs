//! What templates take for granted of Python and minijinja does otherwise.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat;

/// Methods of Python's strings, lists and dicts: minijinja's collection, and those it lacks or in which Python's idea
/// of whitespace differs.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, name, args)
    {
        return result;
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let stripped = |left, right| {
        let (chars,): (Option<&str>,) = from_args(args)?;
        Ok(Value::from(strip(text, chars, left, right)))
    };
    let text_argument = || -> Result<&str, Error> { from_args(args).map(|(argument,)| argument) };
    Some(match name {
        "strip" => stripped(true, true),
        "lstrip" => stripped(true, false),
        "rstrip" => stripped(false, true),
        "removeprefix" => text_argument().map(|fix| Value::from(text.strip_prefix(fix).unwrap_or(text))),
        "removesuffix" => text_argument().map(|fix| Value::from(text.strip_suffix(fix).unwrap_or(text))),
        "partition" => text_argument().map(|sep| match text.split_once(sep) {
            Some((before, after)) => strings([before, sep, after]),
            None => strings([text, "", ""]),
        }),
        "rpartition" => text_argument().map(|sep| match text.rsplit_once(sep) {
            Some((before, after)) => strings([before, sep, after]),
            None => strings(["", "", text]),
        }),
        // Without a separator the pieces are words; that is left to `split`, which templates use for it.
        "rsplit" if args.first().is_some_and(|sep| sep.as_str().is_some_and(|sep| !sep.is_empty())) => {
            rsplit(text, args)
        }
        _ => return None,
    })
}

fn strings<'t>(parts: impl IntoIterator<Item = &'t str>) -> Value {
    parts.into_iter().map(Value::from).collect()
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, max): (&str, Option<i64>) = from_args(args)?;
    let mut parts: Vec<&str> = match max {
        Some(max) if max >= 0 => text.rsplitn(max as usize + 1, separator).collect(),
        _ => text.rsplit(separator).collect(),
    };
    parts.reverse();
    Ok(strings(parts))
}

/// The `trim` filter: Python's `str.strip`.
pub(super) fn trim(value: &Value, chars: Option<&str>) -> String {
    strip(&value.to_string(), chars, true, true).to_string()
}

/// `str.strip` and its one-sided forms; without `chars`, whitespace is meant.
fn strip<'t>(mut text: &'t str, chars: Option<&str>, left: bool, right: bool) -> &'t str {
    // Python counts the separators U+001C to U+001F as whitespace, Rust does not.
    let goes = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c),
    };
    if left {
        text = text.trim_start_matches(goes);
    }
    if right {
        text = text.trim_end_matches(goes);
    }
    text
}

/// The test `is sequence`: in Jinja whatever has a length and items, so strings and mappings too.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Undefined | ValueKind::Seq | ValueKind::String | ValueKind::Map)
}

/// A finite float as Python's `repr` writes it: the shortest digits, with an exponent below 1e-4 and from 1e16.
pub(super) fn float_text(x: f64) -> String {
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x == 0.0 || (-4..16).contains(&exponent) {
        format!("{x:?}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}
