//! Methods on the items of a task: each on what it has scores of, and all on the same items.

use super::*;
use crate::eval::metrics::{Ranking, interval, length_controlled_auroc, ranking};

/// The value of each of [`Metric::ALL`].
type Row = [Option<f64>; Metric::ALL.len()];

/// A method over a choice of items, sorted.
struct View {
    ranking: Ranking,
    probability: bool,
}

impl View {
    fn row(&self, levels: &[ranking::Level]) -> Row {
        Metric::ALL.map(|metric| metric.of(levels, self.probability))
    }

    /// With the intervals of what the resamples gave.
    fn measures(&self, resampled: &[Row]) -> Measures {
        let levels = self.ranking.levels();
        let (items, correct) = levels.iter().fold((0, 0), |(n, c), l| (n + l.items as usize, c + l.correct as usize));
        Measures { items, correct, metrics: estimates(&self.row(&levels), resampled) }
    }
}

fn estimates(row: &Row, resampled: &[Row]) -> BTreeMap<Metric, Option<Estimate>> {
    let estimate = |i: usize| {
        let values: Vec<Option<f64>> = resampled.iter().map(|row| row[i]).collect();
        row[i].map(|value| Estimate { value, interval: interval(&values) })
    };
    Metric::ALL.into_iter().enumerate().map(|(i, metric)| (metric, estimate(i))).collect()
}

fn minus(a: &Row, b: &Row) -> Row {
    std::array::from_fn(|i| Some(a[i]? - b[i]?))
}

/// A method's three views of a task's items.
struct Views {
    answered: View,
    all: View,
    common: View,
}

impl Views {
    /// `common`: the items of which every method has a score.
    fn new(items: &[Item], method: &Method, common: &[bool]) -> Views {
        let graded = || items.iter().enumerate().filter_map(|(i, item)| Some((i, item, item.correct?)));
        let scored = || graded().filter_map(|(i, item, correct)| Some((i, answered_score(item, method)?, correct)));
        let lowest = if method.probability { 0.0 } else { f64::NEG_INFINITY };
        let all = graded().map(|(i, item, correct)| (i, answered_score(item, method).unwrap_or(lowest), correct));
        let view = |ranking| View { ranking, probability: method.probability };
        Views {
            answered: view(Ranking::new(scored())),
            all: view(Ranking::new(all)),
            common: view(Ranking::new(scored().filter(|(i, ..)| common[*i]))),
        }
    }

    /// The rows of one resample: answered, all, common.
    fn rows(&self, counts: &[u16], levels: &mut Vec<ranking::Level>) -> [Row; 3] {
        let mut row = |view: &View| {
            view.ranking.resampled(counts, levels);
            view.row(levels)
        };
        let answered = row(&self.answered);
        let same = |view: &View| view.ranking.len() == self.answered.ranking.len(); // it is a part, or has it as one
        let all = if same(&self.all) { answered } else { row(&self.all) };
        let common = if same(&self.common) { answered } else { row(&self.common) };
        [answered, all, common]
    }
}

/// The score of an answered item.
fn answered_score(item: &Item, method: &Method) -> Option<f64> {
    item.score(&method.key).filter(|_| item.answered())
}

/// Every method that has a score of an answered, graded item; and all of them on their common items.
pub(super) fn methods(
    items: &[Item],
    methods: &[Method],
    options: &AnalysisOptions,
) -> (Vec<MethodAnalysis>, Option<Common>) {
    let has = |item: &Item, method: &Method| item.correct.is_some() && answered_score(item, method).is_some();
    let present: Vec<&Method> = methods.iter().filter(|method| items.iter().any(|item| has(item, method))).collect();
    let common: Vec<bool> = items.iter().map(|item| present.iter().all(|method| has(item, method))).collect();
    let views: Vec<Views> = present.iter().map(|method| Views::new(items, method, &common)).collect();
    // [resample][method]: everything is compared on the same draw
    let resampled: Vec<Vec<[Row; 3]>> = options.resampling().run(items.len(), |counts| {
        let mut levels = Vec::new();
        views.iter().map(|views| views.rows(counts, &mut levels)).collect()
    });
    let rows = |method: usize, view: usize| -> Vec<Row> { resampled.iter().map(|r| r[method][view]).collect() };
    let analysed = present.iter().zip(&views).enumerate().map(|(m, (method, views))| {
        let measures = (views.answered.measures(&rows(m, 0)), views.all.measures(&rows(m, 1)));
        method_analysis(items, method, measures)
    });
    let analysed = analysed.collect();
    let common_rows: Vec<Vec<Row>> = (0..present.len()).map(|m| rows(m, 2)).collect();
    (analysed, common_items(&present, &views, &common_rows, options))
}

fn method_analysis(items: &[Item], method: &Method, (answered, all): (Measures, Measures)) -> MethodAnalysis {
    let scored: Vec<(f64, usize, bool)> = items
        .iter()
        .filter_map(|item| Some((answered_score(item, method)?, item.response_tokens, item.correct?)))
        .collect();
    let (scores, labels): (Vec<f64>, Vec<bool>) = scored.iter().map(|(score, _, label)| (*score, *label)).unzip();
    let missing = |item: &&Item| item.answered() && item.correct.is_some() && answered_score(item, method).is_none();
    MethodAnalysis {
        method: method.key.clone(),
        missing: items.iter().filter(missing).count(),
        answered,
        all,
        balanced: Balanced::of(&scores, &labels, method.probability),
        length_controlled_auroc: length_controlled_auroc(&scored),
    }
}

fn common_items(
    present: &[&Method],
    views: &[Views],
    resampled: &[Vec<Row>],
    options: &AnalysisOptions,
) -> Option<Common> {
    if present.len() < 2 {
        return None;
    }
    let reference = present.iter().position(|method| method.key == options.against).unwrap_or(0);
    let row = |m: usize| views[m].common.row(&views[m].common.ranking.levels());
    let base = row(reference);
    let of_method = |m: usize| {
        let paired: Vec<Row> =
            resampled[m].iter().zip(&resampled[reference]).map(|(row, base)| minus(row, base)).collect();
        CommonMethod {
            method: present[m].key.clone(),
            measures: views[m].common.measures(&resampled[m]),
            difference: estimates(&minus(&row(m), &base), &paired),
        }
    };
    Some(Common {
        against: present[reference].key.clone(),
        items: views[reference].common.ranking.len(),
        methods: (0..present.len()).map(of_method).collect(),
    })
}
