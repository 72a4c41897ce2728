//! Progress of long runs on standard error: a bar in a terminal, otherwise an occasional line.

use super::say::{Level, counted, note, says};
use crate::{eval::run::Event, eval::sample::Sample, io::record::CutOff, io::record::Status, report::term::one_line};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{io::IsTerminal, sync::mpsc::RecvTimeoutError, sync::mpsc::channel, time::Duration, time::Instant};

/// Time between lines without a bar.
const INTERVAL: Duration = Duration::from_secs(10);

/// A progress bar; hidden outside a terminal or under --quiet.
pub fn bar(total: Option<u64>, template: &str) -> ProgressBar {
    let shown = std::io::stderr().is_terminal() && says(Level::Normal);
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(total, target);
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Progress over the items of a run.
pub struct Progress {
    bar: ProgressBar,
    /// Items of earlier runs, excluded from this run's speed.
    skipped: u64,
    last: Instant,
    /// Number of concurrent items: the speed is known once more than this many have finished.
    at_once: usize,
}

impl Progress {
    /// `total` items, if known, with `at_once` processed concurrently.
    pub fn new(total: Option<u64>, at_once: usize) -> Progress {
        let template = match total {
            Some(_) => "{bar:16} {pos}/{len} items{msg}, {elapsed}",
            None => "{spinner} {pos} items{msg}, {elapsed}",
        };
        let bar = bar(total, template);
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(500)); // a thread
        }
        Progress { bar, skipped: 0, last: Instant::now(), at_once }
    }

    /// Counts an item; `skipped`: completed by an earlier run.
    pub fn advance(&mut self, skipped: bool) {
        self.count(skipped);
        self.show(|_| String::new());
    }

    fn count(&mut self, skipped: bool) {
        self.bar.inc(1);
        self.skipped += u64::from(skipped);
    }

    /// Shows the progress, followed by a status description.
    fn show(&mut self, status: impl FnOnce(&Progress) -> String) {
        if !self.bar.is_hidden() {
            self.bar.set_message(self.left() + &status(self));
        } else if self.last.elapsed() >= INTERVAL {
            self.last = Instant::now();
            let of = self.bar.length().map_or(String::new(), |total| format!("/{total}"));
            let (done, seconds) = (self.bar.position(), self.seconds());
            note(&format!("{done}{of} items{}{}, {seconds:.0} s", self.left(), status(self)));
        }
    }

    /// `, about 3 min left`, once it can be estimated: concurrent items finish at about the same time, the short ones
    /// first.
    fn left(&self) -> String {
        let done = self.bar.position();
        let (here, left) = (done - self.skipped, self.bar.length().unwrap_or(done).saturating_sub(done));
        let seconds = left as f64 * self.seconds() / here as f64;
        let known = here > self.at_once as u64 && left > 0;
        let left = || format!(", about {} left", HumanDuration(Duration::from_secs_f64(seconds)));
        known.then(left).unwrap_or_default()
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.bar.elapsed().as_secs_f64()
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Label of a report's slow step.
pub const ANALYSIS: &str = "computing metrics and intervals";

/// Runs work that has no items; after a second shows `what` and the elapsed time.
pub fn work<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        scope.spawn(move || {
            if ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                let bar = bar(None, "{spinner} {msg}, {elapsed}").with_message(what);
                match bar.is_hidden() {
                    true => note(&format!("{what} ...")),
                    false => bar.enable_steady_tick(Duration::from_millis(100)),
                }
                let _ = ended.recv();
                bar.finish_and_clear();
            }
        });
        let done = work();
        drop(end);
        done
    })
}

/// The errors of a run; the output contains all of them.
#[derive(Default)]
pub struct Errors {
    pub count: usize,
    first: Vec<String>,
}

impl Errors {
    const SHOWN: usize = 5;

    pub fn add(&mut self, item: &str, why: Option<&str>) {
        self.count += 1;
        if self.first.len() < Self::SHOWN {
            self.first.push(one_line(&format!("  {item}: {}", why.unwrap_or_default())));
        }
    }

    /// Prints the first few.
    pub fn show(&self) {
        self.first.iter().for_each(|line| note(line));
        if self.count > self.first.len() {
            note(&format!("  and {} more", self.count - self.first.len()));
        }
    }
}

/// An evaluation, with its accuracy so far.
pub struct EvalProgress {
    progress: Progress,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    task: String,
    done: usize,
    /// Generated by this run.
    tokens: usize,
    /// Responses being generated, and those that have ended, samples and turns included.
    in_flight: usize,
    responses: usize,
    /// Whether an item is being scored, during which no tokens come.
    scoring: bool,
    correct: usize,
    no_answer: usize,
    cut_off: [usize; 2],
    errors: Errors,
}

impl EvalProgress {
    /// `total` responses, `at_once` of them generated concurrently.
    pub fn new(total: usize, at_once: usize) -> EvalProgress {
        EvalProgress { progress: Progress::new(Some(total as u64), at_once), counts: Counts::default() }
    }

    /// Starts the next task.
    pub fn task(&mut self, name: &str) {
        self.counts.task = one_line(name);
    }

    /// Counts an event.
    pub fn event(&mut self, event: Event) {
        let counts = &mut self.counts;
        counts.scoring = matches!(event, Event::Scoring);
        match event {
            Event::Item(Sample { task, doc_id, metrics, uq, .. }, earlier) => {
                counts.done += 1;
                counts.correct += usize::from(metrics.get("acc") == Some(&1.0));
                counts.no_answer += usize::from(uq.status == Status::NoAnswer);
                if let Some(place) = uq.cut_off {
                    counts.cut_off[usize::from(place == CutOff::Reply)] += 1;
                }
                if uq.status == Status::Error {
                    counts.errors.add(&format!("{task} {doc_id}"), uq.error.as_deref());
                }
                self.progress.count(earlier);
            }
            Event::Response => counts.responses += 1,
            Event::Scoring => (),
            Event::Token { in_flight } => (counts.tokens, counts.in_flight) = (counts.tokens + 1, in_flight),
        }
        self.progress.show(|progress| counts.status(progress));
    }

    /// Removes the bar and prints a summary; returns the number of errors.
    pub fn finish(self) -> usize {
        self.progress.finish();
        let Counts { done, correct, no_answer, cut_off: [in_thought, in_reply], errors, .. } = self.counts;
        note(&format!(
            "{done} items in {:.1} s ({} were there already): {correct} correct, {no_answer} without an answer, {} cut off at \
             the limit ({in_thought} in a thought, {in_reply} in the reply), {}",
            self.progress.seconds(),
            self.progress.skipped,
            in_thought + in_reply,
            counted(errors.count, "error")
        ));
        errors.show();
        errors.count
    }
}

impl Counts {
    /// Task, accuracy, responses, tokens, stage.
    fn status(&self, progress: &Progress) -> String {
        let Counts { task, done, correct, tokens, in_flight, responses, .. } = self;
        let accuracy = 100.0 * *correct as f64 / (*done).max(1) as f64;
        let accuracy = if *done > 0 { format!(" accuracy {accuracy:.1} %,") } else { String::new() };
        let speed = *tokens as f64 / progress.seconds().max(1e-9);
        let stage = if self.scoring { "scoring an answer".to_owned() } else { format!("{in_flight} in flight") };
        format!(", {task}:{accuracy} {responses} responses, {tokens} tokens ({speed:.0}/s), {stage}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_accurate_before_it_is_done() {
        let mut progress = EvalProgress::new(9, 3);
        progress.task("gsm8k");
        let mut after = |event| {
            progress.event(event);
            progress.counts.status(&progress.progress)
        };
        assert!(after(Event::Token { in_flight: 3 }).starts_with(", gsm8k: 0 responses, 1 tokens ("));
        assert!(after(Event::Response).ends_with("3 in flight"));
        let scoring = after(Event::Scoring);
        assert!(scoring.contains(": 1 responses") && scoring.ends_with("scoring an answer"), "{scoring}");
    }

    #[test]
    fn the_time_left_is_said_once_it_is_known() {
        let mut progress = Progress::new(Some(9), 3);
        let mut after = |skipped| {
            progress.advance(skipped);
            progress.left()
        };
        assert_eq!([false, false, false, true].map(&mut after), [""; 4], "a batch, and an item of an earlier run");
        assert_eq!(after(false), ", about 0 seconds left");
    }
}
