//! Values as people and models write them: one grammar for finding answers and for grading them.
//!
//! | file | reads |
//! |---|---|
//! | `number` | a content that is one number, whatever it is written as |
//! | `spoken` | numbers in words, up to trillions |
//! | `latex` | spellings: signs, digits of other scripts, thousands, superscripts, `½`, `$1.2M`, fonts |
//! | `expression`, `named`, `functions` | formulas, as `form`s |
//! | `form`, `rational` | normal forms and exact fractions |
//! | `units`, `vocabulary` | tables: units, words, commands |

mod expression;
mod form;
mod functions;
mod latex;
mod named;
mod number;
mod rational;
mod spoken;
mod text;
mod units;
mod vocabulary;

pub(crate) use expression::parse;
pub(crate) use form::Form;
pub(crate) use latex::{clean, without_thousands};
pub(crate) use number::{number, quantity};
pub(crate) use rational::Rational;
pub(crate) use spoken::spoken;
pub(crate) use text::{group, nesting, split};
pub(crate) use vocabulary::{half_of_day, list, multiplier, multipliers};
