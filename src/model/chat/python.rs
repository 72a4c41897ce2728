//! Python's methods of strings, lists and dicts: minijinja-contrib's, and those it lacks or defines differently.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// `value.name(*args)`.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let found = match value.as_str() {
        Some(text) => string_method(state, text, name, args)?,
        None if name == "index" && value.kind() == ValueKind::Seq => Some(list_index(value, args)?),
        None => None,
    };
    found.map_or_else(|| unknown_method_callback(state, value, name, args), Ok)
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn list_index(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (Value,) = from_args(args)?;
    let position = list.try_iter()?.position(|item| item == wanted);
    position.map(Value::from).ok_or_else(|| invalid("index: the value is not in the list"))
}

/// `None` leaves the method to minijinja-contrib.
fn string_method(state: &mut State, text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let argument = || from_args::<(&str,)>(args).map(|(argument,)| argument);
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, chars, name))
        }
        "removeprefix" => Value::from(text.strip_prefix(argument()?).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(argument()?).unwrap_or(text)),
        "partition" | "rpartition" => {
            let separator = argument()?;
            let parts = match (name, text.split_once(separator), text.rsplit_once(separator)) {
                ("partition", Some((before, after)), _) | ("rpartition", _, Some((before, after))) => {
                    [before, separator, after]
                }
                ("partition", ..) => [text, "", ""],
                _ => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "split" if args.first().is_some_and(|separator| separator.as_str() == Some("")) => {
            return Err(invalid("split: empty separator"));
        }
        "rsplit" => rsplit(text, args)?,
        "splitlines" => {
            let (keep_ends, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep_ends = keep_ends.or(kwargs.get("keepends")?).unwrap_or(false);
            kwargs.assert_all_used()?;
            lines(text, keep_ends).map(Value::from).collect()
        }
        "index" | "rindex" => {
            let find = if name == "index" { "find" } else { "rfind" };
            let position = method(state, &Value::from(text), find, args)?;
            match position.as_i64() {
                Some(0..) => position,
                _ => return Err(invalid("substring not found")),
            }
        }
        "find" | "rfind" | "startswith" | "endswith" if args.len() > 1 => in_range(state, text, name, args)?,
        // minijinja writes a wide field before charging for it
        "format" if text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 3) => {
            return Err(invalid("format: a field is wider than 999"));
        }
        _ => return Ok(None),
    }))
}

/// `find`, `startswith` and the like from a start on, and up to an end.
fn in_range(state: &mut State, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (Value, i64, Option<i64>) = from_args(args)?;
    let len = text.chars().count() as i64;
    let index = |i: i64| if i < 0 { (i + len).max(0) } else { i.min(len) } as usize;
    let (start, end) = (index(start), index(end.unwrap_or(len)));
    let part: String = text.chars().skip(start).take(end.saturating_sub(start)).collect();
    let found = unknown_method_callback(state, &Value::from(part), name, &[wanted])?;
    match found.as_i64() {
        Some(position @ 0..) if name.ends_with("find") => Ok(Value::from(position + start as i64)),
        _ => Ok(found),
    }
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, max): (&str, Option<i64>) = from_args(args)?;
    let max = max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX - 1);
    if separator.is_empty() {
        return Err(invalid("rsplit: empty separator"));
    }
    let parts: Vec<&str> = text.rsplitn(max.saturating_add(1), separator).collect();
    Ok(parts.into_iter().rev().map(Value::from).collect())
}

/// `strip`, `lstrip` or `rstrip`.
pub(super) fn strip<'t>(text: &'t str, chars: Option<&str>, name: &str) -> &'t str {
    let stripped = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if name == "rstrip" { text } else { text.trim_start_matches(stripped) };
    if name == "lstrip" { text } else { text.trim_end_matches(stripped) }
}

/// Whitespace as Python sees it: also the four separators of ASCII.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// The lines of `str.splitlines`.
fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let is_end = |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut rest = text;
    std::iter::from_fn(move || {
        let len = rest.find(is_end).unwrap_or(rest.len());
        let end = match &rest[len..] {
            end if end.starts_with("\r\n") => 2,
            end => end.chars().next().map_or(0, char::len_utf8),
        };
        let (line, after) = rest.split_at(len + end);
        rest = after;
        (!line.is_empty()).then(|| if keep_ends { line } else { &line[..len] })
    })
}

/// `str.title`: upper case after anything that is not a letter.
fn title(text: &str) -> String {
    let mut after_letter = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match after_letter {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        after_letter = c.is_alphabetic();
    }
    out
}

/// An indentation is a number of spaces or the text of one level.
pub(super) fn indent_text(indent: &Value, otherwise: &'static str) -> Result<String, Error> {
    match (indent.as_str(), indent.as_i64()) {
        (Some(text), _) => Ok(text.to_owned()),
        (None, Some(spaces @ ..=1000)) => Ok(" ".repeat(spaces.max(0) as usize)),
        _ => Err(invalid(otherwise)),
    }
}

/// `text | indent(width=4, first=False, blank=False)`.
pub(super) fn indent(
    state: &State,
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or(Value::from(4));
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let indent = indent_text(&width, "indent: expected a string or at most 1000")?;
    // Jinja2 adds a line end before it splits
    let text = format!("{text}\n");
    state.consume_fuel((lines(&text, false).count() * indent.len() / 64) as u64)?;
    let mut out = String::new();
    for (i, line) in lines(&text, false).enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    Ok(out)
}

// The filter `tojson` as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`. Jinja2's own escapes HTML.

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
