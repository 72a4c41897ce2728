//! Jinja as transformers sets it up for chat templates, by hand: a template comes with a model, from anyone. A library
//! counts a template's instructions at best; here every byte that it makes is counted before it is made ([`budget`]), so
//! whatever a template says ends soon, in little memory, in a text or a [`Fault`].
//!
//! `{% include %}` and the like are not there (a model has one template), nor is HTML escaping. Integers have 128 bits.

mod ast;
mod budget;
mod calls;
mod checks;
mod expressions;
mod filters;
mod format;
mod functions;
mod host;
mod interpret;
mod json;
mod lexer;
mod lists;
mod methods;
mod names;
mod operators;
mod parser;
mod text;
mod value;

pub(super) use budget::Fault;
pub(super) use lexer::SyntaxError;
pub(super) use parser::{MAX_SOURCE, Parsed};
pub(super) use value::Value;

use std::sync::Arc;

use budget::Budget;
use host::Host;
use interpret::Interpreter;

/// What a template sees of a conversation.
pub(super) struct Input<'i> {
    /// Name and value of each variable that is a text.
    pub texts: Vec<(&'i str, &'i str)>,
    /// Roles and contents.
    pub messages: Vec<(&'i str, &'i str)>,
    pub add_generation_prompt: bool,
    /// `none`, or what is tried where a template seems to need tools.
    pub tools: Value,
}

/// Reads a template.
///
/// # Errors
/// What is not Jinja, or longer or more deeply nested than any template should be.
pub(super) fn parse(source: &str) -> Result<Parsed, SyntaxError> {
    parser::parse(source)
}

/// The template's text, or why there is none and the line at which it broke off.
pub(super) fn render(template: &Parsed, input: Input) -> Result<String, (Fault, usize)> {
    let text_len = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| a.len() + b.len()).sum::<usize>();
    let mut host = Host::new(Budget::new(text_len(&input.texts) + text_len(&input.messages)));
    let variables = variables(&mut host, input).map_err(|fault| (fault, 1))?;
    let mut interpreter = Interpreter::new(template, host, variables);
    interpreter.render().map_err(|fault| (fault, interpreter.line))
}

fn variables(host: &mut Host, input: Input) -> Result<Vec<(Arc<str>, Value)>, Fault> {
    let mut messages = Vec::with_capacity(input.messages.len());
    for (role, content) in input.messages {
        let entries = [("role", role), ("content", content)];
        let entries = entries.map(|(name, text)| (Value::text(name), Value::text(text))).into();
        messages.push(Value::dict(entries, &mut host.budget)?);
    }
    let mut variables: Vec<(Arc<str>, Value)> =
        input.texts.into_iter().map(|(name, text)| (name.into(), Value::text(text))).collect();
    variables.extend([
        ("messages".into(), host.list(messages)?),
        ("add_generation_prompt".into(), Value::Bool(input.add_generation_prompt)),
        ("tools".into(), input.tools),
        ("documents".into(), Value::None),
    ]);
    Ok(variables)
}

/// A list with one tool, as transformers describes a function without parameters.
pub(super) fn a_tool() -> Result<Value, Fault> {
    let host = &mut Host::new(Budget::new(0));
    let text = Value::text;
    let dict = |entries: Vec<(&str, Value)>, host: &mut Host| {
        Value::dict(entries.into_iter().map(|(name, value)| (text(name), value)).collect(), &mut host.budget)
    };
    let properties = dict(vec![], host)?;
    let parameters = dict(vec![("type", text("object")), ("properties", properties)], host)?;
    let function = vec![("name", text("f")), ("description", text("")), ("parameters", parameters)];
    let function = dict(function, host)?;
    let tool = dict(vec![("type", text("function")), ("function", function)], host)?;
    host.list(vec![tool])
}
