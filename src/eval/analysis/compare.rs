//! Methods on a task's items: each on the items it scores, and against one of them on the items both score.

use super::methods::first_samples;
use super::*;
use crate::eval::metrics::{Confidence, Level, Ranking, interval, length_controlled_auroc, resampled};
use crate::eval::run::methods::METHODS;

/// The value of each of [`Metric::ALL`].
pub(super) type Row = [Option<f64>; Metric::ALL.len()];

/// Statistics of the items, with intervals over resamples. `statistics` is called with each item's count.
pub(super) fn estimates(data: Data, statistics: impl Fn(&[u16]) -> Vec<Option<f64>> + Sync) -> Vec<Option<Estimate>> {
    let Data { items, options, .. } = data;
    let resamples = if too_few(items).is_none() { options.resamples } else { 0 };
    let resampled = resampled(items.len(), (resamples, options.seed), &statistics);
    let estimate = |(i, value): (usize, Option<f64>)| {
        let values: Vec<Option<f64>> = resampled.iter().map(|row| row[i]).collect();
        value.map(|value| Estimate { value, interval: interval(&values) })
    };
    statistics(&vec![1; items.len()]).into_iter().enumerate().map(estimate).collect()
}

/// The estimates of a [`Row`] by metric.
pub(super) fn by_metric(row: &[Option<Estimate>]) -> BTreeMap<Metric, Option<Estimate>> {
    Metric::ALL.into_iter().zip(row.iter().copied()).collect()
}

pub(super) fn minus(a: &Row, b: &Row) -> Row {
    std::array::from_fn(|i| Some(a[i]? - b[i]?))
}

/// A method over a selection of items, sorted.
pub(super) struct View {
    ranking: Ranking,
    probability: bool,
}

impl View {
    /// From (item's index, confidence, whether its answer is right).
    pub fn new(judged: impl IntoIterator<Item = (usize, Confidence, bool)>, method: &Method) -> View {
        View { ranking: Ranking::new(judged), probability: method.probability }
    }

    /// The metrics with item i counted `counts[i]` times.
    pub fn row(&self, counts: &[u16]) -> Row {
        let levels = self.ranking.resampled(counts);
        Metric::ALL.map(|metric| metric.of(&levels, self.probability))
    }

    fn measures(&self, row: &[Option<Estimate>]) -> Measures {
        let sum = |part: fn(&Level) -> u32| self.ranking.levels().iter().map(part).sum::<u32>() as usize;
        Measures { items: sum(|level| level.items), correct: sum(|level| level.correct), metrics: by_metric(row) }
    }
}

/// A method's views of a task's items.
struct Views {
    answered: View,
    all: View,
    /// The items scored by both this method and the one it is compared with, ranked by each of the two.
    own: View,
    base: View,
}

impl Views {
    /// `against`: the method to compare with.
    fn new(items: &[Item], method: &Method, against: &Method) -> Views {
        let judged = |method: &Method| {
            let each = items.iter().enumerate();
            each.filter_map(|(i, item)| item.judged(method).map(|(found, right)| (i, found, right))).collect::<Vec<_>>()
        };
        let lowest = match (method.probability, method.log) {
            (true, None) => 0.0.into(),
            (true, Some(_)) => Confidence { score: 0.0, rank: f64::NEG_INFINITY },
            (false, _) => f64::NEG_INFINITY.into(),
        };
        let confidence = |item: &Item| item.confidence(method).unwrap_or(lowest);
        let all = items.iter().enumerate().filter_map(|(i, item)| Some((i, confidence(item), item.label(method)?)));
        let (mine, theirs) = (judged(method), judged(against));
        let both = |i: usize| items[i].judged(method).is_some() && items[i].judged(against).is_some();
        Views {
            answered: View::new(mine.iter().copied(), method),
            all: View::new(all, method),
            own: View::new(mine.into_iter().filter(|(i, ..)| both(*i)), method),
            base: View::new(theirs.into_iter().filter(|(i, ..)| both(*i)), against),
        }
    }

    /// Metrics over the answered items, over all, over those scored by both, and the difference there.
    fn rows(&self, counts: &[u16]) -> [Row; 4] {
        let answered = self.answered.row(counts);
        // one contains the other, so equal sizes mean equal views
        let same = |view: &View| view.ranking.items() == self.answered.ranking.items();
        let row = |view: &View| if same(view) { answered } else { view.row(counts) };
        let own = row(&self.own);
        [answered, row(&self.all), own, minus(&own, &self.base.row(counts))]
    }
}

/// Every method that scores an answered, graded item; and each compared with `against` on the items both score.
pub(super) fn methods(data: Data) -> (Vec<MethodAnalysis>, Option<Common>) {
    let Data { items, methods, options } = data;
    let present: Vec<&Method> =
        methods.iter().filter(|method| items.iter().any(|item| item.judged(method).is_some())).collect();
    let Some(against) = present.iter().find(|method| method.key == options.against).or(present.first()) else {
        return (Vec::new(), None);
    };
    let views: Vec<Views> = present.iter().map(|method| Views::new(items, method, against)).collect();
    // everything is compared on the same draw
    let all = estimates(data, |counts| views.iter().flat_map(|views| views.rows(counts)).flatten().collect());
    let rows: Vec<&[Option<Estimate>]> = all.chunks(Metric::ALL.len()).collect();
    let each = || present.iter().zip(&views).zip(rows.chunks(4));
    let analysed = each().map(|((method, views), rows)| {
        method_analysis(items, method, (views.answered.measures(rows[0]), views.all.measures(rows[1])))
    });
    let compared = each().map(|((method, views), rows)| CommonMethod {
        method: method.key.clone(),
        measures: views.own.measures(rows[2]),
        difference: by_metric(rows[3]),
    });
    let common = Common {
        against: against.key.clone(),
        items: items.iter().filter(|item| item.judged(against).is_some()).count(),
        methods: compared.collect(),
    };
    (analysed.collect(), (present.len() > 1).then_some(common))
}

/// The tokens that a method generated beside an item's response; `None` if it did not record them.
fn tokens(method: &Method, item: &Item) -> Option<u64> {
    let (key, n) = first_samples(&method.key).unwrap_or((&method.key, usize::MAX));
    let of = METHODS.iter().find(|of| of.scores.iter().any(|score| score.key == key));
    let Some(of) = of else { return Some(0) };
    let tokens = item.uq.details.get(&of.field())?["response_tokens"].as_array()?;
    tokens.iter().take(n).map(Value::as_u64).sum()
}

/// Over the items that the method scores.
fn passes(items: &[Item], method: &Method) -> Option<f64> {
    let scored = || items.iter().filter(|item| item.judged(method).is_some());
    let drawn = scored().map(|item| tokens(method, item)).sum::<Option<u64>>()?;
    Some(1.0 + drawn as f64 / scored().map(|item| item.response_tokens).sum::<usize>() as f64)
}

fn method_analysis(items: &[Item], method: &Method, (answered, all): (Measures, Measures)) -> MethodAnalysis {
    let judged = || items.iter().filter_map(|item| item.judged(method).map(|(found, label)| (item, found, label)));
    let (ranks, labels): (Vec<Confidence>, Vec<bool>) = judged().map(|(_, found, label)| (found, label)).unzip();
    let by_length: Vec<(f64, usize, bool)> =
        judged().map(|(item, found, label)| (found.rank, item.response_tokens, label)).collect();
    let missing = |item: &&Item| item.answered() && item.label(method).is_some() && item.confidence(method).is_none();
    MethodAnalysis {
        method: method.key.clone(),
        missing: items.iter().filter(missing).count(),
        answered,
        all,
        balanced: Balanced::of(&ranks, &labels, method.probability),
        length_controlled_auroc: length_controlled_auroc(&by_length),
        passes: passes(items, method),
    }
}
