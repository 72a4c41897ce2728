//! Decode step time by kernel, and the gaps between kernels.

use super::cupti::KernelRun;
use super::report::{Row, median};
use std::collections::HashMap;

/// Name prefix of the first kernel of each pass.
const FIRST_KERNEL: &str = "embed";

/// Number of kernels listed.
const LISTED: usize = 12;

/// The last `count` complete decode steps in ordered runs, each from one embedding to the next. The last stretch has no
/// end and is dropped; the prompt's passes come first.
pub fn steps(runs: &[KernelRun], count: usize) -> Vec<&[KernelRun]> {
    let starts: Vec<usize> = (0..runs.len()).filter(|i| runs[*i].name.starts_with(FIRST_KERNEL)).collect();
    let mut steps: Vec<&[KernelRun]> = starts.windows(2).map(|pair| &runs[pair[0]..pair[1]]).collect();
    steps.drain(..steps.len().saturating_sub(count));
    steps
}

/// Nanoseconds during which at least one of the kernels runs.
pub fn busy(runs: &[KernelRun]) -> u64 {
    let mut covered = 0;
    let mut until = 0;
    for run in runs {
        covered += run.end.saturating_sub(run.start.max(until));
        until = until.max(run.end);
    }
    covered
}

/// The gaps' share of an unrecorded step of `step` seconds, and the longest kernels. Recording slows down launches, but
/// hardly affects kernel times.
pub fn rows(shape: &str, steps: &[&[KernelRun]], step: f64, counts: bool) -> Vec<Row> {
    let micros = |nanos: f64| nanos / 1e3;
    let busy_times: Vec<f64> = steps.iter().map(|step| busy(step) as f64).collect();
    let recorded: Vec<f64> = steps.windows(2).map(|pair| (pair[1][0].start - pair[0][0].start) as f64).collect();
    let kernels: Vec<f64> = steps.iter().map(|step| step.len() as f64).collect();
    let gaps: Vec<f64> = busy_times.iter().map(|busy| 100.0 * (1.0 - busy * 1e-9 / step)).collect();
    let mut rows = vec![
        Row::new(shape, "launch gaps in a decode step (graph)", "%", &gaps)
            .floor(Some(0.0), "kernels that follow one another without a gap")
            .fact("step µs", step * 1e6)
            .fact("kernels µs", micros(median(&busy_times)))
            .fact("kernels", median(&kernels))
            .fact("% while recorded", 100.0 * (1.0 - median(&busy_times) / median(&recorded)))
            .target("≤ 3 %", counts, |row| row.median <= 3.0),
    ];
    rows.extend(longest(shape, "kernel", steps, step, "µs a step"));
    rows
}

/// The kernels of the last pass to finish, which took `seconds`.
pub fn last_pass(runs: &[KernelRun], seconds: f64) -> &[KernelRun] {
    let end = runs.iter().map(|run| run.end).max().unwrap_or(0);
    let begin = end.saturating_sub((seconds * 1e9) as u64);
    &runs[runs.partition_point(|run| run.start < begin)..]
}

/// The longest kernels of `passes`, each of which takes `seconds`; rows are named by `prefix` and the kernel.
pub fn longest(shape: &str, prefix: &str, passes: &[&[KernelRun]], seconds: f64, unit: &str) -> Vec<Row> {
    let mut by_name: HashMap<&str, (u64, usize)> = HashMap::new();
    for run in passes.iter().copied().flatten() {
        let (time, runs) = by_name.entry(&run.name).or_default();
        *time += run.end.saturating_sub(run.start);
        *runs += 1;
    }
    let mut by_name: Vec<_> = by_name.into_iter().collect();
    by_name.sort_by_key(|(name, (time, _))| (std::cmp::Reverse(*time), *name));
    let per_pass = |total: f64| total / passes.len() as f64;
    let row = |(name, (time, runs)): (&str, (u64, usize))| {
        let time = per_pass(time as f64);
        Row::new(shape, format!("{prefix} {name}"), unit, &[time / 1e3])
            .fact("runs", per_pass(runs as f64))
            .fact("% of the time", 100.0 * time * 1e-9 / seconds)
    };
    by_name.into_iter().take(LISTED).map(row).collect()
}
