//! The pictures of a report, drawn from its [`Analysis`].

use super::finding::CONTROLS;
use super::svg::{
    Bin, Curve, Picture, Point, Quantity, Reliability, Role, Row, Series, Spot, by_correctness, ece_accuracy,
    ece_auroc, forest, frontier, reliability, risk_coverage,
};
use super::tables::{
    Format::{Decimals, Interval},
    build::MAIN,
};
use crate::eval::analysis::{Analysis, Item, Method, RunAnalysis, TaskAnalysis};
use crate::eval::metrics::{self, Confidence, Level, MeanSd, Metric, Ranking};
use crate::{eval::analysis::methods::TASK_IDENTITY, order::sort_by};

/// A group of related pictures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gallery {
    pub heading: String,
    /// Secondary: collapsed on a page until opened.
    pub folded: bool,
    pub pictures: Vec<Picture>,
}

/// Every picture of a report: for each benchmark of each run, and across them. Names are unique and consist of
/// letters, digits, `.`, `-` and `_`, so that they can serve as file names.
pub fn galleries(analysis: &Analysis) -> Vec<Gallery> {
    let mut galleries = Vec::new();
    let benchmarks: Vec<(&RunAnalysis, &TaskAnalysis)> = analysis.benchmarks().collect();
    let mut taken: Vec<String> = Vec::new();
    for (run, task) in &benchmarks {
        let wanted = slug(&format!("{}_{}", run.name, task.task));
        let mut names = std::iter::once(format!("{wanted}_")).chain((2..).map(|n| format!("{wanted}.{n}_")));
        let Some(prefix) = names.find(|name| !taken.contains(name)) else { continue };
        galleries.extend(of_benchmark(analysis, run, task, if benchmarks.len() > 1 { &prefix } else { "" }));
        taken.push(prefix);
    }
    galleries.extend(across(analysis));
    galleries.retain(|gallery| !gallery.pictures.is_empty());
    galleries
}

/// Replaces every character other than letters, digits, `.`, `-` and `_`, and truncates the text.
fn slug(text: &str) -> String {
    const MAX_LENGTH: usize = 80;
    text.chars().take(MAX_LENGTH).map(|c| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' }).collect()
}

/// The method used as the confidence: the one that others are compared with, else the first.
fn main_method(analysis: &Analysis) -> Option<&Method> {
    analysis.methods.iter().find(|method| method.key == analysis.options.against).or(analysis.methods.first())
}

/// Every method on a benchmark, best first.
fn methods(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis, name: &str) -> Option<Picture> {
    let row = |method: &Method| {
        let answered = &task.method(&method.key)?.answered;
        // the calibration error has an interval only there
        let common = task.common.iter().flat_map(|common| &common.methods).find(|found| found.method == method.key);
        let measures = common.map_or(answered, |found| &found.measures);
        let measures = if measures.items == answered.items { measures } else { answered };
        let role = match method.key.as_str() {
            key if CONTROLS.contains(&key) => Role::Control,
            _ if main_method(analysis) == Some(method) => Role::Main,
            _ => Role::Other,
        };
        let (auroc, ece) = (measures.get(Metric::Auroc), measures.get(run.ece()));
        (auroc.is_some() || ece.is_some()).then(|| Row { method: method.name.clone(), role, auroc, ece })
    };
    let mut rows: Vec<Row> = analysis.rows_of(task).into_iter().filter_map(|(method, _)| row(method)).collect();
    let auroc = |row: &Row| row.auroc.map(|auroc| auroc.value);
    sort_by(&mut rows, |a, b| auroc(b).partial_cmp(&auroc(a)).unwrap_or(std::cmp::Ordering::Equal));
    let of = format!(
        "{} · {} · {} items · 95 % intervals, unless too few are right or wrong",
        run.name, task.task, task.summary.answered
    );
    (!rows.is_empty()).then(|| forest(name, &of, &rows))
}

/// The main scores, and those of more than a pass, at their cost; `None` if there are none of these.
fn costs(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis, name: &str) -> Option<Picture> {
    let mut series: Vec<Series> = Vec::new();
    let is_control = |key: &str| CONTROLS.contains(&key) || key == TASK_IDENTITY;
    let found = analysis.methods.iter().filter_map(|method| Some((method, task.method(&method.key)?)));
    for (method, found) in found {
        let (Some(passes), Some(auroc)) = (found.passes, found.answered.get(Metric::Auroc)) else { continue };
        // that of the majority is a ranking of other answers
        let (key, control) = (method.key.as_str(), is_control(&method.key));
        if method.own_answer || (passes == 1.0 && !control && !MAIN.contains(&key)) {
            continue;
        }
        let by_length = Decimals.show(found.length_controlled_auroc);
        let auroc_shown = Interval.show(Some(auroc));
        let note = format!("{}: AUROC {auroc_shown}, by length {by_length}, at {passes:.2} passes", method.name);
        let spot = Spot { passes, auroc, note };
        // those of more and more samples are a series
        let role = if control { ", a control" } else { "" };
        let name = format!("{}{role}", method.name.split(" (").next().unwrap_or_default());
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.spots.push(spot),
            None => series.push(Series { name, spots: vec![spot] }),
        }
    }
    series.iter_mut().for_each(|series| sort_by(&mut series.spots, |a, b| a.passes.total_cmp(&b.passes)));
    let of = format!(
        "{} · {} · 95 % intervals, unless too few are right or wrong · side by side: at one cost",
        run.name, task.task
    );
    let more = series.iter().flat_map(|series| &series.spots).any(|spot| spot.passes > 1.0);
    more.then(|| frontier(name, &of, &series))
}

/// Calibration error against accuracy and against ranking, if there is more than one point.
fn across(analysis: &Analysis) -> Vec<Gallery> {
    let Some(method) = main_method(analysis).filter(|method| method.probability) else { return Vec::new() };
    let point = |run: &RunAnalysis, task: &TaskAnalysis| Point {
        model: run.name.clone(),
        task: task.task.clone(),
        accuracy: task.summary.accuracy.unwrap_or(f64::NAN),
        auroc: task.method(&method.key).and_then(|m| m.answered.value(Metric::Auroc)).unwrap_or(f64::NAN),
        ece: task.method(&method.key).and_then(|m| m.answered.value(run.ece())).unwrap_or(f64::NAN),
    };
    let points: Vec<Point> = analysis.benchmarks().map(|(run, task)| point(run, task)).collect();
    if points.len() < 2 {
        return Vec::new();
    }
    let name = method.name.as_str();
    let pictures = vec![ece_accuracy("ece-accuracy", name, &points), ece_auroc("ece-auroc", name, &points)];
    vec![Gallery { heading: "Models and tasks".to_owned(), folded: false, pictures }]
}

/// A benchmark's pictures, and those for its further methods.
fn of_benchmark(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis, prefix: &str) -> [Gallery; 2] {
    let of = format!("{} · {}", run.name, task.task);
    let name = |picture: &str| format!("{prefix}{picture}");
    let main = main_method(analysis);
    let (mut first, mut further) = (Vec::from_iter(methods(analysis, run, task, &name("methods"))), Vec::new());
    first.extend(costs(analysis, run, task, &name("frontier")));
    for method in analysis.methods.iter().filter(|method| task.method(&method.key).is_some()) {
        let is_main = Some(method) == main;
        let pictures = if is_main { &mut first } else { &mut further };
        let named = |kind: &str| name(&format!("{kind}-{}", slug(&method.key)));
        if method.probability {
            let data = reliability_of(run, task, method);
            pictures.push(reliability(&named("reliability"), &method.name, &of, &data));
            let balanced = if is_main { balanced_reliability_of(run, task, method) } else { None };
            pictures.extend(balanced.map(|data| {
                let of = format!("{of} · balanced subsamples, mean ± σ");
                reliability(&name("reliability-balanced"), &method.name, &of, &data)
            }));
        }
        let scores = scored(task, method).map(|(found, correct)| (found.score, correct));
        let scores = quantity(&method.name, method.probability, scores);
        let title = format!("{} by correctness", method.name);
        pictures.push(by_correctness(&named("scores"), &title, &of, &[scores]));
    }
    let curves = curves(analysis, task);
    if !curves.is_empty() {
        first.push(risk_coverage(&name("risk-coverage"), &of, &curves));
    }
    if task.items.iter().any(Item::answered) {
        let lengths = |label: &str, length: fn(&Item) -> usize| {
            let answered = task.items.iter().filter(|item| item.answered());
            quantity(label, false, answered.filter_map(|item| Some((length(item) as f64, item.correct?))))
        };
        let lengths = [lengths("response (tokens)", |i| i.response_tokens), lengths("chain (tokens)", |i| i.chain)];
        first.push(by_correctness(&name("lengths"), "Lengths by correctness", &of, &lengths));
    }
    let further = Gallery { heading: format!("{of}: further methods"), folded: true, pictures: further };
    [Gallery { heading: of, folded: false, pictures: first }, further]
}

/// Values of items, split by whether their answers are correct.
fn quantity(label: &str, unit_interval: bool, numbers: impl Iterator<Item = (f64, bool)>) -> Quantity {
    let (correct, incorrect): (Vec<_>, Vec<_>) = numbers.partition(|(_, correct)| *correct);
    let [correct, incorrect] = [correct, incorrect].map(|group| group.into_iter().map(|(x, _)| x).collect());
    Quantity { label: label.to_owned(), unit_interval, correct, incorrect }
}

/// The answered items that are graded and have a score of the method.
fn scored<'a>(task: &'a TaskAnalysis, method: &'a Method) -> impl Iterator<Item = (Confidence, bool)> + 'a {
    task.items.iter().filter_map(|item| item.judged(method))
}

fn levels(task: &TaskAnalysis, method: &Method) -> Vec<Level> {
    Ranking::new(scored(task, method).enumerate().map(|(i, (found, correct))| (i, found, correct))).levels()
}

fn reliability_of(run: &RunAnalysis, task: &TaskAnalysis, method: &Method) -> Reliability {
    let (binning, levels) = (run.ece().binning(), levels(task, method));
    let (items, right) = levels.iter().fold((0, 0), |(items, right), l| (items + l.items, right + l.correct));
    let bins = metrics::reliability(&levels, binning);
    diagram(&[bins], metrics::ece(&levels, binning), f64::from(right) / f64::from(items))
}

/// Averaged over the paper's subsamples; `None` if there are none.
fn balanced_reliability_of(run: &RunAnalysis, task: &TaskAnalysis, method: &Method) -> Option<Reliability> {
    let balanced = task.method(&method.key)?.balanced.as_ref()?;
    let (scores, labels): (Vec<Confidence>, Vec<bool>) = scored(task, method).unzip();
    let each = metrics::balanced_reliability(&scores, &labels, run.ece().binning());
    Some(diagram(&each, balanced.get(run.ece()).map(|ece| ece.mean), 0.5))
}

/// The mean of several diagrams, with their spread if there is more than one.
fn diagram(each: &[Vec<metrics::Bin>], ece: Option<f64>, accuracy: f64) -> Reliability {
    let nothing = MeanSd { mean: f64::NAN, sd: f64::NAN };
    let (mut bins, mut items, mut weighted) = (Vec::new(), 0.0, 0.0);
    for i in 0..each.first().map_or(0, Vec::len) {
        let over = |value: fn(&metrics::Bin) -> Option<f64>| {
            MeanSd::of(&each.iter().filter_map(|bins| value(&bins[i])).collect::<Vec<_>>()).unwrap_or(nothing)
        };
        let (count, confidence) = (over(|bin| Some(bin.items.into())).mean, over(|bin| bin.confidence).mean);
        let MeanSd { mean: accuracy, sd } = over(|bin| bin.accuracy);
        let (interval, sd) = ((each[0][i].low, each[0][i].high), if each.len() > 1 { sd } else { f64::NAN });
        bins.push(Bin { interval, items: count.round() as usize, confidence, accuracy, sd });
        items += count;
        weighted += if count > 0.0 { count * confidence } else { 0.0 };
    }
    Reliability { bins, ece: ece.unwrap_or(f64::NAN), accuracy, confidence: weighted / items }
}

/// Number of best curves drawn; UQAC's and the control's are drawn in any case.
const BEST: usize = 3;

fn curves(analysis: &Analysis, task: &TaskAnalysis) -> Vec<Curve> {
    let main = main_method(analysis);
    let curve = |method: &Method| {
        let levels = levels(task, method);
        let points = metrics::risk_coverage(&levels).iter().map(|point| (point.coverage, point.risk)).collect();
        let always = main == Some(method) || CONTROLS.contains(&method.key.as_str());
        (always, Curve { method: method.name.clone(), points, aurc: metrics::aurc(&levels).unwrap_or(f64::NAN) })
    };
    let rows = analysis.rows_of(task).into_iter().filter(|(method, _)| task.method(&method.key).is_some());
    let mut curves: Vec<(bool, Curve)> = rows.map(|(method, _)| curve(method)).collect();
    let mut areas: Vec<f64> = curves.iter().map(|(_, curve)| curve.aurc).filter(|aurc| aurc.is_finite()).collect();
    areas.sort_by(f64::total_cmp);
    let bound = match task.too_few() {
        None => areas.get(BEST).copied().unwrap_or(f64::INFINITY),
        Some(_) => f64::NEG_INFINITY,
    };
    curves.retain(|(always, curve)| *always || curve.aurc < bound);
    curves.into_iter().map(|(_, curve)| curve).collect()
}
