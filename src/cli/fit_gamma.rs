//! `uqac fit-gamma`: fits γ to a model's own attention.

use super::*;
use super::{options::ModelArgs, progress::Progress};
use crate::backend::{DeviceChoice, entropy::Gamma};
use crate::engine::{Engine, EngineOptions, TraceParts};
use crate::eval::analysis::{for_each_line, sample_files};
use crate::eval::sample::Sample;
use crate::report::svg::gamma;
use crate::uq::gamma::{AttentionByDistance, GammaFit, MAX_NEAREST, NEAREST};

/// Fit γ, the discount of the nearest ten positions, to a model's own responses
///
/// Prints the mean attention by distance, over all heads and the responses of a run of `uqac eval`, and the γ that brings
/// the nearest C positions to the line through those at C + 1 and 20 (the published procedure), beside the published γ. Runs
/// on the CPU.
#[derive(Args)]
#[command(after_help = "Example:\n  uqac fit-gamma -m abacus runs/abacus --limit 20")]
pub struct FitGammaArgs {
    /// Folder of a run of `uqac eval` with this model
    #[arg(value_name = "FOLDER")]
    run: PathBuf,
    /// Number of responses
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// C: number of discounted positions
    #[arg(long, value_name = "C", default_value_t = NEAREST as u8, value_parser = clap::value_parser!(u8).range(1..=MAX_NEAREST as i64))]
    nearest: u8,
    /// Write attention by distance and γ as an SVG picture
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Print a JSON object only
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

pub fn run(args: &FitGammaArgs) -> Result<(), Failure> {
    let mut samples: Vec<Sample> = Vec::new();
    for file in sample_files(&args.run)? {
        let notes = for_each_line(&file, |sample: Sample| samples.push(sample))?;
        notes.iter().for_each(|what| note(&format!("note: {what}")));
    }
    samples.truncate(args.limit);
    let folder = args.model.folder()?;
    let options = EngineOptions { device: DeviceChoice::Cpu, gamma: Gamma::PUBLISHED, ..args.model.options() };
    let mut engine = Engine::load(&folder, options)?;
    let mut attention = AttentionByDistance::default();
    let mut progress = Progress::new(Some(samples.len() as u64), 1);
    for sample in &samples {
        measure(&mut engine, sample, &mut attention)?;
        progress.advance(false);
    }
    progress.finish();
    let fit = attention.fit(args.nearest.into()).ok_or(CliError::NoResponses(args.run.clone()))?;
    if let Some(path) = &args.picture {
        write(path, &gamma("gamma", &files::name(&folder), &fit).standalone())?;
    }
    Ok(show(args.json, &fit, || table(&fit, samples.len()))?)
}

/// Adds every row of a response, for every head.
fn measure(engine: &mut Engine, sample: &Sample, attention: &mut AttentionByDistance) -> Result<(), Failure> {
    let (tokens, prompt_len) = sample.sequence(engine.tokenizer())?;
    if tokens.len() == prompt_len {
        return Ok(());
    }
    let entropy = sample.uq.profile.rules().head_entropy;
    let every_head = TraceParts { heads: engine.spec().total_heads(), entropy, ..TraceParts::default() };
    let mut traced = engine.trace(&tokens, prompt_len, every_head)?;
    for row in prompt_len..tokens.len() {
        traced.head_rows(row)?.iter().for_each(|head| attention.add(head));
    }
    Ok(())
}

fn table(fit: &GammaFit, responses: usize) -> String {
    const WIDTH: f64 = 32.0;
    let max = fit.attention.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let mut text = format!(
        "attention by distance, mean of {} rows and heads of {responses} responses\n\n{:>8}  {:>9}  {:>9}  {:>9}\n",
        fit.rows, "distance", "attention", "γ", "published"
    );
    for (i, attention) in fit.attention.iter().enumerate() {
        let bar = "█".repeat((attention / max * WIDTH).round() as usize);
        let column = |gamma: Option<&f64>| gamma.map_or(" ".repeat(9), |gamma| format!("{gamma:>9.4}"));
        let gammas = format!("{}  {}", column(fit.gamma.get(i)), column(fit.published.get(i)));
        text += &format!("{:>8}  {attention:>9.5}  {gammas}  {bar}\n", i + 1);
    }
    let [from, to] = [fit.line.first(), fit.line.last()].map(|end| end.copied().unwrap_or_default());
    text += &format!("\nthe line through distances {} and {}: ", fit.gamma.len() + 1, fit.attention.len());
    text + &format!("{from:.5} to {to:.5}; rms difference from the published γ: {:.3}\n", fit.difference)
}
