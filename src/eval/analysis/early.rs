//! Savings and costs of stopping low-confidence responses early, computed from responses that ran to completion, in
//! runs with a wide trace.

use super::*;
use super::{compare::estimates, summary::wilson};
use crate::names::Named;
use crate::{engine::running::Measure, engine::running::WINDOW, eval::metrics::Ranking, eval::metrics::auroc};

/// Shares of the responses stopped early by a curve's thresholds.
const SHARES: [f64; 7] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75];

/// A running confidence, and the effect of its thresholds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EarlyStopping {
    /// The name of a [`Measure`].
    pub measure: String,
    /// Tokens it is averaged over.
    pub window: usize,
    /// Graded items for which it was recorded, and the tokens of their responses.
    pub items: usize,
    pub tokens: usize,
    /// Starting with no response stopped.
    pub points: Vec<EarlyPoint>,
}

/// A threshold of a running confidence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EarlyPoint {
    /// `None`: no response ends early.
    pub threshold: Option<f64>,
    /// Responses stopped early, and how many of them had a correct answer.
    pub stopped: usize,
    pub right_stopped: usize,
    /// Share of tokens not generated.
    pub tokens_saved: f64,
    /// A response stopped early has no answer and counts as wrong.
    pub accuracy: f64,
    /// Wilson's 95 % score interval.
    pub accuracy_interval: Option<[f64; 2]>,
    /// The control: the expected accuracy if the same number of randomly chosen responses are stopped.
    pub accuracy_by_chance: f64,
    /// AUROC of [`AnalysisOptions::against`] among the responses not stopped.
    pub auroc: Option<Estimate>,
}

/// One curve for each running confidence the items have.
pub(super) fn curves(data: Data) -> Vec<EarlyStopping> {
    Measure::names().into_iter().filter_map(|measure| curve(data, measure)).collect()
}

fn curve(data: Data, measure: &str) -> Option<EarlyStopping> {
    let items = data.items.iter().enumerate();
    let recorded = items.filter_map(|(index, item)| {
        let (lows, correct) = (item.uq.running_lows.get(measure)?, item.correct?);
        // a low at the last token cannot stop the response early
        let before_end = lows.partition_point(|(tokens, _)| *tokens < item.response_tokens);
        Some(Response { index, item, lows: &lows[..before_end], correct })
    });
    let recorded: Vec<Response> = recorded.collect();
    let lowest = |response: &Response| response.lows.last().map_or(f64::INFINITY, |(_, low)| *low);
    let mut lowest: Vec<f64> = recorded.iter().map(lowest).collect();
    lowest.sort_by(f64::total_cmp);
    let place = |share: f64| (share * lowest.len() as f64) as usize;
    let mut thresholds: Vec<f64> = SHARES.iter().filter_map(|share| lowest.get(place(*share)).copied()).collect();
    thresholds.retain(|threshold| threshold.is_finite());
    thresholds.dedup();
    let tokens = recorded.iter().map(|response| response.item.response_tokens).sum();
    let point = |threshold| point(data, &recorded, tokens, threshold);
    (!thresholds.is_empty()).then(|| EarlyStopping {
        measure: measure.to_owned(),
        window: WINDOW,
        items: recorded.len(),
        tokens,
        points: std::iter::once(None).chain(thresholds.into_iter().map(Some)).map(point).collect(),
    })
}

/// A response and the successive lows of its running confidence.
struct Response<'a> {
    /// Of all the task's items.
    index: usize,
    item: &'a Item,
    /// (tokens written, running confidence), decreasing.
    lows: &'a [(usize, f64)],
    correct: bool,
}

fn point(data: Data, responses: &[Response], tokens: usize, threshold: Option<f64>) -> EarlyPoint {
    let against = data.methods.iter().find(|method| method.key == data.options.against);
    let (mut stopped, mut right, mut right_stopped, mut saved) = (0, 0, 0, 0);
    let mut judged = Vec::new();
    for response in responses {
        right += usize::from(response.correct);
        let below = |threshold| response.lows.iter().find(|(_, low)| *low < threshold);
        if let Some((written, _)) = threshold.and_then(below) {
            stopped += 1;
            right_stopped += usize::from(response.correct);
            saved += response.item.response_tokens - *written;
        } else if let Some((confidence, label)) = against.and_then(|method| response.item.judged(method)) {
            judged.push((response.index, confidence, label));
        }
    }
    let ranking = Ranking::new(judged);
    let auroc = estimates(data, |counts| vec![auroc(&ranking.resampled(counts))]);
    let n = responses.len();
    let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    EarlyPoint {
        threshold,
        stopped,
        right_stopped,
        tokens_saved: share(saved, tokens),
        accuracy: share(right - right_stopped, n),
        accuracy_interval: wilson(right - right_stopped, n),
        accuracy_by_chance: share(right, n) * (1.0 - share(stopped, n)),
        auroc: auroc[0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::analysis::load::tests::item;
    use std::collections::BTreeSet;

    #[test]
    fn a_threshold_ends_responses_where_they_first_fall_below_it() {
        // the running confidence of item i falls to i at half of its 100 tokens; the lower half is wrong
        let items: Vec<Item> = (0..20)
            .map(|i| {
                let mut item = item(i, i >= 10, f64::from(i as u32) / 20.0);
                item.response_tokens = 100;
                item.uq.running_lows =
                    BTreeMap::from([("entropy".to_owned(), vec![(20, 50.0), (50, i as f64), (100, -1.0)])]);
                item
            })
            .collect();
        let methods = [Method::of("p", &BTreeSet::from(["p"]), [0.5].into_iter())];
        let options = AnalysisOptions { resamples: 50, ..AnalysisOptions::default() };
        let curves = curves(Data { items: &items, methods: &methods, options: &options });
        let [EarlyStopping { items: 20, tokens: 2000, points, .. }] = &curves[..] else { panic!("{curves:?}") };
        let shown: Vec<(Option<f64>, usize, usize, f64, f64)> =
            points.iter().map(|p| (p.threshold, p.stopped, p.right_stopped, p.tokens_saved, p.accuracy)).collect();
        let expected = [
            (None, 0, 0, 0.0, 0.5),
            (Some(1.0), 1, 0, 0.025, 0.5),
            (Some(2.0), 2, 0, 0.05, 0.5),
            (Some(4.0), 4, 0, 0.1, 0.5),
            (Some(6.0), 6, 0, 0.15, 0.5),
            (Some(8.0), 8, 0, 0.2, 0.5),
            (Some(10.0), 10, 0, 0.25, 0.5),
            (Some(15.0), 15, 5, 0.375, 0.25),
        ];
        assert_eq!(shown, expected);
        assert_eq!(points[6].accuracy_by_chance, 0.25);
        assert_eq!(points[0].auroc.unwrap().value, 1.0);
        assert_eq!(points[6].auroc, None, "of one class only");
    }

    #[test]
    fn nothing_is_said_of_runs_without_a_wide_trace() {
        let data = Data { items: &[item(0, true, 0.5)], methods: &[], options: &AnalysisOptions::default() };
        assert_eq!(super::curves(data), []);
    }
}
