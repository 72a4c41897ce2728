//! Methods on the items of a task: each on what it has scores of, and beside one of them on the items that both have.

use super::*;
use crate::eval::metrics::{Confidence, Ranking, interval, length_controlled_auroc, ranking};

/// The value of each of [`Metric::ALL`].
pub(super) type Row = [Option<f64>; Metric::ALL.len()];

/// A method over a choice of items, sorted.
pub(super) struct View {
    pub ranking: Ranking,
    pub probability: bool,
}

impl View {
    pub fn row(&self, levels: &[ranking::Level]) -> Row {
        Metric::ALL.map(|metric| metric.of(levels, self.probability))
    }

    /// With the intervals of what the resamples gave.
    fn measures(&self, resampled: &[Row]) -> Measures {
        let levels = self.ranking.levels();
        let (items, correct) = levels.iter().fold((0, 0), |(n, c), l| (n + l.items as usize, c + l.correct as usize));
        Measures { items, correct, metrics: estimates(&self.row(&levels), resampled) }
    }
}

pub(super) fn estimates(row: &Row, resampled: &[Row]) -> BTreeMap<Metric, Option<Estimate>> {
    let estimate = |i: usize| {
        let values: Vec<Option<f64>> = resampled.iter().map(|row| row[i]).collect();
        row[i].map(|value| Estimate { value, interval: interval(&values) })
    };
    Metric::ALL.into_iter().enumerate().map(|(i, metric)| (metric, estimate(i))).collect()
}

pub(super) fn minus(a: &Row, b: &Row) -> Row {
    std::array::from_fn(|i| Some(a[i]? - b[i]?))
}

/// A method's views of a task's items.
struct Views {
    answered: View,
    all: View,
    /// The items of which the method and the one it is compared with have scores, ranked by each of the two.
    own: View,
    base: View,
}

impl Views {
    /// `against`: the method that this one is compared with.
    fn new(items: &[Item], method: &Method, against: &Method) -> Views {
        let judged = |method: &'_ Method, items: &'_ [Item]| -> Vec<(usize, Confidence, bool)> {
            let each = items.iter().enumerate();
            each.filter_map(|(i, item)| item.judged(method).map(|(found, correct)| (i, found, correct))).collect()
        };
        let lowest = match (method.probability, method.log) {
            (true, None) => 0.0.into(),
            (true, Some(_)) => Confidence { score: 0.0, rank: f64::NEG_INFINITY },
            (false, _) => f64::NEG_INFINITY.into(),
        };
        let all = items
            .iter()
            .enumerate()
            .filter_map(|(i, item)| Some((i, item.confidence(method).unwrap_or(lowest), item.label(method)?)));
        let view = |ranking, method: &Method| View { ranking, probability: method.probability };
        let mine = judged(method, items);
        let both = |other: &Method, list: Vec<(usize, Confidence, bool)>| {
            Ranking::new(list.into_iter().filter(|(i, ..)| items[*i].judged(other).is_some()))
        };
        Views {
            answered: view(Ranking::new(mine.iter().copied()), method),
            all: view(Ranking::new(all), method),
            own: view(both(against, mine), method),
            base: view(both(method, judged(against, items)), against),
        }
    }

    /// The rows of one resample.
    fn rows(&self, counts: &[u16], levels: &mut Vec<ranking::Level>) -> Rows {
        let mut row = |view: &View| {
            view.ranking.resampled(counts, levels);
            view.row(levels)
        };
        let answered = row(&self.answered);
        let same = |view: &View| view.ranking.len() == self.answered.ranking.len(); // it is a part, or has it as one
        let all = if same(&self.all) { answered } else { row(&self.all) };
        let own = if same(&self.own) { answered } else { row(&self.own) };
        Rows { answered, all, own, base: row(&self.base) }
    }
}

/// The values of a method's [`Views`].
#[derive(Clone, Copy)]
struct Rows {
    answered: Row,
    all: Row,
    own: Row,
    base: Row,
}

/// Every method that has a score of an answered, graded item; and each of them beside `against`, on the items that both have.
pub(super) fn methods(
    items: &[Item],
    methods: &[Method],
    options: &AnalysisOptions,
) -> (Vec<MethodAnalysis>, Option<Common>) {
    let present: Vec<&Method> =
        methods.iter().filter(|method| items.iter().any(|item| item.judged(method).is_some())).collect();
    let Some(against) = present.iter().find(|method| method.key == options.against).or(present.first()) else {
        return (Vec::new(), None);
    };
    let views: Vec<Views> = present.iter().map(|method| Views::new(items, method, against)).collect();
    // [resample][method]: everything is compared on the same draw
    let resampled: Vec<Vec<Rows>> = options.resampling().run(items.len(), |counts| {
        let mut levels = Vec::new();
        views.iter().map(|views| views.rows(counts, &mut levels)).collect()
    });
    let rows =
        |method: usize, view: fn(&Rows) -> Row| -> Vec<Row> { resampled.iter().map(|r| view(&r[method])).collect() };
    let analysed = present.iter().zip(&views).enumerate().map(|(m, (method, views))| {
        let measures = (views.answered.measures(&rows(m, |r| r.answered)), views.all.measures(&rows(m, |r| r.all)));
        method_analysis(items, method, measures)
    });
    let compared = present.iter().zip(&views).enumerate().map(|(m, (method, views))| {
        let (own, base) = (&views.own, &views.base);
        let difference = minus(&own.row(&own.ranking.levels()), &base.row(&base.ranking.levels()));
        CommonMethod {
            method: method.key.clone(),
            measures: own.measures(&rows(m, |r| r.own)),
            difference: estimates(&difference, &rows(m, |r| minus(&r.own, &r.base))),
        }
    });
    let common = Common {
        against: against.key.clone(),
        items: items.iter().filter(|item| item.judged(against).is_some()).count(),
        methods: compared.collect(),
    };
    (analysed.collect(), (present.len() > 1).then_some(common))
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
    }
}
