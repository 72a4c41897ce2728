//! Python's operators.

use super::ast::{Comparison, Operator};
use super::budget::Fault;
use super::format::percent;
use super::host::Host;
use super::value::{SeqKind, Value};

/// `a operator b`.
pub(crate) fn arithmetic(host: &mut Host, operator: Operator, a: &Value, b: &Value) -> Result<Value, Fault> {
    if let (Value::Undefined(message), _) | (_, Value::Undefined(message)) = (a, b)
        && !matches!((operator, a), (Operator::Modulo, Value::Str(_)))
    {
        return Err(Fault::error(&**message));
    }
    match (operator, a, b) {
        (Operator::Add, Value::Str(left), Value::Str(right)) => {
            host.budget.bytes(left.len() + right.len() + 32)?;
            return Ok(Value::Str([&**left, &**right].concat().into()));
        }
        (Operator::Add, Value::Seq(left), Value::Seq(right))
            if left.kind == right.kind && matches!(left.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            host.budget.bytes((left.items.len() + right.items.len()) * size_of::<Value>())?;
            let items = left.items.iter().chain(&right.items).cloned().collect();
            return Value::seq(left.kind, items, &mut host.budget);
        }
        (Operator::Add, Value::Str(_), other) => {
            let message = format!("can only concatenate str (not \"{}\") to str", other.type_name());
            return Err(Fault::error(message));
        }
        (Operator::Modulo, Value::Str(format), arguments) => return percent(host, format, arguments),
        (Operator::Multiply, Value::Str(_) | Value::Seq(_), times)
        | (Operator::Multiply, times, Value::Str(_) | Value::Seq(_)) => {
            let repeated = if matches!(a, Value::Str(_) | Value::Seq(_)) { a } else { b };
            if let Some(times) = times.as_len()
                && let Some(value) = repeat(host, repeated, times)?
            {
                return Ok(value);
            }
        }
        _ => {}
    }
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        return integers(operator, x, y);
    }
    if let (Some(x), Some(y)) = (a.as_float(), b.as_float()) {
        return floats(operator, x, y);
    }
    let sign = match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Modulo => "%",
        Operator::Power => "** or pow()",
    };
    let (a, b) = (a.type_name(), b.type_name());
    Err(Fault::error(format!("unsupported operand type(s) for {sign}: '{a}' and '{b}'")))
}

fn repeat(host: &mut Host, value: &Value, times: usize) -> Result<Option<Value>, Fault> {
    Ok(match value {
        Value::Str(text) => {
            host.budget.bytes(text.len().saturating_mul(times).saturating_add(32))?;
            Some(Value::Str(text.repeat(times).into()))
        }
        Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
            let n = seq.items.len().saturating_mul(times);
            host.budget.bytes(n.saturating_mul(size_of::<Value>()))?;
            let items = seq.items.iter().cycle().take(n).cloned().collect();
            Some(Value::seq(seq.kind, items, &mut host.budget)?)
        }
        _ => None,
    })
}

fn integers(operator: Operator, a: i128, b: i128) -> Result<Value, Fault> {
    let zero = |message: &str| Err(Fault::error(message));
    let result = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::Divide if b == 0 => return zero("division by zero"),
        Operator::Divide => return Ok(Value::Float(a as f64 / b as f64)),
        Operator::FloorDivide if b == 0 => return zero("integer division or modulo by zero"),
        Operator::FloorDivide => a.checked_div(b).map(|q| q - i128::from(a % b != 0 && (a < 0) != (b < 0))),
        Operator::Modulo if b == 0 => return zero("integer modulo by zero"),
        Operator::Modulo => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
        Operator::Power if b < 0 => return floats(operator, a as f64, b as f64),
        Operator::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    result.map(Value::Int).ok_or_else(|| Fault::limit("an integer gets more than 128 bits"))
}

fn floats(operator: Operator, a: f64, b: f64) -> Result<Value, Fault> {
    let modulo = |a: f64, b: f64| {
        let r = a % b;
        if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
    };
    Ok(Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide | Operator::FloorDivide | Operator::Modulo if b == 0.0 => {
            return Err(Fault::error("float division by zero"));
        }
        Operator::Divide => a / b,
        Operator::FloorDivide => ((a - modulo(a, b)) / b).round(),
        Operator::Modulo => modulo(a, b),
        Operator::Power if a == 0.0 && b < 0.0 => {
            return Err(Fault::error("0.0 cannot be raised to a negative power"));
        }
        Operator::Power => a.powf(b),
    }))
}

/// `-value`, or `+value`.
pub(crate) fn signed(value: &Value, negative: bool) -> Result<Value, Fault> {
    match value {
        Value::Undefined(message) => Err(Fault::error(&**message)),
        Value::Float(x) => Ok(Value::Float(if negative { -x } else { *x })),
        other => match other.as_int() {
            Some(i) if negative => {
                i.checked_neg().map(Value::Int).ok_or_else(|| Fault::limit("an integer gets more than 128 bits"))
            }
            Some(i) => Ok(Value::Int(i)),
            None => {
                let sign = if negative { '-' } else { '+' };
                Err(Fault::error(format!("bad operand type for unary {sign}: '{}'", other.type_name())))
            }
        },
    }
}

/// `a comparison b`.
pub(crate) fn compare(host: &mut Host, comparison: Comparison, a: &Value, b: &Value) -> Result<bool, Fault> {
    let budget = &mut host.budget;
    Ok(match comparison {
        Comparison::Equal => a.equals(b, budget)?,
        Comparison::NotEqual => !a.equals(b, budget)?,
        Comparison::Less => a.compare(b, "<", budget)?.is_some_and(|order| order.is_lt()),
        Comparison::LessOrEqual => a.compare(b, "<=", budget)?.is_some_and(|order| order.is_le()),
        Comparison::Greater => a.compare(b, ">", budget)?.is_some_and(|order| order.is_gt()),
        Comparison::GreaterOrEqual => a.compare(b, ">=", budget)?.is_some_and(|order| order.is_ge()),
        Comparison::In => contains(host, b, a)?,
        Comparison::NotIn => !contains(host, b, a)?,
    })
}

/// `value in container`.
fn contains(host: &mut Host, container: &Value, value: &Value) -> Result<bool, Fault> {
    match (container, value) {
        (Value::Str(text), Value::Str(part)) => {
            host.budget.scan(text.len() + part.len())?;
            Ok(text.contains(&**part))
        }
        (Value::Str(_), Value::Undefined(message)) => Err(Fault::error(&**message)),
        (Value::Str(_), other) => {
            let message = format!("'in <string>' requires string as left operand, not {}", other.type_name());
            Err(Fault::error(message))
        }
        (Value::Dict(dict), _) => {
            let key = value.as_key(&mut host.budget)?;
            Ok(dict.get(&key).is_some())
        }
        (Value::Seq(seq), _) => {
            for item in &seq.items {
                if host.equals(item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Undefined(_), _) => Ok(false),
        (other, _) => Err(Fault::error(format!("argument of type '{}' is not iterable", other.type_name()))),
    }
}
