//! Named elements of a formula: commands, symbols with their indices and arguments, functions, matrices.

use super::expression::Parser;
use super::form::Form;
use super::functions::{apply, binomial};
use super::rational::Rational;
use super::text::{letters, take_char};
use super::vocabulary::{is_half_of_day, list};

impl Parser<'_> {
    /// Value of the command at the start.
    pub(super) fn command_value(&mut self) -> Option<Form> {
        let name = self.command()?;
        if let Some((words, rest)) = self.words() {
            self.rest = rest;
            if is_half_of_day(words) {
                return Some(Form::symbol(words.trim().to_lowercase().replace('.', "")));
            }
            let symbol = words.trim().trim_matches(['(', ')', '.']);
            return (symbol.chars().count() == 1).then(|| Form::symbol(symbol));
        }
        self.rest = &self.rest[1 + name.len()..];
        match name {
            "frac" => self.tex_argument()?.divided_by(self.tex_argument()?),
            "sqrt" => {
                let mut degree = Rational::integer(2);
                if self.eat("[") {
                    let (inside, rest) = self.rest.split_once(']')?;
                    degree = Rational::decimal(inside.trim())?;
                    self.rest = rest;
                }
                self.tex_argument()?.power(Form::number(degree.power(-1)?))
            }
            "binom" | "dbinom" | "tbinom" => binomial(&self.tex_argument()?, &self.tex_argument()?),
            "begin" => self.matrix(),
            _ if list("functions").contains(&name) => self.function(name),
            _ if list("symbols").contains(&name) || list("marks").contains(&name) => self.symbol(name),
            _ => None,
        }
    }

    /// A letter with its index, or a known name without a backslash.
    pub(super) fn name(&mut self) -> Option<Form> {
        let run = letters(self.rest);
        let start = self.rest;
        self.rest = &self.rest[run.len()..];
        match run {
            _ if list("functions").contains(&run) => self.function(run),
            "sqrt" => self.primary()?.power(Form::number(Rational::new(1, 2)?)),
            "pi" | "Pi" => Form::rounded(std::f64::consts::PI),
            "inf" | "infinity" | "infty" | "oo" => Some(Form::symbol('∞')),
            _ => {
                self.rest = start;
                let letter = take_char(&mut self.rest)?;
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
            name.extend(["_", &self.index()?]);
        }
        while self.eat("'") {
            name.push('\'');
        }
        if is_applied(&name, self.rest) {
            take_char(&mut self.rest);
            let mut arguments = vec![self.within(false, Self::sum)?.key()];
            while self.eat(",") {
                arguments.push(self.within(false, Self::sum)?.key());
            }
            self.eat(")").then_some(())?;
            name.push_str(&format!("({})", arguments.join(",")));
        }
        Some(Form::symbol(name))
    }

    /// The text of an index.
    fn index(&mut self) -> Option<String> {
        self.skip_spaces();
        match self.peek()? {
            '{' => Some(self.group()?.replace(' ', "")),
            _ => take_char(&mut self.rest).map(String::from),
        }
    }

    /// A function with its base or power and its argument.
    fn function(&mut self, name: &str) -> Option<Form> {
        let base = if self.eat("_") { Some(self.argument()?) } else { None };
        let power = if self.eat("^") { Some(self.argument()?) } else { None };
        self.skip_spaces();
        let outside = std::mem::replace(&mut self.in_angle, true);
        let argument = if matches!(self.peek()?, '(' | '[' | '{') { self.primary()? } else { self.bare_argument()? };
        self.in_angle = outside;
        let value = apply(name, base, argument)?;
        if let Some(power) = power { value.power(power) } else { Some(value) }
    }

    /// The argument of a function without brackets: the factors up to a bracket, words or the next function.
    fn bare_argument(&mut self) -> Option<Form> {
        let mut argument = self.power()?;
        loop {
            self.skip_spaces();
            let name = self.command().unwrap_or_else(|| letters(self.rest));
            let ends = self.rest.starts_with(['(', '['])
                || list("functions").contains(&name)
                || self.command() == Some("text");
            if ends || !self.starts_factor() {
                return Some(argument);
            }
            argument = argument.mul(self.power()?)?;
        }
    }

    /// The rows of a matrix, as a symbol.
    fn matrix(&mut self) -> Option<Form> {
        let environment = self.group()?;
        let kind = match environment {
            "matrix" | "pmatrix" | "bmatrix" | "Bmatrix" | "array" | "smallmatrix" => "matrix",
            "vmatrix" => "determinant",
            _ => return None,
        };
        if environment == "array" {
            self.group()?;
        }
        let (rows, end) = self.rest.split_once("\\end")?;
        self.rest = end;
        self.group()?;
        let cell = |cell: &str| {
            let mut cell = Parser::new(cell, self.depth + 1);
            let form = cell.sum()?;
            cell.rest.trim().is_empty().then(|| form.key())
        };
        let row = |row: &str| Some(row.split('&').map(cell).collect::<Option<Vec<_>>>()?.join(","));
        let rows = rows.split("\\\\").map(str::trim).filter(|row| !row.is_empty());
        let rows = rows.map(row).collect::<Option<Vec<_>>>()?;
        Some(Form::symbol(format!("{kind}[{}]", rows.join(";"))))
    }
}

/// Whether the parentheses after a symbol hold its arguments rather than a factor: after f, g and h, or around a single
/// number, as in `P(2)`.
fn is_applied(name: &str, rest: &str) -> bool {
    let of_one_letter = matches!(name.trim_end_matches('\''), "f" | "g" | "h" | "F" | "G" | "H");
    rest.starts_with('(') && (of_one_letter || pattern!(r"^\([-0-9]+\)").is_match(rest))
}
