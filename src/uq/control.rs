//! Controls: chains not derived from attention. The value of a chain found by backtracking is what it adds over the same number
//! of random tokens.
//!
//! | rule | its chain |
//! |---|---|
//! | `random` | n tokens, any |
//! | `random-digits` | n tokens with a digit (all of them if there are fewer, as in most responses) |
//! | `digits-matched` | the chain, its tokens with a digit replaced by random ones with a digit |
//! | `random-content` | n tokens that are not stop words (likewise) |
//! | `similarity` | the n tokens whose final hidden states are closest to the answer's |
//! | `none` | every token up to the answer's last |
//!
//! n: the size of the chain that backtracking finds. All tokens are from the response before the answer, and the answer's own
//! are added. A draw depends only on its number and the response's tokens.

use super::stopwords::is_stop_word_under;
use super::{ChainRule, Link, Parameters, Response, Traced, similarity};
use crate::backend::sampling::{stream_of, uniform};
use crate::order::sort_by;
use std::ops::Range;

/// The chain of [`Parameters::chain`], a control for the chain `found` by backtracking; ascending by row. The links of the
/// chosen tokens give the answer's first token as their source.
///
/// # Errors
/// A query fails: [`ChainRule::Similarity`] reads cosines, the others nothing.
pub fn chain<T: Traced>(
    response: &Response,
    answer: &Range<usize>,
    found: &[Link],
    parameters: &Parameters,
    traced: &mut T,
) -> Result<Vec<Link>, T::Error> {
    let chosen: Vec<usize> =
        found.iter().filter(|link| link.from.is_some()).map(|link| response.position_after(link.row)).collect();
    let size = chosen.len();
    let has_digit = |at: &usize| response.has_digit(*at);
    let before = response.prompt_len..answer.start.max(response.prompt_len);
    let chosen: Vec<usize> = match parameters.chain {
        ChainRule::Attention | ChainRule::None => before.collect(),
        ChainRule::Random => draw(response, before.collect(), size, parameters.draw),
        ChainRule::RandomDigits => draw(response, before.filter(has_digit).collect(), size, parameters.draw),
        ChainRule::DigitsMatched => {
            let (digits, mut others): (Vec<usize>, _) = chosen.into_iter().partition(has_digit);
            others.extend(draw(response, before.filter(has_digit).collect(), digits.len(), parameters.draw));
            others
        }
        ChainRule::RandomContent => {
            let (rule, answer_text) = (parameters.rules().stop_words, response.text(answer.clone()));
            let content = before.filter(|at| !is_stop_word_under(rule, response.token_text(*at), answer_text.trim()));
            draw(response, content.collect(), size, parameters.draw)
        }
        ChainRule::Similarity => {
            let mut links: Vec<Link> = before.map(|position| Link::at(response.relative_row(position))).collect();
            similarity::measure(response, answer.clone(), &mut links, traced)?;
            sort_by(&mut links, |a, b| b.similarity.total_cmp(&a.similarity).then(a.row.cmp(&b.row)));
            links.iter().take(size).map(|link| response.position_after(link.row)).collect()
        }
    };
    let from = Some(response.relative_row(answer.start));
    let links = chosen.into_iter().map(|position| Link { from, ..Link::at(response.relative_row(position)) });
    let own = answer.clone().map(|position| Link::at(response.relative_row(position)));
    let mut chain: Vec<Link> = links.chain(own).collect();
    sort_by(&mut chain, |a, b| a.row.cmp(&b.row));
    Ok(chain)
}

/// `size` of the positions, uniformly among all choices (Fisher–Yates); all of them if there are fewer.
fn draw(response: &Response, mut pool: Vec<usize>, size: usize, number: u64) -> Vec<usize> {
    // a different response gets a different draw
    let stream = stream_of(response.tokens.iter().map(|token| u64::from(*token)));
    let size = size.min(pool.len());
    for i in 0..size {
        let left = (pool.len() - i) as f64;
        pool.swap(i, i + (uniform(number, stream, i as u64) * left) as usize);
    }
    pool.truncate(size);
    pool
}
