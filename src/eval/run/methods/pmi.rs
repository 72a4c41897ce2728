//! Pointwise mutual information of the question and the response (van der Poel et al. 2022, arXiv 2210.13210; LM-Polygraph's
//! MeanPointwiseMutualInformation): the mean over tokens of ln p(y_t | x, y_<t) − ln p(y_t | y_<t), the latter 0 for the first
//! token, of which nothing is known without x.

use super::{Context, Findings, Method, MethodError, Score};
use crate::engine::Generation;
use serde_json::Value;

/// Runs the response once more, without its prompt.
pub struct Pmi;

impl Method for Pmi {
    fn key(&self) -> &'static str {
        "pmi"
    }

    fn about(&self) -> &'static str {
        "The response is run without the question, to see how much the question explains"
    }

    fn scores(&self) -> &'static [Score] {
        &[Score {
            key: "pmi",
            name: "PMI",
            meaning: "mean log-probability of a token, less what it has without the question",
            is_probability: false,
            of_majority: false,
        }]
    }

    fn run(&self, context: &mut Context, _drawn: &[Generation]) -> Result<Option<Findings>, MethodError> {
        let (tokens, prompt_len) = context.traced.tokens();
        let end = context.answer.map_or(tokens.len(), |answer| answer.tokens.end);
        let response = tokens[prompt_len..end].to_vec();
        let alone = context.traced.logprobs_alone(&response)?;
        let given = context.traced.parts().0;
        let terms =
            (prompt_len..end).map(|position| given.logprob_at(position)).sum::<f64>() - alone.iter().sum::<f64>();
        let pmi = (!response.is_empty()).then(|| terms / response.len() as f64);
        Ok(Some(Findings { scores: vec![("pmi", pmi)], details: Value::Null, ..Findings::default() }))
    }
}
