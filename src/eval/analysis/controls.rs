//! The run's chain against its controls: the same scores of the same responses over chains not derived from attention.

use super::compare::{Row, View, by_metric, estimates, minus};
use super::load::{SweepItem, confidence};
use super::*;
use crate::eval::metrics::{Confidence, Ranking};
use crate::{eval::run::sweep::Setting, names::Named, order::sort_by, uq::ChainRule};
use std::{cmp::Ordering, collections::BTreeSet};

/// A control of the chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Control {
    /// `random`, `random-digits`, `digits-matched`, `random-content`, `similarity`, `none`.
    pub chain: String,
    /// Number of draws its metrics are averaged over.
    pub draws: usize,
    pub methods: Vec<ControlMethod>,
}

/// A score over the run's chain and over the control's, on the items with both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ControlMethod {
    pub method: String,
    pub items: usize,
    /// Over the run's own chain.
    pub own: BTreeMap<Metric, Option<Estimate>>,
    /// Over the control's: the mean over its draws, each measured separately.
    pub control: BTreeMap<Metric, Option<Estimate>>,
    /// `own` minus `control`, with the paired-bootstrap interval: resampling is over items, with all their draws.
    pub difference: BTreeMap<Metric, Option<Estimate>>,
}

/// A control's name and draw, if the setting differs in nothing else.
fn control_of(setting: &BTreeMap<String, Value>) -> Option<(&str, u64)> {
    let only = setting.keys().all(|key| key == "chain" || key == "draw");
    let chain = setting.get("chain").filter(|_| only)?.as_str().filter(|chain| *chain != "attention")?;
    Some((chain, setting.get("draw").and_then(Value::as_u64).unwrap_or(0)))
}

/// Whether an item's point is one of its controls, which are not listed among the other settings.
pub(super) fn is_control(point: &SweepItem) -> bool {
    control_of(&point.setting).is_some()
}

/// Every control present in any item, in the order of [`ChainRule`](crate::uq::ChainRule).
pub(super) fn controls(data: Data) -> Vec<Control> {
    let of_chain = |chain: &str| {
        let points = data.items.iter().flat_map(|item| &item.sweep);
        let controls = points.filter_map(|point| control_of(&point.setting).filter(|(name, _)| *name == chain));
        let draws: BTreeSet<u64> = controls.map(|(_, draw)| draw).collect();
        let uqac = data.methods.iter().filter(|method| method.group == Group::Uqac);
        let methods: Vec<ControlMethod> = uqac.filter_map(|method| of_method(data, method, chain, &draws)).collect();
        (!methods.is_empty()).then_some(Control { chain: chain.to_owned(), draws: draws.len(), methods })
    };
    ChainRule::names().into_iter().filter_map(of_chain).collect()
}

fn of_method(data: Data, method: &Method, chain: &str, draws: &BTreeSet<u64>) -> Option<ControlMethod> {
    let drawn = |item: &Item, draw: u64| -> Option<Confidence> {
        let point = item.sweep.iter().find(|point| control_of(&point.setting) == Some((chain, draw)))?;
        confidence(&point.scores, method)
    };
    // (item, own, by draw, whether it is right), for items with all draws
    let found = data.items.iter().enumerate().filter_map(|(i, item)| {
        let (own, correct) = item.judged(method)?;
        let all: Option<Vec<Confidence>> = draws.iter().map(|draw| drawn(item, *draw)).collect();
        all.filter(|all| !all.is_empty()).map(|all| (i, own, all, correct))
    });
    let found: Vec<(usize, Confidence, Vec<Confidence>, bool)> = found.collect();
    if found.is_empty() {
        return None;
    }
    let own = View::new(found.iter().map(|(i, own, _, correct)| (*i, *own, *correct)), method);
    let of_draw = |d: usize| View::new(found.iter().map(|(i, _, all, correct)| (*i, all[d], *correct)), method);
    let each: Vec<View> = (0..draws.len()).map(of_draw).collect();
    let rows = estimates(data, |counts| {
        let control = mean_row(&each.iter().map(|view| view.row(counts)).collect::<Vec<Row>>());
        let own = own.row(counts);
        [own, control, minus(&own, &control)].concat()
    });
    let [own, control, difference] = [0, 1, 2].map(|row| by_metric(&rows[row * Metric::ALL.len()..]));
    Some(ControlMethod { method: method.key.clone(), items: found.len(), own, control, difference })
}

/// The mean of each metric, if all rows have it.
fn mean_row(rows: &[Row]) -> Row {
    std::array::from_fn(|i| mean(rows.iter().map(|row| row[i]).collect::<Option<Vec<f64>>>()?.into_iter()))
}

// The responses under other parameters: how much chains, confidences and metrics change.

/// One entry for the run's own parameters, over the items that have a sweep, then one per setting; empty if no item has
/// one.
pub(super) fn settings(Data { items, methods, .. }: Data) -> Vec<SweepSetting> {
    let of_item = |item: &&'_ Item| item.answered() && item.sweep.iter().any(|point| !is_control(point));
    let swept: Vec<&Item> = items.iter().filter(of_item).collect();
    let points = || swept.iter().flat_map(|item| item.sweep.iter().map(move |point| (*item, point)));
    let mut found: Vec<&Setting> = points().filter(|(_, p)| !is_control(p)).map(|(_, p)| &p.setting).collect();
    sort_by(&mut found, |a, b| order(a, b));
    found.dedup();
    if found.is_empty() {
        return Vec::new();
    }
    let own = |item: &&Item| {
        let (setting, chain, scores) = (Setting::new(), item.chain, item.uq.scores.clone());
        SweepItem { setting, overlap: 1.0, chain, scores }
    };
    let own: Vec<SweepItem> = swept.iter().map(own).collect();
    let own: Vec<(&Item, &SweepItem)> = swept.iter().copied().zip(&own).collect();
    let mut settings = vec![of_setting(&Setting::new(), &own, methods)];
    for setting in found {
        let points: Vec<(&Item, &SweepItem)> = points().filter(|(_, point)| point.setting == *setting).collect();
        settings.push(of_setting(setting, &points, methods));
    }
    settings
}

/// Orders by the parameters that differ, then by value: numbers numerically.
fn order(a: &Setting, b: &Setting) -> Ordering {
    let value = |a: &Value, b: &Value| match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => a.to_string().cmp(&b.to_string()),
    };
    let values = || a.values().zip(b.values()).map(|(a, b)| value(a, b)).find(|order| order.is_ne());
    a.keys().cmp(b.keys()).then_with(|| values().unwrap_or(Ordering::Equal))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (n, sum) = values.fold((0, 0.0), |(n, sum), value| (n + 1, sum + value));
    (n > 0).then(|| sum / f64::from(n))
}

fn of_setting(setting: &Setting, points: &[(&Item, &SweepItem)], methods: &[Method]) -> SweepSetting {
    SweepSetting {
        setting: setting.clone(),
        items: points.len(),
        chain_overlap: mean(points.iter().map(|(_, point)| point.overlap)),
        same_chain: mean(points.iter().map(|(_, point)| f64::from(point.overlap == 1.0))),
        mean_chain: mean(points.iter().map(|(_, point)| point.chain as f64)),
        methods: methods.iter().filter_map(|method| swept(method, points)).collect(),
    }
}

fn swept(method: &Method, points: &[(&Item, &SweepItem)]) -> Option<SweepMethod> {
    let judged = |item: &Item, scores| Some((confidence(scores, method)?, item.label(method)?));
    let scored = points.iter().filter_map(|(item, point)| Some((*item, judged(item, &point.scores)?)));
    let scored: Vec<(&Item, (Confidence, bool))> = scored.collect();
    let levels = Ranking::new(scored.iter().enumerate().map(|(i, (_, (found, right)))| (i, *found, *right))).levels();
    let changes =
        || scored.iter().filter_map(|(item, (found, _))| Some((found.score - item.score(&method.key)?).abs()));
    (!scored.is_empty()).then(|| SweepMethod {
        method: method.key.clone(),
        items: scored.len(),
        metrics: Metric::ALL.into_iter().map(|metric| (metric, metric.of(&levels, method.probability))).collect(),
        mean_change: mean(changes()),
        largest_change: changes().reduce(f64::max),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_are_in_the_order_of_their_numbers() {
        let setting = |key: &str, value: Value| BTreeMap::from([(key.to_owned(), value)]);
        let mut settings = [
            setting("theta", json!(0.7)),
            setting("k", json!(16)),
            setting("k-cache", json!("f16")),
            setting("k", json!(8)),
        ];
        settings.sort_by(order);
        let values: Vec<String> = settings.iter().flat_map(|setting| setting.values()).map(Value::to_string).collect();
        assert_eq!(values, ["8", "16", "\"f16\"", "0.7"]);
    }
}
