//! `uqac calibrate`: turns graded runs into a confidence that is a probability.

use super::*;
use super::{options::load, options::locate, progress::work};
use crate::eval::analysis::calibrate::calibrate;
use crate::eval::calibration::{Calibration, Certified, Drawn, HeldOut, Uncertified};
use crate::{backend::DeviceChoice, engine::EngineOptions, eval::metrics::RiskControl, model::hub::locate_model};

/// Fit a score to graded answers, so that the confidence of ask, score and serve is a probability
///
/// Reads runs of `uqac eval` with one model. Selects the score (P, P(response), minimum token probability or G4) and the map
/// (Platt's sigmoid or, from 500 answers, isotonic regression) with the lowest cross-validated Brier score, and reports the error of
/// the whole procedure on held-out folds. `ask`, `score` and `serve` find the file by the hashes of the model's files, in the cache
/// folder, or next to the model as uqac-calibration.json.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    /// Run folders
    #[arg(required_unless_present_any = ["show", "remove"], value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Key of the score to map; auto: the best of p, response_prob, min_token_prob and g4
    #[arg(long, value_name = "KEY", default_value = "auto")]
    score: String,
    /// Certify a threshold above which at most this share of answers is wrong, for --abstain of ask, score and serve
    #[arg(long, value_name = "SHARE", value_parser = units::number(0f64.next_up()..1.0, SHARE))]
    target_risk: Option<f64>,
    /// Confidence level of --target-risk
    #[arg(long, value_name = "SHARE", value_parser = units::number(0f64.next_up()..1.0, SHARE), default_value_t = 0.95, requires = "target_risk")]
    risk_confidence: f64,
    /// Calibration file [default: in the cache folder, where ask, score and serve find it]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Seed of the cross-validation folds
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = units::whole::<u32>(0..=u32::MAX.into()))]
    seed: u32,
    /// Replace a calibration fitted on more answers (the output file's, and the one next to the model)
    #[arg(long)]
    replace: bool,
    /// Show the calibrations of this model
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["runs", "remove"])]
    show: Option<String>,
    /// Remove the calibration of this model from the cache folder; one beside the model stays
    #[arg(long, value_name = "MODEL", conflicts_with = "runs")]
    remove: Option<String>,
    /// Print the file's JSON object instead of text
    #[arg(long)]
    json: bool,
}

const SHARE: &str = "expected a number above 0 and below 1";

const EXAMPLES: &str = "\
Examples:
  uqac calibrate runs/qwen
  uqac calibrate runs/qwen --target-risk 0.1
  uqac calibrate --show Qwen/Qwen2.5-0.5B-Instruct";

pub fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    if let Some(model) = args.show.as_ref().or(args.remove.as_ref()) {
        return manage(model, args);
    }
    let score = Some(args.score.as_str()).filter(|score| *score != "auto");
    let risk = args.target_risk.map(|target| RiskControl { target, confidence: args.risk_confidence });
    let found = work("fitting and cross-validating", || calibrate(&args.runs, score, risk, args.seed))?;
    let found = Calibration { replaces: args.replace, ..found };
    let path = found.write(args.output.clone())?;
    show(args.json, &found, || text(&found))?;
    note(&format!("written to {}", path.display()));
    match used_instead(args, &found)? {
        Some(Calibration { items, tasks, .. }) if args.output.is_none() => note(&format!(
            "it is not used: the one beside the model has more answers ({items} of {}); --replace overrides that one",
            tasks.join(", ")
        )),
        _ => (),
    }
    Ok(())
}

/// The calibration that the model's commands find instead of the one just written.
fn used_instead(args: &CalibrateArgs, written: &Calibration) -> Result<Option<Calibration>, Failure> {
    let manifest: Option<serde_json::Value> = args.runs.first().and_then(|run| {
        serde_json::from_str(&files::read_to_string(&run.join("manifest.json"), files::MAX_SETTINGS).ok()?).ok()
    });
    let name = manifest.as_ref().and_then(|manifest| manifest["model"]["name"].as_str());
    let Some(folder) = name.and_then(|name| locate_model(name).ok()) else { return Ok(None) };
    Ok(Calibration::find(&folder, &written.model, &written.reading)?.filter(|used| used != written))
}

/// Shows or removes a model's calibrations.
fn manage(model: &str, args: &CalibrateArgs) -> Result<(), Failure> {
    let folder = locate(model)?;
    let on_cpu = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
    let known = Fingerprint::of(&folder, &load(&folder, on_cpu)?)?;
    if args.remove.is_some() {
        let removed = Calibration::remove(&known)?;
        note(&removed.map_or("there is none".to_owned(), |path| format!("removed {}", path.display())));
    }
    for (path, found) in Calibration::files(&folder, &known)? {
        let used = Calibration::find(&folder, &known, &found.reading)?.as_ref() == Some(&found);
        note(&format!("{}{}", path.display(), if used { "" } else { " (not used: another one is)" }));
        if args.show.is_some() {
            show(args.json, &found, || text(&found))?;
        }
    }
    Ok(())
}

fn text(found: &Calibration) -> String {
    let Calibration { items, correct, score, map, certified, uncertified, held_out, .. } = found;
    let HeldOut { ece, brier, brier_of_base_rate: alone, folds, .. } = held_out;
    let (map, tasks) = (map.name(score), found.tasks.join(", "));
    let auroc = held_out.auroc.map_or("–".to_owned(), |auroc| format!("{auroc:.3}"));
    let brier = format!("{brier:.3} (of the share of right answers alone {alone:.3})");
    let mut text = format!("confidence  {map}, fitted on {items} answers ({correct} right) of {tasks}\n");
    if let Some(Drawn { samples, temperature }) = found.samples {
        text += &format!(
            "            applies beside {samples} samples at temperature {temperature} (--samples {samples})\n"
        );
    }
    text += &format!("held out    ECE {ece:.3}, Brier {brier}, AUROC {auroc}, {folds} folds\n");
    for (chosen, folds) in &held_out.chosen {
        text += &format!("            on {folds} of them the choice was: {chosen}\n");
    }
    if let Some(Certified { target_risk, confidence, bound, coverage, .. }) = certified {
        text += &format!("certified   risk at most {target_risk} at confidence {confidence} (bound {bound:.3}): ");
        text += &format!("{:.1} % of these answers lie above the threshold\n", 100.0 * coverage);
    }
    if let Some(Uncertified { target_risk, confidence, lowest_risk, more_needed }) = uncertified {
        text += &format!(
            "uncertified no threshold holds a risk of {target_risk} at confidence {confidence}; the lowest is "
        );
        text += &match more_needed {
            Some(more) => format!("{lowest_risk:.3}, and about {more} more answers like these would be needed\n"),
            None => format!("{lowest_risk:.3}, and more answers like these would not help: too many are wrong\n"),
        };
    }
    text
}
