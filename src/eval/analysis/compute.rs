//! Runs of items in, an [`Analysis`] out.

use super::load::Run;
use super::methods::TASK_IDENTITY;
use super::*;
use crate::eval::metrics::Binning;
use crate::eval::metrics::balanced::MeanSd;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn analysis(mut runs: Vec<Run>, options: &AnalysisOptions) -> Result<Analysis, AnalysisError> {
    runs.iter_mut().for_each(score_task_identity);
    let mut methods = methods_of(&runs);
    // the default may be missing: then the first method is compared with
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

/// Gives every answered item of a benchmark with several subtasks the accuracy of its own as a score: what knowing the subtask
/// alone is worth, at best, since the item itself is counted in it.
fn score_task_identity(run: &mut Run) {
    let mut subtasks: BTreeMap<String, BTreeMap<String, (f64, f64)>> = BTreeMap::new();
    let benchmark = |item: &Item| item.task.split(':').next().unwrap_or_default().to_owned();
    for item in run.items.values() {
        let Some(correct) = item.correct else { continue };
        let counts = subtasks.entry(benchmark(item)).or_default().entry(item.task.clone()).or_default();
        *counts = (counts.0 + f64::from(u8::from(correct)), counts.1 + 1.0);
    }
    for item in run.items.values_mut().filter(|item| item.answered()) {
        let among = subtasks.get(&benchmark(item)).filter(|among| among.len() > 1);
        if let Some((correct, all)) = among.and_then(|among| among.get(&item.task)) {
            item.scores.insert(TASK_IDENTITY.to_owned(), Some(correct / all));
        }
    }
}

/// Every method that any item has a score of.
fn methods_of(runs: &[Run]) -> Vec<Method> {
    let items = || runs.iter().flat_map(|run| run.items.values());
    let keys: BTreeSet<&str> = items()
        .flat_map(|item| item.scores.iter().filter(|(_, score)| score.is_some()).map(|(key, _)| key.as_str()))
        .collect();
    let mut methods: Vec<Method> =
        keys.iter().map(|key| Method::among(key, &keys, items().filter_map(|item| item.score(key)))).collect();
    methods.sort_by(|a, b| a.rank().cmp(&b.rank()));
    methods
}

/// The models' names; with the folder's where two are the same, and the folder's whole path where those are.
fn names_of(runs: &[Run]) -> Vec<String> {
    let folder_name = |run: &Run| run.folders[0].file_name().map(|name| name.to_string_lossy().into_owned());
    let model: Vec<String> = runs.iter().map(model_name).collect();
    let longer = |run: &Run| format!("{} ({})", model_name(run), folder_name(run).unwrap_or_default());
    let long: Vec<String> = runs.iter().map(longer).collect();
    let path = |run: &Run| format!("{} ({})", model_name(run), run.folders[0].display());
    let unique = |names: &[String], i: usize| names.iter().filter(|name| **name == names[i]).count() == 1;
    let name = |i: usize| match (unique(&model, i), unique(&long, i)) {
        (true, _) => model[i].clone(),
        (_, true) => long[i].clone(),
        _ => path(&runs[i]),
    };
    (0..runs.len()).map(name).collect()
}

fn model_name(run: &Run) -> String {
    let model = &run.manifest["model"];
    let name = model["name"].as_str().or(model.as_str()).filter(|name| !name.is_empty());
    name.map_or_else(
        || run.folders[0].file_name().map_or("run".into(), |name| name.to_string_lossy().into_owned()),
        str::to_owned,
    )
}

fn run_analysis(run: Run, name: String, methods: &[Method], options: &AnalysisOptions) -> RunAnalysis {
    let model = model_name(&run);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let profile = text(&run.manifest["options"]["profile"]);
    let binning = ece_of(profile.as_deref()).binning();
    let tasks: Vec<TaskAnalysis> = tasks_of(&run)
        .into_iter()
        .map(|(task, level, items)| task_analysis(task, level, items, methods, options, binning))
        .collect();
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

/// The run's tasks in the manifest's order (others after them), the subtasks of a benchmark after all of them together.
fn tasks_of(run: &Run) -> Vec<(String, Level, Vec<Item>)> {
    let mut benchmarks: BTreeMap<&str, BTreeMap<&str, Vec<Item>>> = BTreeMap::new();
    for item in run.items.values() {
        let benchmark = item.task.split(':').next().unwrap_or_default();
        benchmarks.entry(benchmark).or_default().entry(&item.task).or_default().push(item.clone());
    }
    let listed: Vec<&str> = run.manifest["tasks"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let place = |benchmark: &str| {
        let named = listed.iter().position(|task| task.split(':').next() == Some(benchmark));
        named.unwrap_or(usize::MAX)
    };
    let mut ordered: Vec<_> = benchmarks.into_iter().collect();
    ordered.sort_by_key(|(benchmark, _)| place(benchmark));
    let mut tasks = Vec::new();
    for (benchmark, subtasks) in ordered {
        if subtasks.len() == 1 {
            tasks.extend(subtasks.into_iter().map(|(task, items)| (task.to_owned(), Level::Benchmark, items)));
            continue;
        }
        tasks.push((benchmark.to_owned(), Level::Benchmark, subtasks.values().flatten().cloned().collect()));
        tasks.extend(subtasks.into_iter().map(|(task, items)| (task.to_owned(), Level::Subtask, items)));
    }
    tasks
}

fn task_analysis(
    task: String,
    level: Level,
    items: Vec<Item>,
    methods: &[Method],
    options: &AnalysisOptions,
    binning: Binning,
) -> TaskAnalysis {
    let (methods_here, common) = compare::methods(&items, methods, options);
    TaskAnalysis {
        task,
        level,
        summary: summary::summary(&items),
        methods: methods_here,
        common,
        controls: controls::controls(&items, methods, options),
        sweep: sweep::settings(&items, methods),
        early: early::curves(&items, methods, options),
        overhead: overhead::stages(&items),
        holdout: holdout::holdout(&items, methods, options, binning),
        items,
    }
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
