//! Chat templates on minijinja, set up as transformers sets up Jinja2 3.1: `trim_blocks`, `lstrip_blocks`, loop controls,
//! `tojson`, `raise_exception`, `strftime_now`, `{% generation %}` and Python's methods.
//!
//! # Differences from Jinja2
//!
//! An error here, text in Jinja2:
//!
//! - bare tuples (`{{ a, b }}`), unary `+`, and `%` as string formatting (the filter `format` works);
//! - `{% block %}`, `joiner`, `cycler`, `varargs` and methods as values;
//! - the string methods `zfill`, `center`, `ljust`, `rjust`, `expandtabs`, `swapcase` and `casefold`,
//!   and `rsplit` without a separator;
//! - the filters `attr`, `center`, `striptags`, `truncate`, `urlencode` and `wordcount`, the test `callable`, and
//!   arguments that minijinja's filters lack.
//!
//! Text here, an error in Jinja2:
//!
//! - a loop over `none` is empty, so two published templates that require tools render without them;
//! - undefined values and values of different types compare; generators can be indexed and have a length.
//!
//! Other text:
//!
//! - `range` objects, dict views, undefined values and rare floats inside printed lists look as in minijinja;
//! - `escape` writes `&quot;` for `&#34;`;
//! - a macro's default cannot name another argument, and in `{% with a = 1, b = a %}` the second `a` is the new one;
//! - `{% generation %}` is replaced in the source, even in `{% raw %}` and string literals.
//!
//! # Limits
//!
//! A template comes with a model, from anyone. It gets fuel in proportion to the conversation: one unit pays for one
//! instruction or 64 bytes. minijinja 3.1 neither charges for the following nor lets a program intervene, so they are not
//! contained:
//!
//! - a list doubled by `x = x + x`: the sum is lazy, and each access walks all of its parts;
//! - a namespace that contains itself, compared or used as a dict's key: this recurses until the stack overflows.

use super::{ChatError, python};
use crate::model::boundary::caught;
use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::TimeZone;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value, syntax::SyntaxConfig};
use regex::{Captures, Regex};
use serde_json::Value as Json;
use std::sync::LazyLock;

/// Published templates need up to 750 units for four short messages.
const FUEL: u64 = 10_000;
/// Some templates walk through all messages at each message.
const FUEL_PER_MESSAGE: u64 = 5_000;
/// Templates copy, strip, split and search what they are given.
const FUEL_PER_BYTE: u64 = 1;

/// The template's name in error messages, before the line: "(in chat template:12)".
const NAME: &str = "chat template";

/// Carries the message of `raise_exception` through minijinja's errors.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// A compiled template.
pub(super) struct Template(Environment<'static>);

impl Template {
    /// Compiles a template, or describes its first syntax error.
    pub(super) fn parse(source: &str) -> Result<Self, String> {
        let mut env = environment();
        caught(|| env.add_template_owned(NAME, prepared(source)))?;
        Ok(Self(env))
    }

    /// Renders the template. `variables` has `messages`, a list; `input_len` is the number of bytes in all strings.
    pub(super) fn render(&self, variables: &Json, input_len: usize) -> Result<String, ChatError> {
        let message_count = variables["messages"].as_array().map_or(0, Vec::len);
        let mut env = self.0.clone();
        env.set_fuel(Some(FUEL + FUEL_PER_MESSAGE * message_count as u64 + FUEL_PER_BYTE * input_len as u64));
        let render = || env.get_template(NAME)?.render(Value::from(Serde(variables)));
        let rendered = caught(|| Ok::<_, String>(render())).map_err(|message| ChatError::Render { message });
        rendered?.map_err(|error| fault(&error))
    }
}

/// Whether the template raised the error, ran out of fuel, or failed otherwise, and at which line.
fn fault(error: &Error) -> ChatError {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    for cause in causes {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return ChatError::Template { message: message.clone() };
        }
        if let Some(error) = cause.downcast_ref::<Error>().filter(|error| error.kind() == ErrorKind::OutOfFuel) {
            let message = error.detail().unwrap_or("it takes too many steps or makes too much text");
            return ChatError::Limit { message: format!("{message} (in {NAME}:{})", error.line().unwrap_or(1)) };
        }
    }
    ChatError::Render { message: error.to_string() }
}

/// The source with Jinja2's line ends, and with `{% generation %}` as `{% with %}`, which has the same scope.
fn prepared(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    static TAG: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?s)\{%(.*?)%\}").expect("a constant pattern"));
    let tag = |tag: &Captures| match tag[1].trim_matches(['-', '+', ' ', '\t', '\n']) {
        "generation" | "endgeneration" => tag[0].replace("generation", "with"),
        _ => tag[0].to_owned(),
    };
    TAG.replace_all(&source, tag).into_owned()
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("Jinja's own delimiters are valid"));
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(print);
    env.set_unknown_method_callback(python::method);
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message.to_string())))
    });
    env.add_function("strftime_now", |format: &str| strftime(format, Timestamp::now()));
    env.add_filter("tojson", python::tojson);
    env.add_filter("trim", |text: &str, chars: Option<&str>| python::strip(text, chars, "strip").to_owned());
    env.add_filter("indent", python::indent);
    env.add_filter("string", |state: &State, value: Value| match value.as_str() {
        Some(_) => Ok(value),
        None => printed(state, &value).map(Value::from),
    });
    env.remove_filter("attr"); // it would find a dict's items, which Jinja2's does not
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env
}

/// Writes `{{ value }}`.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text)?,
        None if value.is_undefined() => {}
        None => out.write_str(&printed(state, value)?)?,
    }
    Ok(())
}

/// Python's `str(value)`.
fn printed(state: &State, value: &Value) -> Result<String, Error> {
    charge(state, value, 0)?;
    Ok(if value.is_number() && !value.is_integer() { python::number(value) } else { value.to_string() })
}

/// Charges for printing a value, whose parts may be shared, nested deeply, or the value itself.
fn charge(state: &State, value: &Value, depth: usize) -> Result<(), Error> {
    let len = value.as_str().map_or(0, str::len);
    state.consume_fuel(1 + len as u64 / 64)?;
    python::check_depth(depth)?;
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        for item in value.try_iter()?.checked() {
            let item = item?;
            charge(state, &item, depth + 1)?;
            if value.kind() == ValueKind::Map {
                charge(state, &value.get_item(&item)?, depth + 1)?;
            }
        }
    }
    Ok(())
}

// `strftime_now` of chat templates, using jiff.

/// A time in Python's `format`. It is UTC, since no time zone database is built in: around midnight the date may differ from
/// the local date that transformers writes.
fn strftime(format: &str, now: Timestamp) -> String {
    // Python's now() carries no zone, and %f has microseconds
    let format = format.replace("%z", "").replace("%Z", "").replace("%f", "%6f");
    let config = Config::new().custom(PosixCustom::new()).lenient(true); // lenient: never an error
    let now = BrokenDownTime::from(&now.to_zoned(TimeZone::UTC));
    now.to_string_with_config(&config, &format).unwrap_or(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(format: &str, seconds: i64, micros: i32) -> String {
        strftime(format, Timestamp::new(seconds, 1000 * micros).unwrap())
    }

    /// Python's `datetime.fromtimestamp(t, timezone.utc).replace(tzinfo=None).strftime(...)`.
    #[test]
    fn dates_are_pythons() {
        let all = "%Y-%m-%d %H:%M:%S %j %a %A %b %B %U %W %V %G %u %w %I %p %y %e|%-d|%-m|%-H|%-I|%-j|%C";
        for (seconds, expected) in CASES {
            assert_eq!(at(all, seconds, 0), expected, "{seconds}");
        }
        assert_eq!(at("%d %b %Y", 1_721_952_000, 0), "26 Jul 2024");
        assert_eq!(at("%F %T %D %R%%%n%c", 0, 7), "1970-01-01 00:00:00 01/01/70 00:00%\nThu Jan  1 00:00:00 1970");
        assert_eq!(at("%f", 0, 7), "000007");
        assert_eq!(at("%é %", 0, 0), "%é %");
    }

    /// jiff writes `%y` of 1969 to 2068 only.
    const CASES: [(i64, &str); 10] = [
        (0, "1970-01-01 00:00:00 001 Thu Thursday Jan January 00 00 01 1970 4 4 12 AM 70  1|1|1|0|12|1|19"),
        (951782399, "2000-02-28 23:59:59 059 Mon Monday Feb February 09 09 09 2000 1 1 11 PM 00 28|28|2|23|11|59|20"),
        (951782400, "2000-02-29 00:00:00 060 Tue Tuesday Feb February 09 09 09 2000 2 2 12 AM 00 29|29|2|0|12|60|20"),
        (1709164800, "2024-02-29 00:00:00 060 Thu Thursday Feb February 08 09 09 2024 4 4 12 AM 24 29|29|2|0|12|60|20"),
        (
            1230767999,
            "2008-12-31 23:59:59 366 Wed Wednesday Dec December 52 52 01 2009 3 3 11 PM 08 31|31|12|23|11|366|20",
        ),
        (
            1609459199,
            "2020-12-31 23:59:59 366 Thu Thursday Dec December 52 52 53 2020 4 4 11 PM 20 31|31|12|23|11|366|20",
        ),
        (1609459200, "2021-01-01 00:00:00 001 Fri Friday Jan January 00 00 53 2020 5 5 12 AM 21  1|1|1|0|12|1|20"),
        (1721999999, "2024-07-26 13:19:59 208 Fri Friday Jul July 29 30 30 2024 5 5 01 PM 24 26|26|7|13|1|208|20"),
        (
            1735603200,
            "2024-12-31 00:00:00 366 Tue Tuesday Dec December 52 53 01 2025 2 2 12 AM 24 31|31|12|0|12|366|20",
        ),
        (-1, "1969-12-31 23:59:59 365 Wed Wednesday Dec December 52 52 01 1970 3 3 11 PM 69 31|31|12|23|11|365|19"),
    ];
}
