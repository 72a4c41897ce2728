//! Arrays passed to numpy: as bytes, which `numpy.frombuffer` uses unchanged.

/// A row-major array.
pub struct Array {
    /// numpy's name of the dtype.
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// An array element type.
pub trait Number: Copy {
    const DTYPE: &'static str;
    fn write(self, bytes: &mut Vec<u8>);
}

macro_rules! number {
    ($($type:ty = $name:literal),+) => {$(
        impl Number for $type {
            const DTYPE: &'static str = $name;
            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )+};
}

number!(u32 = "<u4", i64 = "<i8", f32 = "<f4", f64 = "<f8");

/// A vector.
pub fn vector<T: Number>(values: impl IntoIterator<Item = T>) -> Array {
    let mut bytes = Vec::new();
    let mut len = 0;
    for value in values {
        value.write(&mut bytes);
        len += 1;
    }
    Array { dtype: T::DTYPE, shape: vec![len], bytes }
}

/// A matrix of rows; rows shorter than `columns` are padded with `padding`.
pub fn matrix<T: Number>(rows: &[Vec<T>], columns: usize, padding: T) -> Array {
    let padded = |row: &Vec<T>| (0..columns).map(|i| row.get(i).copied().unwrap_or(padding)).collect::<Vec<T>>();
    Array { shape: vec![rows.len(), columns], ..vector(rows.iter().flat_map(padded)) }
}
