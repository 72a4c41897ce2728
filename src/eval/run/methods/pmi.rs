//! Pointwise mutual information of the question and the response (van der Poel et al. 2022, arXiv 2210.13210; LM-Polygraph's
//! MeanPointwiseMutualInformation): the mean over tokens of ln p(y_t | x, y_<t) − ln p(y_t | y_<t), the latter 0 for the first
//! token, about which nothing is known without x.

use super::{Findings, Found, METHOD, Method, SCORE, Score, Subject};
use crate::{engine::Generation, engine::TracedSequence, uq::predictions::chosen};

/// Runs the response once more, without its prompt.
pub(super) const PMI: Method = Method {
    key: "pmi",
    about: "The response rescored without the question: how much the question explains",
    scores: &[Score {
        key: "pmi",
        name: "PMI",
        meaning: "mean log-probability of a token, less what it has without the question",
        ..SCORE
    }],
    run,
    ..METHOD
};

fn run(traced: &mut TracedSequence, subject: &Subject, _: &[Generation]) -> Found {
    let (tokens, prompt_len) = traced.tokens();
    let end = subject.answer().map_or(tokens.len(), |answer| answer.tokens.end);
    let response = tokens[prompt_len..end].to_vec();
    let alone = traced.logprobs_alone(&response)?;
    let given = traced.parts().0;
    let counted: Vec<usize> = chosen(&given, prompt_len..end).collect();
    let with_prompt = counted.iter().map(|position| given.logprob_at(*position)).sum::<f64>();
    // nothing predicts the first token
    let without = counted.iter().filter_map(|position| alone.get(position.checked_sub(prompt_len + 1)?)).sum::<f64>();
    let pmi = (!counted.is_empty()).then(|| (with_prompt - without) / counted.len() as f64);
    Ok(Some(Findings { scores: vec![("pmi", pmi)], ..Findings::default() }))
}
