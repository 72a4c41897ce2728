//! Values of a template, as Python has them: truth, equality, order, and how they are written.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::budget::{Budget, Fault};
use super::text::{float_text, repr_text};

/// Lists in lists are at most this deep, so that no walk through them needs much stack.
const MAX_DEPTH: usize = 100;

/// A value. Those that change (namespaces, loops) are indices into the host's lists, so values form no circles.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Holds what to say when it is used.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Seq(Arc<Seq>),
    Dict(Arc<Dict>),
    Namespace(usize),
    Joiner(usize),
    Cycler(usize),
    Loop(usize),
    /// A macro and the scope in which it was defined.
    Macro(usize, usize),
    Function(&'static str),
    /// `text.strip`, not yet called.
    Method(Arc<(Value, Arc<str>)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeqKind {
    List,
    Tuple,
    /// A pair of `groupby`, with `grouper` and `list`.
    Group,
    Range,
    /// What filters make of a list: it can be walked through, and has neither length nor items.
    Generator,
    Keys,
    Values,
    Items,
}

/// Anything with items in a row.
#[derive(Debug)]
pub(crate) struct Seq {
    pub kind: SeqKind,
    pub items: Vec<Value>,
    depth: usize,
}

/// A dict; entries keep the order in which they came.
#[derive(Debug)]
pub(crate) struct Dict {
    pub entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
    depth: usize,
}

/// A value as a key: what is equal in Python (`1`, `1.0`, `True`) is the same key.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    None,
    Int(i128),
    Float(u64),
    Str(Arc<str>),
    Tuple(Vec<Key>),
    Other(&'static str, usize),
}

impl Seq {
    /// Costs what it holds.
    pub fn new(kind: SeqKind, items: Vec<Value>, budget: &mut Budget) -> Result<Arc<Self>, Fault> {
        budget.bytes(items.len() * size_of::<Value>() + 64)?;
        let depth = depth_above(items.iter())?;
        Ok(Arc::new(Self { kind, items, depth }))
    }
}

impl Dict {
    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }
}

impl Value {
    pub fn text(text: &str) -> Self {
        Self::Str(text.into())
    }

    /// A text that was just made; costs its length.
    pub fn new_text(text: String, budget: &mut Budget) -> Result<Self, Fault> {
        budget.bytes(text.len() + 32)?;
        Ok(Self::Str(text.into()))
    }

    pub fn seq(kind: SeqKind, items: Vec<Self>, budget: &mut Budget) -> Result<Self, Fault> {
        Ok(Self::Seq(Seq::new(kind, items, budget)?))
    }

    /// A dict of these entries; the last of equal keys counts.
    pub fn dict(pairs: Vec<(Self, Self)>, budget: &mut Budget) -> Result<Self, Fault> {
        budget.bytes(pairs.len() * (2 * size_of::<Self>() + 64) + 128)?;
        let depth = depth_above(pairs.iter().flat_map(|(key, value)| [key, value]))?;
        let mut entries: Vec<(Self, Self)> = Vec::with_capacity(pairs.len());
        let mut index = HashMap::with_capacity(pairs.len());
        for (key, value) in pairs {
            let at = *index.entry(key.as_key(budget)?).or_insert(entries.len());
            match entries.get_mut(at) {
                Some(entry) => entry.1 = value,
                None => entries.push((key, value)),
            }
        }
        Ok(Self::Dict(Arc::new(Dict { entries, index, depth })))
    }

    pub fn undefined(message: impl Into<Arc<str>>) -> Self {
        Self::Undefined(message.into())
    }

    fn depth(&self) -> usize {
        match self {
            Self::Seq(seq) => seq.depth,
            Self::Dict(dict) => dict.depth,
            Self::Method(method) => method.0.depth() + 1,
            _ => 0,
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Integers and booleans.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(i) => Some(*i),
            Self::Bool(b) => Some(i128::from(*b)),
            _ => None,
        }
    }

    /// Numbers and booleans.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(x) => Some(*x),
            other => other.as_int().map(|i| i as f64),
        }
    }

    /// An integer where a length is wanted: negative ones are 0, and huge ones huge.
    pub fn as_len(&self) -> Option<usize> {
        self.as_int().map(|i| usize::try_from(i.max(0)).unwrap_or(usize::MAX))
    }

    pub fn truth(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(b) => *b,
            Self::Int(i) => *i != 0,
            Self::Float(x) => *x != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::Seq(seq) => seq.kind == SeqKind::Generator || !seq.items.is_empty(),
            Self::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    /// Python's name of the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::Seq(seq) => match seq.kind {
                SeqKind::List => "list",
                SeqKind::Tuple | SeqKind::Group => "tuple",
                SeqKind::Range => "range",
                SeqKind::Generator => "generator",
                SeqKind::Keys => "dict_keys",
                SeqKind::Values => "dict_values",
                SeqKind::Items => "dict_items",
            },
            Self::Dict(_) => "dict",
            Self::Namespace(_) => "Namespace",
            Self::Joiner(_) => "Joiner",
            Self::Cycler(_) => "Cycler",
            Self::Loop(_) => "LoopContext",
            Self::Macro(..) => "Macro",
            Self::Function(_) => "function",
            Self::Method(_) => "builtin_function_or_method",
        }
    }

    pub fn as_key(&self, budget: &mut Budget) -> Result<Key, Fault> {
        budget.steps(1)?;
        Ok(match self {
            Self::None => Key::None,
            Self::Bool(b) => Key::Int(i128::from(*b)),
            Self::Int(i) => Key::Int(*i),
            Self::Float(x) if x.fract() == 0.0 && x.abs() < 1e30 => Key::Int(*x as i128),
            Self::Float(x) => Key::Float(x.to_bits()),
            Self::Str(text) => {
                budget.scan(text.len())?;
                Key::Str(text.clone())
            }
            Self::Seq(seq) if matches!(seq.kind, SeqKind::Tuple | SeqKind::Group) => {
                budget.bytes(seq.items.len() * size_of::<Key>())?;
                Key::Tuple(seq.items.iter().map(|item| item.as_key(budget)).collect::<Result<_, _>>()?)
            }
            Self::Seq(seq) if seq.kind != SeqKind::List => Key::Other(self.type_name(), Arc::as_ptr(seq) as usize),
            Self::Seq(_) | Self::Dict(_) => {
                return Err(Fault::error(format!("unhashable type: '{}'", self.type_name())));
            }
            Self::Namespace(i) | Self::Joiner(i) | Self::Cycler(i) | Self::Loop(i) | Self::Macro(i, _) => {
                Key::Other(self.type_name(), *i)
            }
            Self::Undefined(_) | Self::Method(_) => Key::Other(self.type_name(), 0),
            Self::Function(name) => Key::Other(name, 0),
        })
    }

    /// Python's `==`.
    pub fn equals(&self, other: &Self, budget: &mut Budget) -> Result<bool, Fault> {
        budget.steps(1)?;
        Ok(match (self, other) {
            (Self::Undefined(_), Self::Undefined(_)) | (Self::None, Self::None) => true,
            (Self::Str(a), Self::Str(b)) => {
                budget.scan(a.len().min(b.len()))?;
                a == b
            }
            (Self::Seq(a), Self::Seq(b)) => {
                let comparable = |kind| if kind == SeqKind::Group { SeqKind::Tuple } else { kind };
                if comparable(a.kind) != comparable(b.kind) || a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, budget)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Dict(a), Self::Dict(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match b.get(&key.as_key(budget)?) {
                        Some(other) if value.equals(other, budget)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Self::Namespace(a), Self::Namespace(b))
            | (Self::Joiner(a), Self::Joiner(b))
            | (Self::Cycler(a), Self::Cycler(b))
            | (Self::Loop(a), Self::Loop(b))
            | (Self::Macro(a, _), Self::Macro(b, _)) => a == b,
            (Self::Function(a), Self::Function(b)) => a == b,
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => self.as_float().zip(other.as_float()).is_some_and(|(a, b)| a == b),
            },
        })
    }

    /// Python's order of two values; `None` where neither is less (NaN). `operator` is for the message.
    pub fn compare(&self, other: &Self, operator: &str, budget: &mut Budget) -> Result<Option<Ordering>, Fault> {
        budget.steps(1)?;
        match (self, other) {
            (Self::Str(a), Self::Str(b)) => {
                budget.scan(a.len().min(b.len()))?;
                Ok(Some(a.cmp(b)))
            }
            (Self::Seq(a), Self::Seq(b))
                if a.kind == b.kind && matches!(a.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Group) =>
            {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, budget)? {
                        return a.compare(b, operator, budget);
                    }
                }
                Ok(Some(a.items.len().cmp(&b.items.len())))
            }
            (Self::Undefined(message), _) | (_, Self::Undefined(message)) => Err(Fault::error(&**message)),
            _ => match (self.as_int().zip(other.as_int()), self.as_float().zip(other.as_float())) {
                (Some((a, b)), _) => Ok(Some(a.cmp(&b))),
                (None, Some((a, b))) => Ok(a.partial_cmp(&b)),
                _ => Err(Fault::error(format!(
                    "'{operator}' not supported between instances of '{}' and '{}'",
                    self.type_name(),
                    other.type_name()
                ))),
            },
        }
    }

    /// Python's `str()`. The bytes are counted.
    pub fn to_text(&self, budget: &mut Budget) -> Result<Arc<str>, Fault> {
        Ok(match self {
            Self::Str(text) => text.clone(),
            Self::Undefined(_) => "".into(),
            other => {
                let mut out = String::new();
                other.write_repr(&mut out, budget)?;
                out.into()
            }
        })
    }

    /// Python's `repr()`, appended. The bytes are counted as they come.
    pub fn write_repr(&self, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
        let before = out.len();
        let (open, close, kind) = match self {
            Self::Seq(seq) => match seq.kind {
                SeqKind::List => ("[", "]", seq),
                SeqKind::Tuple | SeqKind::Group if seq.items.len() == 1 => ("(", ",)", seq),
                SeqKind::Tuple | SeqKind::Group => ("(", ")", seq),
                SeqKind::Keys => ("dict_keys([", "])", seq),
                SeqKind::Values => ("dict_values([", "])", seq),
                SeqKind::Items => ("dict_items([", "])", seq),
                SeqKind::Generator => {
                    out.push_str("<generator object>");
                    return budget.bytes(out.len() - before);
                }
                SeqKind::Range => {
                    range_repr(&seq.items, out);
                    return budget.bytes(out.len() - before);
                }
            },
            Self::Dict(dict) => {
                for (i, (key, value)) in dict.entries.iter().enumerate() {
                    out.push_str(if i == 0 { "{" } else { ", " });
                    key.write_repr(out, budget)?;
                    out.push_str(": ");
                    value.write_repr(out, budget)?;
                }
                out.push_str(if dict.entries.is_empty() { "{}" } else { "}" });
                return budget.bytes(4);
            }
            Self::Undefined(_) => {
                out.push_str("Undefined");
                return budget.bytes(9);
            }
            Self::None => {
                out.push_str("None");
                return budget.bytes(4);
            }
            Self::Bool(b) => {
                out.push_str(if *b { "True" } else { "False" });
                return budget.bytes(5);
            }
            Self::Int(i) => {
                out.push_str(&i.to_string());
                return budget.bytes(out.len() - before);
            }
            Self::Float(x) => {
                out.push_str(&float_text(*x));
                return budget.bytes(out.len() - before);
            }
            Self::Str(text) => {
                budget.bytes(2 * text.len())?;
                repr_text(text, out);
                return Ok(());
            }
            other => {
                out.push_str(&format!("<{}>", other.type_name()));
                return budget.bytes(out.len() - before);
            }
        };
        out.push_str(open);
        for (i, item) in kind.items.iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            item.write_repr(out, budget)?;
        }
        out.push_str(close);
        budget.bytes(open.len() + close.len())
    }
}

fn range_repr(items: &[Value], out: &mut String) {
    let at = |i: usize| items.get(i).and_then(Value::as_int);
    let start = at(0).unwrap_or(0);
    let step = at(1).map_or(1, |second| second - start);
    let stop = start + step * items.len() as i128;
    out.push_str(&match step {
        1 => format!("range({start}, {stop})"),
        _ => format!("range({start}, {stop}, {step})"),
    });
}

/// The depth of what holds these items.
fn depth_above<'v>(items: impl Iterator<Item = &'v Value>) -> Result<usize, Fault> {
    match items.map(Value::depth).max().map_or(0, |depth| depth + 1) {
        depth if depth <= MAX_DEPTH => Ok(depth),
        _ => Err(Fault::limit(format!("it nests lists more than {MAX_DEPTH} deep"))),
    }
}
