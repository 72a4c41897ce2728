//! A template's tree. What is written in a row (`a + b + c`, `x.y.z`, `elif`) is a list, so that only brackets and
//! blocks make it deep.

use std::sync::Arc;

use super::value::Value;

pub(crate) type Body = Vec<Statement>;

#[derive(Debug)]
pub(crate) struct Statement {
    pub kind: StatementKind,
    pub line: usize,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    Text(Arc<str>),
    Output(Expr),
    /// Conditions and their bodies, and what comes otherwise.
    If(Vec<(Expr, Body)>, Body),
    For(Arc<For>),
    Set(Target, Expr),
    SetBlock(Target, Vec<Post>, Body),
    With(Vec<(Target, Expr)>, Body),
    /// The index of the macro.
    Macro(usize),
    /// The caller's index among the macros, and the call.
    Call(usize, Expr),
    Filter(Vec<Post>, Body),
    Block(Body),
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct For {
    pub target: Target,
    pub iterable: Expr,
    pub condition: Option<Expr>,
    pub body: Body,
    pub otherwise: Body,
    pub recursive: bool,
}

#[derive(Debug)]
pub(crate) struct Macro {
    pub name: Arc<str>,
    pub parameters: Vec<(Arc<str>, Option<Expr>)>,
    pub body: Body,
}

#[derive(Debug)]
pub(crate) enum Target {
    Name(Arc<str>),
    /// `namespace.attribute`
    Attribute(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(crate) enum Expr {
    Const(Value),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// A value and what is done with it, one after the other.
    Chain(Box<Expr>, Vec<Post>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    /// From left to right.
    Arithmetic(Box<Expr>, Vec<(Operator, Expr)>),
    Concat(Vec<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// `value if condition else otherwise`, in that order.
    If(Box<(Expr, Expr, Option<Expr>)>),
}

#[derive(Debug)]
pub(crate) enum Post {
    Attribute(Arc<str>),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Vec<Argument>),
    Filter(Arc<str>, Vec<Argument>),
    Test { name: Arc<str>, arguments: Vec<Argument>, negated: bool },
}

#[derive(Debug)]
pub(crate) enum Argument {
    Plain(Expr),
    Named(Arc<str>, Expr),
    Star(Expr),
    DoubleStar(Expr),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}
