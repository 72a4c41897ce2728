//! Contextualized sequence likelihood (Lin et al. 2024, arXiv 2406.01806; LM-Polygraph's CSL): Σ_t w_t ln p(y_t), where w is how the model
//! attends to the response's tokens when it is about to judge the answer: the mean over all layers and heads of the softmax
//! weights of the question's last token, made to add up to 1. The paper chooses heads on a validation set; this takes all, as LM-Polygraph does,
//! and asks P(True)'s question, in a turn of its own, in place of the paper's examples. Input: one more turn of no tokens, on the response's cache.

use super::p_true::QUESTION;
use super::{Context, Findings, Method, MethodError, Score, next_turn};
use crate::engine::Generation;
use serde_json::Value;

/// Asks for a judgement, and reads where the model looks before it gives one.
pub struct Csl;

impl Method for Csl {
    fn key(&self) -> &'static str {
        "csl"
    }

    fn about(&self) -> &'static str {
        "Log-probabilities count as the model attends to their tokens when asked whether its answer is true"
    }

    fn scores(&self) -> &'static [Score] {
        &[Score {
            key: "csl",
            name: "CSL",
            meaning: "mean log-probability, tokens weighted by the attention of a question about the answer",
            is_probability: false,
            of_majority: false,
        }]
    }

    fn needs_chat_template(&self) -> bool {
        true
    }

    fn run(&self, context: &mut Context, _drawn: &[Generation]) -> Result<Option<Findings>, MethodError> {
        let Context { traced, item, text, answer: Some(answer), .. } = context else { return Ok(None) };
        let (tokens, prompt_len) = traced.tokens();
        let response = prompt_len..answer.tokens.end;
        let asked = next_turn(traced.engine(), item, text, tokens, QUESTION)?;
        // a template may drop thoughts from the response: then there is nothing to attend to
        let kept = asked.starts_with(&tokens[..response.end]);
        let csl = if kept {
            let weights = traced.mean_attention(&asked)?;
            let given = traced.parts().0;
            let terms = response.clone().map(|position| weights[position] * given.logprob_at(position));
            Some(terms.sum::<f64>() / weights[response].iter().sum::<f64>())
        } else {
            None
        };
        let csl = csl.filter(|csl| csl.is_finite());
        Ok(Some(Findings { scores: vec![("csl", csl)], details: Value::Null, ..Findings::default() }))
    }
}
