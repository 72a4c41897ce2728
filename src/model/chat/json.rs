//! The `tojson` filter as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`, not Jinja's own,
//! which escapes HTML. By hand: a `Formatter` of `serde_json` is called with `null` for NaN and infinity, and not at all
//! for sorted keys and keys that are no strings.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::python;

/// The arguments of `json.dumps` that transformers passes on.
struct Style {
    ensure_ascii: bool,
    /// Text of one level of indentation; none writes everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`; the last two by name only.
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let argument = |positional: Option<Value>, name: &str| -> Result<Option<Value>, Error> {
        Ok(positional.or(kwargs.get::<Option<Value>>(name)?).filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let ensure_ascii = argument(ensure_ascii, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = argument(indent, "indent")?.map(indent_text).transpose()?;
    let separators = argument(None, "separators")?.map(separator_pair).transpose()?;
    let sort_keys = argument(None, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    // Without explicit separators, Python leaves no space at the end of indented lines.
    let default_item = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = separators.unwrap_or((default_item.to_string(), ": ".to_string()));
    let mut out = String::new();
    Style { ensure_ascii, indent, item_separator, key_separator, sort_keys }.write(value, 0, &mut out)?;
    Ok(out)
}

/// `indent` is a number of spaces or the text itself.
fn indent_text(indent: Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_string());
    }
    let spaces = i64::try_from(indent)?;
    if spaces > 1000 {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: indent is at most 1000"));
    }
    Ok(" ".repeat(spaces.max(0) as usize))
}

fn separator_pair(separators: Value) -> Result<(String, String), Error> {
    let parts: Vec<Value> = separators.try_iter()?.collect();
    match parts.as_slice() {
        [item, key] => Ok((item.to_string(), key.to_string())),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators should be two strings")),
    }
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)?),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => self.write_list(value, depth, out)?,
            ValueKind::Map => self.write_map(value, depth, out)?,
            other => {
                let message = format!("tojson: a value of type {other} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn write_list(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        out.push('[');
        let mut empty = true;
        for item in value.try_iter()?.checked() {
            self.start_item(empty, depth, out);
            self.write(&item?, depth + 1, out)?;
            empty = false;
        }
        self.end(empty, depth, out);
        out.push(']');
        Ok(())
    }

    fn write_map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in value.try_iter()?.checked() {
            let key = key?;
            let item = value.get_item(&key)?;
            entries.push((key_text(&key)?, item));
        }
        if self.sort_keys {
            entries.sort_by(|a, b| a.0.cmp(&b.0));
        }
        out.push('{');
        for (i, (key, item)) in entries.iter().enumerate() {
            self.start_item(i == 0, depth, out);
            self.write_string(key, out);
            out.push_str(&self.key_separator);
            self.write(item, depth + 1, out)?;
        }
        self.end(entries.is_empty(), depth, out);
        out.push('}');
        Ok(())
    }

    fn start_item(&self, first: bool, depth: usize, out: &mut String) {
        if !first {
            out.push_str(&self.item_separator);
        }
        self.new_line(depth + 1, out);
    }

    fn end(&self, empty: bool, depth: usize, out: &mut String) {
        if !empty {
            self.new_line(depth, out);
        }
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && (c > '~')) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}"); // writing to a String does not fail
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let x = f64::try_from(value.clone())?;
    Ok(match x {
        x if x.is_nan() => "NaN".to_string(),
        x if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.to_string(),
        x => python::float_text(x),
    })
}

/// Keys that are no strings become what Python makes of them.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::None => Ok("null".to_string()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_string()),
        ValueKind::Number => number(key),
        other => {
            let message = format!("tojson: a key of type {other} cannot be written as JSON");
            Err(Error::new(ErrorKind::BadSerialization, message))
        }
    }
}
