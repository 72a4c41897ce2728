//! Controls for every response: P_attn and P_sim of chains not derived from attention ([`chain::control`]). They
//! cost no forward pass; P's ensemble, which does, is left to `--sweep chain=random,..`.

use super::{manifest::EvalOptions, methods::MethodError};
use crate::uq::{ChainRule, Outcome, Parameters, chain, pipeline};
use crate::{engine::TracedSequence, eval::sample::SweepPoint, names::Named};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The scores determined by a chain without an ensemble, and their logarithms.
const SCORES: [&str; 4] = ["p_attn", "p_sim", "attn_logprob", "sim_logprob"];

/// The seed of a draw: [`Parameters::draw`] of the `index`-th under `seed`.
pub fn draw_number(seed: u64, index: u64) -> u64 {
    (seed << 16).wrapping_add(index)
}

/// A control's identifier in samples: `{"chain": "random", "draw": 0}`.
pub fn setting(rule: ChainRule, draw: u64) -> BTreeMap<String, Value> {
    let mut setting = BTreeMap::from([("chain".to_owned(), json!(rule))]);
    if rule.is_random() {
        setting.insert("draw".to_owned(), json!(draw));
    }
    setting
}

/// The controls of a response whose chain has been found; none if its own chain is a control.
pub fn controls(
    traced: &mut TracedSequence,
    outcome: &Outcome,
    options: &EvalOptions,
) -> Result<Vec<SweepPoint>, MethodError> {
    let mut points = Vec::new();
    if options.parameters.chain != ChainRule::Attention || options.draws == 0 {
        return Ok(points);
    }
    let (response, mut queries) = traced.parts();
    for &(rule, ..) in ChainRule::VALUES.iter().filter(|(rule, ..)| *rule != ChainRule::Attention) {
        let draws = if rule.is_random() { options.draws as u64 } else { 1 };
        for index in 0..draws {
            let draw = draw_number(options.seed, index);
            let parameters = Parameters { chain: rule, draw, ensemble: false, ..options.parameters.clone() };
            let answer = outcome.answer.clone();
            let chain = match rule {
                ChainRule::None => chain::attention_chain(&response, answer, &parameters, &mut queries)?,
                _ => chain::control(&response, &answer, &outcome.chain, &parameters, &mut queries)?,
            };
            let (found, _) = pipeline::run(&response, outcome.answer.clone(), Some(chain), &parameters, &mut queries)?;
            let mut point = SweepPoint::of(setting(rule, index), found);
            point.scores.retain(|key, _| SCORES.contains(&key.as_str()));
            points.push(point);
        }
    }
    Ok(points)
}
