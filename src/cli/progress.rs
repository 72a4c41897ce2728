//! How far a long run is, on standard error: a bar in a terminal, else a line now and then.

use super::say::{Level, counted, note, says};
use crate::eval::run::Event;
use crate::io::record::Status;
use crate::report::term::sanitize::one_line;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between lines where there is no bar.
const INTERVAL: Duration = Duration::from_secs(10);

/// Whether there is a terminal for them, and somebody who wants them.
fn shows_bars() -> bool {
    std::io::stderr().is_terminal() && says(Level::Normal)
}

pub struct Progress {
    bar: Option<ProgressBar>,
    total: Option<u64>,
    done: u64,
    /// Items that earlier runs did; they say nothing about the speed of this one.
    skipped: u64,
    start: Instant,
    last: Instant,
}

impl Progress {
    /// `total` items are to come, if that is known.
    pub fn new(total: Option<u64>) -> Progress {
        let start = Instant::now();
        let bar = shows_bars().then(|| bar(total));
        Progress { bar, total, done: 0, skipped: 0, start, last: start }
    }

    /// One more item is done; `skipped` if it already was.
    pub fn advance(&mut self, skipped: bool) {
        self.done += 1;
        self.skipped += u64::from(skipped);
        if let Some(bar) = &self.bar {
            bar.inc(1);
            if skipped {
                bar.reset_eta();
            }
        } else if self.last.elapsed() >= INTERVAL {
            self.last = Instant::now();
            note(&self.line());
        }
    }

    fn line(&self) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        let of = self.total.map_or(String::new(), |total| format!("/{total}"));
        let mut line = format!("{}{of} items, {seconds:.0} s", self.done);
        let here = self.done - self.skipped;
        if let (Some(total), 1..) = (self.total, here) {
            let left = total.saturating_sub(self.done) as f64 * seconds / here as f64;
            line += &format!(", about {left:.0} s left");
        }
        line
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{bar:32} {pos}/{len} items  {elapsed} elapsed, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {pos} items  {elapsed} elapsed"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Errors that are shown; all are in the output.
const SHOWN_ERRORS: usize = 5;

/// An evaluation: a bar with the accuracy so far, or a line now and then.
pub struct EvalProgress {
    bar: Option<ProgressBar>,
    total: usize,
    task: String,
    counts: Counts,
    start: Instant,
    last: Instant,
}

/// Items so far.
#[derive(Default)]
struct Counts {
    done: usize,
    earlier: usize,
    correct: usize,
    no_answer: usize,
    truncated: usize,
    errors: usize,
    messages: Vec<String>,
    /// Of this run's items.
    seconds: BTreeMap<String, f64>,
}

impl EvalProgress {
    pub fn new(total: usize) -> EvalProgress {
        let bar = shows_bars().then(|| {
            let bar = bar(Some(total as u64));
            let template = "{bar:32} {pos}/{len} items  {msg}  {elapsed} elapsed, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let start = Instant::now();
        EvalProgress { bar, total, task: String::new(), counts: Counts::default(), start, last: start }
    }

    /// What comes next.
    pub fn task(&mut self, name: &str) {
        self.task = one_line(name);
    }

    /// One more item is done.
    pub fn item(&mut self, event: &Event) {
        let counts = &mut self.counts;
        counts.done += 1;
        counts.earlier += usize::from(event.earlier);
        counts.correct += usize::from(event.correct);
        counts.no_answer += usize::from(event.status == Status::NoAnswer);
        counts.truncated += usize::from(event.finish.is_cut_off());
        for (stage, seconds) in event.seconds.into_iter().flatten() {
            *counts.seconds.entry(stage.clone()).or_default() += seconds;
        }
        if event.status == Status::Error {
            counts.errors += 1;
            if counts.messages.len() < SHOWN_ERRORS {
                let why = event.error.unwrap_or_default();
                counts.messages.push(one_line(&format!("  {} {}: {why}", event.task, event.doc_id)));
            }
        }
        if let Some(bar) = &self.bar {
            bar.inc(1);
            if event.earlier {
                bar.reset_eta();
            }
            bar.set_message(self.so_far());
        } else if self.last.elapsed() >= INTERVAL {
            self.last = Instant::now();
            note(&format!("{}/{} items, {}", self.counts.done, self.total, self.so_far()));
        }
    }

    /// Task, accuracy, speed, and the stages that take most of the time.
    fn so_far(&self) -> String {
        let Counts { done, earlier, correct, ref seconds, .. } = self.counts;
        let speed = 60.0 * (done - earlier) as f64 / self.start.elapsed().as_secs_f64().max(1e-9);
        let accuracy = 100.0 * correct as f64 / done.max(1) as f64;
        format!("{}: accuracy {accuracy:.1} %, {speed:.1} items/min{}", self.task, parts(seconds))
    }

    /// Takes the bar away and sums up. How many items have errors.
    pub fn finish(self) -> usize {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let Counts { done, earlier, correct, no_answer, truncated, errors, .. } = self.counts;
        let seconds = self.start.elapsed().as_secs_f64();
        note(&format!(
            "{done} items in {seconds:.1} s ({earlier} were there already): {correct} correct, {no_answer} without an \
             answer, {truncated} cut off at the limit, {}",
            counted(errors, "error")
        ));
        self.counts.messages.iter().for_each(|message| note(message));
        if errors > self.counts.messages.len() {
            note(&format!("  and {} more", errors - self.counts.messages.len()));
        }
        errors
    }
}

/// ` (generate 70 %, self_consistency 25 %)`: the stages that take at least a hundredth, most first.
fn parts(seconds: &BTreeMap<String, f64>) -> String {
    let total: f64 = seconds.values().sum();
    let mut stages: Vec<(&str, f64)> =
        seconds.iter().map(|(stage, seconds)| (stage.as_str(), 100.0 * seconds / total)).collect();
    stages.retain(|(_, share)| *share >= 1.0);
    stages.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shown: Vec<String> = stages.iter().map(|(stage, share)| format!("{stage} {share:.0} %")).collect();
    if shown.is_empty() { String::new() } else { format!(" ({})", shown.join(", ")) }
}

/// Weights on their way to a device: a bar in a terminal.
#[derive(Default)]
pub struct Upload(Option<ProgressBar>);

impl Upload {
    /// Shows that `done` of `total` bytes have been copied.
    pub fn show(&mut self, done: usize, total: usize) {
        if shows_bars() {
            let bar = self.0.get_or_insert_with(|| upload_bar(total as u64));
            bar.set_position(done as u64);
            if done >= total {
                bar.finish_and_clear();
            }
        }
    }
}

fn upload_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let template = "{bar:32} {bytes}/{total_bytes} to the device, {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_shown_by_their_share() {
        let seconds = [("generate", 6.0), ("chain", 0.05), ("ensemble", 1.0), ("self_consistency", 3.0)];
        let seconds = seconds.map(|(stage, seconds)| (stage.to_owned(), seconds)).into();
        assert_eq!(parts(&seconds), " (generate 60 %, self_consistency 30 %, ensemble 10 %)");
        assert_eq!(parts(&BTreeMap::new()), "");
    }
}
