//! What each stage of the evaluation cost.

use super::{Item, Stage};
use std::collections::BTreeSet;

/// The stage that writes the response, which a model without a confidence needs, too.
pub const GENERATE: &str = "generate";

/// Seconds by stage: `generate` first, then the most expensive.
pub(super) fn stages(items: &[Item]) -> Vec<Stage> {
    let names: BTreeSet<&str> = items.iter().flat_map(|item| item.uq.seconds.keys().map(String::as_str)).collect();
    let mut stages: Vec<Stage> = names.into_iter().map(|name| stage(items, name)).collect();
    stages.sort_by(|a, b| {
        let later = |stage: &Stage| stage.stage != GENERATE;
        later(a).cmp(&later(b)).then(b.seconds.total_cmp(&a.seconds))
    });
    stages
}

fn stage(items: &[Item], name: &str) -> Stage {
    let seconds_of = |item: &Item, name: &str| item.uq.seconds.get(name).copied().filter(|seconds| seconds.is_finite());
    let through: Vec<(&Item, f64)> = items.iter().filter_map(|item| Some((item, seconds_of(item, name)?))).collect();
    let seconds: f64 = through.iter().map(|(_, seconds)| seconds).sum();
    let generate: f64 = through.iter().filter_map(|(item, _)| seconds_of(item, GENERATE)).sum();
    Stage {
        stage: name.to_owned(),
        items: through.len(),
        seconds,
        seconds_per_item: seconds / through.len().max(1) as f64,
        relative_to_generate: (generate > 0.0).then(|| seconds / generate),
    }
}
