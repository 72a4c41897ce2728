//! Jinja2's filters of lists and dicts.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::budget::{Budget, Fault};
use super::checks::check;
use super::host::{Arguments, Host};
use super::names::is_test;
use super::operators::arithmetic;
use super::value::{SeqKind, Value};

/// Whether it was a filter of lists; else the arguments come back.
pub(crate) enum Applied {
    Done(Value),
    Other(Arguments),
}

/// `value | name(arguments)`.
pub(crate) fn apply(host: &mut Host, name: &str, value: &Value, arguments: Arguments) -> Result<Applied, Fault> {
    let done = match name {
        "list" => {
            let items = host.iterate(value)?.items.clone();
            host.list(items)
        }
        "first" => {
            let items = host.iterate(value)?;
            Ok(items.items.first().cloned().unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")))
        }
        "last" => last(host, value),
        "reverse" => reverse(host, value),
        "join" => join(host, value, arguments),
        "items" => match value {
            Value::Undefined(_) => host.generator(Vec::new()),
            Value::Dict(dict) => {
                let mut items = Vec::new();
                for (key, value) in &dict.entries {
                    items.push(host.tuple(vec![key.clone(), value.clone()])?);
                }
                host.generator(items)
            }
            _ => Err(Fault::error("Can only get item pairs from a mapping.")),
        },
        "select" | "reject" | "selectattr" | "rejectattr" => select(host, name, value, arguments),
        "sort" => {
            let [reverse, case_sensitive, attribute] =
                arguments.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let items = host.iterate(value)?;
            let keyed = keyed(host, &items.items, attribute.as_ref(), truth(&case_sensitive))?;
            let sorted = sorted(host, keyed, truth(&reverse))?;
            host.list(sorted)
        }
        "unique" => {
            let [case_sensitive, attribute] = arguments.bind(name, ["case_sensitive", "attribute"])?;
            let items = host.iterate(value)?;
            let mut seen = HashSet::new();
            let mut unique = Vec::new();
            for (key, item) in keyed(host, &items.items, attribute.as_ref(), truth(&case_sensitive))? {
                host.budget.bytes(64)?;
                if seen.insert(key.as_key(&mut host.budget)?) {
                    unique.push(item);
                }
            }
            host.generator(unique)
        }
        "min" | "max" => {
            let [case_sensitive, attribute] = arguments.bind(name, ["case_sensitive", "attribute"])?;
            let items = host.iterate(value)?;
            let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
            let mut best: Option<(Value, Value)> = None;
            for (key, item) in keyed(host, &items.items, attribute.as_ref(), truth(&case_sensitive))? {
                let better = match &best {
                    Some((best, _)) => key.compare(best, "<", &mut host.budget)? == Some(wanted),
                    None => true,
                };
                if better {
                    best = Some((key, item));
                }
            }
            Ok(best.map_or_else(|| Value::undefined("No aggregated item, sequence was empty."), |(_, item)| item))
        }
        "sum" => {
            let [attribute, start] = arguments.bind(name, ["attribute", "start"])?;
            let mut sum = start.unwrap_or(Value::Int(0));
            for item in &host.iterate(value)?.items {
                let item = match &attribute {
                    Some(attribute) => attribute_of(host, item, attribute)?,
                    None => item.clone(),
                };
                sum = arithmetic(host, super::ast::Operator::Add, &sum, &item)?;
            }
            Ok(sum)
        }
        "batch" => batch(host, value, arguments),
        "slice" => slice(host, value, arguments),
        "groupby" => group_by(host, value, arguments),
        "dictsort" => dict_sort(host, value, arguments),
        _ => return Ok(Applied::Other(arguments)),
    };
    done.map(Applied::Done)
}

fn truth(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(Value::truth)
}

/// `item.a.b`, of a path "a.b"; numbers are indices.
pub(crate) fn attribute_of(host: &mut Host, item: &Value, path: &Value) -> Result<Value, Fault> {
    let Value::Str(path) = path else { return host.item(item, path) };
    host.budget.scan(path.len())?;
    let mut value = item.clone();
    for part in path.split('.') {
        let key = match part.parse() {
            Ok(i) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(i),
            _ => Value::text(part),
        };
        value = host.item(&value, &key)?;
    }
    Ok(value)
}

fn last(host: &mut Host, value: &Value) -> Result<Value, Fault> {
    if let Value::Seq(seq) = value
        && seq.kind == SeqKind::Generator
    {
        return Err(Fault::error("'generator' object is not reversible"));
    }
    let items = host.iterate(value)?;
    Ok(items.items.last().cloned().unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
}

fn reverse(host: &mut Host, value: &Value) -> Result<Value, Fault> {
    if let Value::Str(text) = value {
        host.budget.bytes(text.len())?;
        return host.text(text.chars().rev().collect());
    }
    let items = host.iterate(value)?.items.iter().rev().cloned().collect();
    match value {
        // what cannot be walked backwards becomes a list
        Value::Seq(seq) if seq.kind == SeqKind::Generator => host.list(items),
        _ => host.generator(items),
    }
}

fn join(host: &mut Host, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    let [separator, attribute] = arguments.bind("join", ["d", "attribute"])?;
    let separator = match separator {
        Some(separator) => host.str(&separator)?,
        None => "".into(),
    };
    let mut out = String::new();
    for (i, item) in host.iterate(value)?.items.iter().enumerate() {
        let text = match &attribute {
            Some(attribute) => {
                let found = attribute_of(host, item, attribute)?;
                host.str(&found)?
            }
            None => host.str(item)?,
        };
        let separator = if i > 0 { &*separator } else { "" };
        host.budget.bytes(separator.len() + text.len())?;
        out.push_str(separator);
        out.push_str(&text);
    }
    host.text(out)
}

fn select(host: &mut Host, name: &str, value: &Value, mut arguments: Arguments) -> Result<Value, Fault> {
    let of_attribute = name.ends_with("attr");
    let wanted = name.starts_with("select");
    let attribute = match (of_attribute, arguments.plain.is_empty()) {
        (true, true) => return Err(Fault::error("Missing parameter for attribute name")),
        (true, false) => Some(arguments.plain.remove(0)),
        _ => None,
    };
    let test = match arguments.plain.is_empty() {
        true => None,
        false => Some(host.str(&arguments.plain.remove(0))?),
    };
    if let Some(test) = &test
        && !is_test(test)
    {
        return Err(Fault::error(format!("No test named '{test}'.")));
    }
    let items = host.iterate(value)?;
    let mut selected = Vec::new();
    for item in &items.items {
        let looked_at = match &attribute {
            Some(attribute) => attribute_of(host, item, attribute)?,
            None => item.clone(),
        };
        let holds = match &test {
            Some(test) => check(host, test, &looked_at, &arguments.plain)?,
            None => looked_at.truth(),
        };
        if holds == wanted {
            selected.push(item.clone());
        }
    }
    host.generator(selected)
}

/// Items with what they are sorted by: themselves or their attributes, texts in lower case.
fn keyed(
    host: &mut Host,
    items: &[Value],
    attribute: Option<&Value>,
    case_sensitive: bool,
) -> Result<Vec<(Value, Value)>, Fault> {
    let lower = |host: &mut Host, key: Value| match key {
        Value::Str(text) if !case_sensitive => host.text(text.to_lowercase()),
        other => Ok(other),
    };
    let attribute = attribute.filter(|attribute| !matches!(attribute, Value::None));
    let mut keyed = Vec::with_capacity(items.len());
    for item in items {
        let key = match attribute {
            None => lower(host, item.clone())?,
            Some(Value::Str(paths)) if paths.contains(',') => {
                let mut keys = Vec::new();
                for path in paths.split(',') {
                    let found = attribute_of(host, item, &Value::text(path.trim()))?;
                    keys.push(lower(host, found)?);
                }
                host.list(keys)?
            }
            Some(attribute) => {
                let found = attribute_of(host, item, attribute)?;
                lower(host, found)?
            }
        };
        keyed.push((key, item.clone()));
    }
    Ok(keyed)
}

/// The items in the order of their keys, equal ones as they came. By hand, since a comparison may fail.
fn sorted(host: &mut Host, keyed: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<Value>, Fault> {
    host.budget.bytes(keyed.len() * size_of::<(Value, Value)>())?;
    let sorted = merge_sort(keyed, reverse, &mut host.budget)?;
    Ok(sorted.into_iter().map(|(_, item)| item).collect())
}

fn merge_sort(mut left: Vec<(Value, Value)>, reverse: bool, budget: &mut Budget) -> Result<Vec<(Value, Value)>, Fault> {
    if left.len() < 2 {
        return Ok(left);
    }
    let right = left.split_off(left.len() / 2);
    let n = left.len() + right.len();
    let mut left = merge_sort(left, reverse, budget)?.into_iter().peekable();
    let mut right = merge_sort(right, reverse, budget)?.into_iter().peekable();
    let mut merged = Vec::with_capacity(n);
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let order = b.0.compare(&a.0, "<", budget)?;
        let right_first = order == Some(if reverse { Ordering::Greater } else { Ordering::Less });
        merged.extend(if right_first { right.next() } else { left.next() });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

fn batch(host: &mut Host, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    let [size, fill] = arguments.bind("batch", ["linecount", "fill_with"])?;
    let size = size.and_then(|size| size.as_len()).unwrap_or(0).max(1);
    let items = host.iterate(value)?;
    let mut rows = Vec::new();
    for row in items.items.chunks(size) {
        let mut row = row.to_vec();
        if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Value::None)) {
            host.budget.bytes((size - row.len()).saturating_mul(size_of::<Value>()))?;
            row.resize(size, fill.clone());
        }
        rows.push(host.list(row)?);
    }
    host.generator(rows)
}

fn slice(host: &mut Host, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    let [slices, fill] = arguments.bind("slice", ["slices", "fill_with"])?;
    let Some(slices) = slices.and_then(|slices| slices.as_len()).filter(|&n| n > 0) else {
        return Err(Fault::error("slice() needs a number of slices"));
    };
    let items = host.iterate(value)?;
    let (each, longer) = (items.items.len() / slices, items.items.len() % slices);
    let mut rows = Vec::new();
    let mut at = 0;
    for i in 0..slices {
        let end = at + each + usize::from(i < longer);
        let mut row = items.items[at..end].to_vec();
        at = end;
        if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Value::None) && i >= longer) {
            row.push(fill.clone());
        }
        rows.push(host.list(row)?);
    }
    host.generator(rows)
}

fn group_by(host: &mut Host, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    let [attribute, default, case_sensitive] = arguments.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    let Some(attribute) = attribute else { return Err(Fault::error("groupby() needs an attribute")) };
    let items = host.iterate(value)?;
    let mut keyed = Vec::new();
    for item in &items.items {
        let mut key = attribute_of(host, item, &attribute)?;
        if let Some(default) = default.as_ref().filter(|_| key.is_undefined()) {
            key = default.clone();
        }
        let sort_key = match &key {
            Value::Str(text) if !truth(&case_sensitive) => host.text(text.to_lowercase())?,
            other => other.clone(),
        };
        keyed.push((sort_key.clone(), host.tuple(vec![key, sort_key, item.clone()])?));
    }
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for entry in sorted(host, keyed, false)? {
        let Value::Seq(entry) = entry else { continue };
        let [key, sort_key, item] = &entry.items[..] else { continue };
        match groups.last_mut() {
            Some((_, before, items)) if before.equals(sort_key, &mut host.budget)? => items.push(item.clone()),
            _ => groups.push((key.clone(), sort_key.clone(), vec![item.clone()])),
        }
    }
    let mut pairs = Vec::new();
    for (key, _, items) in groups {
        let items = host.list(items)?;
        pairs.push(Value::seq(SeqKind::Group, vec![key, items], &mut host.budget)?);
    }
    host.list(pairs)
}

fn dict_sort(host: &mut Host, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    let [case_sensitive, by, reverse] = arguments.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let Value::Dict(dict) = value else {
        return Err(Fault::error(format!("'{}' object has no attribute 'items'", value.type_name())));
    };
    let by_value = match by {
        None => false,
        Some(by) => match by.as_str() {
            Some("key") => false,
            Some("value") => true,
            _ => return Err(Fault::error("You can only sort by either \"key\" or \"value\"")),
        },
    };
    let mut keyed = Vec::new();
    for (key, value) in &dict.entries {
        let sort_key = match if by_value { value } else { key } {
            Value::Str(text) if !truth(&case_sensitive) => host.text(text.to_lowercase())?,
            other => other.clone(),
        };
        keyed.push((sort_key, host.tuple(vec![key.clone(), value.clone()])?));
    }
    let pairs = sorted(host, keyed, truth(&reverse))?;
    host.list(pairs)
}
