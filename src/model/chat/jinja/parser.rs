//! Tokens to the tree of [`super::ast`], with Jinja2's precedence.

use std::sync::Arc;

use super::ast::{Body, Expr, For, Macro, Post, Statement, StatementKind, Target};
use super::lexer::{SyntaxError, Token, TokenKind, tokens};

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

pub(super) struct Parser {
    tokens: Vec<Token>,
    pub at: usize,
    nesting: usize,
    /// `for` blocks around this point.
    loops: usize,
    macros: Vec<Arc<Macro>>,
}

pub(super) type Parse<T> = Result<T, SyntaxError>;

impl Parser {
    pub fn peek(&self) -> &TokenKind {
        self.peek_at(0)
    }

    pub fn peek_at(&self, ahead: usize) -> &TokenKind {
        self.tokens.get(self.at + ahead).map_or(&TokenKind::End, |token| &token.kind)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    pub fn next(&mut self) -> TokenKind {
        let kind = self.peek().clone();
        self.at += 1;
        kind
    }

    pub fn error<T>(&self, message: impl Into<String>) -> Parse<T> {
        Err(SyntaxError { message: message.into(), line: self.line() })
    }

    pub fn unexpected<T>(&self, expected: &str) -> Parse<T> {
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

    pub fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), TokenKind::Operator(found) if *found == operator)
    }

    pub fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), TokenKind::Name(found) if **found == *name)
    }

    pub fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        self.at += usize::from(found);
        found
    }

    pub fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub fn expect_operator(&mut self, operator: &str) -> Parse<()> {
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

    pub fn name(&mut self) -> Parse<Arc<str>> {
        match self.next() {
            TokenKind::Name(name) => Ok(name),
            _ => {
                self.at -= 1;
                self.unexpected("a name")
            }
        }
    }

    /// Runs `inner` one level deeper.
    pub fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parse<T>) -> Parse<T> {
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
            return Ok(StatementKind::If(branches, self.otherwise("endif")?));
        }
    }

    /// The end of a statement whose body may be followed by an `else`: what that holds.
    fn otherwise(&mut self, end: &'static str) -> Parse<Vec<Statement>> {
        let otherwise = if self.skip_name("else") {
            self.close_block()?;
            self.body(&[end])?
        } else {
            Vec::new()
        };
        self.at += 1;
        self.close_block()?;
        Ok(otherwise)
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
        let otherwise = self.otherwise("endfor")?;
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
        self.in_parentheses(|parser| {
            let name = parser.name()?;
            let default = if parser.skip_operator("=") { Some(parser.expression()?) } else { None };
            Ok((name, default))
        })
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
        if ["true", "false", "none", "True", "False", "None", "not", "and", "or", "in", "is", "if", "else"]
            .contains(&&*name)
        {
            self.at -= 1;
            return self.unexpected("a name to assign to");
        }
        if attributes && self.skip_operator(".") {
            return Ok(Target::Attribute(name, self.name()?));
        }
        Ok(Target::Name(name))
    }
}
