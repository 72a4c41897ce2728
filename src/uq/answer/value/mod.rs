//! Values as people and models write them: one grammar for finding answers and for grading them.
//!
//! | file | reads |
//! |---|---|
//! | `number` | a content that is one number, whatever it is written as; numbers in words, up to trillions |
//! | `latex` | spellings: signs, digits of other scripts, thousands, superscripts, `½`, `$1.2M`, fonts |
//! | `expression` | formulas, as `form`s |
//! | `form`, `rational` | normal forms and exact fractions |
//! | `vocabulary` | words, commands, units |

mod expression;
mod form;
mod latex;
mod number;
mod rational;
mod vocabulary;

pub(crate) use expression::parse;
pub(crate) use form::Form;
pub(crate) use latex::{clean, group, nesting, rewritten, split, without_thousands};
pub(crate) use number::{number, quantity, spoken};
pub(crate) use rational::Rational;
pub(crate) use vocabulary::half_of_day;
