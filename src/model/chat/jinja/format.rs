//! Python's two ways to format: `'%s' % value` and `'{}'.format(value)`.

use std::sync::Arc;

use super::budget::Fault;
use super::host::{Arguments, Host};
use super::text::repr_text;
use super::value::{SeqKind, Value};

/// Digits after the point, at most.
const MAX_PRECISION: usize = 1000;

/// How a number or text is laid out.
#[derive(Clone, Debug, Default)]
struct Spec {
    fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    /// `,` or `_`.
    group: Option<char>,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

fn bad<T>(message: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::error(message))
}

/// `format % arguments`.
pub(crate) fn percent(host: &mut Host, format: &str, arguments: &Value) -> Result<Value, Fault> {
    let mut values: std::vec::IntoIter<Value> = match arguments {
        Value::Seq(seq) if matches!(seq.kind, SeqKind::Tuple | SeqKind::Group) => seq.items.clone(),
        other => vec![other.clone()],
    }
    .into_iter();
    let mut used_names = false;
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut value = None;
        if let Some(named) = rest.strip_prefix('(') {
            let Some(end) = named.find(')') else { return bad("incomplete format key") };
            let Value::Dict(dict) = arguments else { return bad("format requires a mapping") };
            let key = Value::text(&named[..end]).as_key(&mut host.budget)?;
            let Some(found) = dict.get(&key) else { return bad(format!("no key '{}'", &named[..end])) };
            value = Some(found.clone());
            used_names = true;
            rest = &named[end + 1..];
        }
        let mut spec = Spec { align: Some('>'), ..Spec::default() };
        let flags = rest.len() - rest.trim_start_matches(['-', '+', ' ', '#', '0']).len();
        for flag in rest[..flags].chars() {
            match flag {
                '-' => spec.align = Some('<'),
                '+' => spec.plus = true,
                ' ' => spec.space = true,
                '#' => spec.alternate = true,
                _ => spec.zero = true,
            }
        }
        rest = &rest[flags..];
        let mut number = |rest: &mut &str| -> Result<Option<usize>, Fault> {
            if let Some(after) = rest.strip_prefix('*') {
                *rest = after;
                return values.next().and_then(|v| v.as_len()).map(Some).ok_or_else(|| Fault::error("* wants int"));
            }
            take_number(rest)
        };
        spec.width = number(&mut rest)?.unwrap_or(0);
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            spec.precision = Some(number(&mut rest)?.unwrap_or(0));
        }
        rest = rest.trim_start_matches(['h', 'l', 'L']);
        let Some(kind) = rest.chars().next() else { return bad("incomplete format") };
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            out.push('%');
            continue;
        }
        let Some(value) = value.or_else(|| values.next()) else { return bad("not enough arguments for format string") };
        if spec.align == Some('<') {
            spec.zero = false;
        }
        percent_one(host, &value, kind, spec, &mut out)?;
    }
    out.push_str(rest);
    if values.next().is_some() && !used_names && !matches!(arguments, Value::Dict(_)) {
        return bad("not all arguments converted during string formatting");
    }
    host.text(out)
}

fn percent_one(host: &mut Host, value: &Value, kind: char, mut spec: Spec, out: &mut String) -> Result<(), Fault> {
    match kind {
        's' | 'r' | 'a' => {
            spec.zero = false;
            let text = if kind == 's' { host.str(value)? } else { repr(host, value)? };
            layout_text(host, &text, &spec, out)
        }
        'c' => {
            spec.zero = false;
            let c = match value {
                Value::Str(text) if text.chars().count() == 1 => text.chars().next(),
                other => other.as_int().and_then(|i| char::from_u32(u32::try_from(i).ok()?)),
            };
            let Some(c) = c else { return bad("%c requires int or char") };
            layout_text(host, c.encode_utf8(&mut [0; 4]), &spec, out)
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let truncated = match value {
                Value::Float(x) if x.is_finite() && matches!(kind, 'd' | 'i' | 'u') => Some(x.trunc() as i128),
                Value::Float(_) => None,
                other => other.as_int(),
            };
            let Some(i) = truncated else {
                let found = value.type_name();
                return bad(format!("%{kind} format: a real number is required, not {found}"));
            };
            spec.kind = Some(if matches!(kind, 'i' | 'u') { 'd' } else { kind });
            layout_number(host, &Value::Int(i), &spec, out)
        }
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' => {
            let Some(x) = value.as_float() else {
                return bad(format!("must be real number, not {}", value.type_name()));
            };
            spec.kind = Some(kind);
            layout_number(host, &Value::Float(x), &spec, out)
        }
        other => bad(format!("unsupported format character '{other}'")),
    }
}

/// `format.format(arguments)`.
pub(crate) fn braces(host: &mut Host, format: &str, arguments: &Arguments) -> Result<Value, Fault> {
    let mut out = String::new();
    let mut next = 0;
    write_fields(host, format, arguments, &mut next, true, &mut out)?;
    host.text(out)
}

/// The text with its fields filled in. A field's own spec may have fields, which may not.
fn write_fields(
    host: &mut Host,
    format: &str,
    arguments: &Arguments,
    next: &mut usize,
    outermost: bool,
    out: &mut String,
) -> Result<(), Fault> {
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return bad("Single '}' encountered in format string");
        }
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        let Some(end) = end else { return bad("Single '{' encountered in format string") };
        let field = &rest[..end];
        rest = &rest[end + 1..];
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = field_value(host, name, arguments, next)?;
        let mut full_spec = String::new();
        match spec.contains('{') {
            true if !outermost => return bad("Max string recursion exceeded"),
            true => write_fields(host, spec, arguments, next, false, &mut full_spec)?,
            false => full_spec.push_str(spec),
        }
        let value = match conversion {
            "" => value,
            "s" => Value::Str(host.str(&value)?),
            "r" | "a" => Value::Str(repr(host, &value)?),
            other => return bad(format!("Unknown conversion specifier '{other}'")),
        };
        format_one(host, &value, &full_spec, out)?;
    }
    out.push_str(rest);
    host.budget.bytes(format.len())
}

/// The value of a field `name.attribute[item]`; without a name, the next one.
fn field_value(host: &mut Host, name: &str, arguments: &Arguments, next: &mut usize) -> Result<Value, Fault> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut path) = name.split_at(end);
    let found = if first.is_empty() {
        *next += 1;
        arguments.plain.get(*next - 1)
    } else if let Ok(i) = first.parse::<usize>() {
        arguments.plain.get(i)
    } else {
        arguments.named.iter().find(|(known, _)| **known == *first).map(|(_, value)| value)
    };
    let Some(found) = found else { return bad(format!("format() has no argument for '{{{name}}}'")) };
    let mut value = found.clone();
    while !path.is_empty() {
        if let Some(after) = path.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            value = host.attribute(&value, &after[..end].into())?;
            path = &after[end..];
        } else {
            let Some(end) = path.find(']') else { return bad("Missing ']' in format string") };
            let key = &path[1..end];
            let key = key.parse().map(Value::Int).unwrap_or_else(|_| Value::text(key));
            value = host.item(&value, &key)?;
            path = &path[end + 1..];
        }
    }
    Ok(value)
}

fn format_one(host: &mut Host, value: &Value, spec: &str, out: &mut String) -> Result<(), Fault> {
    let mut rest = spec;
    let mut parsed = Spec::default();
    let mut chars = spec.chars();
    if let (Some(fill), Some(align @ ('<' | '>' | '^' | '='))) = (chars.next(), chars.next()) {
        (parsed.fill, parsed.align) = (Some(fill), Some(align));
        rest = &rest[fill.len_utf8() + 1..];
    } else if let Some(align) = rest.chars().next().filter(|c| "<>^=".contains(*c)) {
        parsed.align = Some(align);
        rest = &rest[1..];
    }
    let mut flag = |sign: &str| match rest.strip_prefix(sign) {
        Some(after) => {
            rest = after;
            true
        }
        None => false,
    };
    parsed.plus = flag("+");
    parsed.space = flag(" ");
    flag("-");
    parsed.alternate = flag("#");
    parsed.zero = flag("0");
    parsed.width = take_number(&mut rest)?.unwrap_or(0);
    if let Some(group) = rest.chars().next().filter(|c| matches!(c, ',' | '_')) {
        parsed.group = Some(group);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        parsed.precision = take_number(&mut rest)?;
    }
    let mut chars = rest.chars();
    parsed.kind = chars.next();
    if chars.next().is_some() {
        return bad(format!("Invalid format specifier '{spec}'"));
    }
    match value {
        Value::Int(_) | Value::Float(_) => layout_number(host, value, &parsed, out),
        Value::Bool(_) if !spec.is_empty() && parsed.kind != Some('s') => layout_number(host, value, &parsed, out),
        Value::Str(_) | Value::Bool(_) | Value::Undefined(_) if matches!(parsed.kind, None | Some('s')) => {
            let text = host.str(value)?;
            layout_text(host, &text, &parsed, out)
        }
        other if spec.is_empty() => {
            let text = host.str(other)?;
            host.budget.bytes(text.len())?;
            out.push_str(&text);
            Ok(())
        }
        other => bad(format!("unsupported format string passed to {}", other.type_name())),
    }
}

fn take_number(rest: &mut &str) -> Result<Option<usize>, Fault> {
    let n = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (digits, after) = rest.split_at(n);
    *rest = after;
    match digits {
        "" => Ok(None),
        digits => digits.parse().map(Some).or_else(|_| bad("Too many decimal digits in format string")),
    }
}

fn repr(host: &mut Host, value: &Value) -> Result<Arc<str>, Fault> {
    let mut text = String::new();
    match value {
        Value::Str(value) => {
            host.budget.bytes(2 * value.len())?;
            repr_text(value, &mut text);
        }
        other => other.write_repr(&mut text, &mut host.budget)?,
    }
    Ok(text.into())
}

fn layout_text(host: &mut Host, text: &str, spec: &Spec, out: &mut String) -> Result<(), Fault> {
    host.budget.bytes(text.len())?;
    let cut = spec.precision.and_then(|n| text.char_indices().nth(n)).map_or(text, |(i, _)| &text[..i]);
    pad(host, "", cut, spec, '<', out)
}

fn layout_number(host: &mut Host, value: &Value, spec: &Spec, out: &mut String) -> Result<(), Fault> {
    let precision = spec.precision.unwrap_or(6);
    if precision > MAX_PRECISION {
        return Err(Fault::limit(format!("it formats a number with more than {MAX_PRECISION} digits")));
    }
    host.budget.bytes(400 + precision)?;
    let kind =
        spec.kind.unwrap_or(if matches!(value, Value::Float(_)) && spec.precision.is_none() { 'r' } else { 'd' });
    let (negative, mut digits) = match (value.as_int().filter(|_| !matches!(value, Value::Float(_))), kind) {
        (Some(i), 'd' | 'n') => (i < 0, i.unsigned_abs().to_string()),
        (Some(i), 'x') => (i < 0, format!("{}{:x}", if spec.alternate { "0x" } else { "" }, i.unsigned_abs())),
        (Some(i), 'X') => (i < 0, format!("{}{:X}", if spec.alternate { "0X" } else { "" }, i.unsigned_abs())),
        (Some(i), 'o') => (i < 0, format!("{}{:o}", if spec.alternate { "0o" } else { "" }, i.unsigned_abs())),
        (Some(i), 'b') => (i < 0, format!("{}{:b}", if spec.alternate { "0b" } else { "" }, i.unsigned_abs())),
        (Some(i), 'c') => {
            let c = u32::try_from(i).ok().and_then(char::from_u32);
            (false, c.map(String::from).ok_or_else(|| Fault::error("%c arg not in range"))?)
        }
        _ => {
            let x = value.as_float().unwrap_or(f64::NAN);
            (x.is_sign_negative() && !x.is_nan(), float_digits(x.abs(), kind, precision, spec)?)
        }
    };
    if let Some(group) = spec.group {
        digits = grouped(&digits, group);
    }
    let sign = match negative {
        true => "-",
        false if spec.plus => "+",
        false if spec.space => " ",
        false => "",
    };
    pad(host, sign, &digits, spec, '>', out)
}

/// Digits of `x`, which is not negative.
fn float_digits(x: f64, kind: char, precision: usize, spec: &Spec) -> Result<String, Fault> {
    let lower = kind.to_ascii_lowercase();
    let text = if x.is_nan() {
        "nan".to_string()
    } else if x.is_infinite() {
        "inf".to_string()
    } else {
        match lower {
            'f' => format!("{x:.precision$}"),
            'e' => python_exponent(&format!("{x:.precision$e}")),
            '%' => format!("{:.precision$}%", x * 100.0),
            'r' => super::text::float_text(x),
            // a precision without a type is %g, but with a digit after the point
            'g' | 'n' | 'd' if kind != 'd' || spec.kind.is_none() => {
                let p = precision.max(1);
                let scientific = format!("{x:.*e}", p - 1);
                let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
                let exponent: i64 = exponent.parse().unwrap_or(0);
                let trim = |digits: &str| match digits.contains('.') && !spec.alternate {
                    true => digits.trim_end_matches('0').trim_end_matches('.').to_string(),
                    false => digits.to_string(),
                };
                if exponent < -4 || exponent >= p as i64 {
                    python_exponent(&format!("{}e{exponent}", trim(digits)))
                } else {
                    let text = trim(&format!("{x:.*}", (p as i64 - 1 - exponent) as usize));
                    if kind == 'd' && !text.contains('.') { text + ".0" } else { text }
                }
            }
            other => return bad(format!("Unknown format code '{other}' for object of type 'float'")),
        }
    };
    Ok(if kind.is_ascii_uppercase() { text.to_uppercase() } else { text })
}

/// Rust's `1.5e7` as `1.5e+07`.
fn python_exponent(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// The whole part in groups of three.
fn grouped(digits: &str, group: char) -> String {
    let whole = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let mut out = String::new();
    for (i, c) in digits[..whole].chars().enumerate() {
        if i > 0 && (whole - i).is_multiple_of(3) {
            out.push(group);
        }
        out.push(c);
    }
    out + &digits[whole..]
}

fn pad(host: &mut Host, sign: &str, text: &str, spec: &Spec, default: char, out: &mut String) -> Result<(), Fault> {
    let missing = spec.width.saturating_sub(sign.len() + text.chars().count());
    let align =
        spec.align.filter(|_| !(spec.zero && spec.fill.is_none())).unwrap_or(if spec.zero { '=' } else { default });
    let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
    host.budget.bytes(missing.saturating_mul(fill.len_utf8()))?;
    let fills = |n: usize| std::iter::repeat_n(fill, n);
    let before = match align {
        '<' | '=' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    out.extend(fills(before));
    out.push_str(sign);
    out.extend(fills(if align == '=' { missing } else { 0 }));
    out.push_str(text);
    out.extend(fills(if align == '=' { 0 } else { missing - before }));
    Ok(())
}
