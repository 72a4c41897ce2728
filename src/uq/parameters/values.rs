//! The method's numbers, from one table: field, published value, name on the command line, and range.

use super::super::rules::{RULES, Setting};
use crate::engine::SELECTED_HEADS;
use serde_json::json;

/// Max heads per row that every device's trace can hold.
const MAX_HEADS: usize = 32;

macro_rules! values {
    ($($(#[$doc:meta])+ $field:ident: $type:ty = $published:expr,
        $name:literal in $range:expr, $meaning:literal, $expected:literal;)+) => {
        /// The method's numbers, with the paper's symbols.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Values { $($(#[$doc])+ pub $field: $type,)+ }

        impl Values {
            pub const PUBLISHED: Values = Values { $($field: $published,)+ };
        }

        /// Every number of the method.
        pub static PARAMETERS: &[Setting<Values>] = &[$(Setting {
            name: $name,
            meaning: $meaning,
            values: || vec![$expected],
            set: |to, text| {
                let value = text.parse().ok().filter(|value: &$type| ($range).contains(value));
                to.$field = value.unwrap_or(to.$field);
                value.is_some()
            },
            get: |of| json!(of.$field),
        },)+];
    };
}

values! {
    /// K: heads kept per row.
    selected_heads: usize = SELECTED_HEADS, "k" in 1..=MAX_HEADS, "K, heads per row", "a number of heads from 1 to 32";
    /// θ: minimum score of a target, once the chain is long enough.
    score_threshold: f64 = 0.5, "theta" in 0.0..=f64::MAX, "θ, minimum score of a target", "a number ≥ 0";
    /// L_tgt: maximum number of targets per backtracking step.
    targets_per_step: usize = 3, "targets" in 1.., "L_tgt, targets per step", "a number of targets ≥ 1";
    /// Chain length (without answer tokens) from which θ applies.
    min_chain_length: usize = 5, "min-chain" in 0.., "chain length from which θ applies", "a number of tokens";
    /// L': maximum number of chain tokens kept by the similarity filter.
    max_kept: usize = 10, "kept" in 0.., "L', tokens kept by similarity", "a number of tokens";
    /// Minimum cosine similarity of a token kept by the similarity filter.
    min_similarity: f64 = 0.0, "similarity" in -1.0..=1.0, "minimum cosine of a kept token", "a cosine from -1 to 1";
    /// τ: an alternative token joins the ensemble if its probability exceeds this; lower ones are not recorded.
    min_alternative: f64 = 0.01, "tau" in 0.01..=1.0, "τ, minimum probability of an alternative", "a probability ≥ 0.01";
    /// [`Candidates::MostProbable`](crate::uq::rules::Candidates) only: the ensemble comes from this many candidates plus one
    /// per kept token.
    max_alternatives: usize = 10, "alternatives" in 0.., "candidates of the reference profile", "a number of candidates";
}

/// Names of all parameters and rules.
pub fn names() -> String {
    let names = PARAMETERS.iter().map(|parameter| parameter.name).chain(RULES.iter().map(|rule| rule.name));
    names.collect::<Vec<_>>().join(", ")
}

/// Help text: a line `name=published value  meaning` per parameter.
pub fn help() -> String {
    let set = |of: &Setting<Values>| format!("{}={}", of.name, (of.get)(&Values::PUBLISHED));
    PARAMETERS.iter().map(|of| format!("  {:<38} {}\n", set(of), of.meaning)).collect()
}
