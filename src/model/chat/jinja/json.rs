//! The `tojson` filter as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`, not Jinja's own,
//! which escapes HTML.

use std::fmt::Write;

use super::budget::{Budget, Fault};
use super::host::{Arguments, Host};
use super::text::float_text;
use super::value::{SeqKind, Value};

/// The arguments of `json.dumps` that transformers passes on.
struct Style {
    ensure_ascii: bool,
    /// Text of one level of indentation; none writes everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(crate) fn tojson(host: &mut Host, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] =
        arguments.bind("tojson", names)?.map(|value| value.filter(|v| !matches!(v, Value::None)));
    let truth = |value: Option<Value>| value.is_some_and(|v| v.truth());
    let indent = indent.map(indent_text).transpose()?;
    // Without explicit separators, Python leaves no space at the end of indented lines.
    let default_item = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = match separators {
        None => (default_item.to_string(), ": ".to_string()),
        Some(separators) => match &host.iterate(&separators)?.items[..] {
            [item, key] => (host.str(item)?.to_string(), host.str(key)?.to_string()),
            _ => return Err(Fault::error("tojson: separators should be two strings")),
        },
    };
    let (ensure_ascii, sort_keys) = (truth(ensure_ascii), truth(sort_keys));
    let mut out = String::new();
    let style = Style { ensure_ascii, indent, item_separator, key_separator, sort_keys };
    style.write(value, 0, &mut out, &mut host.budget)?;
    host.text(out)
}

/// `indent` is a number of spaces or the text itself.
fn indent_text(indent: Value) -> Result<String, Fault> {
    match indent {
        Value::Str(text) => Ok(text.to_string()),
        other => match other.as_len() {
            Some(spaces) if spaces <= 1000 => Ok(" ".repeat(spaces)),
            Some(_) => Err(Fault::error("tojson: indent is at most 1000")),
            None => Err(Fault::error(format!("tojson: indent should be an integer, not {}", other.type_name()))),
        },
    }
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
        budget.bytes(8)?;
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Value::Int(i) => out.push_str(&i.to_string()),
            Value::Float(x) => out.push_str(&float_json(*x)),
            Value::Str(text) => {
                budget.bytes(if self.ensure_ascii { 6 } else { 2 } * text.len())?;
                self.write_string(text, out);
            }
            Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Group) => {
                out.push('[');
                for (i, item) in seq.items.iter().enumerate() {
                    self.start_item(i == 0, depth, out, budget)?;
                    self.write(item, depth + 1, out, budget)?;
                }
                self.end(seq.items.is_empty(), depth, out, budget)?;
                out.push(']');
            }
            Value::Dict(dict) => self.write_map(&dict.entries, depth, out, budget)?,
            Value::Undefined(_) => return Err(Fault::error("Object of type Undefined is not JSON serializable")),
            other => {
                return Err(Fault::error(format!("Object of type {} is not JSON serializable", other.type_name())));
            }
        }
        Ok(())
    }

    fn write_map(
        &self,
        pairs: &[(Value, Value)],
        depth: usize,
        out: &mut String,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        let mut entries = Vec::with_capacity(pairs.len());
        budget.bytes(size_of_val(pairs))?;
        for (key, item) in pairs {
            entries.push((key_text(key)?, item));
        }
        if self.sort_keys {
            budget.steps(entries.len())?;
            entries.sort_by(|a, b| a.0.cmp(&b.0));
        }
        out.push('{');
        for (i, (key, item)) in entries.iter().enumerate() {
            self.start_item(i == 0, depth, out, budget)?;
            budget.bytes(6 * key.len() + self.key_separator.len())?;
            self.write_string(key, out);
            out.push_str(&self.key_separator);
            self.write(item, depth + 1, out, budget)?;
        }
        self.end(entries.is_empty(), depth, out, budget)?;
        out.push('}');
        Ok(())
    }

    fn start_item(&self, first: bool, depth: usize, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
        if !first {
            budget.bytes(self.item_separator.len())?;
            out.push_str(&self.item_separator);
        }
        self.new_line(depth + 1, out, budget)
    }

    fn end(&self, empty: bool, depth: usize, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
        if empty { Ok(()) } else { self.new_line(depth, out, budget) }
    }

    fn new_line(&self, depth: usize, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
        if let Some(indent) = &self.indent {
            budget.bytes(1 + indent.len().saturating_mul(depth))?;
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
        Ok(())
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

fn float_json(x: f64) -> String {
    match x {
        x if x.is_nan() => "NaN".to_string(),
        x if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.to_string(),
        x => float_text(x),
    }
}

/// Keys that are no strings become what Python makes of them.
fn key_text(key: &Value) -> Result<String, Fault> {
    Ok(match key {
        Value::Str(text) => text.to_string(),
        Value::None => "null".to_string(),
        Value::Bool(b) => if *b { "true" } else { "false" }.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Float(x) => float_json(*x),
        other => {
            let found = other.type_name();
            return Err(Fault::error(format!("keys must be str, int, float, bool or None, not {found}")));
        }
    })
}
