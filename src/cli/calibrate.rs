//! `uqac calibrate`: from graded runs to a confidence that is a probability.

use super::error::CliError;
use super::{note, print};
use crate::eval::analysis::calibrate::calibrate;
use crate::eval::calibration::Calibration;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Fit a score to graded answers, so that the confidence of ask and score is a probability
///
/// Reads runs of `uqac eval` with one model. Takes the score and the map (Platt's sigmoid, or from 500 answers on isotonic
/// regression) with the lowest cross-validated Brier score, and reports the error of the whole procedure on held-out parts.
/// `ask` and `score` find the file by the hashes of the model's files, in the cache folder, or beside the model as uqac-calibration.json.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  uqac calibrate runs/qwen\n  uqac calibrate runs/qwen --score answer_prob --output calibration.json"
)]
pub struct CalibrateArgs {
    /// Run folders
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Key of the score to map; auto: the best score of the response's own pass
    #[arg(long, value_name = "KEY", default_value = "auto")]
    score: String,
    /// Calibration file [default: in the cache folder, where ask and score find it]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Seed of the cross-validation's parts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Take the place of a calibration that was fitted on more answers (of the file's, and of the one beside the model)
    #[arg(long)]
    replace: bool,
    /// Print the file's JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: &CalibrateArgs) -> Result<ExitCode, CliError> {
    let score = Some(args.score.as_str()).filter(|score| *score != "auto");
    let found = Calibration { replaces: args.replace, ..calibrate(&args.runs, score, args.seed)? };
    let path = args.output.clone().map_or_else(|| found.cache_path(), Ok)?;
    found.write(&path)?;
    if args.json {
        print(&(serde_json::to_string(&found)? + "\n"))?;
    } else {
        print(&text(&found))?;
    }
    note(&format!("written to {}", path.display()));
    Ok(ExitCode::SUCCESS)
}

fn text(found: &Calibration) -> String {
    let Calibration { items, correct, tasks, score, map, held_out, .. } = found;
    let mut text = format!(
        "confidence  {}, fitted on {items} answers ({correct} right) of {}\n",
        map.name(score),
        tasks.join(", ")
    );
    text += &format!(
        "held out    ECE {:.3}, Brier {:.3} (of the share of right answers alone {:.3}), AUROC {}, {} folds\n",
        held_out.ece,
        held_out.brier,
        held_out.brier_of_base_rate,
        held_out.auroc.map_or("–".to_owned(), |auroc| format!("{auroc:.3}")),
        held_out.folds
    );
    for (chosen, folds) in &held_out.chosen {
        text += &format!("            on {folds} of them the choice was: {chosen}\n");
    }
    text
}
