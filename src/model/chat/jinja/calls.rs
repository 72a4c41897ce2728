//! What follows a value, and what is called: functions, methods, macros, recursive loops.

use std::sync::Arc;

use super::ast::{Argument, Macro, Post};
use super::budget::Fault;
use super::checks::check;
use super::filters;
use super::functions;
use super::host::Arguments;
use super::interpret::Interpreter;
use super::methods;
use super::value::Value;

impl Interpreter<'_> {
    /// A value with what follows it: attributes, items, slices, calls, filters, tests.
    pub(super) fn posts(&mut self, mut value: Value, posts: &[Post]) -> Result<Value, Fault> {
        for post in posts {
            self.host.budget.steps(1)?;
            value = match post {
                Post::Attribute(name) => self.host.attribute(&value, name)?,
                Post::Item(key) => {
                    let key = self.value(key)?;
                    self.host.item(&value, &key)?
                }
                Post::Slice(bounds) => {
                    let mut values = [Value::None, Value::None, Value::None];
                    for (value, bound) in values.iter_mut().zip(&**bounds) {
                        if let Some(bound) = bound {
                            *value = self.value(bound)?;
                        }
                    }
                    self.host.slice(&value, values)?
                }
                Post::Call(arguments) => {
                    let arguments = self.arguments(arguments)?;
                    self.call(&value, arguments)?
                }
                Post::Filter(name, arguments) => {
                    let arguments = self.arguments(arguments)?;
                    filters::apply(&mut self.host, name, &value, arguments)?
                }
                Post::Test { name, arguments, negated } => {
                    let arguments = self.arguments(arguments)?;
                    Value::Bool(check(&mut self.host, name, &value, &arguments.plain)? != *negated)
                }
            };
        }
        Ok(value)
    }

    pub(super) fn arguments(&mut self, arguments: &[Argument]) -> Result<Arguments, Fault> {
        let mut out = Arguments::default();
        for argument in arguments {
            match argument {
                Argument::Plain(value) => out.plain.push(self.value(value)?),
                Argument::Named(name, value) => out.named.push((name.clone(), self.value(value)?)),
                Argument::Star(values) => {
                    let values = self.value(values)?;
                    let values = self.host.iterate(&values)?;
                    self.host.budget.bytes(values.items.len() * size_of::<Value>())?;
                    out.plain.extend(values.items.iter().cloned());
                }
                Argument::DoubleStar(values) => {
                    let Value::Dict(dict) = self.value(values)? else {
                        return Err(Fault::error("argument after ** must be a mapping"));
                    };
                    self.host.budget.bytes(dict.entries.len() * size_of::<(Value, Value)>())?;
                    for (key, value) in &dict.entries {
                        let Value::Str(name) = key else { return Err(Fault::error("keywords must be strings")) };
                        out.named.push((name.clone(), value.clone()));
                    }
                }
            }
        }
        Ok(out)
    }

    pub(super) fn call(&mut self, callee: &Value, arguments: Arguments) -> Result<Value, Fault> {
        match callee {
            Value::Function(name) => functions::call(&mut self.host, name, arguments),
            Value::Method(method) => methods::call(&mut self.host, &method.0, &method.1, arguments),
            Value::Macro(i, scope) => {
                let template = self.template;
                match template.macros.get(*i) {
                    Some(node) => self.deeper(|run| run.call_macro(node, *scope, arguments)),
                    None => Ok(Value::None),
                }
            }
            Value::Loop(i) => {
                let [items] = arguments.bind("loop", ["iterable"])?;
                let node = self.host.loops.get(*i).filter(|state| state.node.recursive);
                let Some((node, depth)) = node.map(|state| (state.node.clone(), state.depth)) else {
                    return Err(Fault::error("The loop must have the 'recursive' marker to be called recursively."));
                };
                let items = items.unwrap_or(Value::None);
                let text = self.captured(|run| run.deeper(|run| run.run_loop(&node, &items, depth + 1)))?;
                Ok(Value::Str(text))
            }
            Value::Joiner(i) => {
                let Some((separator, used)) = self.host.joiners.get_mut(*i) else { return Ok(Value::None) };
                let separator = if *used { separator.clone() } else { Value::text("") };
                *used = true;
                Ok(separator)
            }
            Value::Undefined(message) => Err(Fault::error(&**message)),
            other => Err(Fault::error(format!("'{}' object is not callable", other.type_name()))),
        }
    }

    fn call_macro(&mut self, node: &Arc<Macro>, scope: usize, mut arguments: Arguments) -> Result<Value, Fault> {
        let text = self.captured(|run| {
            run.scoped(scope, |run| {
                let mut plain = std::mem::take(&mut arguments.plain).into_iter();
                for (name, default) in &node.parameters {
                    let given = plain.next().or_else(|| arguments.take(name));
                    let value = match (given, default) {
                        (Some(value), _) => value,
                        (None, Some(default)) => run.value(default)?,
                        (None, None) => Value::undefined(format!("parameter '{name}' was not provided")),
                    };
                    run.store(name, value)?;
                }
                if let Some(caller) = arguments.take("caller") {
                    run.store(&"caller".into(), caller)?;
                }
                let rest = run.host.tuple(plain.collect())?;
                run.store(&"varargs".into(), rest)?;
                let named = std::mem::take(&mut arguments.named);
                let named = named.into_iter().map(|(name, value)| (Value::Str(name), value)).collect();
                let named = Value::dict(named, &mut run.host.budget)?;
                run.store(&"kwargs".into(), named)?;
                run.body(&node.body).map(|_| ())
            })
        })?;
        Ok(Value::Str(text))
    }
}
