//! `uqac bench`: the cost of the method on this machine.

use super::options::{ModelArgs, load};
use super::*;
use crate::bench::machine::{self, Machine};
use crate::bench::{MedianRange, Report, Settings, Stage, SweepRow, run as measure};
use crate::report::term::{Style, TermStyle, TextTable};
use crate::{backend::DeviceChoice, engine::EngineOptions, engine::Speculate};

/// Measure the cost of the method: decoding with and without the trace, prefill, scoring, and the work after an answer
///
/// Each round runs every stage once and measures the read bandwidth and the arithmetic peak alongside. The table has
/// medians over the rounds with their range. Compare figures within one run only.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  uqac bench -m Qwen/Qwen2.5-0.5B-Instruct\n  uqac bench -m abacus --sweep 128,256,512"
)]
pub struct BenchArgs {
    /// MiB of the buffer for the bandwidth, many times the caches
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = units::count(1..=65536))]
    buffer: usize,
    /// Print a JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    model: ModelArgs,
}

pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let folder = args.model.folder()?;
    let model = folder.file_name().map_or_else(|| folder.display().to_string(), |name| name.display().to_string());
    let options = EngineOptions { device: machine::resolve(args.model.engine.device), ..args.model.options() };
    let mut engine = load(&folder, options)?;
    engine.set_speculate(Speculate::Off);
    let bytes = args.buffer << 20;
    // on a device, two buffers must fit next to the model
    let bytes = if let DeviceChoice::Cuda(_) = options.device { bytes.min(1 << 30) } else { bytes };
    let mut machine = Machine::open(options.device, options.threads, bytes)?;
    let report = measure(&mut engine, &mut machine, &Settings { model, ..args.settings.clone() }, &mut note)?;
    Ok(show(args.json, &report, || tables(&report, TermStyle::of_stdout()))?)
}

fn tables(report: &Report, style: TermStyle) -> String {
    let peak = report.arithmetic_peak.map(|peak| format!(", {:.0} GFLOP/s in f32", peak.median / 1e9));
    let peak = peak.unwrap_or_default();
    let Report { device, weights, k_cache, v_cache, .. } = report;
    let step = report.weight_bytes_per_step as f64 / 1e6;
    let MedianRange { median, min, max } = report.bandwidth;
    let [median, min, max] = [median, min, max].map(|bytes| format!("{:.1}", bytes / 1e9));
    let caches = format!("K cache {k_cache}, V cache {v_cache}");
    let mut text = style.paint(Style::BOLD, &report.settings.model);
    text += &format!("\n  {device} · {weights} weights, {step:.0} MB a decode step · {caches}\n");
    text += &format!("  reads at {median} GB/s ({min} to {max}){peak}\n\n");
    text += &stage_table(&report.stages, style);
    text += "\n  added to a decode step:\n";
    for (trace, added) in [
        ("the trace", report.trace_overhead_percent),
        ("a wide trace", report.wide_trace_overhead_percent),
        ("a wide trace with every head", report.head_trace_overhead_percent),
        ("a trace of every layer", report.layer_trace_overhead_percent),
    ] {
        text += &format!("    {trace}: {}\n", percents(&added));
    }
    text += &format!("  links of the chain: {}\n", report.chain_links);
    if !report.sweep.is_empty() {
        text += &format!("\n{}", sweep_table(&report.sweep, style));
    }
    text + &format!("\n{}\n", overhead(report))
}

/// Cost of the method relative to plain generation.
fn overhead(report: &Report) -> String {
    let added = |stages: &[&str]| 100.0 * report.relative(stages);
    let (trace, samples) = (report.trace_overhead_percent.median, report.settings.samples);
    let (chain, p, consistency) = (added(&["chain", "similarity"]), added(&["ensemble"]), added(&["self-consistency"]));
    format!(
        "of a generation: trace {trace:+.1} %, chain {chain:+.1} %, P's ensemble {p:+.1} %, self-consistency ({samples} \
         samples) {consistency:+.0} %"
    )
}

fn percents(range: &MedianRange) -> String {
    format!("{:+.1} % ({:+.1} to {:+.1})", range.median, range.min, range.max)
}

fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}

/// A heading and its cell in a row of `T`.
type Column<T> = (&'static str, fn(&T) -> String);

/// A table whose first `left` columns hold text.
fn table<T, const N: usize>(columns: [Column<T>; N], left: usize, rows: &[T], style: TermStyle) -> String {
    let align = "l".repeat(left) + &"r".repeat(N - left);
    let mut table = TextTable::new(&align, columns.map(|(heading, _)| heading));
    rows.iter().for_each(|row| table.row(columns.map(|(_, cell)| (cell(row), Style::PLAIN))));
    table.render(style)
}

fn decimal(x: Option<f64>) -> String {
    x.map_or(String::new(), |x| format!("{x:.1}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share))
}

fn stage_table(stages: &[Stage], style: TermStyle) -> String {
    let columns: [Column<Stage>; 10] = [
        ("stage", |s| s.stage.to_owned()),
        ("", |s| s.what.clone()),
        ("seconds", |s| format!("{:.4}", s.seconds.median)),
        ("range", |s| format!("{:.4} to {:.4}", s.seconds.min, s.seconds.max)),
        ("tokens/s", |s| decimal(s.tokens_per_second)),
        ("GB/s", |s| decimal(s.gb_per_second)),
        ("GFLOP/s", |s| decimal(s.gflop_per_second)),
        ("of the limit", |s| percent(s.share_of_bandwidth.or(s.share_of_arithmetic))),
        ("× generation", |s| format!("{:.3}", s.relative_to_generation)),
        ("peak MiB", |s| s.peak_bytes.map_or(String::new(), mib)),
    ];
    table(columns, 2, stages, style)
}

fn sweep_table(sweep: &[SweepRow], style: TermStyle) -> String {
    let columns: [Column<SweepRow>; 10] = [
        ("context", |r| r.context.to_string()),
        ("prefill tokens/s", |r| format!("{:.0}", r.prefill_tokens_per_second)),
        ("plain tokens/s", |r| format!("{:.1}", r.plain_tokens_per_second.median)),
        ("traced tokens/s", |r| format!("{:.1}", r.traced_tokens_per_second.median)),
        ("the trace adds", |r| percents(&r.trace_overhead_percent)),
        ("GB/s", |r| format!("{:.1}", r.gb_per_second)),
        ("of the bandwidth", |r| percent(Some(r.share_of_bandwidth))),
        ("cache MiB", |r| mib(r.cache_bytes)),
        ("scored in s", |r| format!("{:.2}", r.score.seconds.median)),
        ("and MiB", |r| r.score.extra_bytes.map_or(String::new(), mib)),
    ];
    table(columns, 0, sweep, style)
}
