//! The functions that a template may call.

use super::super::clock::strftime_now;
use super::budget::Fault;
use super::host::{Arguments, Host};
use super::value::{SeqKind, Value};

/// As in Jinja2's sandbox.
const MAX_RANGE: i128 = 100_000;

pub(crate) const NAMES: [&str; 7] =
    ["range", "dict", "namespace", "joiner", "cycler", "raise_exception", "strftime_now"];

/// `name(arguments)`.
pub(crate) fn call(host: &mut Host, name: &str, mut arguments: Arguments) -> Result<Value, Fault> {
    match name {
        "range" => range(host, arguments),
        "dict" | "namespace" => {
            let mut pairs = Vec::new();
            for source in std::mem::take(&mut arguments.plain) {
                match &source {
                    Value::Dict(dict) => pairs.extend(dict.entries.iter().cloned()),
                    other => {
                        for pair in &host.iterate(other)?.items {
                            match &host.iterate(pair)?.items[..] {
                                [key, value] => pairs.push((key.clone(), value.clone())),
                                _ => return Err(Fault::error("dict() needs pairs")),
                            }
                        }
                    }
                }
            }
            let named = arguments.named.into_iter().map(|(name, value)| (Value::Str(name), value));
            pairs.extend(named);
            let dict = Value::dict(pairs, &mut host.budget)?;
            let Value::Dict(entries) = &dict else { return Ok(dict) };
            if name == "dict" {
                return Ok(dict);
            }
            let mut names = Vec::new();
            for (key, value) in &entries.entries {
                names.push((host.str(key)?, value.clone()));
            }
            host.namespace(names)
        }
        "joiner" => {
            let [separator] = arguments.bind(name, ["sep"])?;
            host.budget.bytes(64)?;
            host.joiners.push((separator.unwrap_or_else(|| Value::text(", ")), false));
            Ok(Value::Joiner(host.joiners.len() - 1))
        }
        "cycler" => {
            if arguments.plain.is_empty() {
                return Err(Fault::error("at least one item has to be provided"));
            }
            host.budget.bytes(64 + arguments.plain.len() * size_of::<Value>())?;
            host.cyclers.push((arguments.plain, 0));
            Ok(Value::Cycler(host.cyclers.len() - 1))
        }
        "raise_exception" => {
            let [message] = arguments.bind(name, ["message"])?;
            let message = host.str(&message.unwrap_or(Value::None))?;
            Err(Fault::Raised(message.to_string()))
        }
        _ => {
            let [format] = arguments.bind(name, ["format"])?;
            let format = match format {
                Some(Value::Str(format)) => format,
                _ => return Err(Fault::error("strftime_now() needs a format")),
            };
            // a code of two characters becomes some thirty
            host.budget.bytes(format.len().saturating_mul(32))?;
            host.text(strftime_now(&format))
        }
    }
}

fn range(host: &mut Host, arguments: Arguments) -> Result<Value, Fault> {
    let mut bounds = Vec::new();
    for value in &arguments.plain {
        let Some(i) = value.as_int() else {
            let found = value.type_name();
            return Err(Fault::error(format!("'{found}' object cannot be interpreted as an integer")));
        };
        bounds.push(i);
    }
    let (start, stop, step) = match bounds[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] if step != 0 => (start, stop, step),
        [_, _, _] => return Err(Fault::error("range() arg 3 must not be zero")),
        _ => return Err(Fault::error(format!("range expected 1 to 3 arguments, got {}", bounds.len()))),
    };
    let distance = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
    let n = distance.max(0).saturating_add(step.saturating_abs() - 1) / step.saturating_abs();
    if n > MAX_RANGE {
        return Err(Fault::error(format!("Range too big. The sandbox blocks ranges larger than {MAX_RANGE}.")));
    }
    host.budget.bytes(n as usize * size_of::<Value>())?;
    let items = (0..n).map(|i| Value::Int(start + i * step)).collect();
    Value::seq(SeqKind::Range, items, &mut host.budget)
}
