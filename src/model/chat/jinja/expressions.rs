//! The parser of expressions, the loosest operators first.

use std::sync::Arc;

use super::ast::{Argument, Comparison, Expr, Operator, Post};
use super::lexer::TokenKind;
use super::parser::{Parse, Parser};
use super::value::Value;

impl Parser {
    /// An expression, or several with commas: a tuple. With `conditional`, each may have an `if`.
    pub(super) fn tuple(&mut self, conditional: bool) -> Parse<Expr> {
        let part = |parser: &mut Self| if conditional { parser.expression() } else { parser.nested(Self::or) };
        let first = part(self)?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_operator(",") {
            let ends =
                matches!(self.peek(), TokenKind::CloseOutput | TokenKind::CloseBlock | TokenKind::Operator(")" | "]"))
                    || (!conditional && (self.is_name("recursive") || self.is_name("if")));
            if ends {
                break;
            }
            items.push(part(self)?);
        }
        Ok(Expr::Tuple(items))
    }

    pub(super) fn expression(&mut self) -> Parse<Expr> {
        self.nested(|parser| {
            let mut value = parser.or()?;
            while parser.skip_name("if") {
                let condition = parser.or()?;
                let otherwise = if parser.skip_name("else") { Some(parser.expression()?) } else { None };
                let conditional = Expr::If(Box::new((value, condition, otherwise)));
                value = conditional;
                if parser.is_name("if") {
                    return parser.error("a second \"if\" needs brackets");
                }
            }
            Ok(value)
        })
    }

    fn or(&mut self) -> Parse<Expr> {
        self.several("or", Self::and, Expr::Or)
    }

    fn and(&mut self) -> Parse<Expr> {
        self.several("and", Self::not, Expr::And)
    }

    fn several(&mut self, word: &str, part: fn(&mut Self) -> Parse<Expr>, join: fn(Vec<Expr>) -> Expr) -> Parse<Expr> {
        let first = part(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_name(word) {
            parts.push(part(self)?);
        }
        Ok(join(parts))
    }

    fn not(&mut self) -> Parse<Expr> {
        if self.skip_name("not") {
            return Ok(Expr::Not(Box::new(self.nested(Self::not)?)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Parse<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                TokenKind::Operator("==") => Comparison::Equal,
                TokenKind::Operator("!=") => Comparison::NotEqual,
                TokenKind::Operator("<") => Comparison::Less,
                TokenKind::Operator("<=") => Comparison::LessOrEqual,
                TokenKind::Operator(">") => Comparison::Greater,
                TokenKind::Operator(">=") => Comparison::GreaterOrEqual,
                TokenKind::Name(name) if **name == *"in" => Comparison::In,
                TokenKind::Name(name) if **name == *"not" => match self.peek_at(1) {
                    TokenKind::Name(next) if **next == *"in" => {
                        self.at += 1;
                        Comparison::NotIn
                    }
                    _ => break,
                },
                _ => break,
            };
            self.at += 1;
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn arithmetic(&mut self, part: fn(&mut Self) -> Parse<Expr>, operators: &[(&str, Operator)]) -> Parse<Expr> {
        let first = part(self)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(text, _)| self.is_operator(text)) {
            self.at += 1;
            rest.push((*operator, part(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Arithmetic(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Parse<Expr> {
        self.arithmetic(Self::concat, &[("+", Operator::Add), ("-", Operator::Subtract)])
    }

    fn concat(&mut self) -> Parse<Expr> {
        let first = self.product()?;
        let mut parts = vec![first];
        while self.skip_operator("~") {
            parts.push(self.product()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::Concat(parts) })
    }

    fn product(&mut self) -> Parse<Expr> {
        let operators = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Modulo),
        ];
        self.arithmetic(Self::power, &operators)
    }

    fn power(&mut self) -> Parse<Expr> {
        self.arithmetic(|parser| parser.unary(true), &[("**", Operator::Power)])
    }

    fn unary(&mut self, with_filters: bool) -> Parse<Expr> {
        let value = if self.skip_operator("-") {
            Expr::Negative(Box::new(self.nested(|parser| parser.unary(false))?))
        } else if self.skip_operator("+") {
            Expr::Positive(Box::new(self.nested(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        let mut posts = Vec::new();
        self.postfix(&mut posts)?;
        if with_filters {
            self.filters_and_tests(&mut posts)?;
        }
        Ok(if posts.is_empty() { value } else { Expr::Chain(Box::new(value), posts) })
    }

    fn filters_and_tests(&mut self, posts: &mut Vec<Post>) -> Parse<()> {
        loop {
            match self.peek() {
                TokenKind::Operator("|") => posts.extend(self.filters(false)?),
                TokenKind::Operator("(") => posts.push(Post::Call(self.arguments()?)),
                TokenKind::Name(name) if **name == *"is" => {
                    self.at += 1;
                    posts.push(self.test()?);
                }
                _ => return Ok(()),
            }
        }
    }

    fn postfix(&mut self, posts: &mut Vec<Post>) -> Parse<()> {
        loop {
            if self.skip_operator(".") {
                posts.push(match self.next() {
                    TokenKind::Name(name) => Post::Attribute(name),
                    TokenKind::Int(i) => Post::Item(Expr::Const(Value::Int(i))),
                    _ => {
                        self.at -= 1;
                        return self.unexpected("a name");
                    }
                });
            } else if self.skip_operator("[") {
                posts.push(self.nested(Self::subscript)?);
            } else if self.is_operator("(") {
                posts.push(Post::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn subscript(&mut self) -> Parse<Post> {
        let mut parts: [Option<Expr>; 3] = [None, None, None];
        let mut n = 0;
        loop {
            if self.skip_operator("]") {
                break;
            }
            if self.skip_operator(":") {
                n += 1;
                if n > 2 {
                    return self.unexpected("\"]\"");
                }
                continue;
            }
            if parts[n].is_some() {
                return self.unexpected("\"]\"");
            }
            parts[n] = Some(self.tuple(true)?);
        }
        match (n, parts) {
            (0, [Some(item), ..]) => Ok(Post::Item(item)),
            (0, _) => {
                self.at -= 1;
                self.unexpected("an expression")
            }
            (_, parts) => Ok(Post::Slice(Box::new(parts))),
        }
    }

    /// `| name(arguments)`, any number of times; with `bare`, the first has no bar.
    pub(super) fn filters(&mut self, mut bare: bool) -> Parse<Vec<Post>> {
        let mut filters = Vec::new();
        while std::mem::take(&mut bare) || self.skip_operator("|") {
            let name = self.dotted_name()?;
            let arguments = if self.is_operator("(") { self.arguments()? } else { Vec::new() };
            filters.push(Post::Filter(name, arguments));
        }
        Ok(filters)
    }

    fn dotted_name(&mut self) -> Parse<Arc<str>> {
        let mut name = self.name()?;
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.name()?).into();
        }
        Ok(name)
    }

    fn test(&mut self) -> Parse<Post> {
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let arguments = match self.peek() {
            TokenKind::Operator("(") => self.arguments()?,
            TokenKind::Name(name) if ["else", "or", "and"].contains(&&**name) => Vec::new(),
            TokenKind::Name(name) if **name == *"is" => return self.error("tests in a row need brackets"),
            TokenKind::Name(_)
            | TokenKind::Str(_)
            | TokenKind::Int(_)
            | TokenKind::Float(_)
            | TokenKind::Operator("[" | "{") => {
                let value = self.primary()?;
                let mut posts = Vec::new();
                self.postfix(&mut posts)?;
                let value = if posts.is_empty() { value } else { Expr::Chain(Box::new(value), posts) };
                vec![Argument::Plain(value)]
            }
            _ => Vec::new(),
        };
        Ok(Post::Test { name, arguments, negated })
    }

    fn arguments(&mut self) -> Parse<Vec<Argument>> {
        self.in_parentheses(|parser| {
            Ok(if parser.skip_operator("*") {
                Argument::Star(parser.expression()?)
            } else if parser.skip_operator("**") {
                Argument::DoubleStar(parser.expression()?)
            } else {
                match (parser.peek().clone(), parser.peek_at(1)) {
                    (TokenKind::Name(name), TokenKind::Operator("=")) => {
                        parser.at += 2;
                        Argument::Named(name, parser.expression()?)
                    }
                    _ => Argument::Plain(parser.expression()?),
                }
            })
        })
    }

    /// Items with commas between them, in parentheses; the last may have one after it.
    pub(super) fn in_parentheses<T>(&mut self, mut item: impl FnMut(&mut Self) -> Parse<T>) -> Parse<Vec<T>> {
        self.expect_operator("(")?;
        let mut items = Vec::new();
        while !self.skip_operator(")") {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.skip_operator(")") {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn primary(&mut self) -> Parse<Expr> {
        Ok(match self.next() {
            TokenKind::Name(name) => match &*name {
                "true" | "True" => Expr::Const(Value::Bool(true)),
                "false" | "False" => Expr::Const(Value::Bool(false)),
                "none" | "None" => Expr::Const(Value::None),
                _ => Expr::Name(name),
            },
            TokenKind::Str(text) => match self.peek() {
                TokenKind::Str(_) => {
                    let mut text = text.to_string();
                    while let TokenKind::Str(more) = self.peek() {
                        text.push_str(more);
                        self.at += 1;
                    }
                    Expr::Const(Value::text(&text))
                }
                _ => Expr::Const(Value::Str(text)),
            },
            TokenKind::Int(i) => Expr::Const(Value::Int(i)),
            TokenKind::Float(x) => Expr::Const(Value::Float(x)),
            TokenKind::Operator("(") => {
                if self.skip_operator(")") {
                    return Ok(Expr::Tuple(Vec::new()));
                }
                let inner = self.nested(|parser| parser.tuple(true))?;
                self.expect_operator(")")?;
                inner
            }
            TokenKind::Operator("[") => Expr::List(self.items("]", Self::expression)?),
            TokenKind::Operator("{") => Expr::Dict(self.items("}", |parser| {
                let key = parser.expression()?;
                parser.expect_operator(":")?;
                Ok((key, parser.expression()?))
            })?),
            _ => {
                self.at -= 1;
                return self.unexpected("an expression");
            }
        })
    }

    /// What stands between brackets, with commas.
    fn items<T>(&mut self, end: &str, item: fn(&mut Self) -> Parse<T>) -> Parse<Vec<T>> {
        let mut items = Vec::new();
        while !self.skip_operator(end) {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.skip_operator(end) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }
}
