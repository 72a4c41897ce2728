//! Responses sampled beside one, from the same prompt: how `eval`, `ask`, `serve` and Python draw them and count their votes.

use super::grading::normal_form_for;
use crate::backend::sampling::{Sampling, stream_of};
use crate::engine::{Batch, EngineError, GenerateOptions, Generation, Progress, Request, Ticket};
use crate::{io::record::Samples, io::target::Target, uq::pipeline::Answer};
use std::{collections::BTreeMap, collections::HashMap, collections::VecDeque, ops::ControlFlow};

/// Temperature of samples, unless an evaluation sets another.
pub const TEMPERATURE: f32 = 0.5;

/// Most samples beside a response of `ask`.
pub const MAX_SAMPLES: usize = 128;

/// Options of a sample beside a response with these: drawn from the whole distribution, and not traced.
pub fn options(of: &GenerateOptions, temperature: f32) -> GenerateOptions {
    let Sampling { seed, repetition_penalty, .. } = of.sampling;
    let sampling = Sampling { temperature, seed, repetition_penalty, ..Sampling::GREEDY };
    GenerateOptions { sampling, trace: None, running: None, ..of.clone() }
}

/// A sample's random stream: derived from the task's name (none outside of an evaluation), the item and the sample, so that a
/// draw depends on nothing else.
pub fn stream(task: &str, item: u64, sample: usize) -> u64 {
    stream_of(format!("{task}/{item}/{sample}").bytes().map(u64::from))
}

/// Samples being drawn in the batch of the responses that they are beside, from whose caches they take the prompt.
#[derive(Default)]
pub struct Drawing {
    /// By response.
    beside: HashMap<Ticket, Beside>,
    /// The response of each sample in the batch.
    of: HashMap<Ticket, Ticket>,
    /// Samples that wait for room: response and index.
    waiting: VecDeque<(Ticket, usize)>,
    /// The response of a sample that could not be started.
    failed: Option<Whole>,
}

/// The samples of a response.
struct Beside {
    request: Request,
    item: u64,
    drawn: Vec<Ticket>,
    /// Unfinished ones, the response included.
    left: usize,
}

/// A response with all its samples, and the first error of any.
pub type Whole = (Ticket, Result<(), EngineError>);

/// Called with each token's response; the token itself unless it is a sample's. May stop either.
pub type OnToken<'a> = &'a mut dyn FnMut(Ticket, Option<Progress>) -> ControlFlow<()>;

impl Drawing {
    /// Queues samples of a response that has just been started with these options. `item`: see [`stream`].
    pub fn add(&mut self, batch: &Batch, response: Ticket, samples: usize, item: u64, of: &GenerateOptions) {
        let request = batch.engine().request(&options(of, TEMPERATURE));
        self.beside.insert(response, Beside { request, item, drawn: Vec::new(), left: samples + 1 });
        self.waiting.extend((0..samples).map(|sample| (response, sample)));
    }

    /// Starts the next sample; false if none waits. One that cannot be started fails its response.
    pub fn start(&mut self, batch: &mut Batch, on_token: OnToken) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let Some((response, sample)) = self.waiting.pop_front() else { return false };
        let (Some(beside), Some(own)) = (self.beside.get_mut(&response), batch.generation(response)) else {
            return true; // it has failed
        };
        let (prompt, stream) = (own.tokens[..own.prompt_len].to_vec(), stream("", beside.item, sample));
        let mut of_sample = |_: Progress| on_token(response, None);
        match batch.start_with(Some(response), &prompt, stream, beside.request.clone(), &mut of_sample) {
            Ok(ticket) => {
                beside.drawn.push(ticket);
                self.of.insert(ticket, response);
            }
            Err(error) => {
                self.take(batch, response);
                self.failed = Some((response, Err(error)));
            }
        }
        true
    }

    /// Whether samples wait for [`start`](Self::start).
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// [`Batch::next_or_pause`], for responses with their samples: all of these have ended, or one has failed. `None` also when
    /// one of them leaves room for a sample that [`waits`](Self::waits).
    ///
    /// # Errors
    /// The engine is lost.
    pub fn next_or_pause(
        &mut self,
        batch: &mut Batch,
        on_token: OnToken,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Whole>, EngineError> {
        loop {
            if let Some(failed) = self.failed.take() {
                return Ok(Some(failed));
            }
            let mut of_any = |progress: Progress| match self.of.get(&progress.ticket) {
                Some(response) => on_token(*response, None),
                None => on_token(progress.ticket, Some(progress)),
            };
            let Some((ticket, outcome)) = batch.next_or_pause(&mut of_any, pause)? else { return Ok(None) };
            let response = self.of.get(&ticket).copied().unwrap_or(ticket);
            let Some(beside) = self.beside.get_mut(&response) else { return Ok(Some((response, outcome))) };
            beside.left -= 1;
            if outcome.is_err() {
                self.take(batch, response);
            } else if beside.left > 0 {
                if self.waits() {
                    return Ok(None); // there is room for it
                }
                continue;
            }
            return Ok(Some((response, outcome)));
        }
    }

    /// Takes a response's samples out of the batch, in the order in which they were started.
    pub fn take(&mut self, batch: &mut Batch, response: Ticket) -> Vec<Generation> {
        let drawn = self.beside.remove(&response).map_or(Vec::new(), |beside| beside.drawn);
        self.of.retain(|_, of| *of != response);
        drawn.into_iter().filter_map(|ticket| batch.take(ticket)).collect()
    }
}

/// Reads samples and counts their votes beside a response with the answer `own`; `read` finds a sample's answer.
///
/// # Errors
/// Those of `read`.
pub fn votes<E>(
    drawn: &[Generation],
    own: Option<&str>,
    (temperature, target): (f32, &Target),
    mut read: impl FnMut(&Generation) -> Result<Option<Answer>, E>,
) -> Result<Samples, E> {
    let mut samples = Samples { temperature: as_written(temperature), ..Samples::default() };
    for generation in drawn {
        let answer = read(generation)?;
        samples.weights.push(answer.as_ref().map_or(0.0, |found| probability(found, generation) / drawn.len() as f64));
        samples.answers.push(answer.map(|answer| answer.text));
        samples.logprobs.push(generation.logprob());
        samples.response_tokens.push(generation.tokens.len() - generation.prompt_len);
    }
    Ok(counted(samples, own, target))
}

/// Answers with the same normal form vote together; of equal votes, those drawn first come first.
fn counted(mut samples: Samples, own: Option<&str>, target: &Target) -> Samples {
    let form = |answer: &String| normal_form_for(target, answer);
    let forms: Vec<Option<String>> = samples.answers.iter().map(|answer| answer.as_ref().map(form)).collect();
    let own = own.map(|own| normal_form_for(target, own));
    samples.agrees = forms.iter().filter(|_| own.is_some()).map(|form| *form == own).collect();
    // by form: the first sample, how many, their weight
    let mut votes: BTreeMap<&Option<String>, (usize, usize, f64)> = BTreeMap::new();
    for (index, (form, weight)) in forms.iter().zip(&samples.weights).enumerate() {
        let vote = votes.entry(form).or_insert((index, 0, 0.0));
        (vote.1, vote.2) = (vote.1 + 1, vote.2 + weight);
    }
    let mut votes: Vec<(usize, usize, f64)> = votes.into_values().collect();
    votes.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    samples.counts = votes.iter().map(|(first, count, _)| (samples.answers[*first].clone(), *count)).collect();
    votes.retain(|(first, ..)| forms[*first].is_some());
    let best = votes.into_iter().max_by(|a, b| a.2.total_cmp(&b.2).then(b.0.cmp(&a.0)));
    (samples.majority, samples.majority_weight) =
        best.map_or((None, 0.0), |(first, _, weight)| (samples.answers[first].clone(), weight));
    samples
}

/// ∏ p of an answer's tokens.
fn probability(answer: &Answer, generation: &Generation) -> f64 {
    let step = |position: usize| generation.steps.get(position - generation.prompt_len);
    let logprob = |position| step(position).and_then(|step| step.logprob).unwrap_or(f64::NEG_INFINITY);
    libm::exp(answer.tokens.clone().map(logprob).sum())
}

/// The double with the same decimal digits as the float.
fn as_written(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target::new("", "1000", crate::eval::tasks::Grader::Number)
    }

    /// The votes of samples with these answers ("": none) and weights.
    fn voted(votes: &[(&str, f64)], own: Option<&str>) -> Samples {
        let answers = votes.iter().map(|(answer, _)| (!answer.is_empty()).then(|| (*answer).to_owned())).collect();
        let weights = votes.iter().map(|(_, weight)| *weight).collect();
        counted(Samples { answers, weights, ..Samples::default() }, own, &target())
    }

    #[test]
    fn answers_of_one_value_vote_together() {
        let votes = [("7", 0.2), ("1,000", 0.15), ("", 0.0), ("1000.0", 0.15), ("7", 0.05)];
        let found = voted(&votes, Some("1000"));
        assert_eq!((found.majority.as_deref(), found.majority_weight), (Some("1,000"), 0.3));
        assert_eq!(found.agrees, [false, true, false, true, false]);
        assert_eq!(found.scores().map(|(_, score)| score), [Some(0.3), Some(0.3), Some(0.4)]);
        let counts: Vec<_> = found.counts.iter().map(|(answer, count)| (answer.as_deref(), *count)).collect();
        assert_eq!(counts, [(Some("7"), 2), (Some("1,000"), 2), (None, 1)]);
        assert_eq!(voted(&votes, Some("8")).scores().map(|(_, score)| score), [Some(0.0), Some(0.3), Some(0.0)]);
        assert_eq!(voted(&votes, None).scores().map(|(_, score)| score), [None, Some(0.3), None]);
        assert_eq!(voted(&[("", 0.0); 2], Some("8")).scores()[1].1, None);
        // ties: the first drawn
        assert_eq!(voted(&[("9", 0.1), ("8", 0.1)], None).majority.as_deref(), Some("9"));
    }

    #[test]
    fn a_float_keeps_its_digits() {
        assert_eq!([0.7, 0.5, 1e-3].map(as_written), [0.7, 0.5, 1e-3]);
    }

    #[test]
    fn streams_differ() {
        let streams: std::collections::HashSet<u64> =
            (0..50).flat_map(|d| (0..5).map(move |s| stream("gsm8k", d, s))).collect();
        assert_eq!(streams.len(), 250);
        assert_ne!(stream("gsm8k", 1, 2), stream("math", 1, 2));
    }
}
