//! The responses under other parameters: how much chains, confidences and metrics change.

use super::controls::is_control;
use super::load::{SweepItem, confidence};
use super::*;
use crate::eval::metrics::{Confidence, Ranking};
use crate::eval::run::sweep::Setting;
use crate::order::sort_by;
use std::cmp::Ordering;

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
        methods: methods.iter().filter_map(|method| of_method(method, points)).collect(),
    }
}

fn of_method(method: &Method, points: &[(&Item, &SweepItem)]) -> Option<SweepMethod> {
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
