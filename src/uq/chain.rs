//! The attention chain: from the answer's tokens back to the response tokens the model attended to when writing them.
//!
//! A token and the row that predicts it form one node here, identified by the token's position p (its row is T = p - 1): a
//! target becomes a source by looking at what *its* row attended to.

use super::rules::{FirstRow, LengthCount, Positions, StopFilter, Threshold};
use super::{
    ChainRule, Link, Parameters, Response, Traced, predictions::counted_span, similarity, stopwords::is_stop_word,
    values::Values,
};
use crate::{backend::sampling::stream_of, backend::sampling::uniform, order::sort_by};
use std::ops::Range;

/// Step limit for backtracking; real chains end long before.
const MAX_STEPS: usize = 1000;

/// [`Positions::Top5`]: positions considered per source.
const TOP: usize = 5;

/// Backtracking (the paper's algorithm): sources start as the rows that predict the answer tokens, T = position - 1; each
/// step sums α* over its sources into φ and keeps the best targets, and the chosen targets t become the next sources as rows
/// t - 1, until nothing is chosen.
///
/// Returns the chain ascending by row, including the answer's own rows with score 0; similarities are not yet computed (0).
/// Reads α* once per step. With [`ChainRule::None`] the chain is the whole response, and nothing is read; the other
/// [controls](control) have the length of the chain found.
pub fn attention_chain<T: Traced>(
    response: &Response,
    answer: Range<usize>,
    parameters: &Parameters,
    traced: &mut T,
) -> Result<Vec<Link>, T::Error> {
    if parameters.chain == ChainRule::None {
        return Ok(whole_response(response, &answer, parameters));
    }
    let mut search = Backtracking::new(response, answer.clone(), parameters);
    let mut sources: Vec<usize> = answer.clone().collect();
    for _ in 0..MAX_STEPS {
        if sources.is_empty() {
            break;
        }
        for &source in &sources {
            search.processed[source] = true;
        }
        let attention = search.attention_of(&sources, traced)?;
        let picks = search.choose(&search.sum_attention(&attention).ranked());
        sources = picks.iter().map(|target| target.position).collect();
        search.chain.extend(picks.iter().map(|target| target.link(response)));
    }
    sort_by(&mut search.chain, |a, b| a.row.cmp(&b.row));
    if parameters.chain != ChainRule::Attention {
        return control(response, &answer, &search.chain, parameters, traced);
    }
    Ok(search.chain)
}

/// [`ChainRule::None`]: every token that counts as the response, up to the answer's last, where the authors' ablation
/// without attention also ends (regardless of [`ResponseEnd`](super::rules::ResponseEnd) for other scores).
fn whole_response(response: &Response, answer: &Range<usize>, parameters: &Parameters) -> Vec<Link> {
    let counted = counted_span(response, answer, parameters.rules());
    let positions = counted.start.min(answer.start)..answer.end;
    positions.map(|position| Link::at(response.relative_row(position))).collect()
}

/// A candidate of one step.
#[derive(Clone, Copy, Debug)]
struct Target {
    /// Absolute.
    position: usize,
    /// φ
    score: f64,
    /// The source (absolute position of its token) with the largest contribution.
    from: usize,
}

impl Target {
    fn link(&self, response: &Response) -> Link {
        let from = Some(response.relative_row(self.from));
        Link { score: self.score, from, ..Link::at(response.relative_row(self.position)) }
    }
}

/// φ over the whole sequence: the α* each position received from one step's sources.
struct Phi {
    /// `[tokens]`, indexed by absolute position.
    score: Vec<f64>,
    /// `[tokens]`: the largest single contribution and the source it came from.
    largest: Vec<(f64, usize)>,
    /// Positions with φ > 0, in order of first contribution.
    met: Vec<usize>,
}

impl Phi {
    fn new(tokens: usize) -> Self {
        Phi { score: vec![0.0; tokens], largest: vec![(0.0, 0); tokens], met: Vec::new() }
    }

    /// Adds a weight > 0.
    fn add(&mut self, position: usize, weight: f64, source: usize) {
        if self.score[position] == 0.0 {
            self.met.push(position);
        }
        self.score[position] += weight;
        if weight > self.largest[position].0 {
            self.largest[position] = (weight, source);
        }
    }

    /// Every target with φ > 0, best first; ties: the earlier position.
    fn ranked(&self) -> Vec<Target> {
        let target =
            |&position: &usize| Target { position, score: self.score[position], from: self.largest[position].1 };
        let mut targets: Vec<Target> = self.met.iter().map(target).collect();
        sort_by(&mut targets, |a, b| b.score.total_cmp(&a.score).then(a.position.cmp(&b.position)));
        targets
    }
}

/// The state of one search.
struct Backtracking<'a> {
    response: &'a Response<'a>,
    parameters: &'a Parameters,
    answer_length: usize,
    /// `[tokens]`: never chosen, whatever its φ (instruction, stop words).
    stop: Vec<bool>,
    /// `[tokens]`: has been a source.
    processed: Vec<bool>,
    chain: Vec<Link>,
}

impl<'a> Backtracking<'a> {
    fn new(response: &'a Response<'a>, answer: Range<usize>, parameters: &'a Parameters) -> Self {
        let (rule, answer_text) = (parameters.rules().stop_words, response.text(answer.clone()));
        let is_stop = |position| is_stop_word(rule, response.token_text(position), answer_text.trim());
        Backtracking {
            response,
            parameters,
            answer_length: answer.len(),
            stop: (0..response.tokens.len()).map(is_stop).collect(),
            processed: vec![false; response.tokens.len()],
            chain: answer.map(|position| Link::at(response.relative_row(position))).collect(),
        }
    }

    /// α* of the rows of `sources`, each with its source. Under [`FirstRow::Wrapped`] the row before the response's first is
    /// zero-padded, so that source finds nothing.
    fn attention_of<T: Traced>(&self, sources: &[usize], traced: &mut T) -> Result<Vec<(usize, Vec<f32>)>, T::Error> {
        let wrapped = self.parameters.rules().first_row == FirstRow::Wrapped;
        let padded = |source: usize| wrapped && source <= self.response.prompt_len;
        let asked: Vec<usize> = sources.iter().copied().filter(|&source| !padded(source)).collect();
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<usize> = asked.iter().map(|source| source - 1).collect();
        Ok(asked.into_iter().zip(traced.attention_rows(&rows)?).collect())
    }

    /// φ_t = Σ over sources of α*_t, over the targets eligible for each source.
    fn sum_attention(&self, attention: &[(usize, Vec<f32>)]) -> Phi {
        let mut phi = Phi::new(self.response.tokens.len());
        for (source, weights) in attention {
            match self.parameters.rules().positions {
                Positions::Top5 => self.add_highest(&mut phi, *source, weights),
                Positions::All => self.add_all(&mut phi, *source, weights),
            }
        }
        phi
    }

    /// Only response tokens are eligible; not the source itself, not a processed row, not a stop word (unless stop words are
    /// dropped later).
    fn eligible(&self, position: usize, source: usize) -> bool {
        (self.response.prompt_len..self.response.tokens.len()).contains(&position)
            && position + 1 != source
            && !self.processed[position]
            && (self.parameters.rules().stop_filter == StopFilter::AfterTop || !self.stop[position])
    }

    /// Adds the full row of one source.
    fn add_all(&self, phi: &mut Phi, source: usize, weights: &[f32]) {
        for (position, &weight) in weights.iter().enumerate() {
            if weight > 0.0 && self.eligible(position, source) {
                phi.add(position, weight.into(), source);
            }
        }
    }

    /// [`Positions::Top5`]: only the five highest weights, counted before filtering; further ones only while this step has
    /// found nothing and the chain is short.
    fn add_highest(&self, phi: &mut Phi, source: usize, weights: &[f32]) {
        let long = self.chain.len() >= self.parameters.values().min_chain_length + self.answer_length;
        let mut order: Vec<usize> = (0..weights.len()).filter(|&position| weights[position] > 0.0).collect();
        sort_by(&mut order, |&a, &b| weights[b].total_cmp(&weights[a]));
        for (looked_at, position) in order.into_iter().enumerate() {
            if looked_at >= TOP && (long || !phi.met.is_empty()) {
                break;
            }
            if self.eligible(position, source) {
                phi.add(position, weights[position].into(), source);
            }
        }
    }

    /// The best L_tgt targets that pass θ: `ranked` is best first, so the first one below θ ends the selection. Stop words
    /// among them ([`StopFilter::AfterTop`]) are dropped.
    fn choose(&self, ranked: &[Target]) -> Vec<Target> {
        let Values { targets_per_step, score_threshold, .. } = *self.parameters.values();
        let mut picks: Vec<Target> = Vec::new();
        for target in ranked.iter().take(targets_per_step) {
            let passes = match self.parameters.rules().threshold {
                Threshold::AtLeast => target.score >= score_threshold,
                Threshold::Above => target.score > score_threshold,
            };
            if !passes && self.threshold_applies(picks.len()) {
                break;
            }
            if !self.stop[target.position] {
                picks.push(*target);
            }
        }
        picks
    }

    /// θ applies only once the chain has at least `min_chain_length` links, the answer's own tokens not counted.
    fn threshold_applies(&self, picked: usize) -> bool {
        let counted = match self.parameters.rules().length_count {
            LengthCount::Once => picked,
            LengthCount::Twice => 2 * picked,
        };
        self.chain.len() + counted >= self.parameters.values().min_chain_length + self.answer_length
    }
}

// Controls: chains not derived from attention. The value of a chain found by backtracking is what it adds over the same number
// of random tokens.
//
// | rule | its chain |
// |---|---|
// | `random` | n tokens, any |
// | `random-digits` | n tokens with a digit (all of them if there are fewer, as in most responses) |
// | `digits-matched` | the chain, its tokens with a digit replaced by random ones with a digit |
// | `random-content` | n tokens that are not stop words (likewise) |
// | `similarity` | the n tokens whose final hidden states are closest to the answer's |
// | `none` | every token up to the answer's last |
//
// n: the size of the chain that backtracking finds. All tokens are from the response before the answer, and the answer's own
// are added. A draw depends only on its number and the response's tokens.

/// The chain of [`Parameters::chain`], a control for the chain `found` by backtracking; ascending by row. The links of the
/// chosen tokens give the answer's first token as their source.
///
/// # Errors
/// A query fails: [`ChainRule::Similarity`] reads cosines, the others nothing.
pub fn control<T: Traced>(
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
            let content = before.filter(|at| !is_stop_word(rule, response.token_text(*at), answer_text.trim()));
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
