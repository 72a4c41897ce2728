//! Functions: evaluated on numbers, kept as symbols for other forms.

use super::form::Form;
use super::rational::Rational;

/// A function's value at a number; for other arguments, a symbol.
pub(super) fn rounded(argument: &Form, name: &str, function: fn(f64) -> f64) -> Option<Form> {
    match argument.as_f64() {
        Some(value) => Form::rounded(function(value)),
        None => Some(Form::symbol(format!("{name}({})", argument.key()))),
    }
}

/// One of the [`FUNCTIONS`](super::vocabulary::list); `base` is that of a logarithm.
pub(super) fn apply(name: &str, base: Option<Form>, argument: Form) -> Option<Form> {
    if let ("log", Some(base)) = (name, &base) {
        return match (base.as_f64(), argument.as_f64()) {
            (Some(base), Some(value)) => Form::rounded(value.ln() / base.ln()),
            _ => Some(Form::symbol(format!("log_{}({})", base.key(), argument.key()))),
        };
    }
    let function: fn(f64) -> f64 = match name {
        "sin" => f64::sin,
        "cos" => f64::cos,
        "tan" => f64::tan,
        "sec" => |x| 1.0 / x.cos(),
        "csc" => |x| 1.0 / x.sin(),
        "cot" => |x| 1.0 / x.tan(),
        "arcsin" => f64::asin,
        "arccos" => f64::acos,
        "arctan" => f64::atan,
        "sinh" => f64::sinh,
        "cosh" => f64::cosh,
        "tanh" => f64::tanh,
        "ln" => f64::ln,
        "exp" => f64::exp,
        // The base of "log" without one depends on the question.
        _ => return Some(Form::symbol(format!("{name}({})", argument.key()))),
    };
    rounded(&argument, name, function)
}

/// n! up to 33!, the largest that fits in 127 bits; otherwise a symbol.
pub(super) fn factorial(of: &Form) -> Option<Form> {
    match of.as_whole() {
        Some(n @ 0..=33) => Some(Form::number(Rational::integer((1..=n).product()))),
        _ => Some(Form::symbol(format!("({})!", of.key()))),
    }
}

/// n choose k; a symbol unless both are whole numbers.
pub(super) fn binomial(of: &Form, chosen: &Form) -> Option<Form> {
    match (of.as_whole(), chosen.as_whole()) {
        (Some(n), Some(k)) if (0..=n).contains(&k) && n <= 10_000 => {
            // Each step's product is a binomial coefficient times the next factor, so that the division is exact.
            let value = (1..=k.min(n - k)).try_fold(1_i128, |value, i| Some(value.checked_mul(n - i + 1)? / i));
            Some(Form::number(Rational::integer(value?)))
        }
        _ => Some(Form::symbol(format!("binomial({},{})", of.key(), chosen.key()))),
    }
}
