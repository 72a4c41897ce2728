//! The similarity filter: keeps the chain tokens whose final hidden state is close to the answer's.

use super::{Link, Parameters, Response, Traced};
use crate::order::sort_by;
use std::ops::Range;

/// Cosine of final hidden states (after the final norm) at the tokens' own positions, averaged over the answer tokens;
/// written into every link of `chain`, the answer's own included.
pub fn measure<T: Traced>(
    response: &Response,
    answer: Range<usize>,
    chain: &mut [Link],
    traced: &mut T,
) -> Result<(), T::Error> {
    if chain.is_empty() || answer.is_empty() {
        return Ok(());
    }
    let positions: Vec<usize> = chain.iter().map(|link| response.position_after(link.row)).collect();
    let cosines = traced.cosines(&positions, answer.clone())?;
    for (link, cosines) in chain.iter_mut().zip(cosines.chunks(answer.len())) {
        link.similarity = cosines.iter().map(|&cosine| f64::from(cosine)).sum::<f64>() / cosines.len() as f64;
    }
    Ok(())
}

/// Keeps the best L' of the chain with similarity ≥ `min_similarity`: returns their rows (relative), ascending. The
/// answer's own rows are not candidates, nor are those of tokens that the model did not choose. Ties: the earlier token.
pub fn filter(response: &Response, answer: Range<usize>, chain: &[Link], parameters: &Parameters) -> Vec<i64> {
    let is_candidate = |link: &&Link| {
        let position = response.position_after(link.row);
        !answer.contains(&position) && !response.is_forced(position)
    };
    let similar = |link: &&Link| link.similarity >= parameters.values().min_similarity;
    let mut best: Vec<&Link> = chain.iter().filter(|link| is_candidate(link) && similar(link)).collect();
    sort_by(&mut best, |a, b| b.similarity.total_cmp(&a.similarity));
    best.truncate(parameters.values().max_kept);
    let mut kept: Vec<i64> = best.iter().map(|link| link.row).collect();
    kept.sort_unstable();
    kept
}
