//! Speculative decoding, bit-exact: guessed tokens are added to a pass after the last one, and those that the model
//! would have chosen are kept. Every row has the same bits in a pass of any width, and a choice depends only on seed,
//! stream and position: tokens, log-probabilities and trace are those of one token per pass. Only timing differs.

use super::pace::{Guess, MAX_GUESS, MAX_ROWS, Pace, Speculate};
use super::{Engine, Result, batch::Batch, batch::Running, generate::OnToken, lookup::KINDS, lookup::Lookup};
use crate::backend::{BackendError, DecodeRow, Step};
use std::{ops::ControlFlow, time::Instant};

impl Running {
    /// Adds the next token and looks up those after it.
    fn chosen(&mut self, result: (Step, Option<u32>), on_token: OnToken, others: &Lookup, pace: &mut Pace) {
        self.push(result);
        self.advance(on_token);
        self.look(others, pace);
    }

    /// Records whether the guess for the last token was correct, and looks up the next tokens.
    fn look(&mut self, others: &Lookup, pace: &mut Pace) {
        let tokens = &self.generation.tokens;
        if let (Some(guess), Some(last)) = (self.guess.take(), tokens.last()) {
            pace.note_first(&guess, guess.found.next == *last);
        }
        let Some(own) = self.lookup.as_ref().filter(|_| !self.finished) else { return };
        let guess = |(source, lookup): (usize, &Lookup)| Some(Guess { source, found: lookup.find(tokens)? });
        // ties: the text itself
        self.guess =
            [own, others].into_iter().enumerate().filter_map(guess).min_by_key(|guess| KINDS - guess.found.kind);
    }

    /// Tokens to guess in a pass that has `rows` rows without them, at most `room`.
    fn guesses(&self, rows: usize, sequences: usize, room: usize, pace: &Pace, how: Speculate) -> usize {
        let Some(guess) = &self.guess else { return 0 };
        // one token comes without a guess
        let room = room.min(self.tokens_left().saturating_sub(1));
        let room = (0..room).take_while(|count| !self.outgrows(count + 1)).count();
        match how {
            Speculate::Off => 0,
            Speculate::Auto => pace.count(guess, rows, sequences, room.min(MAX_GUESS)),
            Speculate::Fixed(count) => room.min(count),
        }
    }
}

/// Called with whether a response has ended; returns whether to stop early.
type Leave<'a> = &'a mut dyn FnMut(bool) -> bool;

impl Batch<'_> {
    /// Decode steps of all unfinished sequences, until all have ended or `leave`, which is called with whether one has
    /// ended, returns true.
    pub(super) fn decode(&mut self, on_token: OnToken, leave: Leave) -> Result<()> {
        let mut left = false;
        while !left && self.running.iter().any(|r| !r.finished) {
            left = self.steps_alone(on_token)?.is_some_and(&mut *leave);
            if !left {
                left = match self.guessed_pass(on_token, leave)? {
                    Some(left) => left,
                    None => self.plain_steps(on_token, leave, usize::MAX)?,
                };
            }
            self.close_failed();
            left |= !self.failed.is_empty() && leave(true);
        }
        self.last_rows()?;
        self.close_failed();
        Ok(())
    }

    /// Decode steps without guesses, `together` sequences in a pass, until a response ends or a thought is over budget. Returns
    /// whether to leave.
    ///
    /// If a pass fails, each sequence takes a step alone: its error is its own.
    fn plain_steps(&mut self, on_token: OnToken, leave: Leave, together: usize) -> Result<bool> {
        let vocabulary = self.engine.vocabulary();
        let Batch { engine, running, others, .. } = self;
        let Engine { backend, pace, .. } = &mut **engine;
        // others take their steps alone, after one of these
        let waiting = running.iter().any(|r| !r.finished && !r.is_common());
        let mut active: Vec<&mut Running> = running.iter_mut().filter(|r| !r.finished && r.is_common()).collect();
        let (mut ended, mut left, mut over) = (false, false, together == 1 || waiting);
        for group in active.chunks_mut(together) {
            let rows: Vec<DecodeRow> = group.iter().map(|r| r.decode_row()).collect();
            let decoded = backend.decode(&rows, vocabulary, &mut |index, step, token| {
                let running = &mut *group[index];
                running.chosen((step, Some(token)), on_token, others, pace);
                ended |= running.finished;
                left |= !running.finished && leave(ended);
                over |= !running.is_common();
                if running.finished || left || over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            match decoded {
                Ok(()) => (),
                Err(BackendError::Rows(failed)) => {
                    failed.into_iter().for_each(|(index, error)| group[index].fail(error))
                }
                Err(error) if error.is_lost() => return Err(error.into()),
                Err(error) => match group {
                    // its memory is freed before the next one asks for some
                    [running] => {
                        running.fail(error);
                        break;
                    }
                    _ => return self.plain_steps(on_token, leave, 1),
                },
            }
        }
        Ok(left)
    }

    /// A pass with the guesses that pay off; returns whether to leave, `None` if nothing is guessed.
    fn guessed_pass(&mut self, on_token: OnToken, leave: Leave) -> Result<Option<bool>> {
        let vocabulary = self.engine.vocabulary();
        let Batch { engine, running, others, .. } = self;
        let Engine { backend, pace, options, .. } = &mut **engine;
        let mut active: Vec<&mut Running> = running.iter_mut().filter(|r| !r.finished && r.is_common()).collect();
        // room for guesses next to the sequences' own rows
        let mut room = backend.decode_rows().min(MAX_ROWS).saturating_sub(active.len());
        if room == 0 || active.iter().all(|r| r.lookup.is_none()) {
            return Ok(None);
        }
        let (sequences, mut rows, mut guesses) = (active.len(), Vec::new(), Vec::new());
        for (index, running) in active.iter().enumerate() {
            let count = running.guesses(rows.len() + sequences - index, sequences, room, pace, options.speculate);
            room -= count;
            let guess = match (&running.guess, &running.lookup) {
                (Some(guess), Some(own)) => [own, others][guess.source].following(guess.found, count),
                _ => Vec::new(),
            };
            let mut next = running.decode_row();
            for token in std::iter::once(next.row.token).chain(guess.iter().copied()) {
                next.row.token = token;
                rows.push(next);
                next.row.position += 1;
            }
            guesses.push(guess);
        }
        let begun = Instant::now();
        let passed = backend.step(&rows, vocabulary);
        pace.note_pass(rows.len(), begun.elapsed().as_secs_f64());
        pace.stats.passes += u64::from(rows.len() > sequences);
        let Ok(results) = passed else {
            // a wrong token may overflow although the text does not; any other error comes again
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
            for (i, (step, token)) in results.by_ref().enumerate() {
                let right = guess.get(i).map(|guess| token == *guess);
                if let Some(right) = right.filter(|_| i > 0) {
                    pace.note_later(right);
                }
                kept += 1;
                running.chosen((step, Some(token)), on_token, others, pace);
                ended |= running.finished;
                left |= !running.finished && leave(ended);
                if running.finished || left || right != Some(true) || !running.is_common() {
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
