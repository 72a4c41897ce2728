//! Progress of long runs on standard error: a bar in a terminal, elsewhere a line now and then.

use super::say::{Level, counted, note, says};
use crate::eval::sample::Sample;
use crate::io::record::Status;
use crate::report::term::sanitize::one_line;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between lines where there is no bar.
const INTERVAL: Duration = Duration::from_secs(10);

/// A bar, hidden without a terminal or under --quiet.
fn bar(total: Option<u64>, template: &str) -> ProgressBar {
    let shown = std::io::stderr().is_terminal() && says(Level::Normal);
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(total, target);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Items of a run.
pub struct Progress {
    bar: ProgressBar,
    /// Items of earlier runs, which do not count for the speed of this one.
    skipped: u64,
    last: Instant,
}

impl Progress {
    /// `total` items, if known.
    pub fn new(total: Option<u64>) -> Progress {
        let template = match total {
            Some(_) => "{bar:32} {pos}/{len} items{msg}  {elapsed} elapsed, {eta} left",
            None => "{spinner} {pos} items{msg}  {elapsed} elapsed",
        };
        let bar = bar(total, template);
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(500)); // a thread
        }
        Progress { bar, skipped: 0, last: Instant::now() }
    }

    /// Counts an item; `skipped`: done by an earlier run.
    pub fn advance(&mut self, skipped: bool) {
        self.advance_with(skipped, |_| String::new());
    }

    /// The same with a description of the run so far.
    fn advance_with(&mut self, skipped: bool, status: impl FnOnce(&Progress) -> String) {
        self.bar.inc(1);
        if skipped {
            self.skipped += 1;
            self.bar.reset_eta();
        }
        if !self.bar.is_hidden() {
            self.bar.set_message(status(self));
        } else if self.last.elapsed() >= INTERVAL {
            self.last = Instant::now();
            let of = self.bar.length().map_or(String::new(), |total| format!("/{total}"));
            let (done, seconds) = (self.bar.position(), self.seconds());
            let left = match (self.bar.length(), done - self.skipped) {
                (Some(total), here @ 1..) => {
                    format!(", about {:.0} s left", total.saturating_sub(done) as f64 * seconds / here as f64)
                }
                _ => String::new(),
            };
            note(&format!("{done}{of} items{}, {seconds:.0} s{left}", status(self)));
        }
    }

    /// Since the start.
    pub fn seconds(&self) -> f64 {
        self.bar.elapsed().as_secs_f64()
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A response while it is written.
pub struct Response(ProgressBar);

impl Response {
    pub fn new() -> Response {
        Response(bar(None, "{spinner} {msg}"))
    }

    /// Whether there is no terminal to show it in.
    pub fn is_hidden(&self) -> bool {
        self.0.is_hidden()
    }

    /// Tokens so far, tokens per second, and the text's last line, as much of it as fits.
    pub fn show(&self, tokens: usize, speed: Option<f64>, line: &str) {
        let speed = speed.map_or(String::new(), |speed| format!(" · {speed:.0} tokens/s"));
        self.0.set_message(format!("{tokens} tokens{speed} · {}", one_line(line.trim())));
        self.0.tick();
    }

    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// The errors of a run; all are in the output.
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

    /// Lists the first ones.
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
    correct: usize,
    no_answer: usize,
    truncated: usize,
    errors: Errors,
    /// Of this run's items.
    seconds: BTreeMap<String, f64>,
}

impl EvalProgress {
    pub fn new(total: usize) -> EvalProgress {
        EvalProgress { progress: Progress::new(Some(total as u64)), counts: Counts::default() }
    }

    /// The next task.
    pub fn task(&mut self, name: &str) {
        self.counts.task = one_line(name);
    }

    /// The sample of an item; `earlier`: of an earlier run.
    pub fn item(&mut self, sample: &Sample, earlier: bool) {
        let (counts, uq) = (&mut self.counts, &sample.uq);
        counts.done += 1;
        counts.correct += usize::from(sample.metrics.get("acc") == Some(&1.0));
        counts.no_answer += usize::from(uq.status == Status::NoAnswer);
        counts.truncated += usize::from(uq.finish.is_cut_off());
        for (stage, seconds) in uq.seconds.iter().filter(|_| !earlier) {
            *counts.seconds.entry(stage.clone()).or_default() += seconds;
        }
        if uq.status == Status::Error {
            counts.errors.add(&format!("{} {}", sample.task, sample.doc_id), uq.error.as_deref());
        }
        self.progress.advance_with(earlier, |progress| counts.status(progress));
    }

    /// Removes the bar and prints a summary; returns the number of errors.
    pub fn finish(self) -> usize {
        self.progress.finish();
        let Counts { done, correct, no_answer, truncated, errors, .. } = self.counts;
        note(&format!(
            "{done} items in {:.1} s ({} were there already): {correct} correct, {no_answer} without an answer, \
             {truncated} cut off at the limit, {}",
            self.progress.seconds(),
            self.progress.skipped,
            counted(errors.count, "error")
        ));
        errors.show();
        errors.count
    }
}

impl Counts {
    /// Task, accuracy, speed, and the slowest stages.
    fn status(&self, progress: &Progress) -> String {
        let speed = 60.0 * (self.done as f64 - progress.skipped as f64) / progress.seconds().max(1e-9);
        let accuracy = 100.0 * self.correct as f64 / self.done.max(1) as f64;
        format!(", {}: accuracy {accuracy:.1} %, {speed:.1} items/min{}", self.task, parts(&self.seconds))
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

/// Weights on their way to a device.
pub struct Upload(ProgressBar);

impl Upload {
    pub fn new() -> Upload {
        Upload(bar(None, "{bar:32} {bytes}/{total_bytes} to the device, {bytes_per_sec}, {eta} left"))
    }

    /// Shows `done` of `total` copied bytes.
    pub fn show(&self, done: usize, total: usize) {
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
        if done >= total {
            self.0.finish_and_clear();
        }
    }
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
