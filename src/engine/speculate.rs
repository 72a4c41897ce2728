//! Speculative decoding, bit-exact: guessed tokens enter a pass behind the last one, and as many of them are kept as the
//! model would have chosen. Every row has the same bits whatever the width of its pass, and a choice depends on seed,
//! stream and position alone: tokens, log-probabilities and trace are those of one token a pass. Only times differ.

use super::batch::{Batch, Running};
use super::generate::Progress;
use super::lookup::{KINDS, Lookup, Match};
use super::{Engine, EngineError};
use crate::backend::{Backend, DecodeRow, Next, Pass, Prediction, forward};
use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::time::Instant;

/// Tokens that are guessed at once at most, unless another number is asked for.
const MAX_GUESS: usize = 7;

/// Tokens of finished responses that further ones guess from.
pub(super) const MAX_SHARED: usize = 1 << 20;

/// How many tokens are guessed for a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// One token a pass.
    Off,
    /// As many as pay on this machine and in this text; none on CUDA, where a step is a captured graph.
    #[default]
    Auto,
    /// As many as were found, up to this many.
    Fixed(usize),
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Speculate::Off => f.write_str("off"),
            Speculate::Auto => f.write_str("auto"),
            Speculate::Fixed(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for Speculate {
    type Err = String;

    fn from_str(text: &str) -> Result<Speculate, String> {
        match text {
            "off" => Ok(Speculate::Off),
            "auto" => Ok(Speculate::Auto),
            count => match count.parse() {
                Ok(count @ 1..=15) => Ok(Speculate::Fixed(count)),
                _ => Err("expected off, auto or a number from 1 to 15".to_owned()),
            },
        }
    }
}

/// Passes and what they gave, since the model was loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpeculationStats {
    /// Passes with guesses.
    pub passes: u64,
    /// Guessed tokens that entered them, and those that were kept.
    pub guessed: u64,
    pub accepted: u64,
}

/// What passes cost and how often guesses are right, learned while tokens are decoded.
pub(super) struct Pace {
    /// Seconds of a pass by rows − 1; NaN: none has run.
    seconds: [f64; 2 * (MAX_GUESS + 1)],
    /// Share of right first tokens, by the source (the text itself, other texts) and the kind of match.
    first: [[f64; KINDS]; 2],
    /// Of right tokens after a right one.
    later: f64,
    pub stats: SpeculationStats,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { seconds: [f64::NAN; _], first: [[0.5; KINDS]; 2], later: 0.8, stats: SpeculationStats::default() }
    }
}

/// Moves a running mean towards a new value.
fn learn(mean: &mut f64, value: f64, weight: f64) {
    *mean = if mean.is_nan() { value } else { *mean + weight * (value - *mean) };
}

impl Pace {
    fn note_pass(&mut self, rows: usize, seconds: f64) {
        // what looked dear once is tried again some time
        self.seconds.iter_mut().for_each(|mean| *mean *= 0.999);
        if let Some(mean) = self.seconds.get_mut(rows - 1) {
            learn(mean, seconds, 0.2);
        }
    }

    /// Seconds of a pass of `rows` rows; of a width that has not run those of a narrower one, so that it is tried.
    fn cost(&self, rows: usize) -> f64 {
        let known = &self.seconds[..rows.min(self.seconds.len())];
        known.iter().copied().fold(f64::MIN_POSITIVE, f64::max)
    }

    /// How many tokens to guess for one of `sequences` sequences in a pass that has `rows` rows without: as give most
    /// tokens in its share of the pass's time.
    fn count(&self, guess: &Guess, rows: usize, sequences: usize, max: usize) -> usize {
        let (mut tokens, mut next, mut best) = (1.0, self.first[guess.source][guess.found.kind], (0, 0.0));
        for count in 0..=max {
            let seconds = self.cost(rows) / sequences as f64 + self.cost(rows + count) - self.cost(rows);
            if tokens / seconds > best.1 {
                best = (count, tokens / seconds);
            }
            tokens += next;
            next *= self.later;
        }
        best.0
    }
}

/// A match for the next tokens.
#[derive(Clone, Copy)]
pub(super) struct Guess {
    /// 0: the text itself, 1: other texts.
    source: usize,
    found: Match,
    /// The token that is next by the match.
    first: u32,
}

impl Running {
    /// Notes whether the guess at the last token was right, and looks up the next tokens.
    fn look(&mut self, others: &Lookup, pace: &mut Pace) {
        let tokens = &self.generation.tokens;
        if let (Some(guess), Some(last)) = (self.guess.take(), tokens.last()) {
            let right = f64::from(guess.first == *last);
            learn(&mut pace.first[guess.source][guess.found.kind], right, 0.05);
        }
        let Some(own) = self.lookup.as_ref().filter(|_| !self.finished) else { return };
        let found = [own, others].into_iter().enumerate().filter_map(|(source, lookup)| {
            let found = lookup.find(tokens)?;
            Some(Guess { source, found, first: *lookup.following(found, 1).first()? })
        });
        // of equals the text itself
        self.guess = found.min_by_key(|guess| KINDS - guess.found.kind);
    }

    /// Tokens to guess in a pass that has `rows` rows without them, at most `room`.
    fn guesses(&self, rows: usize, sequences: usize, room: usize, pace: &Pace, how: Speculate) -> usize {
        let Some(guess) = &self.guess else { return 0 };
        // one token comes without a guess
        let room = room.min(self.tokens_left().saturating_sub(1));
        match how {
            Speculate::Off => 0,
            Speculate::Auto => pace.count(guess, rows, sequences, room.min(MAX_GUESS)),
            Speculate::Fixed(count) => room.min(count),
        }
    }
}

/// Called with every token, and with whether a response has ended, to stop early.
type OnToken<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;
type Leave<'a> = &'a mut dyn FnMut(bool) -> bool;

impl Batch<'_> {
    /// Decode steps of all unfinished sequences, until all have ended, or `leave`, which is called with whether one has,
    /// says that this is enough.
    pub(super) fn decode(&mut self, on_token: OnToken, leave: Leave) -> Result<(), EngineError> {
        let mut left = false;
        while !left && self.running.iter().any(|r| !r.finished) {
            left = match self.guessed_pass(on_token, leave)? {
                Some(left) => left,
                None => self.plain_steps(on_token, leave)?,
            };
        }
        self.last_rows()
    }

    /// Decode steps without guesses, until there is one that pays. Whether to leave.
    fn plain_steps(&mut self, on_token: OnToken, leave: Leave) -> Result<bool, EngineError> {
        let Batch { engine, running, others, .. } = self;
        let mut active: Vec<&mut Running> = running.iter_mut().filter(|r| !r.finished).collect();
        let rows: Vec<DecodeRow> = active.iter().map(|r| r.decode_row()).collect();
        let Engine { backend, pace, tokenizer, options, .. } = &mut **engine;
        let (sequences, room) = (rows.len(), guess_room(&**backend, rows.len()));
        let (mut ended, mut left, mut guessed) = (false, false, false);
        let (mut steps, mut begun) = (0, Instant::now());
        backend.decode(&rows, tokenizer.vocab_size(), &mut |index, step, token| {
            if index == 0 {
                // the first step may be the device's first, too
                if steps > 0 {
                    pace.note_pass(sequences, begun.elapsed().as_secs_f64());
                }
                (steps, begun) = (steps + 1, Instant::now());
            }
            let running = &mut *active[index];
            running.push((step, Some(token)));
            running.advance(on_token);
            running.look(others, pace);
            guessed |= running.guesses(sequences, sequences, room, pace, options.speculate) > 0;
            ended |= running.finished;
            left |= !running.finished && leave(ended);
            if running.finished || left || guessed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(left)
    }

    /// A pass with the guesses that pay, and whether to leave; `None` where none does.
    fn guessed_pass(&mut self, on_token: OnToken, leave: Leave) -> Result<Option<bool>, EngineError> {
        let Batch { engine, running, others, .. } = self;
        let Engine { backend, pace, tokenizer, options, .. } = &mut **engine;
        let mut active: Vec<&mut Running> = running.iter_mut().filter(|r| !r.finished).collect();
        let mut room = guess_room(&**backend, active.len());
        let (sequences, mut rows, mut requests, mut guesses) = (active.len(), Vec::new(), Vec::new(), Vec::new());
        for (index, running) in active.iter().enumerate() {
            let count = running.guesses(rows.len() + sequences - index, sequences, room, pace, options.speculate);
            room -= count;
            let guess = running
                .guess
                .as_ref()
                .zip(running.lookup.as_ref())
                .map_or_else(Vec::new, |(guess, own)| [own, others][guess.source].following(guess.found, count));
            let mut next = running.decode_row();
            for token in std::iter::once(next.row.token).chain(guess.iter().copied()) {
                next.row.token = token;
                let choice = Next::Choose(next.choice(tokenizer.vocab_size()));
                requests.push(Prediction { row: rows.len(), next: choice, detail: next.detail });
                rows.push(next.row);
                next.row.position += 1;
            }
            guesses.push(guess);
        }
        if rows.len() == sequences {
            return Ok(None);
        }
        let begun = Instant::now();
        let passed =
            forward::forward(&mut **backend, &Pass::all(&rows, true)).and_then(|()| backend.predict(&requests));
        pace.note_pass(rows.len(), begun.elapsed().as_secs_f64());
        pace.stats.passes += 1;
        let Ok(results) = passed else {
            // a wrong token may overflow where the text does not
            for running in &mut active {
                backend.truncate(running.id, running.last_row().position);
                running.guess = None;
            }
            return Ok(None);
        };
        let (mut results, mut ended, mut left) = (results.into_iter(), false, false);
        for (running, guess) in active.iter_mut().zip(&guesses) {
            pace.stats.guessed += guess.len() as u64;
            let mut results = results.by_ref().take(guess.len() + 1);
            let mut kept = running.last_row().position;
            for (i, result) in results.by_ref().enumerate() {
                let right = guess.get(i).map(|guess| result.1 == Some(*guess));
                if let Some(right) = right.filter(|_| i > 0) {
                    learn(&mut pace.later, f64::from(right), 0.05);
                }
                kept += 1;
                running.push(result);
                running.advance(on_token);
                running.look(others, pace);
                ended |= running.finished;
                left |= !running.finished && leave(ended);
                if running.finished || left || right != Some(true) {
                    break;
                }
                pace.stats.accepted += 1;
            }
            if results.count() > 0 {
                backend.truncate(running.id, kept);
            }
        }
        Ok(Some(left))
    }
}

/// Guesses that a pass has room for beside the rows of `sequences` sequences.
fn guess_room(backend: &dyn Backend, sequences: usize) -> usize {
    backend.decode_rows().min(2 * (MAX_GUESS + 1)).saturating_sub(sequences)
}
