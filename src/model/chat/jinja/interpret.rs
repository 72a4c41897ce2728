//! Runs a template's tree.

use std::collections::HashMap;
use std::sync::Arc;

use super::ast::{Body, Expr, For, Post, Statement, StatementKind, Target};
use super::budget::Fault;
use super::functions;
use super::host::{Host, LoopState};
use super::operators::{arithmetic, compare, signed};
use super::parser::Parsed;
use super::value::{Seq, Value};

/// Expressions, blocks and calls within each other while a template runs; its macros may call themselves.
const MAX_DEPTH: usize = 1000;

/// What a statement makes of those after it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    On,
    Break,
    Continue,
}

/// Variables of a block, and the scope around it.
struct Scope {
    names: HashMap<Arc<str>, Value>,
    parent: Option<usize>,
}

pub(crate) struct Interpreter<'t> {
    pub(super) template: &'t Parsed,
    pub host: Host,
    /// A stack: those of blocks that are left are gone.
    scopes: Vec<Scope>,
    current: usize,
    out: String,
    depth: usize,
    /// Of the statement that runs.
    pub line: usize,
}

impl<'t> Interpreter<'t> {
    pub fn new(template: &'t Parsed, host: Host, variables: Vec<(Arc<str>, Value)>) -> Self {
        let scopes = vec![Scope { names: variables.into_iter().collect(), parent: None }];
        Self { template, host, scopes, current: 0, out: String::new(), depth: 0, line: 1 }
    }

    /// The text of the template.
    pub fn render(&mut self) -> Result<String, Fault> {
        let template = self.template;
        self.body(&template.body)?;
        Ok(std::mem::take(&mut self.out))
    }

    pub(super) fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Fault::limit("its macros or loops call themselves too deeply"));
        }
        self.host.budget.steps(1)?;
        let result = inner(self)?;
        self.depth -= 1;
        Ok(result)
    }

    /// Runs `inner` in a scope of its own, below `parent`.
    pub(super) fn scoped<T>(
        &mut self,
        parent: usize,
        inner: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let (n, before) = (self.scopes.len(), self.current);
        self.scopes.push(Scope { names: HashMap::new(), parent: Some(parent.min(n - 1)) });
        self.current = n;
        let result = inner(self)?;
        self.scopes.truncate(n);
        self.current = before;
        Ok(result)
    }

    /// What `inner` writes.
    pub(super) fn captured(&mut self, inner: impl FnOnce(&mut Self) -> Result<(), Fault>) -> Result<Arc<str>, Fault> {
        let before = std::mem::take(&mut self.out);
        inner(self)?;
        let text = std::mem::replace(&mut self.out, before);
        self.host.budget.bytes(text.len())?;
        Ok(text.into())
    }

    fn write(&mut self, text: &str) -> Result<(), Fault> {
        self.host.budget.bytes(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    pub(super) fn store(&mut self, name: &Arc<str>, value: Value) -> Result<(), Fault> {
        self.host.budget.steps(1)?;
        let names = &mut self.scopes[self.current].names;
        if let Some(slot) = names.get_mut(name) {
            *slot = value;
        } else {
            self.host.budget.bytes(96)?;
            names.insert(name.clone(), value);
        }
        Ok(())
    }

    fn lookup(&mut self, name: &Arc<str>) -> Result<Value, Fault> {
        let mut at = Some(self.current);
        while let Some(scope) = at.and_then(|i| self.scopes.get(i)) {
            self.host.budget.steps(1)?;
            if let Some(value) = scope.names.get(name) {
                return Ok(value.clone());
            }
            at = scope.parent;
        }
        Ok(match functions::NAMES.into_iter().find(|known| **known == **name) {
            Some(function) => Value::Function(function),
            None => Value::undefined(format!("'{name}' is undefined")),
        })
    }

    // Statements

    pub(super) fn body(&mut self, body: &Body) -> Result<Flow, Fault> {
        self.deeper(|run| {
            for statement in body {
                match run.statement(statement)? {
                    Flow::On => {}
                    flow => return Ok(flow),
                }
            }
            Ok(Flow::On)
        })
    }

    fn statement(&mut self, statement: &Statement) -> Result<Flow, Fault> {
        self.host.budget.steps(1)?;
        self.line = statement.line;
        match &statement.kind {
            StatementKind::Text(text) => self.write(text)?,
            StatementKind::Output(value) => {
                let value = self.value(value)?;
                let text = self.host.str(&value)?;
                self.write(&text)?;
            }
            StatementKind::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.value(condition)?.truth() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            StatementKind::For(node) => {
                let iterable = self.value(&node.iterable)?;
                self.run_loop(node, &iterable, 0)?;
            }
            StatementKind::Set(target, value) => {
                let value = self.value(value)?;
                self.assign(target, value)?;
            }
            StatementKind::SetBlock(target, filters, body) => {
                let text = self.scoped_text(body)?;
                let value = self.posts(Value::Str(text), filters)?;
                self.assign(target, value)?;
            }
            StatementKind::Filter(filters, body) => {
                let text = self.scoped_text(body)?;
                let value = self.posts(Value::Str(text), filters)?;
                let text = self.host.str(&value)?;
                self.write(&text)?;
            }
            StatementKind::With(values, body) => {
                let current = self.current;
                return self.scoped(current, |run| {
                    for (target, value) in values {
                        // the values see what is around the block, not each other
                        let inside = std::mem::replace(&mut run.current, current);
                        let value = run.value(value)?;
                        run.current = inside;
                        run.assign(target, value)?;
                    }
                    run.body(body)
                });
            }
            StatementKind::Block(body) => {
                let current = self.current;
                return self.scoped(current, |run| run.body(body));
            }
            StatementKind::Macro(i) => {
                let value = Value::Macro(*i, self.current);
                let name = self.template.macros.get(*i).map(|node| node.name.clone());
                if let Some(name) = name {
                    self.store(&name, value)?;
                }
            }
            StatementKind::Call(caller, call) => {
                let caller = Value::Macro(*caller, self.current);
                let text = self.call_with_caller(call, caller)?;
                self.write(&text)?;
            }
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn scoped_text(&mut self, body: &Body) -> Result<Arc<str>, Fault> {
        let current = self.current;
        self.captured(|run| run.scoped(current, |run| run.body(body).map(|_| ())))
    }

    /// `{% call %}`: the call gets the block as `caller`.
    fn call_with_caller(&mut self, call: &Expr, caller: Value) -> Result<Arc<str>, Fault> {
        let Expr::Chain(base, posts) = call else { return Err(Fault::error("{% call %} needs a call")) };
        let Some((Post::Call(arguments), before)) = posts.split_last() else {
            return Err(Fault::error("{% call %} needs a call"));
        };
        let callee = self.value(base)?;
        let callee = self.posts(callee, before)?;
        let mut arguments = self.arguments(arguments)?;
        arguments.named.push(("caller".into(), caller));
        let value = self.call(&callee, arguments)?;
        self.host.str(&value)
    }

    pub(super) fn run_loop(&mut self, node: &Arc<For>, iterable: &Value, depth: usize) -> Result<(), Fault> {
        let around = self.current;
        let mut items = self.host.iterate(iterable)?;
        if let Some(condition) = &node.condition {
            let mut kept = Vec::new();
            for item in &items.items {
                let keeps = self.scoped(around, |run| {
                    run.assign(&node.target, item.clone())?;
                    run.value(condition)
                })?;
                if keeps.truth() {
                    kept.push(item.clone());
                }
            }
            items = Seq::new(items.kind, kept, &mut self.host.budget)?;
        }
        if items.items.is_empty() {
            return self.scoped(around, |run| run.body(&node.otherwise)).map(|_| ());
        }
        let name: Arc<str> = "loop".into();
        let at = self.host.loops.len();
        let state = LoopState { node: node.clone(), items: items.clone(), index: 0, depth, seen: None };
        self.host.loops.push(state);
        for (i, item) in items.items.iter().enumerate() {
            if let Some(state) = self.host.loops.get_mut(at) {
                state.index = i;
            }
            let flow = self.scoped(around, |run| {
                run.scopes[run.current].names.insert(name.clone(), Value::Loop(at));
                run.assign(&node.target, item.clone())?;
                run.body(&node.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        self.host.loops.truncate(at);
        Ok(())
    }

    fn assign(&mut self, target: &Target, value: Value) -> Result<(), Fault> {
        match target {
            Target::Name(name) => self.store(name, value),
            Target::Attribute(name, attribute) => {
                let Value::Namespace(i) = self.lookup(name)? else {
                    return Err(Fault::error("cannot assign attribute on non-namespace object"));
                };
                self.set_attribute(i, attribute, value)
            }
            Target::Tuple(targets) => {
                let items = self.host.iterate(&value)?;
                if items.items.len() != targets.len() {
                    let (n, found) = (targets.len(), items.items.len());
                    return Err(Fault::error(format!("expected {n} values to unpack, got {found}")));
                }
                targets.iter().zip(&items.items).try_for_each(|(target, item)| self.assign(target, item.clone()))
            }
        }
    }

    fn set_attribute(&mut self, i: usize, attribute: &Arc<str>, value: Value) -> Result<(), Fault> {
        let Some(names) = self.host.namespaces.get_mut(i) else { return Ok(()) };
        self.host.budget.steps(1 + names.len() / 8)?;
        match names.iter_mut().find(|(name, _)| name == attribute) {
            Some((_, slot)) => *slot = value,
            None => {
                self.host.budget.bytes(96)?;
                names.push((attribute.clone(), value));
            }
        }
        Ok(())
    }

    // Expressions

    pub(super) fn value(&mut self, expr: &Expr) -> Result<Value, Fault> {
        match expr {
            Expr::Const(value) => {
                self.host.budget.steps(1)?;
                Ok(value.clone())
            }
            Expr::Name(name) => self.lookup(name),
            _ => self.deeper(|run| run.compound(expr)),
        }
    }

    fn values(&mut self, exprs: &[Expr]) -> Result<Vec<Value>, Fault> {
        exprs.iter().map(|expr| self.value(expr)).collect()
    }

    fn compound(&mut self, expr: &Expr) -> Result<Value, Fault> {
        match expr {
            Expr::Const(_) | Expr::Name(_) => self.value(expr),
            Expr::List(items) => {
                let items = self.values(items)?;
                self.host.list(items)
            }
            Expr::Tuple(items) => {
                let items = self.values(items)?;
                self.host.tuple(items)
            }
            Expr::Dict(entries) => {
                let mut pairs = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    pairs.push((self.value(key)?, self.value(value)?));
                }
                Value::dict(pairs, &mut self.host.budget)
            }
            Expr::Chain(base, posts) => {
                let base = self.value(base)?;
                self.posts(base, posts)
            }
            Expr::Not(value) => Ok(Value::Bool(!self.value(value)?.truth())),
            Expr::Negative(value) => signed(&self.value(value)?, true),
            Expr::Positive(value) => signed(&self.value(value)?, false),
            Expr::Arithmetic(first, rest) => {
                let mut value = self.value(first)?;
                for (operator, other) in rest {
                    let other = self.value(other)?;
                    value = arithmetic(&mut self.host, *operator, &value, &other)?;
                }
                Ok(value)
            }
            Expr::Concat(parts) => {
                let mut out = String::new();
                for part in parts {
                    let part = self.value(part)?;
                    let part = self.host.str(&part)?;
                    self.host.budget.bytes(part.len())?;
                    out.push_str(&part);
                }
                self.host.text(out)
            }
            Expr::And(parts) | Expr::Or(parts) => {
                let stops_at = matches!(expr, Expr::Or(_));
                let mut value = Value::None;
                for part in parts {
                    value = self.value(part)?;
                    if value.truth() == stops_at {
                        break;
                    }
                }
                Ok(value)
            }
            Expr::Compare(first, rest) => {
                let mut left = self.value(first)?;
                for (comparison, right) in rest {
                    let right = self.value(right)?;
                    if !compare(&mut self.host, *comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::If(parts) => {
                let (value, condition, otherwise) = &**parts;
                match (self.value(condition)?.truth(), otherwise) {
                    (true, _) => self.value(value),
                    (false, Some(otherwise)) => self.value(otherwise),
                    (false, None) => Ok(Value::undefined(
                        "the inline if-expression evaluated to false and no else section was defined.",
                    )),
                }
            }
        }
    }
}
