//! Normal forms of expressions.
//!
//! Numbers are compared by value: fractions exactly, others to eleven digits. Expressions with letters are compared up to
//! the order of terms and factors, with numbers multiplied out and like terms collected. A product of sums is not
//! expanded: a question that asks for a factored polynomial must distinguish the two.

use super::rational::Rational;
use std::collections::BTreeMap;

/// A fraction, or a floating-point value that is not one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Constant {
    Exact(Rational),
    Rounded(f64),
}

use Constant::{Exact, Rounded};

impl Constant {
    const ZERO: Self = Exact(Rational::ZERO);
    const ONE: Self = Exact(Rational::ONE);

    /// A computed value: the fraction it equals up to rounding, if there is one.
    fn computed(value: f64) -> Option<Self> {
        const MAX_DENOMINATOR: i128 = 1000;
        value.is_finite().then(|| Rational::near(value, MAX_DENOMINATOR).map_or(Rounded(value), Exact))
    }

    fn value(self) -> f64 {
        match self {
            Exact(fraction) => fraction.to_f64(),
            Rounded(value) => value,
        }
    }

    fn add(self, other: Self) -> Option<Self> {
        let (Exact(a), Exact(b)) = (self, other) else { return Self::computed(self.value() + other.value()) };
        a.add(b).map(Exact)
    }

    fn mul(self, other: Self) -> Option<Self> {
        let (Exact(a), Exact(b)) = (self, other) else { return Self::computed(self.value() * other.value()) };
        a.mul(b).map(Exact)
    }

    fn power(self, exponent: Self) -> Option<Self> {
        if let (Exact(base), Exact(exponent)) = (self, exponent) {
            if let Some(whole) = exponent.whole() {
                return base.power(whole).map(Exact);
            }
            let degree = u32::try_from(exponent.denominator).ok()?;
            if let Some(root) = base.root(degree) {
                return root.power(exponent.mul(Rational::integer(degree.into()))?.whole()?).map(Exact);
            }
        }
        Self::computed(libm::pow(self.value(), exponent.value()))
    }

    fn key(self) -> String {
        match self {
            Exact(fraction) => fraction.to_string(),
            Rounded(value) => format!("≈{value:.10e}"),
        }
    }
}

/// Factors with their exponents.
type Monomial = BTreeMap<String, Rational>;

/// A sum of monomials with coefficients other than 0.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Form {
    terms: BTreeMap<Monomial, Constant>,
}

impl Form {
    /// Bounds the work on hostile answers.
    const MAX_TERMS: usize = 200;

    /// The constant form.
    pub fn number(value: Rational) -> Self {
        Self::constant(Exact(value))
    }

    /// The constant form of a computed value.
    pub fn rounded(value: f64) -> Option<Self> {
        Constant::computed(value).map(Self::constant)
    }

    /// A letter, or an expression without inner structure.
    pub fn symbol(name: impl Into<String>) -> Self {
        Self::term(Monomial::from([(name.into(), Rational::ONE)]), Constant::ONE)
    }

    fn constant(value: Constant) -> Self {
        Self::term(Monomial::new(), value)
    }

    fn term(monomial: Monomial, coefficient: Constant) -> Self {
        let term = Some((monomial, coefficient)).filter(|(_, value)| *value != Constant::ZERO);
        Self { terms: term.into_iter().collect() }
    }

    fn as_constant(&self) -> Option<Constant> {
        match self.terms.first_key_value() {
            None => Some(Constant::ZERO),
            Some((monomial, value)) => (self.terms.len() == 1 && monomial.is_empty()).then_some(*value),
        }
    }

    /// Its value, if it is a fraction.
    pub fn as_rational(&self) -> Option<Rational> {
        if let Exact(value) = self.as_constant()? { Some(value) } else { None }
    }

    /// Its value, if it is an integer.
    pub fn as_whole(&self) -> Option<i128> {
        self.as_rational()?.whole()
    }

    /// Its value, if it is a number.
    pub fn as_f64(&self) -> Option<f64> {
        self.as_constant().map(Constant::value)
    }

    /// Whether it is a letter and nothing else.
    pub fn is_symbol(&self) -> bool {
        self.symbol_factor() == Some(Rational::ONE)
    }

    /// The coefficient, if this is a multiple of a single letter.
    pub fn symbol_factor(&self) -> Option<Rational> {
        let (monomial, coefficient) = self.terms.first_key_value().filter(|_| self.terms.len() == 1)?;
        let single = monomial.len() == 1 && monomial.values().all(|e| *e == Rational::ONE);
        match coefficient {
            Exact(factor) if single => Some(*factor),
            _ => None,
        }
    }

    /// The sum; `None` if it would have more than `MAX_TERMS` terms or on overflow.
    pub fn add(mut self, other: Self) -> Option<Self> {
        for (monomial, coefficient) in other.terms {
            let before = self.terms.remove(&monomial).unwrap_or(Constant::ZERO);
            let sum = before.add(coefficient)?;
            if sum != Constant::ZERO {
                self.terms.insert(monomial, sum);
            }
        }
        (self.terms.len() <= Self::MAX_TERMS).then_some(self)
    }

    /// The form times -1; `None` on overflow.
    pub fn negated(self) -> Option<Self> {
        self.scaled(Exact(Rational::integer(-1)))
    }

    fn scaled(self, factor: Constant) -> Option<Self> {
        let terms = self.terms.into_iter().map(|(monomial, value)| Some((monomial, value.mul(factor)?)));
        let terms: BTreeMap<_, _> = terms.collect::<Option<_>>()?;
        Some(Self { terms: terms.into_iter().filter(|(_, value)| *value != Constant::ZERO).collect() })
    }

    /// The product; `None` as for a sum.
    pub fn mul(self, other: Self) -> Option<Self> {
        if let Some(factor) = other.as_constant() {
            return self.scaled(factor);
        }
        if let Some(factor) = self.as_constant() {
            return other.scaled(factor);
        }
        let ((a, mut factors), (b, others)) = (self.factored()?, other.factored()?);
        for (factor, exponent) in others {
            let before = factors.remove(&factor).unwrap_or(Rational::ZERO);
            let sum = before.add(exponent)?;
            if sum != Rational::ZERO {
                factors.insert(factor, sum);
            }
        }
        Some(Self::term(factors, a.mul(b)?))
    }

    /// The power to a whole number.
    pub fn raised(self, exponent: i128) -> Option<Self> {
        self.power(Self::number(Rational::integer(exponent)))
    }

    /// The quotient; `None` if the divisor has no inverse as a form.
    pub fn divided_by(self, other: Self) -> Option<Self> {
        self.mul(other.raised(-1)?)
    }

    /// The power; `None` if it is not a form.
    pub fn power(self, exponent: Self) -> Option<Self> {
        if let (Some(base), Some(exponent)) = (self.as_constant(), exponent.as_constant()) {
            return base.power(exponent).map(Self::constant);
        }
        let Some(rational) = exponent.as_rational() else {
            return Some(Self::symbol(format!("({})^({})", self.key(), exponent.key())));
        };
        if rational == Rational::ONE || rational == Rational::ZERO {
            return Some(if rational == Rational::ONE { self } else { Self::number(Rational::ONE) });
        }
        // a negative coefficient can be taken out of integer powers only
        if rational.whole().is_none() && self.terms.values().next().is_some_and(|first| first.value() < 0.0) {
            return Some(Self::term(Monomial::from([(format!("({})", self.key()), rational)]), Constant::ONE));
        }
        let (coefficient, factors) = self.factored()?;
        let factors = factors.into_iter().map(|(factor, power)| Some((factor, power.mul(rational)?)));
        Some(Self::term(factors.collect::<Option<_>>()?, coefficient.power(Exact(rational))?))
    }

    /// A number times factors; a sum becomes one factor whose first term has the coefficient 1.
    fn factored(self) -> Option<(Constant, Monomial)> {
        if self.terms.len() == 1 {
            return self.terms.into_iter().next().map(|(monomial, coefficient)| (coefficient, monomial));
        }
        let first = *self.terms.values().next()?;
        Some((first, Monomial::from([(format!("({})", self.monic()?.key()), Rational::ONE)])))
    }

    /// Divided by the coefficient of its first term, so that all multiples of an equation agree.
    pub fn monic(self) -> Option<Self> {
        match self.terms.values().next().copied() {
            Some(first) => self.scaled(first.power(Exact(Rational::integer(-1)))?),
            None => Some(self),
        }
    }

    /// A text that equal forms share.
    pub fn key(&self) -> String {
        if self.terms.is_empty() {
            return String::from("0");
        }
        let term = |(monomial, coefficient): (&Monomial, &Constant)| {
            let powers = monomial.iter().map(|(factor, exponent)| match *exponent {
                Rational::ONE => factor.clone(),
                exponent => format!("{factor}^{exponent}"),
            });
            let coefficient = (*coefficient != Constant::ONE || monomial.is_empty()).then(|| coefficient.key());
            coefficient.into_iter().chain(powers).collect::<Vec<_>>().join("*")
        };
        self.terms.iter().map(term).collect::<Vec<_>>().join("+")
    }

    /// A function of `vocabulary.txt`, a rounding or an absolute value: its value at this number; for other forms, a symbol.
    pub fn applied(&self, name: &str) -> Option<Self> {
        let function: fn(f64) -> f64 = match name {
            "sin" => libm::sin,
            "cos" => libm::cos,
            "tan" => libm::tan,
            "sec" => |x| 1.0 / libm::cos(x),
            "csc" => |x| 1.0 / libm::sin(x),
            "cot" => |x| 1.0 / libm::tan(x),
            "arcsin" => libm::asin,
            "arccos" => libm::acos,
            "arctan" => libm::atan,
            "ln" => libm::log,
            "exp" => libm::exp,
            "⌊" => f64::floor,
            "⌈" => f64::ceil,
            "abs" => f64::abs,
            // the base of "log" without one depends on the question
            _ => return Some(Self::symbol(format!("{name}({})", self.key()))),
        };
        match self.as_f64() {
            Some(value) => Self::rounded(function(value)),
            None => Some(Self::symbol(format!("{name}({})", self.key()))),
        }
    }

    /// n! up to 33!, the largest that fits in 127 bits; otherwise a symbol.
    pub fn factorial(&self) -> Self {
        match self.as_whole() {
            Some(n @ 0..=33) => Self::number(Rational::integer((1..=n).product())),
            _ => Self::symbol(format!("({})!", self.key())),
        }
    }

    /// n choose k; a symbol unless both are whole numbers.
    pub fn binomial(&self, chosen: &Self) -> Option<Self> {
        match (self.as_whole(), chosen.as_whole()) {
            (Some(n), Some(k)) if (0..=n).contains(&k) && n <= 10_000 => {
                // Each step's product is a binomial coefficient times the next factor, so that the division is exact.
                let value = (1..=k.min(n - k)).try_fold(1_i128, |value, i| Some(value.checked_mul(n - i + 1)? / i));
                Some(Self::number(Rational::integer(value?)))
            }
            _ => Some(Self::symbol(format!("binomial({},{})", self.key(), chosen.key()))),
        }
    }
}
