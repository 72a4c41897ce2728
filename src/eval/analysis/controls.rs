//! The run's chain against its controls: the same scores of the same responses over chains not derived from attention.

use super::compare::{Row, View, by_metric, estimates, minus};
use super::load::{SweepItem, confidence};
use super::*;
use crate::eval::metrics::Confidence;
use crate::names::Named;
use crate::uq::ChainRule;
use std::collections::BTreeSet;

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
        let control = mean(&each.iter().map(|view| view.row(counts)).collect::<Vec<Row>>());
        let own = own.row(counts);
        [own, control, minus(&own, &control)].concat()
    });
    let [own, control, difference] = [0, 1, 2].map(|row| by_metric(&rows[row * Metric::ALL.len()..]));
    Some(ControlMethod { method: method.key.clone(), items: found.len(), own, control, difference })
}

/// The mean of each metric, if all rows have it.
fn mean(rows: &[Row]) -> Row {
    std::array::from_fn(|i| {
        let values: Option<Vec<f64>> = rows.iter().map(|row| row[i]).collect();
        values.map(|values| values.iter().sum::<f64>() / values.len().max(1) as f64)
    })
}
