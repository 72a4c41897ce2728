//! Metrics compared with those of scikit-learn, the authors' code and pandas (golden/metrics.json), and their
//! properties.

use serde_json::Value;
use test_support::{golden, numbers, read_json};
use uqac::eval::metrics::{Binning, Confidence, Metric, Ranking, auprc, auroc, balanced_subsample, brier, ece};

const TOLERANCE: f64 = 1e-12;

struct Set {
    name: String,
    scores: Vec<f64>,
    labels: Vec<bool>,
    golden: Value,
}

fn sets() -> Option<Vec<Set>> {
    let all = read_json(&golden()?.join("metrics.json"));
    let set = |golden: &Value| Set {
        name: golden["kind"].as_str().unwrap().to_owned(),
        scores: numbers(&golden["score"]),
        labels: numbers(&golden["label"]).iter().map(|label| *label == 1.0).collect(),
        golden: golden.clone(),
    };
    Some(all.as_array().unwrap().iter().map(set).collect())
}

fn close(found: Option<f64>, expected: &Value, what: &str) {
    let (found, expected) = (found.unwrap(), expected.as_f64().unwrap());
    assert!((found - expected).abs() < TOLERANCE, "{what}: {found}, not {expected}");
}

#[test]
fn equal_to_scikit_learn_and_the_authors_code() {
    let Some(sets) = sets() else { return };
    assert!(!sets.is_empty());
    for Set { name, scores, labels, golden } in &sets {
        let levels = Ranking::of(scores, labels).levels();
        close(auroc(&levels), &golden["auroc"], &format!("{name}: AUROC"));
        close(auprc(&levels), &golden["auprc"], &format!("{name}: AUPRC"));
        close(brier(&levels), &golden["brier"], &format!("{name}: Brier"));
        close(ece(&levels, Binning::Left), &golden["ece20"], &format!("{name}: ECE"));
    }
}

#[test]
fn balanced_subsamples_are_those_that_pandas_draws() {
    let Some(sets) = sets() else { return };
    for Set { name, scores, labels, golden } in &sets {
        for expected in golden["balanced"].as_array().unwrap() {
            let seed = expected["seed"].as_u64().unwrap() as u32;
            let what = format!("{name}, seed {seed}");
            let sample = balanced_subsample(labels, seed);
            for (found, key) in sample.iter().zip(["correct", "incorrect"]) {
                assert_eq!(found.len() as u64, golden["balanced_n"].as_u64().unwrap(), "{what}");
                let first: Vec<f64> = numbers(&expected[key]);
                assert!(first.len() >= 5);
                let found: Vec<f64> = found.iter().take(first.len()).map(|i| *i as f64).collect();
                assert_eq!(found, first, "{what}: {key}");
            }
            let levels = Ranking::new(sample.concat().into_iter().map(|i| (i, scores[i], labels[i]))).levels();
            close(auroc(&levels), &expected["auroc"], &format!("{what}: AUROC"));
            close(ece(&levels, Binning::Left), &expected["ece20"], &format!("{what}: ECE"));
        }
    }
}

/// The definitions implemented literally, over pairs and over bins.
#[test]
fn equal_to_the_definitions_on_the_golden_sets() {
    let Some(sets) = sets() else { return };
    for Set { name, scores, labels, .. } in &sets {
        let levels = Ranking::of(scores, labels).levels();
        let class =
            |wanted: bool| scores.iter().zip(labels).filter(move |(_, label)| **label == wanted).map(|(s, _)| *s);
        let pairs: Vec<f64> = class(true)
            .flat_map(|right| {
                class(false)
                    .map(move |wrong| f64::from(u8::from(right > wrong)) + 0.5 * f64::from(u8::from(right == wrong)))
            })
            .collect();
        let mean = pairs.iter().sum::<f64>() / pairs.len() as f64;
        assert!((auroc(&levels).unwrap() - mean).abs() < TOLERANCE, "{name}: AUROC over pairs");
        let gap = |bin: usize| {
            let (low, high) = (bin as f64 * 0.05, if bin == 19 { 1.0 } else { (bin + 1) as f64 * 0.05 });
            let inside = |s: f64| (s > low && s <= high) || (bin == 0 && s == 0.0);
            scores
                .iter()
                .zip(labels)
                .filter(|(s, _)| inside(**s))
                .map(|(s, l)| s - f64::from(u8::from(*l)))
                .sum::<f64>()
                .abs()
        };
        let right = (0..20).map(gap).sum::<f64>() / scores.len() as f64;
        assert!((ece(&levels, Binning::Right).unwrap() - right).abs() < TOLERANCE, "{name}: ECE (a, b]");
    }
}

/// Metrics of a resampling by counts equal those of the explicitly repeated items.
#[test]
fn resampling_by_counts_is_resampling_of_items() {
    let Some(sets) = sets() else { return };
    for Set { name, scores, labels, .. } in &sets {
        let counts: Vec<u16> = (0..scores.len()).map(|i| ((i * i + 3) % 5 / 2) as u16).collect();
        let written: Vec<usize> = (0..scores.len()).flat_map(|i| vec![i; counts[i].into()]).collect();
        let pick = |i: &usize| (scores[*i], labels[*i]);
        let (s, l): (Vec<f64>, Vec<bool>) = written.iter().map(pick).unzip();
        let levels = Ranking::of(scores, labels).resampled(&counts);
        let direct = Ranking::of(&s, &l).levels();
        for metric in Metric::ALL {
            assert_eq!(metric.of(&levels, true), metric.of(&direct, true), "{name}: {}", metric.key());
        }
    }
}

#[test]
fn logarithms_rank_what_underflows() {
    let log = |rank: f64| Confidence { score: rank.exp(), rank };
    let items =
        [(0, log(-900.0), false), (1, log(-800.0), true), (2, log(-0.5), true), (3, log(f64::NEG_INFINITY), false)];
    let levels = Ranking::new(items).levels();
    let found: Vec<(f64, u32)> = levels.iter().map(|level| (level.score, level.correct)).collect();
    assert_eq!(found, [((-0.5f64).exp(), 1), (0.0, 1), (0.0, 0), (0.0, 0)]);
    assert_eq!(auroc(&levels), Some(1.0));
    // metrics that only read scores see the probabilities
    let by_score = Ranking::new(items.map(|(i, confidence, correct)| (i, confidence.score, correct))).levels();
    assert_eq!(by_score.len(), 2);
    assert_eq!(brier(&levels), brier(&by_score));
}
