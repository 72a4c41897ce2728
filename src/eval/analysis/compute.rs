//! Computes an [`Analysis`] from runs of items.

use super::load::{Run, load};
use super::methods::{self, MOST_SAMPLES, TASK_IDENTITY, of_samples};
use super::*;
use crate::uq::{
    answer::Grader,
    scores::samples::{AGREEMENT, G4_AGREEMENT, sigmoid},
};
use crate::{eval::grading::normal_form, eval::metrics::MeanSd, files, order::sort_by};
use std::collections::{BTreeMap, BTreeSet};

/// Reads and analyses run folders. Shards of one run, in one folder or several, are merged.
pub fn analyse(folders: &[PathBuf], options: &AnalysisOptions) -> Result<Analysis, AnalysisError> {
    let mut runs = load(folders)?;
    runs.iter_mut().for_each(score_task_identity);
    for Run { items, .. } in &mut runs {
        let drawn = items.values().filter_map(|item| Some(item.samples()?.answers.len())).max();
        items.values_mut().for_each(|item| score_fewer_samples(item, drawn.unwrap_or(0)));
    }
    let mut methods = methods_of(&runs);
    // the default may be absent: then the first method is the baseline
    let against = Some(&options.against).filter(|key| **key != AnalysisOptions::default().against);
    if let Some(unknown) =
        options.methods.iter().chain(against).find(|key| !methods.iter().any(|method| method.key == **key))
    {
        let known = methods.into_iter().map(|method| method.key).collect();
        return Err(AnalysisError::NoMethod { method: unknown.clone(), known });
    }
    methods.retain(|method| options.methods.is_empty() || options.methods.contains(&method.key));
    let names = names_of(&runs);
    let runs = runs.into_iter().zip(names).map(|(run, name)| run_analysis(run, name, &methods, options)).collect();
    Ok(Analysis { format: FORMAT, options: options.clone(), methods, runs })
}

/// Adds, to every answered item of a benchmark with several subtasks, its subtask's accuracy as a score: what knowing the
/// subtask alone is worth at best, since the item itself is counted in it.
fn score_task_identity(run: &mut Run) {
    let mut tasks: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for item in run.items.values() {
        let Some(correct) = item.correct else { continue };
        let counts = tasks.entry(item.task.clone()).or_default();
        *counts = (counts.0 + f64::from(correct), counts.1 + 1.0);
    }
    for item in run.items.values_mut().filter(|item| item.answered()) {
        let among = tasks.keys().filter(|task| benchmark(task) == benchmark(&item.task)).count();
        if let Some((correct, all)) = tasks.get(&item.task).filter(|_| among > 1) {
            item.uq.scores.insert(TASK_IDENTITY.to_owned(), Some(correct / all));
        }
    }
}

/// Adds the scores of an answered item's first samples alone; of all that the run drew, where they are not recorded.
fn score_fewer_samples(item: &mut Item, drawn: usize) {
    let Some((samples, answer)) = item.samples().zip(item.uq.answer.as_ref()) else { return };
    // those of older versions: numbers and formulas, for which one grader does
    let form = |answer: &String| normal_form(answer, Grader::Math);
    let same = |other: &Option<String>| other.as_ref().is_some_and(|other| form(other) == form(&answer.text));
    let agrees = |n: usize| samples.agrees.get(n).copied().unwrap_or_else(|| same(&samples.answers[n]));
    let (g4, mut agreeing) = (item.score("g4").map(sigmoid), 0.0);
    for n in 1..=samples.answers.len().min(MOST_SAMPLES) {
        agreeing += f64::from(agrees(n - 1));
        let share = agreeing / n as f64;
        for (key, score) in [(AGREEMENT, Some(share)), (G4_AGREEMENT, g4.map(|sigma| share + sigma))] {
            if n < drawn || !item.uq.scores.contains_key(key) {
                item.uq.scores.insert(of_samples(key, n), score);
            }
        }
    }
}

/// `bbh` of `bbh:causal_judgement`.
fn benchmark(task: &str) -> &str {
    task.split(':').next().unwrap_or_default()
}

/// Every method that a run had or that any item has a score of.
fn methods_of(runs: &[Run]) -> Vec<Method> {
    let items = || runs.iter().flat_map(|run| run.items.values());
    let scores = items().flat_map(|item| &item.uq.scores).filter(|(_, score)| score.is_some());
    let mut keys: BTreeSet<&str> = scores.map(|(key, _)| key.as_str()).collect();
    keys.extend(runs.iter().flat_map(|run| methods::of_run(&run.manifest)));
    let mut methods: Vec<Method> =
        keys.iter().map(|key| Method::of(key, &keys, items().filter_map(|item| item.score(key)))).collect();
    sort_by(&mut methods, |a, b| a.rank().cmp(&b.rank()));
    methods
}

/// The models' names; with the folder's name where two coincide, and its full path where those do too.
fn names_of(runs: &[Run]) -> Vec<String> {
    let with = |what: fn(&Run) -> String| runs.iter().map(move |run| format!("{} ({})", model_name(run), what(run)));
    let short: Vec<String> = runs.iter().map(model_name).collect();
    let longer: Vec<String> = with(|run| files::name(&run.folders[0])).collect();
    let path: Vec<String> = with(|run| run.folders[0].display().to_string()).collect();
    let is_unique = |names: &[String], i: usize| names.iter().filter(|name| **name == names[i]).count() == 1;
    let name = |i: usize| [&short, &longer].into_iter().find(|names| is_unique(names, i)).unwrap_or(&path)[i].clone();
    (0..runs.len()).map(name).collect()
}

fn model_name(run: &Run) -> String {
    let model = &run.manifest["model"];
    let names = [model["name"].as_str(), model.as_str()].into_iter().flatten().map(str::to_owned);
    names.chain([files::name(&run.folders[0])]).find(|name| !name.is_empty()).unwrap_or_else(|| "run".to_owned())
}

fn run_analysis(run: Run, name: String, methods: &[Method], options: &AnalysisOptions) -> RunAnalysis {
    let model = model_name(&run);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let profile = text(&run.manifest["options"]["profile"]);
    let analysed = |(task, level, items): (String, Level, Vec<Item>)| {
        let data = Data { items: &items, methods, options };
        let (methods, common) = compare::methods(data);
        TaskAnalysis {
            task,
            level,
            summary: summary::summary(&items),
            methods,
            common,
            controls: controls::controls(data),
            sweep: controls::settings(data),
            early: early::curves(data),
            overhead: summary::stages(&items),
            items,
        }
    };
    let tasks: Vec<TaskAnalysis> = tasks_of(&run).into_iter().map(analysed).collect();
    let means = means(&tasks, methods);
    RunAnalysis {
        name,
        model,
        profile,
        device: text(&run.manifest["device"]),
        folders: run.folders,
        manifest: run.manifest,
        notes: run.notes,
        tasks,
        means,
    }
}

/// The run's tasks by name; a benchmark's subtasks follow their pooled entry.
fn tasks_of(run: &Run) -> Vec<(String, Level, Vec<Item>)> {
    let mut benchmarks: BTreeMap<&str, BTreeMap<&str, Vec<Item>>> = BTreeMap::new();
    for item in run.items.values() {
        benchmarks.entry(benchmark(&item.task)).or_default().entry(&item.task).or_default().push(item.clone());
    }
    let mut tasks = Vec::new();
    for (benchmark, subtasks) in benchmarks {
        let only = subtasks.len() == 1;
        if !only {
            tasks.push((benchmark.to_owned(), Level::Benchmark, subtasks.values().flatten().cloned().collect()));
        }
        let level = if only { Level::Benchmark } else { Level::Subtask };
        tasks.extend(subtasks.into_iter().map(|(task, items)| (task.to_owned(), level, items)));
    }
    tasks
}

fn means(tasks: &[TaskAnalysis], methods: &[Method]) -> Vec<MethodMeans> {
    let benchmarks: Vec<&TaskAnalysis> = tasks.iter().filter(|task| task.level == Level::Benchmark).collect();
    if benchmarks.len() < 2 {
        return Vec::new();
    }
    let mean = |key: &str, value: &dyn Fn(&MethodAnalysis) -> Option<f64>| {
        let values: Option<Vec<f64>> = benchmarks.iter().map(|task| task.method(key).and_then(value)).collect();
        values.and_then(|values| MeanSd::of(&values)).map(|spread| spread.mean)
    };
    let of_method = |method: &Method| {
        let key = method.key.as_str();
        let over = |value: &dyn Fn(&MethodAnalysis, Metric) -> Option<f64>| {
            Metric::ALL.into_iter().map(|metric| (metric, mean(key, &|method| value(method, metric)))).collect()
        };
        MethodMeans {
            method: method.key.clone(),
            benchmarks: benchmarks.len(),
            answered: over(&|method, metric| method.answered.value(metric)),
            balanced: over(&|method, metric| Some(method.balanced.as_ref()?.get(metric)?.mean)),
            length_controlled_auroc: mean(key, &|method| method.length_controlled_auroc),
        }
    };
    methods.iter().map(of_method).collect()
}
