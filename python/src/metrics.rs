//! The quality of confidences: the metrics of `uqac report`. Scores: higher is more confident; labels: whether the
//! answer is correct.

use crate::options::invalid;
use pyo3::prelude::*;
use uqac::internals::metrics::{self, Binning, Level, Metric, Ranking};

fn levels(scores: &[f64], labels: &[bool]) -> PyResult<Vec<Level>> {
    Ok(ranking(scores, labels)?.levels())
}

fn ranking(scores: &[f64], labels: &[bool]) -> PyResult<Ranking> {
    match scores.len() == labels.len() {
        true => Ok(Ranking::of(scores, labels)),
        false => Err(invalid(format!("{} scores, but {} labels", scores.len(), labels.len()))),
    }
}

fn named(key: &str) -> PyResult<Metric> {
    let keys = || Metric::ALL.map(Metric::key).join(", ");
    let found = Metric::ALL.into_iter().find(|metric| metric.key() == key);
    found.ok_or_else(|| invalid(format!("there is no metric \"{key}\"; valid names: {}", keys())))
}

/// The metric with this key; `None` if it is undefined.
#[pyfunction]
pub fn metric(key: &str, scores: Vec<f64>, labels: Vec<bool>) -> PyResult<Option<f64>> {
    Ok(named(key)?.of(&levels(&scores, &labels)?, true))
}

/// The 95 % percentile interval of a metric over resampled items.
#[pyfunction]
pub fn bootstrap(
    py: Python<'_>,
    key: &str,
    scores: Vec<f64>,
    labels: Vec<bool>,
    resamples: usize,
    seed: u32,
) -> PyResult<Option<(f64, f64)>> {
    let (metric, ranking) = (named(key)?, ranking(&scores, &labels)?);
    let of = |counts: &[u16]| metric.of(&ranking.resampled(counts), true);
    let values = py.detach(|| metrics::resampled(scores.len(), (resamples, seed), of));
    Ok(metrics::interval(&values).map(|[low, high]| (low, high)))
}

/// AUROC among responses of similar length.
#[pyfunction]
pub fn length_controlled_auroc(scores: Vec<f64>, lengths: Vec<usize>, labels: Vec<bool>) -> PyResult<Option<f64>> {
    if scores.len() != lengths.len() || scores.len() != labels.len() {
        return Err(invalid(format!("{} scores, {} lengths, {} labels", scores.len(), lengths.len(), labels.len())));
    }
    let items: Vec<(f64, usize, bool)> = (0..scores.len()).map(|i| (scores[i], lengths[i], labels[i])).collect();
    Ok(metrics::length_controlled_auroc(&items))
}

/// The bins of the reliability diagram, as JSON; `key` selects the binning: `ece` or `ece_right`.
#[pyfunction]
pub fn reliability(scores: Vec<f64>, labels: Vec<bool>, key: &str) -> PyResult<String> {
    let binning: Binning = named(key)?.binning();
    serde_json::to_string(&metrics::reliability(&levels(&scores, &labels)?, binning)).map_err(invalid)
}

/// The risk-coverage curve, as JSON.
#[pyfunction]
pub fn risk_coverage(scores: Vec<f64>, labels: Vec<bool>) -> PyResult<String> {
    serde_json::to_string(&metrics::risk_coverage(&levels(&scores, &labels)?)).map_err(invalid)
}
