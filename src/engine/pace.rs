//! The number of tokens to guess for a pass, from the cost of passes and the share of correct guesses, learned during decoding. It
//! affects only timing; see [`super::speculate`].

use super::lookup::{KINDS, Match};
use std::{fmt, str::FromStr};

/// Default max of guessed tokens per pass.
pub(super) const MAX_GUESS: usize = 7;

/// Max rows of a pass with guesses, over all sequences.
pub(super) const MAX_ROWS: usize = 2 * (MAX_GUESS + 1);

/// Max tokens of finished responses that further ones guess from.
pub(super) const MAX_SHARED: usize = 1 << 17;

/// Tokens guessed for a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// One token per pass.
    Off,
    /// The number that pays off on this machine and in this text; none on CUDA, where plain steps run ahead of the host.
    #[default]
    Auto,
    /// All guesses found, up to this number.
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
        match (text, text.parse()) {
            ("off", _) => Ok(Speculate::Off),
            ("auto", _) => Ok(Speculate::Auto),
            (_, Ok(count @ 1..=15)) => Ok(Speculate::Fixed(count)),
            _ => Err("expected off, auto or a number from 1 to 15".to_owned()),
        }
    }
}

/// Passes with guesses and their results, since the model was loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpeculationStats {
    /// Passes with guesses.
    pub passes: u64,
    /// Guessed tokens in them, and accepted ones.
    pub guessed: u64,
    pub accepted: u64,
}

/// Cost of passes and share of correct guesses, learned during decoding.
pub(super) struct Pace {
    /// Seconds of a pass by rows − 1; NaN: none has run yet.
    seconds: [f64; MAX_ROWS],
    /// Share of correct first tokens, by the source (the text itself, other texts) and the kind of match.
    first: [[f64; KINDS]; 2],
    /// Share of correct tokens after a correct one.
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
    pub fn note_pass(&mut self, rows: usize, seconds: f64) {
        // decays, so that a width that once measured slow is tried again
        self.seconds.iter_mut().for_each(|mean| *mean *= 0.999);
        if let Some(mean) = self.seconds.get_mut(rows - 1) {
            learn(mean, seconds, 0.2);
        }
    }

    /// Records whether the first token of a guess was correct.
    pub fn note_first(&mut self, guess: &Guess, right: bool) {
        learn(&mut self.first[guess.source][guess.found.kind], f64::from(right), 0.05);
    }

    /// Records whether a token after a correct one was correct, too.
    pub fn note_later(&mut self, right: bool) {
        learn(&mut self.later, f64::from(right), 0.05);
    }

    /// Seconds of a pass of `rows` rows; for a width that has not run, those of a narrower one, so that it is tried.
    fn cost(&self, rows: usize) -> f64 {
        let known = &self.seconds[..rows.min(self.seconds.len())];
        known.iter().copied().fold(f64::MIN_POSITIVE, f64::max)
    }

    /// Tokens to guess for one of `sequences` sequences in a pass that has `rows` rows without them: the number with the most
    /// expected tokens for its share of the pass's time.
    pub fn count(&self, guess: &Guess, rows: usize, sequences: usize, max: usize) -> usize {
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
    pub source: usize,
    pub found: Match,
}
