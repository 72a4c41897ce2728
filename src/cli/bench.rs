//! `uqac bench`: what the method costs on this machine.

use super::error::CliError;
use super::{ModelArgs, count, note, print};
use crate::backend::DeviceChoice;
use crate::bench::predict::accelerators::{self, ACCELERATORS, Accelerator};
use crate::bench::predict::{self, Prediction};
use crate::bench::{MedianRange, Report, Settings, Stage, checkpoint, device, run as measure, shapes};
use crate::cache;
use crate::engine::LoadError;
use crate::model::ModelSpec;
use crate::report::term::colour::{Style, TermStyle};
use crate::report::term::layout::{Align, TextTable};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure what the method costs: decoding with and without the trace, prefill, and what follows the answer
///
/// Every stage runs once a round, beside the read bandwidth and the arithmetic peak that are measured in the same round;
/// medians are shown, and the range of the rounds. Compare figures of one run only.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  uqac bench -m Qwen/Qwen2.5-0.5B-Instruct\n  uqac bench --random-weights llama-3.1-8b/small --sweep 512,1k,2k\n  uqac bench --predict h100 --shape llama-3.1-8b"
)]
pub struct BenchArgs {
    /// A published shape with random weights instead of a model; NAME/small is it shrunken
    #[arg(long, value_name = "SHAPE", conflicts_with = "model", value_parser = shape)]
    random_weights: Option<String>,
    /// Measure nothing: predict what DEVICE takes, from counted instructions and published peaks (h100, h200, 4090, b200)
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["random_weights", "picture", "sweep"], value_parser = accelerator)]
    predict: Option<&'static Accelerator>,
    /// The shape that is predicted, unless a model is named (default: llama-3.1-8b)
    #[arg(long, value_name = "SHAPE", requires = "predict", conflicts_with = "model", value_parser = shape)]
    shape: Option<String>,
    /// Tokens of the prompt
    #[arg(long, value_name = "P", default_value = "512", value_parser = count(1..=MAX_TOKENS))]
    prompt_tokens: usize,
    /// Tokens of each response
    #[arg(long, value_name = "G", default_value = "128", value_parser = count(1..=MAX_TOKENS))]
    gen_tokens: usize,
    /// Sequences that are decoded together
    #[arg(long, value_name = "B", default_value = "1", value_parser = count(1..=1024))]
    batch: usize,
    /// Times that every stage is run
    #[arg(long, value_name = "N", default_value = "5", value_parser = count(1..=10_000))]
    rounds: usize,
    /// Variants of the ensemble, evenly spread over the response
    #[arg(long, value_name = "N", default_value = "8", value_parser = count(0..=10_000))]
    variants: usize,
    /// Samples of self-consistency
    #[arg(long, value_name = "N", default_value = "5", value_parser = count(0..=1000))]
    samples: usize,
    /// Contexts at whose end decoding is measured as well, such as 512,1k,2k,4k,8k
    #[arg(long, value_name = "T,...", value_delimiter = ',', value_parser = length)]
    sweep: Vec<usize>,
    /// MiB of memory that the bandwidth is measured with: many times the caches
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    buffer: u32,
    /// Write the run times of the methods as an SVG picture
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Nothing but a JSON object on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// More than any model's context.
const MAX_TOKENS: u64 = 1 << 24;

fn shape(name: &str) -> Result<String, String> {
    let names: Vec<&str> = shapes::SHAPES.iter().map(|shape| shape.name).collect();
    shapes::find(name).map(|_| name.to_owned()).ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

fn accelerator(name: &str) -> Result<&'static Accelerator, String> {
    let names: Vec<&str> = ACCELERATORS.iter().map(|accelerator| accelerator.name).collect();
    accelerators::find(name).ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

/// A number of tokens; `4k` is 4096.
fn length(text: &str) -> Result<usize, String> {
    let (digits, unit) = text.strip_suffix(['k', 'K']).map_or((text, 1), |digits| (digits, 1024));
    let tokens = digits.parse().ok().and_then(|n: usize| n.checked_mul(unit));
    tokens
        .filter(|n| (1..=MAX_TOKENS as usize).contains(n))
        .ok_or_else(|| "expected tokens, such as 512 or 4k".to_owned())
}

pub fn run(args: &BenchArgs) -> Result<ExitCode, CliError> {
    if let Some(device) = args.predict {
        return foretell(args, device);
    }
    let folder = match &args.random_weights {
        None => args.model.folder()?,
        Some(name) => random_weights(name, args.model.run.threads)?,
    };
    let name = folder.file_name().map_or_else(|| folder.display().to_string(), |name| name.display().to_string());
    // decided once, so that engine and machine are not two devices
    let mut run = args.model.run.clone();
    run.device = device::decided(run.device);
    let mut engine = run.load(&folder)?;
    // a device's buffers hold what its memory allows beside a model
    let bytes = (args.buffer as usize) << 20;
    let bytes = if let DeviceChoice::Cuda(_) = run.device { bytes.min(1 << 30) } else { bytes };
    let mut machine = device::machine(run.device, run.threads, bytes).map_err(crate::bench::BenchError::from)?;
    let settings = Settings {
        model: args.random_weights.as_ref().map_or(name, |shape| format!("{shape}, random weights")),
        prompt_tokens: args.prompt_tokens,
        gen_tokens: args.gen_tokens,
        batch: args.batch,
        rounds: args.rounds,
        variants: args.variants,
        samples: args.samples,
        sweep: args.sweep.clone(),
    };
    let report = measure(&mut engine, &mut machine, &settings, &mut note)?;
    if let Some(path) = &args.picture {
        let written = std::fs::write(path, report.picture().standalone());
        written.map_err(|source| CliError::File { path: path.clone(), source })?;
    }
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&report)?))?;
    } else {
        print(&tables(&report, TermStyle::of_stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a prediction.
fn foretell(args: &BenchArgs, device: &'static Accelerator) -> Result<ExitCode, CliError> {
    let (name, spec) = match args.model.named().filter(|_| args.shape.is_none()) {
        Some(_) => {
            let folder = args.model.folder()?;
            (folder.display().to_string(), ModelSpec::from_folder(&folder).map_err(LoadError::from)?)
        }
        None => {
            let name = args.shape.as_deref().unwrap_or(shapes::SHAPES[0].name);
            let config = published(name)?.config();
            (name.to_owned(), ModelSpec::from_config(&config).map_err(LoadError::from)?)
        }
    };
    let prediction = predict::predict(&spec, &name, device);
    let text = if args.json {
        format!("{}\n", serde_json::to_string(&prediction)?)
    } else {
        prediction_table(&prediction, TermStyle::of_stdout())
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn prediction_table(prediction: &Prediction, style: TermStyle) -> String {
    let mut table = TextTable::new([
        ("predicted, not measured", Align::Left),
        ("", Align::Right),
        ("range", Align::Right),
        ("", Align::Left),
        ("ms", Align::Right),
        ("of the floor", Align::Right),
        ("gaps", Align::Right),
        ("falsified by", Align::Left),
    ]);
    let percent = |share: Option<f64>| share.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share));
    for row in &prediction.rows {
        let digits = if row.predicted < 10.0 { 2 } else { 0 };
        let cells = [
            row.what.clone(),
            format!("{:.digits$}", row.predicted),
            format!("{:.digits$} to {:.digits$}", row.low, row.high),
            row.unit.clone(),
            row.seconds.map_or(String::new(), |seconds| format!("{:.2}", 1e3 * seconds)),
            percent(row.share_of_floor),
            percent(row.gap_share),
            row.falsified_by.clone(),
        ];
        table.row(cells.map(|cell| (cell, Style::PLAIN)));
    }
    let Prediction { note, device, source, shape, .. } = prediction;
    let head = style.paint(Style::BOLD, &format!("{shape} on {device}: {note}"));
    format!("{head}\n  bf16 weights, K cache f32, V cache f16 · peaks: {source}\n\n{}", table.render(style))
}

/// The shape of a name that the parser has taken.
fn published(name: &str) -> Result<shapes::ModelShape, CliError> {
    shapes::find(name).ok_or(CliError::Missing("the name of a published shape"))
}

/// The checkpoint of a shape, kept for the next time.
fn random_weights(name: &str, threads: usize) -> Result<PathBuf, CliError> {
    let shape = published(name)?;
    // in a folder of this user's own: others could have put links under a name that they know
    let private = cache::private(&std::env::temp_dir(), "uqac-random-weights");
    let folder = private.map_err(|(path, source)| CliError::File { path, source })?.join(name.replace('/', "-"));
    note(&format!("random weights, {:.1} GB, in {}", shape.byte_len() as f64 / 1e9, folder.display()));
    checkpoint::write(&folder, &shape, threads).map_err(|source| CliError::File { path: folder.clone(), source })?;
    Ok(folder)
}

fn tables(report: &Report, style: TermStyle) -> String {
    let peak =
        report.arithmetic_peak.map_or(String::new(), |peak| format!(", {:.0} GFLOP/s in f32", peak.median / 1e9));
    let mut text = format!(
        "{}\n  {} · {} weights, {:.0} MB a decode step · K cache {}, V cache {}\n  reads at {:.1} GB/s ({:.1} to {:.1}){peak}\n\n",
        style.paint(Style::BOLD, &report.settings.model),
        report.device,
        report.weights,
        report.weight_bytes_per_step as f64 / 1e6,
        report.k_cache,
        report.v_cache,
        report.bandwidth.median / 1e9,
        report.bandwidth.min / 1e9,
        report.bandwidth.max / 1e9,
    );
    text += &stage_table(&report.stages, style);
    text += &format!("\n  the trace adds {} to a decode step,\n", percents(&report.trace_overhead_percent));
    text += &format!("  a wide one {},\n", percents(&report.wide_trace_overhead_percent));
    text += &format!("  a wide one with every head's attention {}\n", percents(&report.head_trace_overhead_percent));
    text += &format!("  one with every layer's mean hidden state {}\n", percents(&report.layer_trace_overhead_percent));
    text += &format!("  links of the chain: {}\n", report.chain_links);
    if !report.sweep.is_empty() {
        text += &format!("\n{}", sweep_table(report, style));
    }
    text
}

fn percents(range: &MedianRange) -> String {
    format!("{:+.1} % ({:+.1} to {:+.1})", range.median, range.min, range.max)
}

fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}

fn stage_table(stages: &[Stage], style: TermStyle) -> String {
    let mut table = TextTable::new([
        ("stage", Align::Left),
        ("", Align::Left),
        ("seconds", Align::Right),
        ("range", Align::Right),
        ("tokens/s", Align::Right),
        ("GB/s", Align::Right),
        ("GFLOP/s", Align::Right),
        ("of the limit", Align::Right),
        ("× generation", Align::Right),
        ("peak MiB", Align::Right),
    ]);
    let number = |x: Option<f64>| x.map_or(String::new(), |x| format!("{x:.1}"));
    for stage in stages {
        let share = stage.share_of_bandwidth.or(stage.share_of_arithmetic);
        let cells = [
            stage.stage.to_owned(),
            stage.what.clone(),
            format!("{:.4}", stage.seconds.median),
            format!("{:.4} to {:.4}", stage.seconds.min, stage.seconds.max),
            number(stage.tokens_per_second),
            number(stage.gb_per_second),
            number(stage.gflop_per_second),
            share.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share)),
            format!("{:.3}", stage.relative_to_generation),
            stage.peak_bytes.map_or(String::new(), mib),
        ];
        table.row(cells.map(|cell| (cell, Style::PLAIN)));
    }
    table.render(style)
}

fn sweep_table(report: &Report, style: TermStyle) -> String {
    let mut table = TextTable::new([
        ("context", Align::Right),
        ("prefill tokens/s", Align::Right),
        ("plain tokens/s", Align::Right),
        ("traced tokens/s", Align::Right),
        ("the trace adds", Align::Right),
        ("GB/s", Align::Right),
        ("of the bandwidth", Align::Right),
        ("cache MiB", Align::Right),
        ("scored in s", Align::Right),
        ("and MiB", Align::Right),
    ]);
    for row in &report.sweep {
        let extra = row.score.and_then(|score| score.extra_bytes);
        let cells = [
            row.context.to_string(),
            format!("{:.0}", row.prefill_tokens_per_second),
            format!("{:.1}", row.plain_tokens_per_second.median),
            format!("{:.1}", row.traced_tokens_per_second.median),
            percents(&row.trace_overhead_percent),
            format!("{:.1}", row.gb_per_second),
            format!("{:.0} %", 100.0 * row.share_of_bandwidth),
            mib(row.cache_bytes),
            row.score.map_or(String::new(), |score| format!("{:.2}", score.seconds.median)),
            extra.map_or(String::new(), mib),
        ];
        table.row(cells.map(|cell| (cell, Style::PLAIN)));
    }
    table.render(style)
}
