//! `uqac calibrate`: from graded runs to a confidence that is a probability.

use super::error::CliError;
use super::{note, print};
use crate::eval::analysis::calibrate::calibrate;
use crate::eval::calibration::Calibration;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Fit the confidence that ask and score show to graded answers, so that it is a probability
///
/// Reads the folders of runs of `uqac eval` with one model. The map (Platt's sigmoid or isotonic regression) and the score that
/// it is of are those of the least cross-validated Brier score; what the whole procedure comes to is measured on parts that
/// it has not seen. The file is found by the hashes of the model's files, in the folder for caches, or beside the model
/// under the name uqac-calibration.json.
#[derive(Args)]
pub struct CalibrateArgs {
    /// Folders of runs
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The score that is mapped, by its key; auto: the best of those from the response's own pass
    #[arg(long, value_name = "KEY", default_value = "auto")]
    score: String,
    /// Where the file goes [default: where ask and score find it, in the folder for caches]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Seed of the parts of the cross-validation
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Print only a JSON object, what the file holds
    #[arg(long)]
    json: bool,
}

pub fn run(args: &CalibrateArgs) -> Result<ExitCode, CliError> {
    let score = Some(args.score.as_str()).filter(|score| *score != "auto");
    let found = calibrate(&args.runs, score, args.seed)?;
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
