//! Tokens to the tree of [`super::ast`], with Jinja2's precedence.

use std::sync::Arc;

use super::ast::{Argument, Body, Comparison, Expr, For, Macro, Operator, Post, Statement, StatementKind, Target};
use super::lexer::{SyntaxError, Token, TokenKind, tokens};
use super::value::Value;

/// Brackets in brackets and blocks in blocks; published templates have up to about ten.
const MAX_NESTING: usize = 100;
/// Bytes; published templates have up to some 40 thousand.
pub(crate) const MAX_SOURCE: usize = 512 << 10;

/// A template that was understood: its statements, and its macros (and `call` blocks), to which these refer by index.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub body: Body,
    pub macros: Vec<Arc<Macro>>,
}

/// Reads a template.
///
/// # Errors
/// What is not Jinja, or longer or more deeply nested than any template should be.
pub(crate) fn parse(source: &str) -> Result<Parsed, SyntaxError> {
    if source.len() > MAX_SOURCE {
        let message = format!("it has {} bytes, expected at most {MAX_SOURCE}", source.len());
        return Err(SyntaxError { message, line: 1 });
    }
    let mut parser = Parser { tokens: tokens(source)?, at: 0, nesting: 0, loops: 0, macros: Vec::new() };
    let body = parser.body(&[])?;
    Ok(Parsed { body, macros: parser.macros })
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    nesting: usize,
    /// `for` blocks around this point.
    loops: usize,
    macros: Vec<Arc<Macro>>,
}

type Parse<T> = Result<T, SyntaxError>;

impl Parser {
    fn peek(&self) -> &TokenKind {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> &TokenKind {
        self.tokens.get(self.at + ahead).map_or(&TokenKind::End, |token| &token.kind)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    fn next(&mut self) -> TokenKind {
        let kind = self.peek().clone();
        self.at += 1;
        kind
    }

    fn error<T>(&self, message: impl Into<String>) -> Parse<T> {
        Err(SyntaxError { message: message.into(), line: self.line() })
    }

    fn unexpected<T>(&self, expected: &str) -> Parse<T> {
        let found = match self.peek() {
            TokenKind::Text(_) => "text".to_string(),
            TokenKind::OpenOutput => "\"{{\"".to_string(),
            TokenKind::CloseOutput => "\"}}\"".to_string(),
            TokenKind::OpenBlock => "\"{%\"".to_string(),
            TokenKind::CloseBlock => "\"%}\"".to_string(),
            TokenKind::Name(name) => format!("{name:?}"),
            TokenKind::Str(text) => format!("the string {:?}", text.chars().take(40).collect::<String>()),
            TokenKind::Int(i) => i.to_string(),
            TokenKind::Float(x) => x.to_string(),
            TokenKind::Operator(operator) => format!("{operator:?}"),
            TokenKind::End => "the end of the template".to_string(),
        };
        self.error(format!("expected {expected}, found {found}"))
    }

    fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), TokenKind::Operator(found) if *found == operator)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), TokenKind::Name(found) if **found == *name)
    }

    fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        self.at += usize::from(found);
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn expect_operator(&mut self, operator: &str) -> Parse<()> {
        if self.skip_operator(operator) { Ok(()) } else { self.unexpected(&format!("{operator:?}")) }
    }

    fn expect(&mut self, kind: &TokenKind, name: &str) -> Parse<()> {
        if self.peek() != kind {
            return self.unexpected(name);
        }
        self.at += 1;
        Ok(())
    }

    fn close_block(&mut self) -> Parse<()> {
        self.expect(&TokenKind::CloseBlock, "\"%}\"")
    }

    fn name(&mut self) -> Parse<Arc<str>> {
        match self.next() {
            TokenKind::Name(name) => Ok(name),
            _ => {
                self.at -= 1;
                self.unexpected("a name")
            }
        }
    }

    /// Runs `inner` one level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parse<T>) -> Parse<T> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return self.error(format!("nested more than {MAX_NESTING} deep"));
        }
        let result = inner(self);
        self.nesting -= 1;
        result
    }

    // Statements

    /// Statements up to one of the tags `ends` (its name is consumed if there is one; the caller reads on), or up to the
    /// end of the template where there are none.
    fn body(&mut self, ends: &[&str]) -> Parse<Body> {
        self.nested(|parser| {
            let mut body = Vec::new();
            loop {
                let line = parser.line();
                let kind = match parser.peek() {
                    TokenKind::End if ends.is_empty() => return Ok(body),
                    TokenKind::End => return parser.unexpected(&format!("{{% {} %}}", ends.join(" or "))),
                    TokenKind::Text(text) => {
                        let text = text.clone();
                        parser.at += 1;
                        StatementKind::Text(text)
                    }
                    TokenKind::OpenOutput => {
                        parser.at += 1;
                        let value = parser.tuple(true)?;
                        parser.expect(&TokenKind::CloseOutput, "\"}}\"")?;
                        StatementKind::Output(value)
                    }
                    TokenKind::OpenBlock => {
                        parser.at += 1;
                        if ends.iter().any(|end| parser.is_name(end)) {
                            return Ok(body);
                        }
                        parser.statement()?
                    }
                    _ => return parser.unexpected("text or a tag"),
                };
                body.push(Statement { kind, line });
            }
        })
    }

    /// A body, its end tag, and the end of that tag.
    fn body_to(&mut self, end: &str) -> Parse<Body> {
        self.close_block()?;
        let body = self.body(&[end])?;
        self.at += 1;
        Ok(body)
    }

    fn statement(&mut self) -> Parse<StatementKind> {
        let name = self.name()?;
        let kind = match &*name {
            "if" => return self.if_statement(),
            "for" => return self.for_statement(),
            "set" => return self.set(),
            "macro" => self.macro_statement()?,
            "call" => self.call()?,
            "with" => self.with()?,
            // transformers marks the assistant's text with it, to train on; for rendering it only opens a scope
            "generation" => StatementKind::With(Vec::new(), self.body_to("endgeneration")?),
            "filter" => {
                let filters = self.filters(true)?;
                StatementKind::Filter(filters, self.body_to("endfilter")?)
            }
            "block" => {
                self.name()?;
                while self.skip_name("scoped") || self.skip_name("required") {}
                let body = self.body_to("endblock")?;
                if matches!(self.peek(), TokenKind::Name(_)) {
                    self.at += 1;
                }
                StatementKind::Block(body)
            }
            "break" | "continue" if self.loops == 0 => return self.error(format!("{name:?} outside of a loop")),
            "break" => StatementKind::Break,
            "continue" => StatementKind::Continue,
            "include" | "import" | "from" | "extends" => {
                return self.error(format!("{name:?} needs other templates, which a model does not have"));
            }
            _ => {
                self.at -= 1;
                return self.unexpected("the name of a tag");
            }
        };
        self.close_block()?;
        Ok(kind)
    }

    fn if_statement(&mut self) -> Parse<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple(false)?;
            self.close_block()?;
            branches.push((condition, self.body(&["elif", "else", "endif"])?));
            if self.skip_name("elif") {
                continue;
            }
            let otherwise = if self.skip_name("else") {
                self.close_block()?;
                self.body(&["endif"])?
            } else {
                Vec::new()
            };
            self.at += 1;
            self.close_block()?;
            return Ok(StatementKind::If(branches, otherwise));
        }
    }

    fn for_statement(&mut self) -> Parse<StatementKind> {
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return self.unexpected("\"in\"");
        }
        let iterable = self.tuple(false)?;
        let condition = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.close_block()?;
        self.loops += 1;
        let body = self.body(&["else", "endfor"])?;
        self.loops -= 1;
        let otherwise = if self.skip_name("else") {
            self.close_block()?;
            self.body(&["endfor"])?
        } else {
            Vec::new()
        };
        self.at += 1;
        self.close_block()?;
        Ok(StatementKind::For(Arc::new(For { target, iterable, condition, body, otherwise, recursive })))
    }

    fn set(&mut self) -> Parse<StatementKind> {
        let target = self.target(true)?;
        let kind = if self.skip_operator("=") {
            StatementKind::Set(target, self.tuple(true)?)
        } else {
            let filters = self.filters(false)?;
            StatementKind::SetBlock(target, filters, self.body_to("endset")?)
        };
        self.close_block()?;
        Ok(kind)
    }

    fn with(&mut self) -> Parse<StatementKind> {
        let mut values = Vec::new();
        while *self.peek() != TokenKind::CloseBlock {
            if !values.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.target_part(false)?;
            self.expect_operator("=")?;
            values.push((target, self.expression()?));
        }
        Ok(StatementKind::With(values, self.body_to("endwith")?))
    }

    fn macro_statement(&mut self) -> Parse<StatementKind> {
        let name = self.name()?;
        let parameters = self.parameters()?;
        let body = self.macro_body("endmacro")?;
        // {% endmacro name %}
        if matches!(self.peek(), TokenKind::Name(_)) {
            self.at += 1;
        }
        self.macros.push(Arc::new(Macro { name, parameters, body }));
        Ok(StatementKind::Macro(self.macros.len() - 1))
    }

    fn call(&mut self) -> Parse<StatementKind> {
        let parameters = if self.is_operator("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(&call, Expr::Chain(_, posts) if matches!(posts.last(), Some(Post::Call(_)))) {
            return self.error("{% call %} needs a call");
        }
        let body = self.macro_body("endcall")?;
        self.macros.push(Arc::new(Macro { name: "caller".into(), parameters, body }));
        Ok(StatementKind::Call(self.macros.len() - 1, call))
    }

    fn macro_body(&mut self, end: &str) -> Parse<Body> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.body_to(end);
        self.loops = loops;
        body
    }

    fn parameters(&mut self) -> Parse<Vec<(Arc<str>, Option<Expr>)>> {
        self.expect_operator("(")?;
        let mut parameters = Vec::new();
        while !self.skip_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
                if self.skip_operator(")") {
                    break;
                }
            }
            let name = self.name()?;
            let default = if self.skip_operator("=") { Some(self.expression()?) } else { None };
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    /// What is assigned to: a name, an attribute of a namespace, or several with commas.
    fn target(&mut self, attributes: bool) -> Parse<Target> {
        let first = self.target_part(attributes)?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_operator(",") {
            if matches!(self.peek(), TokenKind::Name(name) if **name != *"in") || self.is_operator("(") {
                targets.push(self.target_part(attributes)?);
            }
        }
        Ok(Target::Tuple(targets))
    }

    fn target_part(&mut self, attributes: bool) -> Parse<Target> {
        if self.skip_operator("(") {
            let target = self.nested(|parser| parser.target(attributes))?;
            self.expect_operator(")")?;
            return Ok(target);
        }
        let name = self.name()?;
        if ["true", "false", "none", "True", "False", "None", "not", "and", "or", "in", "is", "if", "else"].contains(&&*name) {
            self.at -= 1;
            return self.unexpected("a name to assign to");
        }
        if attributes && self.skip_operator(".") {
            return Ok(Target::Attribute(name, self.name()?));
        }
        Ok(Target::Name(name))
    }

    // Expressions, the loosest first

    /// An expression, or several with commas: a tuple. With `conditional`, each may have an `if`.
    fn tuple(&mut self, conditional: bool) -> Parse<Expr> {
        let part = |parser: &mut Self| if conditional { parser.expression() } else { parser.nested(Self::or) };
        let first = part(self)?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_operator(",") {
            let ends = matches!(self.peek(), TokenKind::CloseOutput | TokenKind::CloseBlock | TokenKind::Operator(")" | "]"))
                || (!conditional && (self.is_name("recursive") || self.is_name("if")));
            if ends {
                break;
            }
            items.push(part(self)?);
        }
        Ok(Expr::Tuple(items))
    }

    fn expression(&mut self) -> Parse<Expr> {
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

    fn several(
        &mut self,
        word: &str,
        part: fn(&mut Self) -> Parse<Expr>,
        join: fn(Vec<Expr>) -> Expr,
    ) -> Parse<Expr> {
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
        while with_filters {
            match self.peek() {
                TokenKind::Operator("|") => posts.extend(self.filters(false)?),
                TokenKind::Operator("(") => posts.push(Post::Call(self.arguments()?)),
                TokenKind::Name(name) if **name == *"is" => {
                    self.at += 1;
                    posts.push(self.test()?);
                }
                _ => break,
            }
        }
        Ok(if posts.is_empty() { value } else { Expr::Chain(Box::new(value), posts) })
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
    fn filters(&mut self, mut bare: bool) -> Parse<Vec<Post>> {
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
        self.expect_operator("(")?;
        let mut arguments = Vec::new();
        while !self.skip_operator(")") {
            if !arguments.is_empty() {
                self.expect_operator(",")?;
                if self.skip_operator(")") {
                    break;
                }
            }
            arguments.push(if self.skip_operator("*") {
                Argument::Star(self.expression()?)
            } else if self.skip_operator("**") {
                Argument::DoubleStar(self.expression()?)
            } else {
                match (self.peek().clone(), self.peek_at(1)) {
                    (TokenKind::Name(name), TokenKind::Operator("=")) => {
                        self.at += 2;
                        Argument::Named(name, self.expression()?)
                    }
                    _ => Argument::Plain(self.expression()?),
                }
            });
        }
        Ok(arguments)
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
