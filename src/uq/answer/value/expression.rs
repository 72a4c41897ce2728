//! Parser from a cleaned formula to its [`Form`].

use super::form::Form;
use super::functions::{binomial, factorial, rounded};
use super::rational::Rational;
use super::text::{group, letters, period, proper_fraction, take_char};
use super::units::{is_currency, unit};
use super::vocabulary::{is_half_of_day, is_unit_letter, list, multiplier, qualifies};
use regex::Regex;

/// The form of an expression; `None` if it is not an expression or contains something unknown.
pub(crate) fn parse(text: &str) -> Option<Form> {
    let mut parser = Parser::new(text, 0);
    let form = parser.stacked()?;
    parser.rest.trim().is_empty().then_some(form)
}

/// The key of a measure in base units; `None` for an expression without a known unit.
pub(super) fn measure(text: &str) -> Option<String> {
    let mut parser = Parser { measures: true, ..Parser::new(text, 0) };
    let form = parser.stacked()?;
    Some(form.key()).filter(|key| parser.rest.trim().is_empty() && key.contains('⟨'))
}

pub(super) struct Parser<'a> {
    pub(super) rest: &'a str,
    pub(super) depth: usize,
    /// Inside a pair of bars: the next bar closes.
    in_bars: bool,
    /// In the argument of a trigonometric function, where `°` is a factor rather than a unit.
    pub(super) in_angle: bool,
    /// Whether units are factors; otherwise a number with a unit equals the number.
    measures: bool,
}

impl<'a> Parser<'a> {
    /// Recursion limit; a real answer has a few levels.
    const MAX_DEPTH: usize = 40;

    pub(super) fn new(text: &'a str, depth: usize) -> Self {
        Self { rest: text, depth, in_bars: false, in_angle: false, measures: false }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Consumes a pattern's match at the start.
    fn take(&mut self, pattern: &Regex) -> Option<&'a str> {
        let (found, rest) = self.rest.split_at(pattern.find(self.rest)?.end());
        self.rest = rest;
        Some(found)
    }

    /// Consumes the braces at the start; returns their content.
    pub(super) fn group(&mut self) -> Option<&'a str> {
        let (inside, rest) = group(self.rest.trim_start())?;
        self.rest = rest;
        Some(inside)
    }

    pub(super) fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    pub(super) fn eat(&mut self, token: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Name of the command at the start.
    pub(super) fn command(&self) -> Option<&'a str> {
        let name = letters(self.rest.strip_prefix('\\')?);
        (!name.is_empty()).then_some(name)
    }

    /// The words of the `\text{…}` at the start, and the text after it.
    pub(super) fn words(&self) -> Option<(&'a str, &'a str)> {
        self.rest.strip_prefix("\\text{")?.split_once('}')
    }

    /// A sum, or `n \choose k`, `a \over b`.
    fn stacked(&mut self) -> Option<Form> {
        let above = self.sum()?;
        if self.eat("\\choose ") {
            binomial(&above, &self.sum()?)
        } else if self.eat("\\over ") {
            above.divided_by(self.sum()?)
        } else {
            Some(above)
        }
    }

    pub(super) fn sum(&mut self) -> Option<Form> {
        let mut sum = self.signed(Self::product)?;
        // also `5 feet 6 inches`
        while self.rest.trim_start().starts_with(['-', '+']) || (self.measures && self.peek_number()) {
            sum = sum.add(self.signed(Self::product)?)?;
        }
        Some(sum)
    }

    /// An operand after any number of signs and a currency: `-$5`, `$-5`.
    fn signed(&mut self, read: fn(&mut Self) -> Option<Form>) -> Option<Form> {
        let signs = self.take(pattern!(r"^[-+\s$€£¥₹₩₽]*"))?;
        let mut form = read(self)?;
        if let Some(currency) = signs.chars().find(|c| is_currency(*c)) {
            form = form.mul(self.factor(currency.encode_utf8(&mut [0; 4])))?;
        }
        if signs.matches('-').count() % 2 == 1 { form.negated() } else { Some(form) }
    }

    /// A unit as a factor: 1 where it is ignored or unknown.
    fn factor(&self, words: &str) -> Form {
        unit(words).filter(|_| self.measures).unwrap_or(Form::number(Rational::ONE))
    }

    fn product(&mut self) -> Option<Form> {
        self.skip_spaces();
        // words before a number, as in `\text{Area } 5`, `\text{USD } 5`
        let mut product = Form::number(Rational::ONE);
        let start = self.rest;
        while let Some((words, rest)) =
            self.words().filter(|(words, rest)| !rest.trim().is_empty() && !qualifies(words))
        {
            product = product.mul(self.factor(words))?;
            self.rest = rest.trim_start();
        }
        let words = start.len() > self.rest.len();
        let mut after_number = self.peek_number();
        product = product.mul(if words { self.signed(Self::power)? } else { self.power()? })?;
        let mut after_unit = false;
        loop {
            self.skip_spaces();
            if self.eat("*") {
                product = product.mul(self.signed(Self::power)?)?;
            } else if self.eat("/") {
                self.skip_spaces();
                product = match self.unit(after_unit) {
                    Some(unit) => product.divided_by(unit)?,
                    None => product.divided_by(self.signed(Self::power)?)?,
                };
            } else if let Some(multiplier) = self.multiplier() {
                product = product.mul(Form::number(multiplier))?;
            } else if let Some(unit) = self.unit(false) {
                product = product.mul(unit)?;
                after_unit = true;
            } else if self.measures && after_unit && self.peek_number() {
                return Some(product);
            } else if self.starts_factor() {
                if after_unit || (after_number && self.peek_number()) {
                    return None; // "5 cm x", "3 4"
                }
                after_number = self.peek_number();
                product = product.mul(self.power()?)?;
            } else {
                return Some(product);
            }
        }
    }

    /// Factor denoted by a word: `million`, `\text{ million dollars}`.
    fn multiplier(&mut self) -> Option<Rational> {
        let letters = letters(self.rest);
        let (words, rest) = self.words().unwrap_or((letters, &self.rest[letters.len()..]));
        let value = multiplier(words.split_whitespace().next()?)?;
        self.rest = rest;
        Some(value)
    }

    /// The unit at the start: currency signs, known units, words that are no qualifiers, each with its exponent; any letters in
    /// the denominator of another unit.
    fn unit(&mut self, in_denominator: bool) -> Option<Form> {
        let (start, mut names) = (self.rest, String::new());
        while let Some((name, rest)) = self.unit_name(in_denominator) {
            self.rest = rest;
            names.extend([" ", name]);
            if self.eat("^") {
                let Some(exponent) = self.argument().and_then(|exponent| exponent.as_whole()) else {
                    self.rest = start;
                    return None;
                };
                names.push_str(&format!("^{exponent}"));
            }
            self.skip_spaces();
        }
        (!names.is_empty()).then(|| self.factor(&names))
    }

    /// The name of a unit at the start, and the text after it.
    fn unit_name(&self, in_denominator: bool) -> Option<(&'a str, &'a str)> {
        if let Some((words, rest)) = self.words() {
            let variable = words.chars().count() == 1 && !words.starts_with(|c| is_unit_letter(c) || is_currency(c));
            return Some((words, rest)).filter(|_| !variable && !is_half_of_day(words) && !qualifies(words));
        }
        let letters = letters(self.rest);
        let length = match self.peek()? {
            c if is_currency(c) => c.len_utf8(),
            _ if list("bare units").contains(&&*letters.to_lowercase()) || (in_denominator && !letters.is_empty()) => {
                letters.len()
            }
            _ => return None,
        };
        Some(self.rest.split_at(length))
    }

    fn peek_number(&self) -> bool {
        self.rest.trim_start().starts_with(|c: char| c.is_ascii_digit() || c == '.')
    }

    pub(super) fn starts_factor(&self) -> bool {
        match self.peek() {
            Some('(' | '[' | '{' | '.' | '⌊' | '⌈' | '∞' | 'π') => true,
            Some('|') => !self.in_bars,
            Some('\\') => self.command().is_some_and(|name| !matches!(name, "end" | "choose" | "over")),
            Some(c) => c.is_alphanumeric(),
            None => false,
        }
    }

    pub(super) fn power(&mut self) -> Option<Form> {
        let mut base = self.primary()?;
        loop {
            if self.eat("!") {
                base = factorial(&base)?;
            } else if self.eat("^") {
                base = base.power(self.argument()?)?;
            } else if self.eat("°") {
                // the scale of a temperature
                let scale = self.take(pattern!(r"^\s*(?:[CF]\b|\\text\{[CF]\}\B)")).unwrap_or_default();
                if self.in_angle {
                    base = base.mul(Form::rounded(std::f64::consts::PI / 180.0)?)?;
                } else if self.measures {
                    base = base
                        .mul(Form::symbol(format!("⟨°{}⟩", scale.trim_matches(|c: char| !matches!(c, 'C' | 'F')))))?;
                }
            } else {
                return Some(base);
            }
        }
    }

    /// An exponent or an index: a group, a command, a whole number, or one character.
    pub(super) fn argument(&mut self) -> Option<Form> {
        let negative = self.eat("-");
        self.skip_spaces();
        let digit = self.peek()?.is_ascii_digit() || (negative && self.peek_number());
        let value = if digit { self.number() } else { self.primary() }?;
        if negative { value.negated() } else { Some(value) }
    }

    /// An argument under TeX's rules: the first digit of `\frac12`.
    pub(super) fn tex_argument(&mut self) -> Option<Form> {
        self.skip_spaces();
        match self.take(pattern!("^[0-9A-Za-z]")) {
            Some(one) => Some(Rational::decimal(one).map_or_else(|| Form::symbol(one), Form::number)),
            None => self.primary(),
        }
    }

    /// An operand. All nesting passes through here.
    pub(super) fn primary(&mut self) -> Option<Form> {
        self.depth += 1;
        let form = if self.depth > Self::MAX_DEPTH { None } else { self.operand() };
        self.depth -= 1;
        form
    }

    fn operand(&mut self) -> Option<Form> {
        self.skip_spaces();
        match self.peek()? {
            c if c.is_ascii_digit() || c == '.' => self.mixed_number(),
            '(' | '[' => self.enclosed(&[")", "]"], Self::sum),
            '{' => self.enclosed(&["}"], Self::stacked),
            '|' => rounded(&self.enclosed(&["|"], Self::sum)?, "abs", f64::abs),
            '⌊' => rounded(&self.enclosed(&["⌋"], Self::sum)?, "⌊", f64::floor),
            '⌈' => rounded(&self.enclosed(&["⌉"], Self::sum)?, "⌈", f64::ceil),
            '\\' => self.command_value(),
            c @ ('π' | '∞' | '∅') => {
                take_char(&mut self.rest);
                if c == 'π' { Form::rounded(std::f64::consts::PI) } else { Some(Form::symbol(c)) }
            }
            c if c.is_alphabetic() => self.name(),
            _ => None,
        }
    }

    /// The content of brackets, starting at the opening one.
    fn enclosed(&mut self, close: &[&str], read: fn(&mut Self) -> Option<Form>) -> Option<Form> {
        take_char(&mut self.rest);
        let inside = self.within(close == ["|"], read)?;
        close.iter().any(|close| self.eat(close)).then_some(inside)
    }

    /// Reads inside brackets, where a bar opens again, or inside bars.
    pub(super) fn within(&mut self, bars: bool, read: fn(&mut Self) -> Option<Form>) -> Option<Form> {
        let before = std::mem::replace(&mut self.in_bars, bars);
        let inside = read(self);
        self.in_bars = before;
        inside
    }

    /// Digits, decimals, a period, a power of ten, a base as index.
    fn number(&mut self) -> Option<Form> {
        let text = self.take(pattern!(r"^[0-9]*(?:\.[0-9]*)?"))?;
        if text.contains('.') && self.rest.starts_with(['\\', '(']) {
            if let Some((period, rest)) = period(self.rest) {
                self.rest = rest;
                return Rational::repeating(text, &period).map(Form::number);
            }
            if text.ends_with('.') && !self.rest.starts_with("\\text") {
                return None;
            }
        }
        let value = Rational::decimal(text)?;
        if let Some(exponent) = self.take(pattern!("^[eE][-+]?[0-9]+")) {
            let power = Rational::integer(10).power(exponent[1..].parse().ok()?)?;
            return value.mul(power).map(Form::number);
        }
        if self.take(pattern!("^_")).is_some() {
            return Some(Form::symbol(format!("{text}_{}", self.argument()?.key())));
        }
        Some(Form::number(value))
    }

    /// A number, or a whole number and a fraction: `2\frac{1}{2}`, `2 1/2`.
    fn mixed_number(&mut self) -> Option<Form> {
        let whole = self.number()?;
        let (Some(value), Some((fraction, rest))) = (whole.as_whole(), proper_fraction(self.rest)) else {
            return Some(whole);
        };
        self.rest = rest;
        Some(Form::number(Rational::integer(value).add(fraction)?))
    }
}
