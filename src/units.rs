//! Quantities as people read them.

/// Bytes, in the largest unit that they fill: `12 B`, `1.5 KiB`, `8.00 GiB`.
pub fn bytes(bytes: usize) -> String {
    let size = bytes as f64;
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{:.1} KiB", size / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", size / 1_048_576.0),
        _ => format!("{:.2} GiB", size / 1_073_741_824.0),
    }
}

/// A number as text and pictures show it: three decimals, an exponent where these would show nothing, a dash where there is
/// no number.
pub fn number(x: f64) -> String {
    match x.abs() {
        _ if !x.is_finite() => "–".to_owned(),
        0.0 => "0".to_owned(),
        a if !(0.001..1e6).contains(&a) => format!("{x:.1e}"),
        a if a < 100.0 && (a <= 1.0 || a.fract() > 0.0) => format!("{x:.3}"),
        _ => format!("{x:.0}"),
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_have_the_largest_unit_that_they_fill() {
        let shown = [0, 1023, 1536, 5 << 20, 8 << 30].map(super::bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "8.00 GiB"]);
    }

    #[test]
    fn numbers_show_something_at_every_size() {
        let shown = [0.0, 1e-5, -0.0625, 1.0, 7.0, 12.5, 123.4, 2e7, f64::NAN].map(super::number);
        assert_eq!(shown, ["0", "1.0e-5", "-0.062", "1.000", "7", "12.500", "123", "2.0e7", "–"]);
    }
}
