//! Parser from a cleaned formula to its [`Form`].

use super::super::tables::{grammar, list};
use super::latex::{group, letters};
use super::vocabulary::{is_currency, multiplier, qualifies, unit};
use super::{form::Form, rational::Rational};
use regex::Regex;

/// The form of an expression; `None` if it is not an expression or contains something unknown.
pub(crate) fn parse(text: &str) -> Option<Form> {
    Parser::new(text, 0).all()
}

/// The key of a measure in base units; `None` for an expression without a known unit.
pub(super) fn measure(text: &str) -> Option<String> {
    let form = Parser { measures: true, ..Parser::new(text, 0) }.all()?;
    Some(form.key()).filter(|key| key.contains('⟨'))
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
    /// In the argument of a trigonometric function, where `°` is a factor rather than a unit.
    in_angle: bool,
    /// Whether units are factors; otherwise a number with a unit equals the number.
    measures: bool,
}

impl<'a> Parser<'a> {
    /// Recursion limit; a real answer has a few levels.
    const MAX_DEPTH: usize = 40;

    fn new(text: &'a str, depth: usize) -> Self {
        Self { rest: text, depth, in_angle: false, measures: false }
    }

    /// The form of all of the text.
    fn all(mut self) -> Option<Form> {
        let form = self.sum()?;
        self.rest.trim().is_empty().then_some(form)
    }

    /// The next character but spaces.
    fn peek(&self) -> Option<char> {
        self.rest.trim_start().chars().next()
    }

    /// Takes the next character but spaces.
    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.trim_start().chars();
        let first = chars.next();
        self.rest = chars.as_str();
        first
    }

    /// Consumes a pattern's match at the start.
    fn take(&mut self, pattern: &Regex) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let (found, rest) = rest.split_at(pattern.find(rest)?.end());
        self.rest = rest;
        Some(found)
    }

    /// Consumes the braces at the start; returns their content.
    fn group(&mut self) -> Option<&'a str> {
        let (inside, rest) = group(self.rest.trim_start())?;
        self.rest = rest;
        Some(inside)
    }

    fn eat(&mut self, token: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Name of the command at the start.
    fn command(&self) -> Option<&'a str> {
        let name = letters(self.rest.trim_start().strip_prefix('\\')?);
        (!name.is_empty()).then_some(name)
    }

    /// The words of the `\text{…}` at the start, and the text after it.
    fn words(&self) -> Option<(&'a str, &'a str)> {
        self.rest.trim_start().strip_prefix("\\text{")?.split_once('}')
    }

    fn sum(&mut self) -> Option<Form> {
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
        // words before a number, as in `\text{Area } 5`, `\text{USD } 5`
        let mut product = Form::number(Rational::ONE);
        let named = |(words, rest): &(&str, &str)| !rest.trim().is_empty() && !qualifies(words);
        while let Some((words, rest)) = self.words().filter(named) {
            product = product.mul(self.factor(words))?;
            self.rest = rest;
        }
        let mut after_number = self.peek_number();
        product = product.mul(self.signed(Self::power)?)?;
        let mut after_unit = false;
        loop {
            if self.eat("*") {
                product = product.mul(self.signed(Self::power)?)?;
            } else if self.eat("/") {
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
        let rest = self.rest.trim_start();
        let (words, rest) = self.words().unwrap_or_else(|| rest.split_at(letters(rest).len()));
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
            let exponent = self.take(pattern!(r"^\^\s*(?:\{\s*-?[0-9]+\s*\}|-?[0-9]+)")).unwrap_or_default();
            names.push_str(&exponent.replace(['{', '}', ' '], ""));
        }
        if self.peek() == Some('^') {
            (self.rest, names) = (start, String::new());
        }
        (!names.is_empty()).then(|| self.factor(&names))
    }

    /// The name of a unit at the start, and the text after it.
    fn unit_name(&self, in_denominator: bool) -> Option<(&'a str, &'a str)> {
        if let Some((words, rest)) = self.words() {
            return Some((words, rest)).filter(|_| !grammar("no unit").is_match(words) && !qualifies(words));
        }
        let rest = self.rest.trim_start();
        let letters = letters(rest);
        let length = match self.peek()? {
            c if is_currency(c) => c.len_utf8(),
            _ if list("bare units").contains(&&*letters.to_lowercase()) || (in_denominator && !letters.is_empty()) => {
                letters.len()
            }
            _ => return None,
        };
        Some(rest.split_at(length))
    }

    fn peek_number(&self) -> bool {
        self.rest.trim_start().starts_with(|c: char| c.is_ascii_digit() || c == '.')
    }

    fn starts_factor(&self) -> bool {
        let starts = pattern!(r"^(?:[(\[{|.⌊⌈∞π\p{Alphabetic}\p{N}]|\\[A-Za-z])").is_match(self.rest.trim_start());
        starts && !matches!(self.command(), Some("end"))
    }

    fn power(&mut self) -> Option<Form> {
        let mut base = self.primary()?;
        loop {
            if self.eat("!") {
                base = base.factorial();
            } else if self.eat("^") {
                base = base.power(self.argument()?)?;
            } else if self.eat("°") {
                if self.in_angle {
                    base = base.mul(Form::rounded(std::f64::consts::PI / 180.0)?)?;
                }
            } else {
                return Some(base);
            }
        }
    }

    /// An exponent or an index: a group, a command, a whole number, or one character.
    fn argument(&mut self) -> Option<Form> {
        let negative = self.eat("-");
        let digit = self.peek()?.is_ascii_digit() || (negative && self.peek_number());
        let value = if digit { self.number() } else { self.primary() }?;
        if negative { value.negated() } else { Some(value) }
    }

    /// An argument under TeX's rules: the first digit of `\frac12`.
    fn tex_argument(&mut self) -> Option<Form> {
        match self.take(pattern!("^[0-9A-Za-z]")) {
            Some(one) => Some(Rational::decimal(one).map_or_else(|| Form::symbol(one), Form::number)),
            None => self.primary(),
        }
    }

    /// An operand. All nesting passes through here.
    fn primary(&mut self) -> Option<Form> {
        self.depth += 1;
        let form = if self.depth > Self::MAX_DEPTH { None } else { self.operand() };
        self.depth -= 1;
        form
    }

    fn operand(&mut self) -> Option<Form> {
        match self.peek()? {
            c if c.is_ascii_digit() || c == '.' => self.mixed_number(),
            '(' | '[' => self.enclosed(&[")", "]"], Self::sum),
            '{' => self.enclosed(&["}"], Self::sum),
            '|' => {
                let (inside, rest) = self.rest.trim_start()[1..].split_once('|')?;
                self.rest = rest;
                parse(inside)?.applied("abs")
            }
            '⌊' => self.enclosed(&["⌋"], Self::sum)?.applied("⌊"),
            '⌈' => self.enclosed(&["⌉"], Self::sum)?.applied("⌈"),
            '\\' => self.command_value(),
            'π' => self.next().and_then(|_| Form::rounded(std::f64::consts::PI)),
            '∞' | '∅' => self.next().map(Form::symbol),
            c if c.is_alphabetic() => self.name(),
            _ => None,
        }
    }

    /// The content of brackets, starting at the opening one.
    fn enclosed(&mut self, close: &[&str], read: fn(&mut Self) -> Option<Form>) -> Option<Form> {
        self.next();
        let inside = read(self)?;
        close.iter().any(|close| self.eat(close)).then_some(inside)
    }

    /// Digits, decimals, a period, a power of ten, a base as index.
    fn number(&mut self) -> Option<Form> {
        let text = self.take(pattern!(r"^[0-9]*(?:\.[0-9]*)?"))?;
        if text.contains('.') && self.rest.starts_with(['\\', '(']) {
            if let Some(period) = self.take(grammar("period")) {
                let digits: String = period.chars().filter(char::is_ascii_digit).collect();
                return Rational::repeating(text, &digits).map(Form::number);
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
        let (Some(value), Some(found)) = (whole.as_whole(), grammar("fraction after a number").find(self.rest)) else {
            return Some(whole);
        };
        let (fraction, rest) = (parse(found.as_str())?.as_rational()?, &self.rest[found.end()..]);
        let goes_on = rest.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '/' | '.'));
        if goes_on || !(0.0..1.0).contains(&fraction.to_f64()) || fraction == Rational::ZERO {
            return Some(whole);
        }
        self.rest = rest;
        Some(Form::number(Rational::integer(value).add(fraction)?))
    }

    /// Value of the command at the start.
    fn command_value(&mut self) -> Option<Form> {
        let name = self.command()?;
        if let Some((words, rest)) = self.words() {
            self.rest = rest;
            let half = words.trim().to_lowercase().replace('.', "");
            if matches!(half.as_str(), "am" | "pm") {
                return Some(Form::symbol(half));
            }
            let symbol = words.trim().trim_matches(['(', ')', '.']);
            return (symbol.chars().count() == 1).then(|| Form::symbol(symbol));
        }
        self.rest = &self.rest.trim_start()[1 + name.len()..];
        match name {
            "frac" => self.tex_argument()?.divided_by(self.tex_argument()?),
            "sqrt" => {
                let degree = self.take(pattern!(r"^\[[^\]]*\]")).unwrap_or("[2]").trim_matches(['[', ']', ' ']);
                self.tex_argument()?.power(Form::number(Rational::decimal(degree)?.power(-1)?))
            }
            "binom" | "dbinom" | "tbinom" => self.tex_argument()?.binomial(&self.tex_argument()?),
            "begin" => self.matrix(),
            _ if list("functions").contains(&name) => self.function(name),
            _ if list("symbols").contains(&name) || list("marks").contains(&name) => self.symbol(name),
            _ => None,
        }
    }

    /// A letter with its index, or a known name without a backslash.
    fn name(&mut self) -> Option<Form> {
        let start = self.rest.trim_start();
        let run = letters(start);
        self.rest = &start[run.len()..];
        match run {
            _ if list("functions").contains(&run) => self.function(run),
            "sqrt" => self.primary()?.power(Form::number(Rational::new(1, 2)?)),
            "pi" | "Pi" => Form::rounded(std::f64::consts::PI),
            "inf" | "infinity" | "infty" | "oo" => Some(Form::symbol('∞')),
            _ => {
                self.rest = start;
                let letter = self.next()?;
                self.symbol(letter.encode_utf8(&mut [0; 4]))
            }
        }
    }

    /// A symbol with the rest of its name: arguments in braces, an index, primes; the arguments of a function.
    fn symbol(&mut self, name: &str) -> Option<Form> {
        let mut name = name.to_owned();
        if name.len() > 1 {
            while self.rest.trim_start().starts_with('{') {
                name.extend(["(", &self.group()?.replace(' ', ""), ")"]);
            }
        }
        if self.eat("_") {
            name.extend(["_", &self.group().or_else(|| self.take(pattern!("(?s)^.")))?.replace(' ', "")]);
        }
        while self.eat("'") {
            name.push('\'');
        }
        // its arguments rather than a factor: after f, g and h, or a single number, as in `P(2)`
        let applied = matches!(name.trim_end_matches('\''), "f" | "g" | "h" | "F" | "G" | "H");
        let arguments = if applied { pattern!(r"^\([^()]*\)") } else { pattern!(r"^\([-0-9]+\)") };
        name.push_str(&self.take(arguments).unwrap_or_default().replace(' ', ""));
        Some(Form::symbol(name))
    }

    /// A function with its base or power and its argument.
    fn function(&mut self, name: &str) -> Option<Form> {
        let base = if self.eat("_") { Some(self.argument()?) } else { None };
        let power = if self.eat("^") { Some(self.argument()?) } else { None };
        let outside = std::mem::replace(&mut self.in_angle, true);
        let argument = if matches!(self.peek()?, '(' | '[' | '{') { self.primary()? } else { self.bare_argument()? };
        self.in_angle = outside;
        let value = match base {
            Some(base) if name == "log" => argument.applied("ln")?.divided_by(base.applied("ln")?)?,
            _ => argument.applied(name)?,
        };
        power.map_or(Some(value.clone()), |power| value.power(power))
    }

    /// The argument of a function without brackets: the factors up to a bracket, words or the next function.
    fn bare_argument(&mut self) -> Option<Form> {
        let mut argument = self.power()?;
        loop {
            if grammar("after an argument").is_match(self.rest) || !self.starts_factor() {
                return Some(argument);
            }
            argument = argument.mul(self.power()?)?;
        }
    }

    /// The rows of a matrix, as a symbol.
    fn matrix(&mut self) -> Option<Form> {
        let environment = self.group()?;
        let kind = if environment == "vmatrix" { "determinant" } else { "matrix" };
        if environment == "array" {
            self.group()?;
        } else if !environment.ends_with("matrix") {
            return None;
        }
        let (rows, end) = self.rest.split_once("\\end")?;
        self.rest = end;
        self.group()?;
        let cell = |cell: &str| Some(Parser::new(cell, self.depth + 1).all()?.key());
        let row = |row: &str| Some(row.split('&').map(cell).collect::<Option<Vec<_>>>()?.join(","));
        let rows = rows.split("\\\\").map(str::trim).filter(|row| !row.is_empty());
        let rows = rows.map(row).collect::<Option<Vec<_>>>()?;
        Some(Form::symbol(format!("{kind}[{}]", rows.join(";"))))
    }
}
