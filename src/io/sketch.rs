//! JSON values of strangers: what is not of the expected type is kept only as far as an error message can show it.
//!
//! A tree of JSON takes up to 16 times the bytes of its text, and a line may be long.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use std::marker::PhantomData;

/// Elements of a list or an object that are kept.
const MAX_ELEMENTS: usize = 32;

/// Levels of nesting that are kept.
const MAX_DEPTH: usize = 3;

/// A value, its text whole, its lists and objects cut to 32 elements and three levels.
pub(super) struct Sketch(pub Value);

/// What a list of many small elements is made of.
pub(super) trait Element: Sized {
    /// `None` where the value is of another type.
    fn of(value: &Value) -> Option<Self>;
}

/// A list that is read element by element, up to the first one that is of another type.
pub(super) enum List<T> {
    All(Vec<T>),
    Wrong {
        index: usize,
        found: Value,
    },
    /// It is no list.
    Other(Value),
}

impl<'de> Deserialize<'de> for Sketch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sketch, D::Error> {
        Level(0).deserialize(deserializer).map(Sketch)
    }
}

/// Reads a value at this depth.
#[derive(Clone, Copy)]
struct Level(usize);

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.0 > MAX_DEPTH {
            return deserializer.deserialize_ignored_any(IgnoredAny).map(|_| Value::from("…"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < MAX_ELEMENTS {
            match list.next_element_seed(Level(self.0 + 1))? {
                Some(value) => kept.push(value),
                None => return Ok(Value::Array(kept)),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Array(kept))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while kept.len() < MAX_ELEMENTS {
            let Some(key) = object.next_key::<String>()? else { return Ok(Value::Object(kept)) };
            kept.insert(key, object.next_value_seed(Level(self.0 + 1))?);
        }
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Object(kept))
    }
}

impl<'de, T: Element> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

/// Passes what is no list on to a [`Level`].
macro_rules! other {
    ($($visit:ident($type:ty)),*) => {
        $(fn $visit<E: serde::de::Error>(self, value: $type) -> Result<List<T>, E> {
            Level(0).$visit(value).map(List::Other)
        })*
    };
}

impl<'de, T: Element> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List<T>, A::Error> {
        let mut elements = Vec::new();
        while let Some(value) = list.next_element_seed(Level(1))? {
            let Some(element) = T::of(&value) else {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(List::Wrong { index: elements.len(), found: value });
            };
            elements.push(element);
        }
        Ok(List::All(elements))
    }

    fn visit_unit<E>(self) -> Result<List<T>, E> {
        Ok(List::Other(Value::Null))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<List<T>, A::Error> {
        Level(0).visit_map(object).map(List::Other)
    }

    other!(visit_bool(bool), visit_u64(u64), visit_i64(i64), visit_f64(f64), visit_str(&str));
}
