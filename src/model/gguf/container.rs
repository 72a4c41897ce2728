//! The container: metadata, and tensors where they lie.

use super::quants::Format;
use super::{Fault, damaged};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const MAGIC: &[u8] = b"GGUF";

/// Alignment of the tensors' data without `general.alignment`.
const ALIGNMENT: u64 = 32;

/// A file's metadata and tensors.
pub struct Container<'f> {
    pub metadata: BTreeMap<String, Value>,
    pub tensors: Vec<Tensor<'f>>,
    /// Start of the tensors' data: the length of everything before.
    pub data: usize,
}

/// A matrix, or a vector as one row.
pub struct Tensor<'f> {
    pub name: String,
    pub rows: usize,
    pub width: usize,
    pub is_vector: bool,
    pub format: &'static Format,
    data: &'f [u8],
}

impl Tensor<'_> {
    /// The numbers of a row.
    pub fn row(&self, row: usize, numbers: &mut [f32]) {
        let bytes = self.width / self.format.elements * self.format.bytes;
        self.format.decode(&self.data[row * bytes..(row + 1) * bytes], numbers);
    }
}

impl<'f> Container<'f> {
    pub fn read(bytes: &'f [u8]) -> Result<Container<'f>, Fault> {
        let mut from = Reader { bytes, at: 0 };
        if from.take(4)? != MAGIC {
            return damaged("it does not begin with GGUF");
        }
        let version = from.u32()?;
        if !(2..=3).contains(&version) {
            return Err(Fault::Unsupported(format!("version {version}")));
        }
        let (tensors, entries) = (from.u64()?, from.u64()?);
        let mut metadata = BTreeMap::new();
        for _ in 0..entries {
            let (key, kind) = (from.text()?, from.u32()?);
            metadata.insert(key, from.value(kind)?);
        }
        let mut places = Vec::new();
        for _ in 0..tensors {
            let (name, dimensions) = (from.text()?, from.u32()?);
            if !(1..=2).contains(&dimensions) {
                return Err(Fault::Unsupported(format!("the tensor {name} of {dimensions} dimensions")));
            }
            let (width, rows) = (from.u64()?, if dimensions == 2 { from.u64()? } else { 1 });
            places.push((name, dimensions == 1, width, rows, from.u32()?, from.u64()?));
        }
        let alignment = metadata.get("general.alignment").and_then(Value::as_u64).unwrap_or(ALIGNMENT).max(1);
        let Some(data) = (from.at as u64).checked_next_multiple_of(alignment) else { return damaged("its alignment") };
        let tensor = |(name, is_vector, width, rows, kind, offset): (String, bool, u64, u64, u32, u64)| {
            let Some(format) = Format::of(kind) else {
                return Err(Fault::Unsupported(format!("the tensor {name} in format {kind}")));
            };
            if !width.is_multiple_of(format.elements as u64) || width == 0 {
                return damaged(format!(
                    "{name} has rows of {width} numbers: expected a multiple of {}",
                    format.elements
                ));
            }
            let length = (width / format.elements as u64 * format.bytes as u64).checked_mul(rows);
            let start = data.checked_add(offset);
            let range =
                start.zip(length).and_then(|(start, length)| Some(start as usize..start.checked_add(length)? as usize));
            let Some(data) = range.and_then(|range| bytes.get(range)) else {
                return damaged(format!("{name} lies beyond its end, at byte {}", bytes.len()));
            };
            Ok(Tensor { name, rows: rows as usize, width: width as usize, is_vector, format, data })
        };
        let tensors = places.into_iter().map(tensor).collect::<Result<_, Fault>>()?;
        Ok(Container { metadata, tensors, data: from.at })
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        self.metadata.get(key)?.as_u64()
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.metadata.get(key)?.as_str()
    }

    pub fn list(&self, key: &str) -> &[Value] {
        self.metadata.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
}

struct Reader<'f> {
    bytes: &'f [u8],
    at: usize,
}

impl<'f> Reader<'f> {
    fn take(&mut self, count: u64) -> Result<&'f [u8], Fault> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        let Some(taken) = end.and_then(|end| self.bytes.get(self.at..end)) else {
            return damaged(format!("it ends at byte {}, within its metadata", self.bytes.len()));
        };
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String, Fault> {
        let length = self.u64()?;
        let text = self.take(length)?.to_vec();
        String::from_utf8(text).or_else(|_| damaged("a text in its metadata is not UTF-8"))
    }

    /// A value of a type's number.
    fn value(&mut self, kind: u32) -> Result<Value, Fault> {
        const ARRAY: u32 = 9;
        Ok(match kind {
            0 => json!(self.array::<1>()?[0]),
            1 => json!(i8::from_le_bytes(self.array()?)),
            2 => json!(u16::from_le_bytes(self.array()?)),
            3 => json!(i16::from_le_bytes(self.array()?)),
            4 => json!(self.u32()?),
            5 => json!(i32::from_le_bytes(self.array()?)),
            // as it is written: 1e-5 and not the f64 next to the f32
            6 => json!(f32::from_le_bytes(self.array()?).to_string().parse::<f64>().unwrap_or(f64::NAN)),
            7 => json!(self.array::<1>()?[0] != 0),
            8 => json!(self.text()?),
            ARRAY => {
                let (kind, count) = (self.u32()?, self.u64()?);
                if kind == ARRAY {
                    return damaged("a list of lists in its metadata");
                }
                (0..count).map(|_| self.value(kind)).collect::<Result<Value, Fault>>()?
            }
            10 => json!(self.u64()?),
            11 => json!(i64::from_le_bytes(self.array()?)),
            12 => json!(f64::from_le_bytes(self.array()?)),
            _ => return damaged(format!("a value of type {kind} in its metadata")),
        })
    }
}
