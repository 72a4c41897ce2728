//! What a running template holds besides its variables, and how values are looked into.

use std::sync::Arc;

use super::ast::For;
use super::budget::{Budget, Fault};
use super::text::{is_line_end, split_lines};
use super::value::{Key, Seq, SeqKind, Value};

/// State of one rendering. Values that change are here, under an index.
pub(crate) struct Host {
    pub budget: Budget,
    pub namespaces: Vec<Vec<(Arc<str>, Value)>>,
    /// A separator each, and whether it was used.
    pub joiners: Vec<(Value, bool)>,
    /// Items each, and which is next.
    pub cyclers: Vec<(Vec<Value>, usize)>,
    /// The loops in progress, the innermost last.
    pub loops: Vec<LoopState>,
}

pub(crate) struct LoopState {
    pub node: Arc<For>,
    pub items: Arc<Seq>,
    pub index: usize,
    /// From 0; deeper where a recursive loop calls itself.
    pub depth: usize,
    /// What `loop.changed` saw last.
    pub seen: Option<Value>,
}

/// Arguments of a call.
#[derive(Default)]
pub(crate) struct Arguments {
    pub plain: Vec<Value>,
    pub named: Vec<(Arc<str>, Value)>,
}

impl Arguments {
    /// The arguments in the order of `names`; `None` where one is not given.
    ///
    /// # Errors
    /// Too many, or a name that is not there or given twice.
    pub fn bind<const N: usize>(self, function: &str, names: [&str; N]) -> Result<[Option<Value>; N], Fault> {
        let mut bound = [const { None }; N];
        if self.plain.len() > N {
            let n = self.plain.len();
            return Err(Fault::error(format!("{function}() takes at most {N} arguments ({n} given)")));
        }
        for (slot, value) in bound.iter_mut().zip(self.plain) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            let slot = names.iter().position(|known| **known == *name).map(|i| &mut bound[i]);
            match slot {
                Some(slot) if slot.is_none() => *slot = Some(value),
                Some(_) => return Err(Fault::error(format!("{function}() got {name:?} twice"))),
                None => return Err(Fault::error(format!("{function}() got an unexpected argument {name:?}"))),
            }
        }
        Ok(bound)
    }

    /// Takes a named argument out.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(known, _)| **known == *name)?;
        Some(self.named.remove(at).1)
    }
}

const TEXT_METHODS: [&str; 40] = [
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "startswith",
    "endswith",
    "lower",
    "upper",
    "title",
    "capitalize",
    "swapcase",
    "casefold",
    "replace",
    "find",
    "rfind",
    "index",
    "rindex",
    "count",
    "join",
    "format",
    "isdigit",
    "isdecimal",
    "isnumeric",
    "isalpha",
    "isalnum",
    "isspace",
    "isupper",
    "islower",
    "zfill",
    "center",
    "ljust",
    "rjust",
    "partition",
    "rpartition",
    "removeprefix",
    "removesuffix",
    "expandtabs",
    "isascii",
];
const DICT_METHODS: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const LIST_METHODS: [&str; 3] = ["index", "count", "copy"];
/// They would change a value: the sandbox refuses them.
const CHANGES: [&str; 13] = [
    "append",
    "extend",
    "insert",
    "remove",
    "pop",
    "sort",
    "reverse",
    "clear",
    "update",
    "popitem",
    "setdefault",
    "add",
    "discard",
];

impl Host {
    pub fn new(budget: Budget) -> Self {
        Self { budget, namespaces: Vec::new(), joiners: Vec::new(), cyclers: Vec::new(), loops: Vec::new() }
    }

    pub fn list(&mut self, items: Vec<Value>) -> Result<Value, Fault> {
        Value::seq(SeqKind::List, items, &mut self.budget)
    }

    pub fn tuple(&mut self, items: Vec<Value>) -> Result<Value, Fault> {
        Value::seq(SeqKind::Tuple, items, &mut self.budget)
    }

    pub fn generator(&mut self, items: Vec<Value>) -> Result<Value, Fault> {
        Value::seq(SeqKind::Generator, items, &mut self.budget)
    }

    pub fn text(&mut self, text: String) -> Result<Value, Fault> {
        Value::new_text(text, &mut self.budget)
    }

    /// Texts in a list.
    pub fn texts<'t>(&mut self, parts: impl Iterator<Item = &'t str>) -> Result<Vec<Value>, Fault> {
        let budget = &mut self.budget;
        parts
            .map(|part| {
                budget.bytes(part.len() + 64)?;
                Ok(Value::text(part))
            })
            .collect()
    }

    /// `str.splitlines`; with `keep_ends`, each line with what ends it.
    pub fn lines<'t>(&mut self, text: &'t str, keep_ends: bool) -> Result<Vec<&'t str>, Fault> {
        self.budget.bytes(size_of::<&str>() * (1 + text.matches(is_line_end).count()))?;
        Ok(split_lines(text, keep_ends))
    }

    /// `str(value)`.
    pub fn str(&mut self, value: &Value) -> Result<Arc<str>, Fault> {
        value.to_text(&mut self.budget)
    }

    pub fn equals(&mut self, a: &Value, b: &Value) -> Result<bool, Fault> {
        a.equals(b, &mut self.budget)
    }

    /// The items that a walk through `value` meets.
    pub fn iterate(&mut self, value: &Value) -> Result<Arc<Seq>, Fault> {
        let items = match value {
            Value::Seq(seq) => return Ok(seq.clone()),
            Value::Dict(dict) => {
                self.budget.scan(dict.entries.len() * size_of::<Value>())?;
                dict.entries.iter().map(|(key, _)| key.clone()).collect()
            }
            Value::Str(text) => self.texts(text.split_inclusive(|_| true))?,
            Value::Undefined(_) => Vec::new(),
            other => return Err(Fault::error(format!("'{}' object is not iterable", other.type_name()))),
        };
        Seq::new(SeqKind::Generator, items, &mut self.budget)
    }

    /// `len(value)`.
    pub fn len(&mut self, value: &Value) -> Result<usize, Fault> {
        match value {
            Value::Str(text) => {
                self.budget.scan(text.len())?;
                Ok(text.chars().count())
            }
            Value::Seq(seq) if seq.kind != SeqKind::Generator => Ok(seq.items.len()),
            Value::Dict(dict) => Ok(dict.entries.len()),
            Value::Undefined(_) => Ok(0),
            Value::Loop(i) => Ok(self.loops.get(*i).map_or(0, |state| state.items.items.len())),
            other => Err(Fault::error(format!("object of type '{}' has no len()", other.type_name()))),
        }
    }

    /// `value.name`: an attribute, else an item.
    pub fn attribute(&mut self, value: &Value, name: &Arc<str>) -> Result<Value, Fault> {
        self.budget.steps(1)?;
        if let Some(found) = self.own_attribute(value, name)? {
            return Ok(found);
        }
        if let Value::Dict(dict) = value
            && let Some(found) = dict.get(&Key::Str(name.clone()))
        {
            return Ok(found.clone());
        }
        missing(value, &format!("attribute '{name}'"))
    }

    /// `value[key]`: an item, else an attribute.
    pub fn item(&mut self, value: &Value, key: &Value) -> Result<Value, Fault> {
        self.budget.steps(1)?;
        let found = match (value, key) {
            (Value::Undefined(message), _) => return Err(Fault::error(&**message)),
            (Value::Dict(dict), _) if !matches!(key, Value::Seq(seq) if seq.kind == SeqKind::List) => {
                dict.get(&key.as_key(&mut self.budget)?).cloned()
            }
            (Value::Seq(seq), _) if can_index(seq) => {
                key.as_int().and_then(|i| seq.items.get(position(i, seq.items.len())?).cloned())
            }
            (Value::Str(text), _) => match key.as_int() {
                Some(i) => self.char_at(text, i)?,
                None => None,
            },
            _ => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        if let Value::Str(name) = key {
            if let Some(found) = self.own_attribute(value, name)? {
                return Ok(found);
            }
            return missing(value, &format!("attribute '{name}'"));
        }
        let key = self.str(key)?;
        missing(value, &format!("element {key}"))
    }

    /// What Python's `getattr` finds.
    pub fn own_attribute(&mut self, value: &Value, name: &Arc<str>) -> Result<Option<Value>, Fault> {
        let known: &[&str] = match value {
            Value::Undefined(message) => return Err(Fault::error(&**message)),
            Value::Namespace(i) => {
                let found = self.namespaces.get(*i).and_then(|names| names.iter().find(|(known, _)| known == name));
                return Ok(found.map(|(_, value)| value.clone()));
            }
            Value::Loop(i) => return self.loop_attribute(*i, name),
            Value::Cycler(i) if **name == *"current" => {
                return Ok(self.cyclers.get(*i).and_then(|(items, next)| items.get(*next).cloned()));
            }
            Value::Cycler(_) => &["next", "reset"],
            Value::Str(_) => &TEXT_METHODS,
            Value::Dict(_) => &DICT_METHODS,
            Value::Seq(seq) => match (seq.kind, &**name) {
                (SeqKind::Group, "grouper") => return Ok(seq.items.first().cloned()),
                (SeqKind::Group, "list") => return Ok(seq.items.get(1).cloned()),
                (SeqKind::List, _) => &LIST_METHODS,
                (SeqKind::Tuple | SeqKind::Group | SeqKind::Range, _) => &LIST_METHODS[..2],
                _ => &[],
            },
            _ => &[],
        };
        if matches!(value, Value::Seq(_) | Value::Dict(_)) && CHANGES.contains(&&**name) {
            let message = format!("access to attribute '{name}' of '{}' object is unsafe.", value.type_name());
            return Ok(Some(Value::undefined(message)));
        }
        if !known.contains(&&**name) {
            return Ok(None);
        }
        self.budget.bytes(64)?;
        Ok(Some(Value::Method(Arc::new((value.clone(), name.clone())))))
    }

    fn loop_attribute(&mut self, i: usize, name: &Arc<str>) -> Result<Option<Value>, Fault> {
        let Some(state) = self.loops.get(i) else { return Ok(None) };
        let (index, len) = (state.index, state.items.items.len());
        let int = |i: usize| Some(Value::Int(i as i128));
        Ok(match &**name {
            "index" => int(index + 1),
            "index0" => int(index),
            "revindex" => int(len - index),
            "revindex0" => int(len - index - 1),
            "first" => Some(Value::Bool(index == 0)),
            "last" => Some(Value::Bool(index + 1 == len)),
            "length" => int(len),
            "depth" => int(state.depth + 1),
            "depth0" => int(state.depth),
            "previtem" => Some(match index.checked_sub(1) {
                Some(before) => state.items.items[before].clone(),
                None => Value::undefined("there is no previous item"),
            }),
            "nextitem" => Some(
                state.items.items.get(index + 1).cloned().unwrap_or_else(|| Value::undefined("there is no next item")),
            ),
            "cycle" | "changed" => {
                self.budget.bytes(64)?;
                Some(Value::Method(Arc::new((Value::Loop(i), name.clone()))))
            }
            _ => None,
        })
    }

    fn char_at(&mut self, text: &Arc<str>, i: i128) -> Result<Option<Value>, Fault> {
        self.budget.scan(text.len())?;
        let n = if text.is_ascii() { text.len() } else { text.chars().count() };
        let Some(at) = position(i, n) else { return Ok(None) };
        let c = if text.is_ascii() { text.as_bytes().get(at).map(|&b| b as char) } else { text.chars().nth(at) };
        c.map(|c| self.text(c.to_string())).transpose()
    }

    /// `value[start:stop:step]`.
    pub fn slice(&mut self, value: &Value, bounds: [Value; 3]) -> Result<Value, Fault> {
        let bound = |value: &Value| match value {
            Value::None => Ok(None),
            other => other
                .as_int()
                .map(Some)
                .ok_or_else(|| Fault::error("slice indices must be integers or None or have an __index__ method")),
        };
        let (start, stop, step) = (bound(&bounds[0])?, bound(&bounds[1])?, bound(&bounds[2])?.unwrap_or(1));
        if step == 0 {
            return Err(Fault::error("slice step cannot be zero"));
        }
        match value {
            Value::Str(text) => {
                self.budget.bytes(if text.is_ascii() { text.len() } else { size_of::<char>() * text.len() })?;
                let text = if text.is_ascii() {
                    let bytes = text.as_bytes();
                    slice_positions(bytes.len(), start, stop, step).map(|i| bytes[i] as char).collect()
                } else {
                    let chars: Vec<char> = text.chars().collect();
                    slice_positions(chars.len(), start, stop, step).map(|i| chars[i]).collect()
                };
                self.text(text)
            }
            Value::Seq(seq) if can_index(seq) => {
                let kind = if seq.kind == SeqKind::Group { SeqKind::Tuple } else { seq.kind };
                self.budget.bytes(seq.items.len() * size_of::<Value>())?;
                let positions = slice_positions(seq.items.len(), start, stop, step);
                let items = positions.map(|i| seq.items[i].clone()).collect();
                Value::seq(kind, items, &mut self.budget)
            }
            Value::Undefined(message) => Err(Fault::error(&**message)),
            other => Err(Fault::error(format!("'{}' object is not subscriptable", other.type_name()))),
        }
    }

    pub fn namespace(&mut self, entries: Vec<(Arc<str>, Value)>) -> Result<Value, Fault> {
        self.budget.bytes(64 + 64 * entries.len())?;
        self.namespaces.push(entries);
        Ok(Value::Namespace(self.namespaces.len() - 1))
    }
}

fn missing(value: &Value, what: &str) -> Result<Value, Fault> {
    let name = match value {
        Value::None => "None".to_string(),
        other => format!("{} object", other.type_name()),
    };
    Ok(Value::undefined(format!("'{name}' has no {what}")))
}

fn can_index(seq: &Seq) -> bool {
    matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Group | SeqKind::Range)
}

/// A Python index among `len`; negative ones count from the end.
fn position(i: i128, len: usize) -> Option<usize> {
    usize::try_from(if i < 0 { i.checked_add(len as i128)? } else { i }).ok().filter(|&i| i < len)
}

/// The positions of a Python slice.
fn slice_positions(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> impl Iterator<Item = usize> {
    let len = len as i128;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |i: i128| (if i < 0 { i.saturating_add(len) } else { i }).clamp(low, high);
    let start = start.map_or(if step > 0 { low } else { high }, place);
    let stop = stop.map_or(if step > 0 { high } else { low }, place);
    let mut at = start;
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < stop } else { at > stop };
        let here = inside.then_some(at as usize);
        at = at.saturating_add(step);
        here
    })
}
