//! Parser from a cleaned formula to its [`Form`].

use super::form::Form;
use super::functions::{binomial, factorial, rounded};
use super::rational::Rational;
use super::text::{group, letters, period, proper_fraction, take_char};
use super::vocabulary::{UNITS, is_half_of_day, is_unit_letter, multiplier};
use crate::uq::answer::pattern;
use regex::Regex;

/// The form of an expression; `None` if it is not an expression or contains something unknown.
pub(super) fn parse(text: &str) -> Option<Form> {
    let mut parser = Parser::new(text, 0);
    let form = parser.stacked()?;
    parser.rest.trim().is_empty().then_some(form)
}

pub(super) struct Parser<'a> {
    pub(super) rest: &'a str,
    pub(super) depth: usize,
    /// Inside a pair of bars: the next bar closes.
    in_bars: bool,
    /// In the argument of a trigonometric function, where `°` is a factor rather than a unit.
    pub(super) in_angle: bool,
}

impl<'a> Parser<'a> {
    /// Recursion limit; a real answer has a few levels.
    const MAX_DEPTH: usize = 40;

    pub(super) fn new(text: &'a str, depth: usize) -> Self {
        Self { rest: text, depth, in_bars: false, in_angle: false }
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
        while self.rest.trim_start().starts_with(['-', '+']) {
            sum = sum.add(self.signed(Self::product)?)?;
        }
        Some(sum)
    }

    /// An operand after any number of signs.
    fn signed(&mut self, read: fn(&mut Self) -> Option<Form>) -> Option<Form> {
        let signs = self.take(pattern!(r"^[-+\s]*"))?;
        let form = read(self)?;
        if signs.matches('-').count() % 2 == 1 { form.negated() } else { Some(form) }
    }

    fn product(&mut self) -> Option<Form> {
        self.skip_spaces();
        // words before a number, as in `\text{Area } 5`
        while let Some((_, rest)) = self.words().filter(|(_, rest)| !rest.trim().is_empty()) {
            self.rest = rest.trim_start();
        }
        let mut after_number = self.peek_number();
        let mut product = self.power()?;
        let mut after_unit = false;
        loop {
            self.skip_spaces();
            if self.eat("*") {
                product = product.mul(self.signed(Self::power)?)?;
            } else if self.eat("/") {
                product = product.divided_by(self.signed(Self::power)?)?;
            } else if let Some(multiplier) = self.multiplier() {
                product = product.mul(Form::number(multiplier))?;
            } else if self.skip_unit() {
                after_unit = true;
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

    /// Skips a unit, its exponent and the unit it is divided by.
    fn skip_unit(&mut self) -> bool {
        let (start, letters) = (self.rest, letters(self.rest));
        let (is_unit, rest) = match self.words() {
            Some((words, rest)) => {
                let variable = words.chars().count() == 1 && !words.starts_with(is_unit_letter);
                (!variable && !is_half_of_day(words), rest)
            }
            None => (UNITS.contains(&letters.to_lowercase()), &self.rest[letters.len()..]),
        };
        if !is_unit {
            return false;
        }
        self.rest = rest;
        if self.eat("^") && self.argument().is_none() {
            self.rest = start;
            return false;
        }
        self.take(pattern!("^/[A-Za-z]+"));
        true
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
                self.take(pattern!(r"^\s*(?:[CF]\b|\\text\{[CF]\}\B)")); // the scale of a temperature
                if self.in_angle {
                    base = base.mul(Form::rounded(std::f64::consts::PI / 180.0)?)?;
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
