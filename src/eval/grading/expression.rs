//! From a cleaned formula to its [`Form`].

use super::form::Form;
use super::functions::{binomial, factorial, rounded};
use super::groups::{period, proper_fraction};
use super::rational::Rational;
use super::vocabulary::{UNITS, is_half_of_day, is_unit_letter, multiplier};

/// The form of an expression; `None` for what is none, or not understood.
pub(super) fn parse(text: &str) -> Option<Form> {
    let mut parser = Parser::of(text, 0);
    let form = parser.stacked()?;
    parser.skip_spaces();
    parser.rest.is_empty().then_some(form)
}

pub(super) struct Parser<'a> {
    pub(super) rest: &'a str,
    pub(super) depth: usize,
    /// Between two bars, where the next one closes.
    in_bars: bool,
    /// In the argument of a trigonometric function, where degrees count.
    pub(super) in_angle: bool,
}

impl<'a> Parser<'a> {
    /// Deeper formulas are not read: an answer has a few levels.
    const MAX_DEPTH: usize = 40;

    pub(super) fn of(text: &'a str, depth: usize) -> Self {
        Self { rest: text, depth, in_bars: false, in_angle: false }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    pub(super) fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    pub(super) fn eat(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// The name of the command that comes next.
    pub(super) fn command(&self) -> Option<&'a str> {
        let name = self.rest.strip_prefix('\\')?;
        let length = name.bytes().take_while(u8::is_ascii_alphabetic).count();
        (length > 0).then(|| &name[..length])
    }

    /// A sum, or two above each other: `n \choose k`, `a \over b`.
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
        let mut sum = Form::number(Rational::ZERO);
        let mut first = true;
        loop {
            let mut negative = false;
            let mut signed = false;
            while let Some(sign) = {
                self.skip_spaces();
                self.peek()
            }
            .filter(|c| matches!(c, '+' | '-'))
            {
                negative ^= sign == '-';
                signed = true;
                self.rest = &self.rest[1..];
            }
            if !first && !signed {
                break;
            }
            let term = self.product()?;
            sum = sum.add(if negative { term.negated()? } else { term })?;
            first = false;
        }
        Some(sum)
    }

    fn product(&mut self) -> Option<Form> {
        while self.text_first() {}
        let mut after_number = self.peek_number();
        let mut product = self.power()?;
        let mut after_unit = false;
        loop {
            self.skip_spaces();
            if self.eat("*") {
                product = product.mul(self.factor_after_operator()?)?;
            } else if self.eat("/") {
                product = product.divided_by(self.factor_after_operator()?)?;
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

    /// Passes over words before a number, as in `\text{Area } 5`.
    fn text_first(&mut self) -> bool {
        self.skip_spaces();
        let Some(rest) = self.rest.strip_prefix("\\text{") else { return false };
        match rest.split_once('}') {
            Some((_, rest)) if !rest.trim().is_empty() => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn factor_after_operator(&mut self) -> Option<Form> {
        self.skip_spaces();
        match self.peek() {
            Some('-') => {
                self.rest = &self.rest[1..];
                self.power()?.negated()
            }
            _ => self.power(),
        }
    }

    /// A word that multiplies: `million`, `\text{ million dollars}`.
    fn multiplier(&mut self) -> Option<Rational> {
        if let Some((words, rest)) = self.rest.strip_prefix("\\text{").and_then(|rest| rest.split_once('}')) {
            let value = multiplier(words.split_whitespace().next()?)?;
            self.rest = rest;
            return Some(value);
        }
        let word = self.letters();
        let value = multiplier(word)?;
        self.rest = &self.rest[word.len()..];
        Some(value)
    }

    /// Passes over a unit, its exponent and what it is divided by.
    fn skip_unit(&mut self) -> bool {
        let start = self.rest;
        if let Some(rest) = self.rest.strip_prefix("\\text{") {
            let Some((words, rest)) = rest.split_once('}') else { return false };
            let mut letters = words.chars();
            let variable = letters.next().is_some_and(|letter| !is_unit_letter(letter)) && letters.next().is_none();
            if variable || is_half_of_day(words) {
                return false;
            }
            self.rest = rest;
        } else {
            let run = self.letters();
            if !UNITS.contains(&run.to_lowercase().as_str()) {
                return false;
            }
            self.rest = &self.rest[run.len()..];
        }
        if self.eat("^") && self.argument().is_none() {
            self.rest = start;
            return false;
        }
        if let Some(rest) = self.rest.strip_prefix('/') {
            let below = Parser::of(rest, 0).letters();
            if !below.is_empty() {
                self.rest = &rest[below.len()..];
            }
        }
        true
    }

    /// The letters that come next, up to what is no letter.
    pub(super) fn letters(&self) -> &'a str {
        let length = self.rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        &self.rest[..length]
    }

    fn peek_number(&self) -> bool {
        let rest = self.rest.trim_start();
        rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')
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
                let exponent = self.argument()?;
                base = base.power(exponent)?;
            } else if self.eat("°") {
                self.skip_scale_of_temperature();
                if self.in_angle {
                    base = base.mul(Form::rounded(std::f64::consts::PI / 180.0)?)?;
                }
            } else {
                return Some(base);
            }
        }
    }

    /// Passes over the letter of `°C`.
    fn skip_scale_of_temperature(&mut self) {
        let rest = self.rest.trim_start();
        let scales = ["C", "F", "\\text{C}", "\\text{F}"];
        let after = scales.iter().find_map(|scale| rest.strip_prefix(scale));
        self.rest = after.filter(|after| !after.starts_with(char::is_alphanumeric)).unwrap_or(self.rest);
    }

    /// An argument of a command, an exponent or an index: a group, a command, a whole number, or one character.
    pub(super) fn argument(&mut self) -> Option<Form> {
        self.skip_spaces();
        match self.peek()? {
            '-' => {
                self.rest = self.rest[1..].trim_start();
                let digit = self.peek_number();
                (if digit { self.number() } else { self.primary() })?.negated()
            }
            c if c.is_ascii_digit() => self.number(),
            _ => self.primary(),
        }
    }

    /// As TeX reads an argument: of `\frac12`, a single digit.
    pub(super) fn tex_argument(&mut self) -> Option<Form> {
        self.skip_spaces();
        match self.peek()? {
            c @ '0'..='9' => {
                self.rest = &self.rest[1..];
                Some(Form::number(Rational::decimal(c.encode_utf8(&mut [0; 4]))?))
            }
            c if c.is_ascii_alphabetic() => {
                self.rest = &self.rest[1..];
                Some(Form::symbol(c))
            }
            _ => self.primary(),
        }
    }

    /// What stands between operators; everything that nests passes through here.
    pub(super) fn primary(&mut self) -> Option<Form> {
        self.depth += 1;
        let form = if self.depth > Self::MAX_DEPTH { None } else { self.primary_inner() };
        self.depth -= 1;
        form
    }

    fn primary_inner(&mut self) -> Option<Form> {
        self.skip_spaces();
        match self.peek()? {
            c if c.is_ascii_digit() || c == '.' => self.mixed_number(),
            '(' | '[' => {
                self.rest = &self.rest[1..];
                let inside = self.within(Self::sum)?;
                (self.eat(")") || self.eat("]")).then_some(inside)
            }
            '{' => {
                self.rest = &self.rest[1..];
                let inside = self.within(Self::stacked)?;
                self.eat("}").then_some(inside)
            }
            '|' => {
                self.rest = &self.rest[1..];
                let before = std::mem::replace(&mut self.in_bars, true);
                let inside = self.sum()?;
                self.in_bars = before;
                self.eat("|").then_some(())?;
                rounded(&inside, "abs", f64::abs)
            }
            '⌊' => self.enclosed("⌊", "⌋", f64::floor),
            '⌈' => self.enclosed("⌈", "⌉", f64::ceil),
            'π' => {
                self.rest = &self.rest['π'.len_utf8()..];
                Form::rounded(std::f64::consts::PI)
            }
            '\\' => self.command_value(),
            c @ ('∞' | '∅') => {
                self.rest = &self.rest[c.len_utf8()..];
                Some(Form::symbol(c))
            }
            c if c.is_alphabetic() => self.name(),
            _ => None,
        }
    }

    /// Inside of brackets, where bars open again.
    pub(super) fn within(&mut self, read: fn(&mut Self) -> Option<Form>) -> Option<Form> {
        let before = std::mem::replace(&mut self.in_bars, false);
        let inside = read(self);
        self.in_bars = before;
        inside
    }

    fn enclosed(&mut self, open: &str, close: &str, function: fn(f64) -> f64) -> Option<Form> {
        self.eat(open).then_some(())?;
        let inside = self.within(Self::sum)?;
        self.eat(close).then_some(())?;
        rounded(&inside, open, function)
    }

    /// Digits, decimals, a period that repeats, an exponent of ten.
    fn number(&mut self) -> Option<Form> {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let whole = digits(self.rest);
        let after = &self.rest[whole..];
        let length = whole + after.strip_prefix('.').map_or(0, |decimals| 1 + digits(decimals));
        let (text, rest) = self.rest.split_at(length);
        self.rest = rest;
        if text.contains('.') && rest.starts_with(['\\', '(']) {
            if let Some((period, rest)) = period(rest) {
                self.rest = rest;
                return Rational::repeating(text, &period).map(Form::number);
            }
            if text.ends_with('.') && !rest.starts_with("\\text") {
                return None;
            }
        }
        let value = Rational::decimal(text)?;
        if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
            let sign = usize::from(exponent.starts_with(['-', '+']));
            let length = digits(&exponent[sign..]);
            if length > 0 {
                self.rest = &exponent[sign + length..];
                let power: i128 = exponent[..sign + length].parse().ok()?;
                return value.mul(Rational::integer(10).power(power)?).map(Form::number);
            }
        }
        if self.rest.starts_with('_') {
            self.rest = &self.rest[1..];
            let base = self.argument()?.key();
            return Some(Form::symbol(format!("{text}_{base}")));
        }
        Some(Form::number(value))
    }

    /// A number, or a whole number and a fraction: `2\frac{1}{2}`, `2 1/2`.
    fn mixed_number(&mut self) -> Option<Form> {
        let whole = self.number()?;
        let Some(value) = whole.as_rational().filter(|value| value.whole().is_some()) else { return Some(whole) };
        let Some((fraction, rest)) = proper_fraction(self.rest) else { return Some(whole) };
        self.rest = rest;
        Some(Form::number(value.add(fraction)?))
    }
}
