//! Which pictures a report has, drawn from its [`Analysis`].

use super::finding::CONTROLS;
use super::svg::{
    Bar, Bin, ByCorrectness, Curve, Picture, Point, Quantity, Reliability, by_correctness, ece_accuracy, ece_auroc,
    overhead, reliability, risk_coverage,
};
use crate::eval::analysis::{Analysis, Item, Method, RunAnalysis, Stage, SweepSetting, TaskAnalysis};
use crate::eval::metrics::balanced::MeanSd;
use crate::eval::metrics::{self, BalancedBin, Confidence, Level, Metric, Ranking};

/// Pictures that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gallery {
    pub heading: String,
    /// Of second rank: closed on a page until it is opened.
    pub folded: bool,
    pub pictures: Vec<Picture>,
}

/// Every picture of a report: of each benchmark of each run, and across them. Names are unique, and made of letters,
/// digits, `.`, `-` and `_`, so that they can be file names.
pub fn galleries(analysis: &Analysis) -> Vec<Gallery> {
    let mut galleries = across(analysis);
    let benchmarks: usize = analysis.runs.iter().map(|run| run.benchmarks().count()).sum();
    let mut names = Names { several: benchmarks > 1, taken: Vec::new() };
    for run in &analysis.runs {
        for task in run.benchmarks() {
            let prefix = names.prefix(run, task);
            galleries.extend(of_benchmark(analysis, run, task, &prefix));
        }
    }
    galleries.retain(|gallery| !gallery.pictures.is_empty());
    galleries
}

/// What stands before the names of a benchmark's pictures.
struct Names {
    several: bool,
    taken: Vec<String>,
}

impl Names {
    /// Nothing if there is only one benchmark in all.
    fn prefix(&mut self, run: &RunAnalysis, task: &TaskAnalysis) -> String {
        if !self.several {
            return String::new();
        }
        let wanted = slug(&format!("{}_{}", run.name, task.task));
        let mut name = wanted.clone();
        let mut n = 1;
        while self.taken.contains(&name) {
            n += 1;
            name = format!("{wanted}.{n}");
        }
        self.taken.push(name.clone());
        name + "_"
    }
}

/// The text with everything replaced that is no letter, digit, `.`, `-` or `_`.
fn slug(text: &str) -> String {
    const MAX_LENGTH: usize = 80;
    text.chars().take(MAX_LENGTH).map(|c| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' }).collect()
}

/// The method that stands for the confidence: the one that others are compared with, else the first.
fn main_method(analysis: &Analysis) -> Option<&Method> {
    let against = analysis.methods.iter().find(|method| method.key == analysis.options.against);
    against.or(analysis.methods.first())
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
    let points: Vec<Point> =
        analysis.runs.iter().flat_map(|run| run.benchmarks().map(move |task| point(run, task))).collect();
    if points.len() < 2 {
        return Vec::new();
    }
    let pictures =
        vec![ece_accuracy("ece-accuracy", &method.name, &points), ece_auroc("ece-auroc", &method.name, &points)];
    vec![Gallery { heading: "Models and tasks".to_owned(), folded: false, pictures }]
}

/// A benchmark's pictures, and those of its further methods.
fn of_benchmark(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis, prefix: &str) -> [Gallery; 2] {
    let of = format!("{} · {}", run.name, task.task);
    let name = |picture: &str| format!("{prefix}{picture}");
    let main = main_method(analysis).map(|method| method.key.as_str());
    let (mut first, mut further) = (Vec::new(), Vec::new());
    for method in analysis.methods.iter().filter(|method| task.method(&method.key).is_some()) {
        let pictures = if Some(method.key.as_str()) == main { &mut first } else { &mut further };
        if method.probability {
            let data = reliability_of(run, task, method);
            pictures.push(reliability(&name(&format!("reliability-{}", slug(&method.key))), &method.name, &of, &data));
            if Some(method.key.as_str()) == main
                && let Some(data) = balanced_reliability_of(run, task, method)
            {
                let of = format!("{of} · balanced subsamples, mean ± σ");
                pictures.push(reliability(&name("reliability-balanced"), &method.name, &of, &data));
            }
        }
        let (title, quantity) = (format!("{} by correctness", method.name), scores_of(task, method));
        pictures.push(by_correctness(&name(&format!("scores-{}", slug(&method.key))), &title, &of, &[quantity]));
    }
    let curves = curves(analysis, task);
    if !curves.is_empty() {
        first.push(risk_coverage(&name("risk-coverage"), &of, &curves));
    }
    if task.items.iter().any(Item::answered) {
        first.push(by_correctness(&name("lengths"), "Lengths by correctness", &of, &lengths(task)));
    }
    first.extend(settings(analysis, run, task).map(|(method, points)| ece_auroc(&name("settings"), &method, &points)));
    let bars = bars(&task.overhead);
    if bars.len() > 1 {
        first.push(overhead(&name("overhead"), &of, &bars));
    }
    let further_heading = format!("{of}: further methods");
    [
        Gallery { heading: of, folded: false, pictures: first },
        Gallery { heading: further_heading, folded: true, pictures: further },
    ]
}

/// The answered items that have a grade, and a score of the method.
fn scored<'a>(task: &'a TaskAnalysis, method: &'a Method) -> impl Iterator<Item = (Confidence, bool)> + 'a {
    task.items.iter().filter_map(|item| item.judged(method))
}

fn levels(task: &TaskAnalysis, method: &Method) -> Vec<Level> {
    Ranking::new(scored(task, method).enumerate().map(|(i, (found, correct))| (i, found, correct))).levels()
}

fn reliability_of(run: &RunAnalysis, task: &TaskAnalysis, method: &Method) -> Reliability {
    let binning = run.ece().binning();
    let levels = levels(task, method);
    let bin = |bin: metrics::Bin| Bin {
        interval: (bin.low, bin.high),
        items: bin.items as usize,
        confidence: bin.confidence.unwrap_or(f64::NAN),
        accuracy: bin.accuracy.unwrap_or(f64::NAN),
        sd: f64::NAN,
    };
    let mean = |value: fn(&Level) -> f64| {
        let items: f64 = levels.iter().map(|level| f64::from(level.items)).sum();
        levels.iter().map(value).sum::<f64>() / items
    };
    Reliability {
        bins: metrics::reliability(&levels, binning).into_iter().map(bin).collect(),
        ece: metrics::ece(&levels, binning).unwrap_or(f64::NAN),
        accuracy: mean(|level| f64::from(level.correct)),
        confidence: mean(|level| level.score * f64::from(level.items)),
    }
}

/// Over the paper's subsamples; `None` where there are none.
fn balanced_reliability_of(run: &RunAnalysis, task: &TaskAnalysis, method: &Method) -> Option<Reliability> {
    let balanced = task.method(&method.key)?.balanced.as_ref()?;
    let (scores, labels): (Vec<Confidence>, Vec<bool>) = scored(task, method).unzip();
    let mean = |value: Option<MeanSd>| value.map_or(f64::NAN, |value| value.mean);
    let bin = |bin: &BalancedBin| Bin {
        interval: (bin.low, bin.high),
        items: bin.items.round() as usize,
        confidence: mean(bin.confidence),
        accuracy: mean(bin.accuracy),
        sd: bin.accuracy.map_or(f64::NAN, |value| value.sd),
    };
    let bins = metrics::balanced_reliability(&scores, &labels, run.ece().binning());
    let weighted: f64 = bins.iter().filter_map(|bin| Some(bin.items * bin.confidence?.mean)).sum();
    let items: f64 = bins.iter().map(|bin| bin.items).sum();
    Some(Reliability {
        bins: bins.iter().map(bin).collect(),
        ece: mean(balanced.get(run.ece())),
        accuracy: 0.5,
        confidence: weighted / items,
    })
}

/// Settings of a sweep that a picture of them is worth.
const MIN_SETTINGS: usize = 3;

/// Of the method that sweeps are shown of: its name, and a point a setting, the parameter being the colour.
fn settings(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis) -> Option<(String, Vec<Point>)> {
    let method = main_method(analysis).filter(|method| method.probability)?;
    let point = |setting: &SweepSetting| {
        let found = setting.methods.iter().find(|found| found.method == method.key)?;
        let metric = |metric| found.metrics.get(&metric).copied().flatten().unwrap_or(f64::NAN);
        let parameters: Vec<&str> = setting.setting.keys().map(String::as_str).filter(|key| *key != "draw").collect();
        let model = if parameters.is_empty() { "the run's own".to_owned() } else { parameters.join(", ") };
        let accuracy = task.summary.accuracy.unwrap_or(f64::NAN);
        Some(Point { model, task: task.task.clone(), accuracy, auroc: metric(Metric::Auroc), ece: metric(run.ece()) })
    };
    let points: Vec<Point> = task.sweep.iter().filter_map(point).collect();
    (points.len() >= MIN_SETTINGS).then(|| (method.name.clone(), points))
}

fn scores_of(task: &TaskAnalysis, method: &Method) -> Quantity {
    let of = |wanted: bool| {
        let scored = scored(task, method).filter(|(_, correct)| *correct == wanted);
        scored.map(|(found, _)| found.score).collect()
    };
    let numbers = ByCorrectness { correct: of(true), incorrect: of(false) };
    Quantity { label: method.name.clone(), unit_interval: method.probability, numbers }
}

fn lengths(task: &TaskAnalysis) -> [Quantity; 2] {
    let quantity = |label: &str, length: fn(&Item) -> usize| {
        let of = |wanted: bool| {
            let items = task.items.iter().filter(move |item| item.answered() && item.correct == Some(wanted));
            items.map(|item| length(item) as f64).collect()
        };
        let numbers = ByCorrectness { correct: of(true), incorrect: of(false) };
        Quantity { label: label.to_owned(), unit_interval: false, numbers }
    };
    [quantity("response (tokens)", |item| item.response_tokens), quantity("chain (tokens)", |item| item.chain)]
}

/// How many of the best curves are drawn in colour, with UQAC's and the controls'.
const BEST: usize = 3;

fn curves(analysis: &Analysis, task: &TaskAnalysis) -> Vec<Curve> {
    let main = main_method(analysis);
    let curve = |method: &Method| {
        let levels = levels(task, method);
        let points = metrics::risk_coverage(&levels).iter().map(|point| (point.coverage, point.risk)).collect();
        let aurc = metrics::aurc(&levels).unwrap_or(f64::NAN);
        let highlighted = main == Some(method) || CONTROLS.contains(&method.key.as_str());
        Curve { method: method.name.clone(), points, aurc, highlighted }
    };
    let mut curves: Vec<Curve> =
        analysis.methods.iter().filter(|method| task.method(&method.key).is_some()).map(curve).collect();
    let mut best: Vec<&mut Curve> = curves.iter_mut().filter(|curve| curve.aurc.is_finite()).collect();
    best.sort_by(|a, b| a.aurc.total_cmp(&b.aurc));
    best.into_iter().take(BEST).for_each(|curve| curve.highlighted = true);
    curves
}

/// Stages that together make UQAC's confidence.
const UQAC: [&str; 3] = ["chain", "similarity", "ensemble"];

/// What each method takes on top of generation; the methods that read the same pass alone take nothing.
fn bars(stages: &[Stage]) -> Vec<Bar> {
    let relative = |stage: &Stage| stage.relative_to_generate.unwrap_or(f64::NAN);
    let bar = |method: String, more: f64| Bar { method, relative: 1.0 + more };
    let Some(generate) = stages.iter().position(|stage| stage.stage == "generate") else { return Vec::new() };
    let uqac: Vec<f64> = stages.iter().filter(|s| UQAC.contains(&s.stage.as_str())).map(relative).collect();
    let mut bars = vec![bar("single pass".to_owned(), 0.0)];
    if !uqac.is_empty() {
        bars.push(bar("UQAC P".to_owned(), uqac.iter().sum()));
    }
    let others = stages.iter().enumerate().filter(|(i, s)| *i != generate && !UQAC.contains(&s.stage.as_str()));
    bars.extend(others.map(|(_, stage)| bar(Method::of(&stage.stage, std::iter::empty()).name, relative(stage))));
    bars
}
