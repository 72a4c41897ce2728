//! Exact fractions of 128-bit integers.

use std::fmt;

/// A fraction in lowest terms with a positive denominator. Operations return `None` on overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)] // orders by field, not by value: only for sorting
pub(crate) struct Rational {
    numerator: i128,
    pub denominator: i128,
}

impl Rational {
    /// 0
    pub const ZERO: Self = Self { numerator: 0, denominator: 1 };
    /// 1
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// value / 1
    pub fn integer(value: i128) -> Self {
        Self { numerator: value, denominator: 1 }
    }

    /// In lowest terms with a positive denominator; `None` if the denominator is 0 or on overflow.
    pub fn new(numerator: i128, denominator: i128) -> Option<Self> {
        let divisor = i128::try_from(gcd(numerator.unsigned_abs(), denominator.unsigned_abs())).ok()?;
        if denominator == 0 {
            return None;
        }
        let sign = denominator.signum();
        let numerator = (numerator / divisor).checked_mul(sign)?;
        Some(Self { numerator, denominator: (denominator / divisor).checked_mul(sign)? })
    }

    /// Parses digits with at most one point: `12`, `0.25`, `.5`, `5.`.
    pub fn decimal(text: &str) -> Option<Self> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let decimals = decimals.trim_end_matches('0');
        let digits = format!("0{whole}{decimals}").parse().ok().filter(|_| !matches!(text, "" | "."))?;
        Self::new(digits, power_of_ten(decimals.len())?)
    }

    /// The decimal `whole` with the digits `repeated` after it forever: `0.\overline{3}`.
    pub fn repeating(whole: &str, repeated: &str) -> Option<Self> {
        let decimals = whole.split_once('.').map_or("", |(_, decimals)| decimals).len();
        let period = power_of_ten(repeated.len())?.checked_sub(1)?;
        let tail = Self::decimal(repeated)?.mul(Self::new(1, period.checked_mul(power_of_ten(decimals)?)?)?)?;
        Self::decimal(whole)?.add(tail)
    }

    /// The value, if it is an integer.
    pub fn whole(self) -> Option<i128> {
        (self.denominator == 1).then_some(self.numerator)
    }

    /// The value, up to the rounding of numerator and denominator.
    pub fn to_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// The sum; `None` on overflow.
    pub fn add(self, other: Self) -> Option<Self> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        Self::new(left.checked_add(right)?, self.denominator.checked_mul(other.denominator)?)
    }

    /// The product; `None` on overflow.
    pub fn mul(self, other: Self) -> Option<Self> {
        // Cross-reduce first, so that a result that fits does not overflow on the way.
        let (a, b) = (Self::new(self.numerator, other.denominator)?, Self::new(other.numerator, self.denominator)?);
        Self::new(a.numerator.checked_mul(b.numerator)?, a.denominator.checked_mul(b.denominator)?)
    }

    /// The power; `None` for 0 to a negative power and on overflow.
    pub fn power(self, exponent: i128) -> Option<Self> {
        let times = u32::try_from(exponent.unsigned_abs()).ok()?;
        let (numerator, denominator) = (self.numerator.checked_pow(times)?, self.denominator.checked_pow(times)?);
        if exponent < 0 { Self::new(denominator, numerator) } else { Self::new(numerator, denominator) }
    }

    /// The root of this degree, if it is rational.
    pub fn root(self, degree: u32) -> Option<Self> {
        let negative = self.numerator < 0;
        if negative && degree.is_multiple_of(2) {
            return None;
        }
        let root = |value: i128| {
            let near = libm::pow(value as f64, 1.0 / f64::from(degree)).round() as i128;
            (near.checked_pow(degree)? == value).then_some(near)
        };
        let numerator = root(self.numerator.checked_abs()?)?;
        Self::new(if negative { -numerator } else { numerator }, root(self.denominator)?)
    }

    /// The fraction with a denominator of at most `max_denominator` that equals the value up to rounding.
    pub fn near(value: f64, max_denominator: i128) -> Option<Self> {
        let tolerance = 1e-12 * value.abs().max(1.0);
        let above = |denominator: i128| (value * denominator as f64).round();
        let is_near = |of: &i128| (above(*of) / *of as f64 - value).abs() <= tolerance;
        let most = (1e-3 / tolerance).sqrt() as i128; // beyond it, any value is near some fraction
        let denominator = (1..=max_denominator.min(most)).find(is_near)?;
        Self::new(above(denominator) as i128, denominator)
    }
}

impl fmt::Display for Rational {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            denominator => write!(f, "{}/{denominator}", self.numerator),
        }
    }
}

fn power_of_ten(exponent: usize) -> Option<i128> {
    10_i128.checked_pow(u32::try_from(exponent).ok()?)
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rational(numerator: i128, denominator: i128) -> Rational {
        Rational::new(numerator, denominator).unwrap()
    }

    #[test]
    fn decimals_are_exact() {
        for (text, numerator, denominator) in
            [("12", 12, 1), ("0.25", 1, 4), (".5", 1, 2), ("5.", 5, 1), ("1.50", 3, 2), ("007", 7, 1), ("0.0", 0, 1)]
        {
            assert_eq!(Rational::decimal(text), Some(rational(numerator, denominator)), "{text}");
        }
        for text in ["", ".", "1.2.3", "1a", "-1", &"9".repeat(40)] {
            assert_eq!(Rational::decimal(text), None, "{text}");
        }
        assert_eq!(Rational::repeating("0.", "3"), Some(rational(1, 3)));
        assert_eq!(Rational::repeating("0.1", "6"), Some(rational(1, 6)));
        assert_eq!(Rational::repeating("2.", "142857"), Some(rational(15, 7)));
    }

    #[test]
    fn arithmetic_is_exact_or_refused() {
        assert_eq!(rational(6, -4).to_string(), "-3/2");
        assert_eq!(rational(1, 3).add(rational(1, 6)), Some(rational(1, 2)));
        assert_eq!(rational(-2, 3).power(-3), Some(rational(-27, 8)));
        assert_eq!(rational(-8, 27).root(3), Some(rational(-2, 3)));
        assert_eq!(rational(2, 1).root(2), None);
        assert_eq!(rational(-4, 1).root(2), None);
        assert_eq!(Rational::new(1, 0), None);
        assert_eq!(rational(i128::MAX, 1).add(Rational::ONE), None);
        assert_eq!(Rational::integer(i128::MIN).mul(Rational::integer(-1)), None);
        assert_eq!(Rational::new(i128::MIN, -1), None);
        assert_eq!(Rational::ZERO.power(-1), None);
        assert_eq!(rational(i128::MAX, 7).mul(rational(7, i128::MAX)), Some(Rational::ONE));
    }

    #[test]
    fn rounded_values_are_recognised() {
        assert_eq!(Rational::near((std::f64::consts::PI / 6.0).sin(), 1000), Some(rational(1, 2)));
        assert_eq!(Rational::near(2_f64.sqrt().powi(2), 1000), Some(rational(2, 1)));
        assert_eq!(Rational::near(-1.0 / 3.0, 1000), Some(rational(-1, 3)));
        for value in [2_f64.sqrt(), std::f64::consts::PI, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(Rational::near(value, 1000), None, "{value}");
        }
    }
}
