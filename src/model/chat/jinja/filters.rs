//! Jinja2's filters: `value | name(arguments)`. Those of texts are here, those of lists in [`super::lists`].

use std::sync::Arc;

use super::budget::Fault;
use super::format::percent;
use super::host::{Arguments, Host};
use super::json::tojson;
use super::lists;
use super::methods::{center_pad, replace};
use super::text::{capitalize, capitalized_after, is_space, strip};
use super::value::Value;

/// `value | name(arguments)`.
pub(crate) fn apply(host: &mut Host, name: &str, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    host.budget.steps(1)?;
    match name {
        "default" | "d" => {
            let [default, boolean] = arguments.bind(name, ["default_value", "boolean"])?;
            let replaced = value.is_undefined() || (boolean.is_some_and(|v| v.truth()) && !value.truth());
            Ok(if replaced { default.unwrap_or_else(|| Value::text("")) } else { value.clone() })
        }
        "length" | "count" => Ok(Value::Int(host.len(value)? as i128)),
        "string" => Ok(Value::Str(host.str(value)?)),
        "safe" => Ok(value.clone()),
        "tojson" => tojson(host, value, arguments),
        "int" => int(host, value, arguments),
        "float" => {
            let [default] = arguments.bind(name, ["default"])?;
            Ok(float_of(value)?.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
        }
        "abs" => match value {
            Value::Float(x) => Ok(Value::Float(x.abs())),
            other => match other.as_int().and_then(i128::checked_abs) {
                Some(i) => Ok(Value::Int(i)),
                None => Err(Fault::error(format!("bad operand type for abs(): '{}'", other.type_name()))),
            },
        },
        "round" => round(host, value, arguments),
        "attr" => {
            let [attribute] = arguments.bind(name, ["name"])?;
            let attribute = host.str(&attribute.unwrap_or(Value::None))?;
            let found = host.own_attribute(value, &attribute)?;
            Ok(found.unwrap_or_else(|| {
                Value::undefined(format!("'{} object' has no attribute '{attribute}'", value.type_name()))
            }))
        }
        "map" => map(host, value, arguments),
        "format" => {
            let text = host.str(value)?;
            let given = match (arguments.plain.is_empty(), arguments.named.is_empty()) {
                (false, false) => {
                    return Err(Fault::error("can't handle positional and keyword arguments at the same time"));
                }
                (_, true) => host.tuple(arguments.plain)?,
                _ => {
                    let named = arguments.named.into_iter().map(|(name, value)| (Value::Str(name), value)).collect();
                    Value::dict(named, &mut host.budget)?
                }
            };
            percent(host, &text, &given)
        }
        _ => match lists::apply(host, name, value, arguments)? {
            lists::Applied::Done(value) => Ok(value),
            lists::Applied::Other(arguments) => text_filter(host, name, value, arguments),
        },
    }
}

fn text_filter(host: &mut Host, name: &str, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    if !super::names::is_filter(name) {
        return Err(Fault::error(format!("No filter named '{name}'.")));
    }
    let text = host.str(value)?;
    host.budget.bytes(text.len())?;
    match name {
        "upper" => host.text(text.to_uppercase()),
        "lower" => host.text(text.to_lowercase()),
        "capitalize" => host.text(capitalize(&text)),
        "title" => host.text(title(&text)),
        "trim" => {
            let [chars] = arguments.bind(name, ["chars"])?;
            let chars = match &chars {
                None | Some(Value::None) => None,
                Some(Value::Str(chars)) => Some(&**chars),
                Some(_) => return Err(Fault::error("strip arg must be None or str")),
            };
            host.budget.steps(chars.map_or(0, |chars| chars.len().saturating_mul(text.len()) / 64))?;
            host.text(strip(&text, chars, true, true).to_string())
        }
        "replace" => {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(Fault::error("replace() is missing an argument"));
            };
            let (old, new) = (host.str(&old)?, host.str(&new)?);
            let count = count.and_then(|count| count.as_int()).and_then(|count| usize::try_from(count).ok());
            replace(host, &text, &old, &new, count)
        }
        "indent" if value.as_str().is_none() => Err(Fault::error(match value {
            Value::Undefined(message) => message.to_string(),
            other => format!("unsupported operand type(s) for +=: '{}' and 'str'", other.type_name()),
        })),
        "indent" => indent(host, &text, arguments),
        "center" => {
            let [width] = arguments.bind(name, ["width"])?;
            center_pad(host, &text, name, width.and_then(|w| w.as_len()).unwrap_or(80), ' ')
        }
        "truncate" => truncate(host, &text, arguments),
        "wordcount" => {
            let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
            Ok(Value::Int(words.count() as i128))
        }
        "escape" | "e" | "forceescape" => {
            host.budget.bytes(4 * text.len())?;
            let replaced = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            host.text(replaced.replace('\'', "&#39;").replace('"', "&#34;"))
        }
        "striptags" => {
            host.budget.bytes(8 * text.len())?;
            let mut out = String::new();
            let mut inside = false;
            for c in text.chars() {
                match c {
                    '<' => inside = true,
                    '>' if inside => inside = false,
                    c if !inside => out.push(c),
                    _ => {}
                }
            }
            let words: Vec<&str> = out.split(is_space).filter(|word| !word.is_empty()).collect();
            host.text(words.join(" "))
        }
        "urlencode" => {
            host.budget.bytes(3 * text.len())?;
            let mut out = String::new();
            for byte in text.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => {
                        out.push(byte as char)
                    }
                    byte => out.push_str(&format!("%{byte:02X}")),
                }
            }
            host.text(out)
        }
        "pprint" => {
            let mut out = String::new();
            value.write_repr(&mut out, &mut host.budget)?;
            host.text(out)
        }
        other => Err(Fault::error(format!("the filter '{other}' is not supported"))),
    }
}

/// `map(attribute=…)`, or `map('filter', …)`.
fn map(host: &mut Host, value: &Value, mut arguments: Arguments) -> Result<Value, Fault> {
    if arguments.plain.is_empty() {
        let Some(attribute) = arguments.take("attribute") else {
            return Err(Fault::error("map requires a filter argument"));
        };
        let default = arguments.take("default");
        let items = host.iterate(value)?;
        let mut mapped = Vec::with_capacity(items.items.len());
        for item in &items.items {
            let found = lists::attribute_of(host, item, &attribute)?;
            mapped.push(match &default {
                Some(default) if found.is_undefined() => default.clone(),
                _ => found,
            });
        }
        return host.generator(mapped);
    }
    let name = host.str(&arguments.plain.remove(0))?;
    if *name == *"map" {
        return Err(Fault::error("the filter 'map' is not supported within map"));
    }
    let items = host.iterate(value)?;
    let mut mapped = Vec::with_capacity(items.items.len());
    for item in &items.items {
        host.budget.steps(1 + arguments.plain.len() + arguments.named.len())?;
        let arguments = Arguments { plain: arguments.plain.clone(), named: arguments.named.clone() };
        mapped.push(apply(host, &name, item, arguments)?);
    }
    host.generator(mapped)
}

/// Python's `int(text, base)`.
fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = strip(text, None, true, true);
    let (negative, digits) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let prefixes: &[&str] = match base {
        16 => &["0x", "0X"],
        8 => &["0o", "0O"],
        2 => &["0b", "0B"],
        _ => &[],
    };
    let digits = prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix)).unwrap_or(digits);
    if !digits.starts_with(|c: char| c.is_digit(base)) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let value = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if negative { -value } else { value })
}

fn int(host: &mut Host, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    let [default, base] = arguments.bind("int", ["default", "base"])?;
    let base = base.and_then(|base| base.as_int()).and_then(|base| u32::try_from(base).ok()).unwrap_or(10);
    if !(2..=36).contains(&base) {
        return Err(Fault::error("int() base must be >= 2 and <= 36"));
    }
    let whole = match value {
        Value::Str(text) => {
            host.budget.scan(text.len())?;
            parse_int(text, base)
        }
        Value::Int(i) => Some(*i),
        _ => None,
    };
    let through_float = |x: f64| (x.is_finite() && x.abs() < 1e38).then_some(x.trunc() as i128);
    let whole = match whole {
        Some(i) => Some(i),
        None => float_of(value)?.and_then(through_float),
    };
    Ok(whole.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
}

/// Python's `float(value)`, if it takes it.
fn float_of(value: &Value) -> Result<Option<f64>, Fault> {
    Ok(match value {
        Value::Undefined(message) => return Err(Fault::error(&**message)),
        Value::Str(text) => {
            let text = strip(text, None, true, true);
            if text.ends_with('_') || text.starts_with('_') || text.contains("__") || text.len() > 10_000 {
                return Ok(None);
            }
            text.replace('_', "").parse().ok()
        }
        other => other.as_float(),
    })
}

fn round(host: &mut Host, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    let [precision, method] = arguments.bind("round", ["precision", "method"])?;
    let precision = precision.and_then(|p| p.as_int()).unwrap_or(0).clamp(-400, 400) as i32;
    let method = match method {
        Some(method) => host.str(&method)?,
        None => "common".into(),
    };
    host.budget.bytes(800)?;
    let Some(x) = value.as_float() else {
        return Err(Fault::error(match value {
            Value::Undefined(message) => message.to_string(),
            other => format!("type {} doesn't define __round__ method", other.type_name()),
        }));
    };
    let scale = 10f64.powi(precision);
    match (&*method, value.as_int()) {
        ("common", Some(i)) if precision >= 0 => Ok(Value::Int(i)),
        ("common", Some(_)) => Ok(Value::Int(((x * scale).round_ties_even() / scale) as i128)),
        // through the exact decimal digits, as Python does
        ("common", None) if precision >= 0 => {
            Ok(Value::Float(format!("{x:.*}", precision as usize).parse().unwrap_or(x)))
        }
        ("common", None) => Ok(Value::Float((x * scale).round_ties_even() / scale)),
        ("ceil", _) => Ok(Value::Float((x * scale).ceil() / scale)),
        ("floor", _) => Ok(Value::Float((x * scale).floor() / scale)),
        _ => Err(Fault::error("method must be common, ceil or floor")),
    }
}

/// Jinja2's own idea of a title: words begin after spaces, hyphens and opening brackets.
fn title(text: &str) -> String {
    capitalized_after(text, |c| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<'))
}

fn indent(host: &mut Host, text: &str, arguments: Arguments) -> Result<Value, Fault> {
    let [width, first, blank] = arguments.bind("indent", ["width", "first", "blank"])?;
    let (first, blank) = (first.is_some_and(|v| v.truth()), blank.is_some_and(|v| v.truth()));
    let indention: Arc<str> = match width {
        None => "    ".into(),
        Some(Value::Str(width)) => width,
        Some(width) => {
            let Some(n) = width.as_len() else {
                return Err(Fault::error(format!("can't multiply sequence by '{}'", width.type_name())));
            };
            host.budget.bytes(n)?;
            " ".repeat(n).into()
        }
    };
    // Jinja2 adds a line break first, so that the last one of the text is kept
    let whole = format!("{text}\n");
    let lines = host.lines(&whole, false)?;
    host.budget.bytes(lines.len().saturating_mul(indention.len() + 1).saturating_add(text.len()))?;
    let mut out = String::new();
    for (i, line) in lines.into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    host.text(out)
}

fn truncate(host: &mut Host, text: &str, arguments: Arguments) -> Result<Value, Fault> {
    let [length, kill_words, end, leeway] = arguments.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let length = length.and_then(|v| v.as_len()).unwrap_or(255);
    let end = match end {
        Some(end) => host.str(&end)?,
        None => "...".into(),
    };
    let leeway = leeway.and_then(|v| v.as_len()).unwrap_or(5);
    let end_len = end.chars().count();
    if length < end_len {
        return Err(Fault::error(format!("expected length >= {end_len}, got {length}")));
    }
    if text.chars().count() <= length.saturating_add(leeway) {
        return host.text(text.to_string());
    }
    let cut = text.char_indices().nth(length - end_len).map_or(text, |(i, _)| &text[..i]);
    let cut = match cut.rsplit_once(' ') {
        Some((before, _)) if !kill_words.is_some_and(|v| v.truth()) => before,
        _ => cut,
    };
    host.text(format!("{cut}{end}"))
}
