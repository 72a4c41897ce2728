//! Formats of numbers in tables and sentences.

use super::facts::Number;

/// Format of a number.
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
}

impl Format {
    pub fn show(self, number: impl Into<Number>) -> String {
        use Format::*;
        let number = number.into();
        let value = if self == Items { number.items.map(|items| items as f64) } else { number.value };
        let Some(value) = value else { return "—".to_owned() };
        let show = |x: f64| match self {
            Items | Count => format!("{x:.0}"),
            OneDecimal => format!("{x:.1}"),
            Percent | PercentInterval => format!("{:.1}", 100.0 * x),
            Difference => format!("{x:+.3}"),
            Decimals | Interval | Spread => format!("{x:.3}"),
        };
        let unit = if matches!(self, Percent | PercentInterval) { " %" } else { "" };
        let precision = match (self, number.low.zip(number.high)) {
            (Spread, _) => format!(" ± {}", show(number.sd.unwrap_or_default())),
            (Interval | Difference | PercentInterval, Some((low, high))) => format!(" [{}, {}]", show(low), show(high)),
            _ => String::new(),
        };
        show(value) + unit + &precision
    }
}
