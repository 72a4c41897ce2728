//! How numbers are written in tables and sentences.

use super::facts::Number;

/// Stands for a missing number.
pub const NONE: &str = "—";

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    /// The items behind the number.
    Items,
    Count,
    OneDecimal,
    /// `0.712`
    Decimals,
    /// `0.712 [0.655, 0.770]`
    Interval,
    /// `+0.021 [-0.004, +0.050]`
    Difference,
    /// `0.712 ± 0.004`
    Spread,
    /// `72.8 %`
    Percent,
    /// `72.8 % [70.0, 75.5]`
    PercentInterval,
    /// Four decimals, or two and an exponent.
    Threshold,
}

impl Format {
    pub fn show(self, number: impl Into<Number>) -> String {
        use Format::*;
        let number = number.into();
        if self == Items {
            return number.items.map_or(NONE.to_owned(), |items| items.to_string());
        }
        let Some(value) = number.value else { return NONE.to_owned() };
        let interval = number.low.zip(number.high);
        match self {
            Items | Count => format!("{value:.0}"),
            OneDecimal => format!("{value:.1}"),
            Decimals => format!("{value:.3}"),
            Interval => {
                format!("{value:.3}") + &interval.map_or(String::new(), |(low, high)| format!(" [{low:.3}, {high:.3}]"))
            }
            Difference => {
                let interval = interval.map_or(String::new(), |(low, high)| format!(" [{low:+.3}, {high:+.3}]"));
                format!("{value:+.3}{interval}")
            }
            Spread => format!("{value:.3} ± {:.3}", number.sd.unwrap_or_default()),
            Percent => format!("{:.1} %", 100.0 * value),
            PercentInterval => {
                let ends = interval.map(|(low, high)| format!(" [{:.1}, {:.1}]", 100.0 * low, 100.0 * high));
                format!("{:.1} %{}", 100.0 * value, ends.unwrap_or_default())
            }
            Threshold if value != 0.0 && value.abs() < 1e-3 => format!("{value:.2e}"),
            Threshold => format!("{value:.4}"),
        }
    }
}
