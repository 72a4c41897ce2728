//! Costs of the evaluation's stages.

use super::{Item, Stage};
use std::collections::BTreeSet;

/// The stage that writes the response, which a model without a confidence needs, too.
pub const GENERATE: &str = "generate";

/// Seconds by stage: `generate` first, then the most expensive.
pub(super) fn stages(items: &[Item]) -> Vec<Stage> {
    let seconds_of = |item: &Item, name: &str| item.uq.seconds.get(name).copied().filter(|seconds| seconds.is_finite());
    let stage = |name: &str| {
        let through: Vec<&Item> = items.iter().filter(|item| seconds_of(item, name).is_some()).collect();
        let sum = |name: &str| through.iter().filter_map(|item| seconds_of(item, name)).sum::<f64>();
        let (seconds, generate) = (sum(name), sum(GENERATE));
        Stage {
            stage: name.to_owned(),
            items: through.len(),
            seconds,
            seconds_per_item: seconds / through.len().max(1) as f64,
            relative_to_generate: (generate > 0.0).then(|| seconds / generate),
        }
    };
    let names: BTreeSet<&str> = items.iter().flat_map(|item| item.uq.seconds.keys().map(String::as_str)).collect();
    let mut stages: Vec<Stage> = names.into_iter().map(stage).collect();
    let later = |stage: &Stage| stage.stage != GENERATE;
    stages.sort_by(|a, b| later(a).cmp(&later(b)).then(b.seconds.total_cmp(&a.seconds)));
    stages
}
