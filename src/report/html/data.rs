//! What the page's script gets of each item, as compact JSON.

use super::tokens::segments;
use crate::eval::analysis::Method;
use crate::eval::sample::{Sample, Uq};
use crate::io::record::Status;
use crate::report::term::sanitize::visible;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// How an item's answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Correct,
    Incorrect,
    NoAnswer,
    NotGraded,
    Error,
}

impl Outcome {
    /// From the status and the `acc` metric of a sample.
    pub fn of(sample: &Sample) -> Outcome {
        match sample.uq.status {
            Status::Error => Outcome::Error,
            Status::NoAnswer => Outcome::NoAnswer,
            Status::Ok => match sample.metrics.get("acc") {
                None => Outcome::NotGraded,
                Some(acc) if *acc >= 0.5 => Outcome::Correct,
                Some(_) => Outcome::Incorrect,
            },
        }
    }
}

/// Whether the response was cut off.
pub fn truncated(sample: &Sample) -> bool {
    sample.uq.finish.is_cut_off()
}

/// An item as the script reads it (`items.js` has the same names). Tokens are indices into `tokens`: row r of the chain
/// is the token r + 1 that it predicts. All text is made harmless to show.
#[derive(Serialize)]
struct PageItem<'a> {
    /// Where it is not the run's, but a subtask.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    id: usize,
    outcome: Outcome,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    question: String,
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// In the order of the page's methods.
    scores: Vec<Option<f64>>,
    tokens: Vec<String>,
    gaps: Vec<(usize, String)>,
    /// Probability of each token.
    p: Vec<Option<f64>>,
    /// Token, φ, similarity, the token whose row it was reached from.
    chain: Vec<(i64, f64, f64, Option<i64>)>,
    kept: Vec<i64>,
    /// First token of the answer, and the one after its last.
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<[usize; 2]>,
    /// The replaced token (`null`: none, the response itself), the text put in its place, and the member's share of P.
    ensemble: Vec<(Option<usize>, &'a str, f64)>,
}

/// The items of a run, made ready one by one, so that no more than the page's text is kept of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Items {
    /// The run's task.
    task: String,
    /// JSON by task and doc_id.
    items: BTreeMap<(String, usize), String>,
    bytes: usize,
    limit: usize,
    left_out: usize,
}

impl Items {
    /// For a run's task; at most `limit` bytes.
    pub fn new(task: &str, limit: usize) -> Items {
        Items { task: task.to_owned(), limit, ..Items::default() }
    }

    /// Adds an item, with its scores of these methods; one that is there already is replaced. Once the limit is reached,
    /// items are only counted.
    pub fn add(&mut self, sample: &Sample, methods: &[Method]) {
        let key = (sample.task.clone(), sample.doc_id);
        let json = item(&self.task, sample, methods);
        let replaced = self.items.get(&key).map_or(0, String::len);
        if (self.left_out > 0 && replaced == 0) || self.bytes - replaced + json.len() > self.limit {
            self.left_out += usize::from(replaced == 0);
            return;
        }
        self.bytes = self.bytes - replaced + json.len();
        self.items.insert(key, json);
    }

    /// How many items there was no room for.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// A JSON array, a line an item.
    pub fn json(&self) -> String {
        format!("[{}]", self.items.values().map(String::as_str).collect::<Vec<_>>().join(",\n"))
    }
}

fn item(task: &str, sample: &Sample, methods: &[Method]) -> String {
    let uq = &sample.uq;
    let response = sample.resps.first().and_then(|resps| resps.first()).map_or("", String::as_str);
    let cut = segments(response, &uq.tokens.offsets);
    let answer = sample.filtered_resps.first().cloned().flatten().or_else(|| Some(uq.answer.as_ref()?.text.clone()));
    let shown = |text: &str| visible(text).into_owned();
    let texts: Vec<String> =
        uq.ensemble.iter().map(|member| member.text.as_deref().map_or(String::new(), shown)).collect();
    let item = PageItem {
        task: (sample.task != task).then(|| shown(&sample.task)),
        id: sample.doc_id,
        outcome: Outcome::of(sample),
        truncated: truncated(sample),
        question: shown(&question(sample)),
        target: shown(&sample.target),
        answer: answer.as_deref().map(shown),
        error: uq.error.as_deref().map(shown),
        scores: methods.iter().map(|method| uq.scores.get(&method.key).copied().flatten().and_then(finite)).collect(),
        p: uq.tokens.logprobs.iter().map(|logprob| logprob.map(f64::exp).and_then(finite)).collect(),
        chain: chain(uq),
        kept: uq.kept.iter().map(|row| row.saturating_add(1)).collect(),
        span: uq.answer.as_ref().map(|answer| {
            [answer.tokens.start, answer.tokens.end].map(|position| position.saturating_sub(uq.prompt_len))
        }),
        ensemble: ensemble(uq, &texts),
        tokens: cut.tokens,
        gaps: cut.gaps,
    };
    script_safe(&serde_json::to_string(&item).expect("strings, numbers and lists can be written"))
}

fn chain(uq: &Uq) -> Vec<(i64, f64, f64, Option<i64>)> {
    let token = |row: i64| row.saturating_add(1);
    uq.chain.iter().map(|l| (token(l.row), short(l.score), short(l.similarity), l.from.map(token))).collect()
}

/// Each member's share of P: ∏ p(kept chain tokens) ∏ p(answer tokens).
fn ensemble<'a>(uq: &Uq, texts: &'a [String]) -> Vec<(Option<usize>, &'a str, f64)> {
    let share = |log_answer: f64, log_chain: f64| short((log_answer + log_chain).exp());
    let member = |(member, text): (&crate::eval::sample::EnsembleMember, &'a String)| {
        let m = &member.member;
        let token = m.position.map(|position| position.saturating_sub(uq.prompt_len));
        (token, text.as_str(), share(m.log_answer, m.log_chain))
    };
    uq.ensemble.iter().zip(texts).map(member).collect()
}

/// What was asked: the publisher's field if it has a usual name, else the rendered prompt.
fn question(sample: &Sample) -> String {
    const NAMES: [&str; 4] = ["question", "problem", "input", "prompt"];
    let named = NAMES.iter().find_map(|name| sample.doc.get(name).and_then(Value::as_str));
    let prompt = || sample.arguments.first().map(|(prompt, _)| prompt.as_str());
    named.or_else(prompt).unwrap_or_default().to_owned()
}

/// Five significant digits; `null` in JSON if it is not finite.
fn short(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(x)
}

fn finite(x: f64) -> Option<f64> {
    x.is_finite().then(|| short(x))
}

/// JSON that can stand inside a `<script>` element: without a `<` there is neither `</script>` nor `<!--`.
pub fn script_safe(json: &str) -> String {
    json.replace('<', "\\u003c")
}
