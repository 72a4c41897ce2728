//! The summary that opens a report: the run, the best method on each task, and UQAC compared with it and with the
//! controls.

use super::tables::Format::{Difference, Interval, Percent};
use crate::eval::analysis::{Analysis, Estimate, RunAnalysis, Summary, TaskAnalysis};
use crate::{eval::metrics::Metric, uq::Reading};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Keys of the control scores, which depend only on a response's length; any confidence has to beat them.
pub const CONTROLS: [&str; 1] = ["trace_length"];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub model: String,
    /// The run's settings: names and values.
    pub facts: Vec<(&'static str, String)>,
    pub verdicts: Vec<Verdict>,
}

/// The comparison of the methods on one task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    pub task: String,
    pub accuracy: String,
    /// The method with the highest AUROC and its value; `None` with too few answers.
    pub best: Option<(String, String)>,
    /// Number of methods compared.
    pub methods: usize,
    pub sentences: Vec<String>,
}

/// One finding per run.
pub fn findings(analysis: &Analysis) -> Vec<Finding> {
    let of_run = |run: &RunAnalysis| Finding {
        model: run.name.clone(),
        facts: facts(analysis, run),
        verdicts: run.benchmarks().map(|task| verdict(analysis, run, task)).collect(),
    };
    analysis.runs.iter().map(of_run).collect()
}

fn facts(analysis: &Analysis, run: &RunAnalysis) -> Vec<(&'static str, String)> {
    let from_manifest = |pointer: &str| match run.manifest.pointer(pointer) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let size = |task: &TaskAnalysis| format!("{} ({} items)", task.task, task.summary.items);
    let tasks: Vec<String> = run.benchmarks().map(size).collect();
    let (resamples, seed) = (analysis.options.resamples, analysis.options.seed);
    let facts = [
        ("Model", Some(run.model.clone())),
        ("Tasks", Some(tasks.join(", "))),
        ("Profile", Reading::deserialize(&run.manifest["options"]).ok().map(|reading| reading.to_string())),
        ("Device", run.device.clone()),
        ("Date", from_manifest("/started")),
        ("uqac", from_manifest("/version")),
        ("Seed", from_manifest("/options/seed")),
        ("Max tokens", from_manifest("/options/max_tokens")),
        ("Intervals", (resamples > 0).then(|| format!("95 %, {resamples} bootstrap resamples, seed {seed}"))),
        ("Command", from_manifest("/command")),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// A method's AUROC, and its paired difference to UQAC if both were computed on the same items.
struct Standing<'a> {
    key: &'a str,
    name: &'a str,
    auroc: Estimate,
    above: Option<Estimate>,
    ece: Option<f64>,
}

/// Methods with an AUROC, best first: on the items common to all methods if these cover nearly all answered items;
/// otherwise on each method's own items, for methods that score nearly all answered ones. Some methods also score items
/// without an answer.
fn standings<'a>(analysis: &'a Analysis, run: &RunAnalysis, task: &'a TaskAnalysis) -> Vec<Standing<'a>> {
    let items = task.summary.answered;
    let nearly_all = |n: usize| 10 * n >= 9 * items;
    let common = task.common.as_ref().filter(|common| nearly_all(common.items));
    let measured = |key: &str| match common {
        Some(common) => {
            let of = common.methods.iter().find(|method| method.method == key)?;
            Some((&of.measures, of.difference.get(&Metric::Auroc).copied().flatten()))
        }
        None => task.method(key).filter(|of| nearly_all(of.answered.items)).map(|of| (&of.answered, None)),
    };
    let standing = |key: &'a str, name: &'a str| {
        let (measures, above) = measured(key)?;
        Some(Standing { key, name, auroc: measures.get(Metric::Auroc)?, above, ece: measures.value(run.ece()) })
    };
    let rows = analysis.rows_of(task);
    let mut standings: Vec<_> = rows.iter().filter_map(|(method, _)| standing(&method.key, &method.name)).collect();
    crate::order::sort_by(&mut standings, |a, b| b.auroc.value.total_cmp(&a.auroc.value));
    standings
}

/// Over all items and, if responses were cut off, over the completed ones.
fn accuracy(summary: &Summary) -> String {
    let all = format!("{} of {} items right", Percent.show(summary.accuracy), summary.graded);
    let Summary { truncated, truncated_in_thought, accuracy_completed, .. } = *summary;
    if truncated == 0 {
        return all;
    }
    let completed = Percent.show(accuracy_completed);
    format!(
        "{all}, {completed} of the completed ones; {truncated} were cut off, {truncated_in_thought} in a thought, {} in the \
         reply",
        truncated - truncated_in_thought
    )
}

fn verdict(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis) -> Verdict {
    let too_few = task.too_few();
    let standings = if too_few.is_none() { standings(analysis, run, task) } else { Vec::new() };
    let against = standings.iter().find(|standing| standing.key == analysis.options.against);
    let mut sentences: Vec<String> = too_few.iter().map(|why| format!("{why}.")).collect();
    if let (Some(best), Some(uqac)) = (standings.first(), against) {
        if best.key == uqac.key {
            sentences.extend(standings.get(1).map(|next| compared(uqac, next, "the next best")));
        } else {
            let versus = compared(uqac, best, "the best");
            sentences.push(format!("{} has {}. {versus}", uqac.name, Interval.show(Some(uqac.auroc))));
        }
        let controls = standings.iter().filter(|standing| CONTROLS.contains(&standing.key) && standing.key != best.key);
        sentences.extend(controls.map(|control| compared(uqac, control, "a control")));
    }
    sentences.extend(beside_controls(analysis, task).filter(|_| too_few.is_none()));
    let calibrated = standings.iter().filter_map(|standing| Some((standing, standing.ece?)));
    if let Some((first, ece)) = calibrated.min_by(|(_, a), (_, b)| a.total_cmp(b)) {
        let own = against.filter(|uqac| uqac.key != first.key).and_then(|uqac| Some((uqac.name, uqac.ece?)));
        let own = own.map_or(String::new(), |(name, ece)| format!("; {name} has {ece:.3}"));
        sentences.push(format!("Calibrated best: {}, ECE {ece:.3}{own}.", first.name));
    }
    Verdict {
        task: task.task.clone(),
        accuracy: accuracy(&task.summary),
        best: standings.first().map(|best| (best.name.to_owned(), Interval.show(Some(best.auroc)))),
        methods: standings.len(),
        sentences,
    }
}

/// The chain against its controls, scored by the report's main method, or by P_attn if the controls have no such score.
fn beside_controls(analysis: &Analysis, task: &TaskAnalysis) -> Option<String> {
    let of = |key: &str| {
        let pairs = task.controls.iter().filter_map(|control| {
            let method = control.methods.iter().find(|method| method.method == key)?;
            Some((control.chain.as_str(), method.difference.get(&Metric::Auroc).copied().flatten()?))
        });
        beside(analysis.name_of(key), &pairs.collect::<Vec<_>>())
    };
    of(&analysis.options.against).or_else(|| of("p_attn"))
}

fn beside(name: &str, controls: &[(&str, Estimate)]) -> Option<String> {
    let each = |(chain, above): &(&str, Estimate)| {
        format!("{chain} {}{}", Difference.show(Some(*above)), significance(above.interval))
    };
    let all = controls.iter().map(each).collect::<Vec<_>>().join("; ");
    (!all.is_empty()).then(|| format!("{name} over the chain against the same over other tokens: {all}."))
}

fn significance(interval: Option<[f64; 2]>) -> &'static str {
    match interval {
        Some([low, _]) if low > 0.0 => ", better",
        Some([_, high]) if high < 0.0 => ", worse",
        Some(_) => ", no clear difference",
        None => "",
    }
}

/// UQAC against another method. Significance comes from the interval of the paired difference or, if the items differ,
/// from whether the two intervals overlap.
fn compared(uqac: &Standing<'_>, other: &Standing<'_>, role: &str) -> String {
    let value = other.above.map_or(uqac.auroc.value - other.auroc.value, |above| -above.value);
    let interval = other.above.and_then(|above| above.interval).map(|[low, high]| [-high, -low]);
    let apart = || {
        let ([low, high], [other_low, other_high]) = (uqac.auroc.interval?, other.auroc.interval?);
        Some([low - other_high, high - other_low])
    };
    let by = Difference.show(Some(Estimate { value, interval }));
    let significance = significance(interval.or_else(apart));
    format!("Against {}, {role} ({:.3}): {by}{significance}.", other.name, other.auroc.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(value: f64, interval: Option<[f64; 2]>, above: Option<(f64, [f64; 2])>) -> Standing<'static> {
        let estimate = |(value, interval)| Estimate { value, interval: Some(interval) };
        Standing { key: "k", name: "Name", auroc: Estimate { value, interval }, above: above.map(estimate), ece: None }
    }

    #[test]
    fn the_chain_is_put_beside_its_controls() {
        let above = |value, interval| Estimate { value, interval: Some(interval) };
        let controls = [("random", above(0.01, [-0.02, 0.04])), ("similarity", above(-0.05, [-0.08, -0.02]))];
        let expected = "P_attn over the chain against the same over other tokens: random +0.010 [-0.020, +0.040], no clear \
                        difference; similarity -0.050 [-0.080, -0.020], worse.";
        assert_eq!(beside("P_attn", &controls).as_deref(), Some(expected));
        assert_eq!(beside("P_attn", &[]), None);
    }

    #[test]
    fn what_is_more_than_chance_is_called_so() {
        let uqac = standing(0.7, Some([0.65, 0.75]), None);
        let says = |other: &Standing<'_>| compared(&uqac, other, "a control");
        let paired = standing(0.8, Some([0.7, 0.9]), Some((0.1, [0.02, 0.18])));
        assert_eq!(says(&paired), "Against Name, a control (0.800): -0.100 [-0.180, -0.020], worse.");
        let near = standing(0.72, Some([0.7, 0.9]), Some((0.02, [-0.03, 0.07])));
        assert_eq!(says(&near), "Against Name, a control (0.720): -0.020 [-0.070, +0.030], no clear difference.");
        let below = standing(0.5, Some([0.4, 0.6]), None);
        assert_eq!(says(&below), "Against Name, a control (0.500): +0.200, better.");
        let overlapping = standing(0.68, Some([0.6, 0.76]), None);
        assert_eq!(says(&overlapping), "Against Name, a control (0.680): +0.020, no clear difference.");
        assert_eq!(says(&standing(0.5, None, None)), "Against Name, a control (0.500): +0.200.");
    }
}
