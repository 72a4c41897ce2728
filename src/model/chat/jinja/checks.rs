//! Jinja2's tests: `value is name(argument)`.

use super::ast::{Comparison, Operator};
use super::budget::Fault;
use super::host::Host;
use super::names::{is_filter, is_test};
use super::operators::{arithmetic, compare};
use super::value::{SeqKind, Value};

/// Whether `value is name(arguments)`.
pub(crate) fn check(host: &mut Host, name: &str, value: &Value, arguments: &[Value]) -> Result<bool, Fault> {
    host.budget.steps(1)?;
    let argument =
        || arguments.first().ok_or_else(|| Fault::error(format!("the test {name:?} is missing an argument")));
    let comparison = match name {
        "eq" | "equalto" | "==" => Some(Comparison::Equal),
        "ne" | "!=" => Some(Comparison::NotEqual),
        "lt" | "lessthan" | "<" => Some(Comparison::Less),
        "le" | "<=" => Some(Comparison::LessOrEqual),
        "gt" | "greaterthan" | ">" => Some(Comparison::Greater),
        "ge" | ">=" => Some(Comparison::GreaterOrEqual),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if let Some(comparison) = comparison {
        return compare(host, comparison, value, argument()?);
    }
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        // whatever has a length and items
        "sequence" => match value {
            Value::Seq(seq) => {
                matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Group | SeqKind::Range)
            }
            other => matches!(other, Value::Str(_) | Value::Dict(_) | Value::Undefined(_)),
        },
        "iterable" => {
            matches!(value, Value::Seq(_) | Value::Str(_) | Value::Dict(_) | Value::Undefined(_) | Value::Loop(_))
        }
        "callable" => matches!(
            value,
            Value::Function(_)
                | Value::Method(_)
                | Value::Macro(..)
                | Value::Joiner(_)
                | Value::Loop(_)
                | Value::Undefined(_)
        ),
        "sameas" => {
            let other = argument()?;
            match (value, other) {
                (Value::Seq(a), Value::Seq(b)) => std::sync::Arc::ptr_eq(a, b),
                (Value::Dict(a), Value::Dict(b)) => std::sync::Arc::ptr_eq(a, b),
                _ => value.type_name() == other.type_name() && host.equals(value, other)?,
            }
        }
        "odd" | "even" | "divisibleby" => {
            let (by, wanted) = match name {
                "odd" => (Value::Int(2), 1),
                "even" => (Value::Int(2), 0),
                _ => (argument()?.clone(), 0),
            };
            let rest = arithmetic(host, Operator::Modulo, value, &by)?;
            host.equals(&rest, &Value::Int(wanted))?
        }
        "lower" | "upper" => {
            let text = host.str(value)?;
            host.budget.scan(text.len())?;
            let (upper, lower) = (text.chars().any(char::is_uppercase), text.chars().any(char::is_lowercase));
            if name == "lower" { lower && !upper } else { upper && !lower }
        }
        "escaped" => false,
        "filter" => value.as_str().is_some_and(is_filter),
        "test" => value.as_str().is_some_and(is_test),
        other => return Err(Fault::error(format!("No test named {other:?}."))),
    })
}
