//! Methods of Python's strings, dicts and lists, as far as the sandbox lets templates use them.

use std::sync::Arc;

use super::budget::Fault;
use super::format::braces;
use super::host::{Arguments, Host};
use super::text::{capitalize, is_space, strip, title};
use super::value::{Dict, Seq, SeqKind, Value};

/// `receiver.name(arguments)`.
pub(crate) fn call(host: &mut Host, receiver: &Value, name: &str, arguments: Arguments) -> Result<Value, Fault> {
    match receiver {
        Value::Str(text) if name == "format" => braces(host, text, &arguments),
        Value::Str(text) => {
            host.budget.scan(text.len())?;
            text_method(host, text, name, arguments)
        }
        Value::Dict(dict) => dict_method(host, dict, name, arguments),
        Value::Seq(seq) => list_method(host, seq, name, arguments),
        Value::Cycler(i) => {
            let Some((items, next)) = host.cyclers.get_mut(*i) else { return Ok(Value::None) };
            if name == "reset" {
                *next = 0;
                return Ok(Value::None);
            }
            let item = items.get(*next).cloned().unwrap_or(Value::None);
            *next = (*next + 1) % items.len().max(1);
            Ok(item)
        }
        Value::Loop(i) => loop_method(host, *i, name, arguments),
        other => Err(Fault::error(format!("'{}' object has no method '{name}'", other.type_name()))),
    }
}

fn wants<T>(name: &str, what: &str, found: &Value) -> Result<T, Fault> {
    Err(Fault::error(match found {
        Value::Undefined(message) => message.to_string(),
        found => format!("{name}() argument must be {what}, not {}", found.type_name()),
    }))
}

/// A text, where one is needed.
fn text_of(name: &str, value: Option<Value>) -> Result<Arc<str>, Fault> {
    match value {
        Some(Value::Str(text)) => Ok(text),
        Some(other) => wants(name, "str", &other),
        None => Err(Fault::error(format!("{name}() is missing an argument"))),
    }
}

/// A text that may be left out or none.
fn optional_text(name: &str, value: Option<Value>) -> Result<Option<Arc<str>>, Fault> {
    match value {
        None | Some(Value::None) => Ok(None),
        some => text_of(name, some).map(Some),
    }
}

fn int_of(name: &str, value: Option<Value>, default: i128) -> Result<i128, Fault> {
    match value {
        None => Ok(default),
        Some(value) => value.as_int().map_or_else(|| wants(name, "int", &value), Ok),
    }
}

fn text_method(host: &mut Host, text: &Arc<str>, name: &str, arguments: Arguments) -> Result<Value, Fault> {
    let letters = |goes: fn(char) -> bool| Value::Bool(!text.is_empty() && text.chars().all(goes));
    // all letters with a case have this one, and there are some
    let cased = |wanted: fn(char) -> bool, other: fn(char) -> bool| {
        Value::Bool(text.chars().any(wanted) && !text.chars().any(other))
    };
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = arguments.bind(name, ["chars"])?;
            let chars = optional_text(name, chars)?;
            host.budget.steps(chars.as_ref().map_or(0, |chars| chars.len().saturating_mul(text.len()) / 64))?;
            let stripped = strip(text, chars.as_deref(), name != "rstrip", name != "lstrip");
            if stripped.len() == text.len() { Ok(Value::Str(text.clone())) } else { host.text(stripped.to_string()) }
        }
        "lower" => host.text(text.to_lowercase()),
        "casefold" => host.text(text.to_lowercase().replace('ß', "ss")),
        "upper" => host.text(text.to_uppercase()),
        "title" => host.text(title(text)),
        "capitalize" => host.text(capitalize(text)),
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            host.text(text.chars().map(swap).collect())
        }
        "isdigit" | "isdecimal" | "isnumeric" => Ok(letters(char::is_numeric)),
        "isalpha" => Ok(letters(char::is_alphabetic)),
        "isalnum" => Ok(letters(char::is_alphanumeric)),
        "isspace" => Ok(letters(is_space)),
        "isascii" => Ok(Value::Bool(text.is_ascii())),
        "isupper" => Ok(cased(char::is_uppercase, char::is_lowercase)),
        "islower" => Ok(cased(char::is_lowercase, char::is_uppercase)),
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => {
            search(host, text, name, arguments)
        }
        "replace" => {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let (old, new) = (text_of(name, old)?, text_of(name, new)?);
            let count = int_of(name, count, -1)?;
            replace(host, text, &old, &new, usize::try_from(count).ok())
        }
        "split" | "rsplit" => split(host, text, name, arguments),
        "splitlines" => {
            let [keep_ends] = arguments.bind(name, ["keepends"])?;
            let lines = host.lines(text, keep_ends.is_some_and(|v| v.truth()))?;
            let lines = host.texts(lines.into_iter())?;
            host.list(lines)
        }
        "join" => {
            let [items] = arguments.bind(name, ["iterable"])?;
            let items = host.iterate(&items.unwrap_or(Value::None))?;
            let mut out = String::new();
            for (i, item) in items.items.iter().enumerate() {
                let Value::Str(item) = item else {
                    let found = item.type_name();
                    return Err(Fault::error(format!("sequence item {i}: expected str instance, {found} found")));
                };
                let separator = if i > 0 { &**text } else { "" };
                host.budget.bytes(separator.len() + item.len())?;
                out.push_str(separator);
                out.push_str(item);
            }
            host.text(out)
        }
        "zfill" | "center" | "ljust" | "rjust" => pad(host, text, name, arguments),
        "partition" | "rpartition" => {
            let [separator] = arguments.bind(name, ["sep"])?;
            let separator = text_of(name, separator)?;
            if separator.is_empty() {
                return Err(Fault::error("empty separator"));
            }
            let found = if name == "partition" { text.split_once(&*separator) } else { text.rsplit_once(&*separator) };
            let parts = match found {
                Some((before, after)) => [before, &*separator, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            let parts = host.texts(parts.into_iter())?;
            host.tuple(parts)
        }
        "removeprefix" | "removesuffix" => {
            let [fix] = arguments.bind(name, ["fix"])?;
            let fix = text_of(name, fix)?;
            let cut = if name == "removeprefix" { text.strip_prefix(&*fix) } else { text.strip_suffix(&*fix) };
            host.text(cut.unwrap_or(text).to_string())
        }
        "expandtabs" => {
            let [size] = arguments.bind(name, ["tabsize"])?;
            let size = int_of(name, size, 8)?;
            expand_tabs(host, text, usize::try_from(size).unwrap_or(0))
        }
        other => Err(Fault::error(format!("'str object' has no attribute '{other}'"))),
    }
}

/// `replace`, at most `count` times if there is one.
pub(crate) fn replace(host: &mut Host, text: &str, old: &str, new: &str, count: Option<usize>) -> Result<Value, Fault> {
    host.budget.scan(text.len())?;
    let n = text.matches(old).take(count.unwrap_or(usize::MAX)).count();
    host.budget.bytes(text.len() + n.saturating_mul(new.len()))?;
    host.text(text.replacen(old, new, n))
}

/// The methods that look for a text, from `start` to `end` if these are given.
fn search(host: &mut Host, text: &str, name: &str, arguments: Arguments) -> Result<Value, Fault> {
    let [wanted, start, end] = arguments.bind(name, ["sub", "start", "end"])?;
    let mut before = 0;
    let mut part = text;
    if start.is_some() || end.is_some() {
        let n = text.chars().count() as i128;
        let place = |value: Option<Value>, default: i128| -> Result<usize, Fault> {
            let i = int_of(name, value.filter(|v| !matches!(v, Value::None)), default)?;
            Ok((if i < 0 { i.saturating_add(n) } else { i }).clamp(0, n) as usize)
        };
        let (start, end) = (place(start, 0)?, place(end, n)?);
        let at = |i: usize| text.char_indices().nth(i).map_or(text.len(), |(at, _)| at);
        before = start;
        part = if start <= end { &text[at(start)..at(end)] } else { "" };
    }
    let wanted = match (name, wanted) {
        ("startswith" | "endswith", Some(Value::Seq(seq))) if seq.kind == SeqKind::Tuple => seq.items.clone(),
        (_, Some(other)) => vec![Value::Str(text_of(name, Some(other))?)],
        (_, None) => return Err(Fault::error(format!("{name}() is missing an argument"))),
    };
    if matches!(name, "startswith" | "endswith") {
        for wanted in wanted {
            let wanted = text_of(name, Some(wanted))?;
            host.budget.scan(wanted.len())?;
            if if name == "startswith" { part.starts_with(&*wanted) } else { part.ends_with(&*wanted) } {
                return Ok(Value::Bool(true));
            }
        }
        return Ok(Value::Bool(false));
    }
    let wanted = text_of(name, wanted.into_iter().next())?;
    if name == "count" {
        return Ok(Value::Int(part.matches(&*wanted).count() as i128));
    }
    let found = if name.starts_with('r') { part.rfind(&*wanted) } else { part.find(&*wanted) };
    match found {
        Some(at) => Ok(Value::Int((before + part[..at].chars().count()) as i128)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(Fault::error("substring not found")),
    }
}

fn split(host: &mut Host, text: &str, name: &str, arguments: Arguments) -> Result<Value, Fault> {
    let [separator, max] = arguments.bind(name, ["sep", "maxsplit"])?;
    let separator = optional_text(name, separator)?;
    let max = usize::try_from(int_of(name, max, -1)?).unwrap_or(usize::MAX - 1);
    let from_right = name == "rsplit";
    let parts: Vec<&str> = match separator.as_deref() {
        Some("") => return Err(Fault::error("empty separator")),
        Some(separator) => {
            host.budget.bytes(text.matches(separator).take(max).count() * 2 * size_of::<Value>())?;
            let mut parts: Vec<&str> = match from_right {
                true => text.rsplitn(max + 1, separator).collect(),
                false => text.splitn(max + 1, separator).collect(),
            };
            if from_right {
                parts.reverse();
            }
            parts
        }
        None => {
            host.budget.bytes(text.len() * 8)?;
            words(text, max, from_right)
        }
    };
    let parts = host.texts(parts.into_iter())?;
    host.list(parts)
}

/// `split` at whitespace: what is left after `max` splits stays whole.
fn words(text: &str, max: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(text, None, !from_right, from_right);
    while !rest.is_empty() {
        if parts.len() == max {
            parts.push(if from_right { strip(rest, None, false, true) } else { rest });
            break;
        }
        if from_right {
            let start = rest.char_indices().rev().find(|(_, c)| is_space(*c)).map_or(0, |(i, c)| i + c.len_utf8());
            parts.push(&rest[start..]);
            rest = strip(&rest[..start], None, false, true);
        } else {
            let end = rest.find(is_space).unwrap_or(rest.len());
            parts.push(&rest[..end]);
            rest = strip(&rest[end..], None, true, false);
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn pad(host: &mut Host, text: &str, name: &str, arguments: Arguments) -> Result<Value, Fault> {
    let [width, fill] = arguments.bind(name, ["width", "fillchar"])?;
    let width = usize::try_from(int_of(name, width, 0)?).unwrap_or(0);
    let fill = match fill {
        None => ' ',
        Some(Value::Str(fill)) if fill.chars().count() == 1 => fill.chars().next().unwrap_or(' '),
        Some(other) => return wants(name, "a character", &other),
    };
    let fill = if name == "zfill" { '0' } else { fill };
    center_pad(host, text, name, width, fill)
}

/// `text` in `width` characters.
pub(crate) fn center_pad(host: &mut Host, text: &str, name: &str, width: usize, fill: char) -> Result<Value, Fault> {
    let n = text.chars().count();
    let missing = width.saturating_sub(n);
    host.budget.bytes(missing.saturating_mul(fill.len_utf8()))?;
    let (sign, digits) = match text.chars().next() {
        Some('+' | '-') if name == "zfill" => text.split_at(1),
        _ => ("", text),
    };
    let before = match name {
        "ljust" => 0,
        // as CPython: an odd space goes left where the width is odd
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let mut out = String::from(sign);
    out.extend(std::iter::repeat_n(fill, before));
    out.push_str(digits);
    out.extend(std::iter::repeat_n(fill, missing - before));
    host.text(out)
}

fn expand_tabs(host: &mut Host, text: &str, size: usize) -> Result<Value, Fault> {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' => {
                let n = if size == 0 { 0 } else { size - column % size };
                host.budget.bytes(n)?;
                out.extend(std::iter::repeat_n(' ', n));
                column += n;
            }
            _ => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    host.text(out)
}

fn dict_method(host: &mut Host, dict: &Arc<Dict>, name: &str, arguments: Arguments) -> Result<Value, Fault> {
    if name == "get" {
        let [key, default] = arguments.bind(name, ["key", "default"])?;
        let Some(key) = key else { return Err(Fault::error("get expected at least 1 argument, got 0")) };
        let key = key.as_key(&mut host.budget)?;
        return Ok(dict.get(&key).cloned().or(default).unwrap_or(Value::None));
    }
    let [] = arguments.bind(name, [])?;
    let kind = match name {
        "keys" => SeqKind::Keys,
        "values" => SeqKind::Values,
        "items" => SeqKind::Items,
        _ => return Ok(Value::Dict(dict.clone())),
    };
    let mut items = Vec::with_capacity(dict.entries.len());
    for (key, value) in &dict.entries {
        items.push(match kind {
            SeqKind::Keys => key.clone(),
            SeqKind::Values => value.clone(),
            _ => host.tuple(vec![key.clone(), value.clone()])?,
        });
    }
    Value::seq(kind, items, &mut host.budget)
}

fn list_method(host: &mut Host, seq: &Arc<Seq>, name: &str, arguments: Arguments) -> Result<Value, Fault> {
    if name == "copy" {
        return Ok(Value::Seq(seq.clone()));
    }
    let [wanted] = arguments.bind(name, ["value"])?;
    let wanted = wanted.unwrap_or(Value::None);
    let mut count = 0;
    for (i, item) in seq.items.iter().enumerate() {
        if host.equals(item, &wanted)? {
            if name == "index" {
                return Ok(Value::Int(i as i128));
            }
            count += 1;
        }
    }
    if name == "index" { Err(Fault::error("the value is not in the list")) } else { Ok(Value::Int(count)) }
}

fn loop_method(host: &mut Host, i: usize, name: &str, arguments: Arguments) -> Result<Value, Fault> {
    let index = host.loops.get(i).map_or(0, |state| state.index);
    if name == "cycle" {
        let n = arguments.plain.len();
        let Some(at) = index.checked_rem(n) else { return Err(Fault::error("no items for cycling given")) };
        return Ok(arguments.plain[at].clone());
    }
    let seen = host.tuple(arguments.plain)?;
    let before = host.loops.get(i).and_then(|state| state.seen.clone());
    let changed = match &before {
        Some(before) => !host.equals(before, &seen)?,
        None => true,
    };
    if let Some(state) = host.loops.get_mut(i) {
        state.seen = Some(seen);
    }
    Ok(Value::Bool(changed))
}
