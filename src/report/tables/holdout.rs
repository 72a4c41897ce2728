//! The tables of what was chosen on one half of the items and is shown on the other.

use super::columns::{
    MethodColumn, method_table, number, percent, percent_with_interval, plain, ranked, title, with_method,
};
use super::{NONE, Table};
use crate::eval::analysis::holdout::{Abstention, Answered, CalibrationErrors, HoldoutMethod};
use crate::eval::analysis::{Analysis, RunAnalysis, TaskAnalysis};
use crate::eval::metrics::Metric;

/// One for abstention and one for calibration, as far as they were asked for.
pub fn tables(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis) -> Vec<Table> {
    let Some(holdout) = &task.holdout else { return Vec::new() };
    let rows = with_method(analysis, &holdout.methods, |method| &method.method);
    let split = format!("{} items to choose on, {} held out", holdout.fitted, holdout.held_out);
    let abstain = analysis.options.target_risk.map(|risk| {
        let notes = vec![
            format!(
                "The lowest threshold above which at most {} of the answers are wrong with a probability of {}, by Clopper-Pearson \
                 bounds on one half (20 thresholds, Bonferroni), tried on the other ({split}).",
                shown(risk),
                shown(analysis.options.risk_confidence)
            ),
            "Coverage: answered, of all the half's questions; Best: most on the held-out half.".to_owned(),
        ];
        method_table(title(run, task, "when to answer"), &rows, &abstention(), notes)
    });
    let calibrate = analysis.options.calibrate.then(|| {
        let notes = vec![format!(
            "Fitted on one half, shown on the other ({split}). Platt: a sigmoid, of log-odds where the score is a probability."
        )];
        method_table(title(run, task, "calibrated"), &rows, &calibration(), notes)
    });
    abstain.into_iter().chain(calibrate).collect()
}

fn shown(risk: f64) -> String {
    format!("{} %", (risk * 1e6).round() / 1e4)
}

fn abstention() -> Vec<MethodColumn<'static, HoldoutMethod>> {
    let of = |m: &HoldoutMethod| m.abstention.clone();
    let threshold = move |m: &HoldoutMethod| {
        let threshold = of(m).and_then(|a| a.threshold);
        threshold.map_or(NONE.to_owned(), |value| {
            if value.abs() < 1e-3 && value != 0.0 { format!("{value:.2e}") } else { format!("{value:.4}") }
        })
    };
    let held_out = move |m: &HoldoutMethod| of(m).map(|a| a.held_out);
    let text = |pick: fn(&Abstention) -> Answered, show: fn(Answered) -> String| {
        move |m: &HoldoutMethod| of(m).map_or(NONE.to_owned(), |a| show(pick(&a)))
    };
    let risk = |answered: Answered| percent_with_interval(answered.risk, answered.risk_interval);
    vec![
        plain("Threshold", threshold),
        plain("Coverage, chosen on", text(|a| a.fitted, |answered| percent(Some(answered.coverage)))),
        plain("Risk", text(|a| a.fitted, |answered| percent(answered.risk))),
        plain("Bound", move |m| percent(of(m).and_then(|a| a.bound))),
        // more coverage is better, as with AUROC
        ranked(
            "Coverage, held out",
            Metric::Auroc,
            text(|a| a.held_out, |answered| percent(Some(answered.coverage))),
            move |m| held_out(m).map(|answered| answered.coverage),
        ),
        plain("Risk, held out [95 %]", text(|a| a.held_out, risk)),
    ]
}

fn calibration() -> Vec<MethodColumn<'static, HoldoutMethod>> {
    type Pick = fn(&HoldoutMethod) -> Option<CalibrationErrors>;
    let picks: [(&'static str, &'static str, Pick); 3] = [
        ("ECE, as is", "Brier, as is", |m| m.calibration.as_ref()?.as_is),
        ("ECE, Platt", "Brier, Platt", |m| Some(m.calibration.as_ref()?.platt)),
        ("ECE, isotonic", "Brier, isotonic", |m| Some(m.calibration.as_ref()?.isotonic)),
    ];
    let ece = |(head, _, pick): (&'static str, &'static str, Pick)| {
        let value = move |m: &HoldoutMethod| pick(m).map(|errors| errors.ece);
        ranked(head, Metric::Ece, move |m| number(value(m)), value)
    };
    let brier = |(_, head, pick): (&'static str, &'static str, Pick)| {
        let value = move |m: &HoldoutMethod| pick(m).map(|errors| errors.brier);
        ranked(head, Metric::Brier, move |m| number(value(m)), value)
    };
    let items = plain("n", |m: &HoldoutMethod| m.calibration.as_ref().map_or(0, |c| c.items).to_string());
    std::iter::once(items).chain(picks.map(ece)).chain(picks.map(brier)).collect()
}
