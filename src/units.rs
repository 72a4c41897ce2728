//! Quantities as displayed, as parsed from command-line options, and as left out of files.

/// Whether a field of a file can be left out.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A JSON value, a text without its quotes.
pub fn text_of(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Parses a whole number within a range, in the words of a person.
#[cfg(feature = "program")]
pub fn whole<N: TryFrom<u64>>(range: std::ops::RangeInclusive<u64>) -> impl Fn(&str) -> Result<N, String> + Clone {
    move |text| {
        let found =
            text.parse().ok().filter(|number| range.contains(number)).and_then(|number| N::try_from(number).ok());
        found.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

/// A [`whole`] number of things.
#[cfg(feature = "program")]
pub fn count(range: std::ops::RangeInclusive<u64>) -> impl Fn(&str) -> Result<usize, String> + Clone {
    whole(range)
}

/// Parses a number within a range, or says what is `expected`.
#[cfg(feature = "program")]
pub fn number<T: std::str::FromStr + PartialOrd>(
    range: impl std::ops::RangeBounds<T> + Clone,
    expected: &'static str,
) -> impl Fn(&str) -> Result<T, &'static str> + Clone {
    move |text| text.parse().ok().filter(|value| range.contains(value)).ok_or(expected)
}

/// Bytes in the largest fitting unit: `12 B`, `1.5 KiB`, `8.00 GiB`.
pub fn bytes(bytes: usize) -> String {
    let size = bytes as f64;
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{:.1} KiB", size / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", size / 1_048_576.0),
        _ => format!("{:.2} GiB", size / 1_073_741_824.0),
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_are_in_the_largest_fitting_unit() {
        let shown = [0, 1023, 1536, 5 << 20, 8 << 30].map(super::bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "8.00 GiB"]);
    }
}
