//! What has a name in a formula: commands, symbols with their indices and arguments, functions, matrices.

use super::expression::Parser;
use super::form::Form;
use super::functions::{FUNCTIONS, apply, binomial};
use super::groups::group;
use super::rational::Rational;
use super::vocabulary::{MARKS, SYMBOLS, is_half_of_day};

impl Parser<'_> {
    /// What a command stands for.
    pub(super) fn command_value(&mut self) -> Option<Form> {
        let name = self.command()?;
        self.rest = &self.rest[1 + name.len()..];
        match name {
            "frac" => {
                let above = self.tex_argument()?;
                above.divided_by(self.tex_argument()?)
            }
            "sqrt" => {
                let degree = if self.eat("[") {
                    let (degree, rest) = self.rest.split_once(']')?;
                    self.rest = rest;
                    Form::number(Rational::decimal(degree.trim())?)
                } else {
                    Form::number(Rational::integer(2))
                };
                let radicand = self.tex_argument()?;
                radicand.power(Form::number(Rational::ONE).divided_by(degree)?)
            }
            "binom" | "dbinom" | "tbinom" => {
                let (of, chosen) = (self.tex_argument()?, self.tex_argument()?);
                binomial(&of, &chosen)
            }
            "begin" => self.matrix(),
            "text" => {
                let (words, rest) = self.rest.strip_prefix('{')?.split_once('}')?;
                let symbol = words.trim().trim_matches(['(', ')', '.']);
                self.rest = rest;
                if is_half_of_day(words) {
                    return Some(Form::symbol(words.trim().to_lowercase().replace('.', "")));
                }
                (symbol.chars().count() == 1).then(|| Form::symbol(symbol))
            }
            _ if FUNCTIONS.contains(&name) => self.function(name),
            _ if SYMBOLS.contains(&name) || MARKS.contains(&name) => self.symbol(name),
            _ => None,
        }
    }

    /// A letter with its index, or a known name written without a backslash.
    pub(super) fn name(&mut self) -> Option<Form> {
        let run = self.letters();
        if FUNCTIONS.contains(&run) {
            self.rest = &self.rest[run.len()..];
            return self.function(run);
        }
        match run {
            "sqrt" => {
                self.rest = &self.rest[run.len()..];
                return self.primary()?.power(Form::number(Rational::new(1, 2)?));
            }
            "pi" | "Pi" => {
                self.rest = &self.rest[run.len()..];
                return Form::rounded(std::f64::consts::PI);
            }
            "inf" | "infinity" | "infty" | "oo" => {
                self.rest = &self.rest[run.len()..];
                return Some(Form::symbol('∞'));
            }
            _ => {}
        }
        let letter = self.peek()?;
        self.rest = &self.rest[letter.len_utf8()..];
        self.symbol(letter.encode_utf8(&mut [0; 4]))
    }

    /// A symbol with what belongs to its name: arguments in braces, an index, primes; of a function, its arguments.
    fn symbol(&mut self, name: &str) -> Option<Form> {
        let mut name = name.to_owned();
        if name.len() > 1 {
            while self.rest.trim_start().starts_with('{') {
                let (inside, rest) = group(self.rest.trim_start())?;
                self.rest = rest;
                name.extend(["(", &inside.replace(' ', ""), ")"]);
            }
        }
        if self.eat("_") {
            name.extend(["_", &self.argument_text()?]);
        }
        while self.eat("'") {
            name.push('\'');
        }
        if is_applied(&name, self.rest) {
            self.rest = &self.rest[1..];
            let mut arguments = vec![self.within(Self::sum)?.key()];
            while self.eat(",") {
                arguments.push(self.within(Self::sum)?.key());
            }
            self.eat(")").then_some(())?;
            name.push_str(&format!("({})", arguments.join(",")));
        }
        Some(Form::symbol(name))
    }

    /// An index as it is written.
    fn argument_text(&mut self) -> Option<String> {
        self.skip_spaces();
        if self.rest.starts_with('{') {
            let (inside, rest) = group(self.rest)?;
            self.rest = rest;
            return Some(inside.replace(' ', ""));
        }
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c.to_string())
    }

    /// A function with its base or power and its argument.
    fn function(&mut self, name: &str) -> Option<Form> {
        let base = if self.eat("_") { Some(self.argument()?) } else { None };
        let power = if self.eat("^") { Some(self.argument()?) } else { None };
        self.skip_spaces();
        let outside = std::mem::replace(&mut self.in_angle, true);
        let argument = if matches!(self.peek()?, '(' | '[' | '{') {
            self.primary()?
        } else {
            let mut argument = self.power()?;
            while {
                self.skip_spaces();
                self.starts_factor()
            } && !self.rest.starts_with(['(', '['])
                && !self.at_function()
            {
                argument = argument.mul(self.power()?)?;
            }
            argument
        };
        self.in_angle = outside;
        let value = apply(name, base, argument)?;
        match power {
            Some(power) => value.power(power),
            None => Some(value),
        }
    }

    fn at_function(&self) -> bool {
        FUNCTIONS.contains(&self.command().unwrap_or_else(|| self.letters())) || self.command() == Some("text")
    }

    /// The rows of a matrix, as a symbol.
    fn matrix(&mut self) -> Option<Form> {
        let (environment, rest) = group(self.rest.trim_start())?;
        let kind = match environment {
            "matrix" | "pmatrix" | "bmatrix" | "Bmatrix" | "array" | "smallmatrix" => "matrix",
            "vmatrix" => "determinant",
            _ => return None,
        };
        let rest = if environment == "array" { group(rest.trim_start())?.1 } else { rest };
        let end = rest.find("\\end")?;
        let (_, after) = group(rest[end + "\\end".len()..].trim_start())?;
        self.rest = after;
        let rows = rest[..end].split("\\\\").map(str::trim).filter(|row| !row.is_empty());
        let row = |row: &str| -> Option<String> {
            let cells = row.split('&').map(|cell| {
                let mut cell = Parser::of(cell, self.depth + 1);
                let form = cell.sum()?;
                cell.rest.trim().is_empty().then(|| form.key())
            });
            Some(cells.collect::<Option<Vec<_>>>()?.join(","))
        };
        let rows = rows.map(row).collect::<Option<Vec<_>>>()?;
        Some(Form::symbol(format!("{kind}[{}]", rows.join(";"))))
    }
}

/// Whether parentheses that follow a symbol hold its arguments, and no factor: those of f, g and h, and of any letter a
/// number alone, as in `P(2)`.
fn is_applied(name: &str, rest: &str) -> bool {
    let Some(inside) = rest.strip_prefix('(') else { return false };
    let number = inside
        .find(|c: char| !(c.is_ascii_digit() || c == '-'))
        .is_some_and(|at| at > 0 && inside[at..].starts_with(')'));
    number || matches!(name.trim_end_matches('\''), "f" | "g" | "h" | "F" | "G" | "H")
}
