//! The filter `tojson` as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`. Jinja2's own escapes HTML.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::python::indent_text;

/// Max depth of nested lists and dicts that can be printed.
const MAX_DEPTH: usize = 100;

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let named = |name: &str| kwargs.get::<Option<Value>>(name);
    let ensure_ascii = ensure_ascii.or(named("ensure_ascii")?);
    let indent = indent.or(named("indent")?).filter(|indent| !indent.is_none());
    let (separators, sort_keys) = (named("separators")?.filter(|value| !value.is_none()), named("sort_keys")?);
    kwargs.assert_all_used()?;
    let truth = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let otherwise = "tojson: indent: expected a string or at most 1000";
    let indent = indent.map(|indent| indent_text(&indent, otherwise)).transpose()?;
    let (item_separator, key_separator) = match separators {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let (ensure_ascii, sort_keys) = (truth(ensure_ascii), truth(sort_keys));
    let (out, charged) = (String::new(), 0);
    let mut writer = Writer { state, ensure_ascii, indent, item_separator, key_separator, sort_keys, out, charged };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// A number as Python writes it: shortest digits, with an exponent below 1e-4 and from 1e16.
pub(super) fn number(value: &Value) -> String {
    let Ok(x) = f64::try_from(value.clone()) else { return value.to_string() };
    let scientific = format!("{x:e}");
    match scientific.split_once('e').and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?))) {
        _ if value.is_integer() => value.to_string(),
        Some((digits, exponent)) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        Some(_) => format!("{x:?}"),
        None if x.is_nan() => "NaN".to_owned(),
        None => if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
    }
}

struct Writer<'w, 's, 'e> {
    state: &'w State<'s, 'e>,
    ensure_ascii: bool,
    /// One level of indentation; `None` writes everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    out: String,
    /// Bytes of `out` already charged.
    charged: usize,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        self.state.consume_fuel(1 + (self.out.len() - self.charged) as u64 / 64)?;
        self.charged = self.out.len();
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().map(|item| Ok((None, item?)));
                self.items(['[', ']'], items, depth)?;
            }
            ValueKind::Map => {
                let keys = value.try_iter()?.checked();
                let entries = keys.map(|key| key.and_then(|key| Ok((Some(key_text(&key)?), value.get_item(&key)?))));
                let mut entries: Vec<_> = entries.collect::<Result<_, Error>>()?;
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.items(['{', '}'], entries.into_iter().map(Ok), depth)?;
            }
            _ => self.out.push_str(&scalar(value)?),
        }
        Ok(())
    }

    fn items(
        &mut self,
        [open, close]: [char; 2],
        items: impl Iterator<Item = Result<(Option<String>, Value), Error>>,
        depth: usize,
    ) -> Result<(), Error> {
        self.out.push(open);
        let mut empty = true;
        for entry in items {
            let (key, item) = entry?;
            if !empty {
                self.out.push_str(&self.item_separator);
            }
            empty = false;
            self.new_line(depth + 1);
            if let Some(key) = key {
                self.string(&key);
                self.out.push_str(&self.key_separator);
            }
            self.value(&item, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        for c in serde_json::Value::from(text).to_string().chars() {
            match self.ensure_ascii && c > '~' {
                true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| self.out += &format!("\\u{unit:04x}")),
                false => self.out.push(c),
            }
        }
    }
}

/// A value that is neither a container nor a text.
fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(number(value)),
        kind => {
            let message = format!("an object of type {kind} is not JSON serializable");
            Err(Error::new(ErrorKind::BadSerialization, message))
        }
    }
}

/// A dict's key as `json.dumps` writes it.
fn key_text(key: &Value) -> Result<String, Error> {
    if key.kind() == ValueKind::String { Ok(key.to_string()) } else { scalar(key) }
}

/// Fails if a value to be printed is nested deeper than [`MAX_DEPTH`].
pub(super) fn check_depth(depth: usize) -> Result<(), Error> {
    match depth > MAX_DEPTH {
        true => Err(Error::new(ErrorKind::OutOfFuel, "it prints a list or dict nested too deeply")),
        false => Ok(()),
    }
}
