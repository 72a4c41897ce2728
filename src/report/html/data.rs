//! Each item's data for the page's script, as compact JSON.

use crate::{eval::analysis::Method, io::record::Status, uq::Link};
use crate::{eval::sample::EnsembleMember, eval::sample::Sample, report::term::pieces, report::term::visible};
use serde_json::{Value, json};

/// One model's items on one task, serialized one by one so that only the page's text of each is kept in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Items {
    pub(super) model: String,
    pub(super) task: String,
    /// JSON by task and doc_id.
    items: std::collections::BTreeMap<(String, usize), String>,
    bytes: usize,
    limit: usize,
    /// Items left out for size.
    pub(super) left_out: usize,
}

impl Items {
    /// At most `limit` bytes.
    pub fn new(model: &str, task: &str, limit: usize) -> Items {
        Items { model: model.to_owned(), task: task.to_owned(), limit, ..Items::default() }
    }

    /// Adds an item with its scores from `methods`, replacing an earlier version of it. Once the limit is reached,
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

    /// A JSON array, one item per line.
    pub fn json(&self) -> String {
        format!("[{}]", self.items.values().map(String::as_str).collect::<Vec<_>>().join(",\n"))
    }
}

/// An item as the script reads it, with nulls omitted. Tokens are indices into `tokens`: row r of the chain is the
/// token r + 1 that it predicts. All text is sanitized for display.
fn item(task: &str, sample: &Sample, methods: &[Method]) -> String {
    let uq = &sample.uq;
    let response = sample.resps.first().and_then(|resps| resps.first()).map_or("", String::as_str);
    // text that belongs to no token is recorded as a gap before the token at its index
    let (mut tokens, mut gaps) = (Vec::new(), Vec::new());
    for piece in pieces(response, uq.tokens.offsets.iter().copied()) {
        match piece.token {
            Some(_) => tokens.push(piece.text),
            None => gaps.push((tokens.len(), piece.text)),
        }
    }
    let answer = sample.filtered_resps.first().cloned().flatten().or_else(|| Some(uq.answer.as_ref()?.text.clone()));
    let acc = sample.metrics.get("acc");
    let outcome = match uq.status {
        Status::Error => "error",
        Status::NoAnswer => "no_answer",
        Status::Ok => acc.map_or("not_graded", |acc| if *acc >= 0.5 { "correct" } else { "incorrect" }),
    };
    let token = |row: i64| row.saturating_add(1);
    let in_response = |position: usize| position.saturating_sub(uq.prompt_len);
    let link = |link: &Link| json!([token(link.row), short(link.score), short(link.similarity), link.from.map(token)]);
    // the replaced token (none: the response itself), its replacement text, the share of P:
    // ∏ p(kept tokens) ∏ p(answer's)
    let member = |EnsembleMember { member, text }: &EnsembleMember| {
        let share = short((member.log_answer + member.log_chain).exp());
        json!([member.position.map(in_response), visible(text.as_deref().unwrap_or_default()), share])
    };
    let mut item = json!({
        // only for a subtask of the run's task
        "task": (sample.task != task).then(|| visible(&sample.task)),
        "id": sample.doc_id, "outcome": outcome,
        "thought": (uq.thought > 0).then_some(uq.thought),
        "truncated": uq.finish.is_cut_off().then_some(true),
        "question": visible(question(sample)),
        "target": visible(&sample.target),
        "answer": answer.as_deref().map(visible),
        "error": uq.error.as_deref().map(visible),
        "scores": methods.iter().map(|m| uq.scores.get(&m.key).copied().flatten().map(short)).collect::<Value>(),
        "tokens": tokens, "gaps": gaps,
        "p": uq.tokens.logprobs.iter().map(|logprob| logprob.map(|logprob| short(logprob.exp()))).collect::<Value>(),
        "chain": uq.chain.iter().map(link).collect::<Value>(),
        "kept": uq.kept.iter().map(|row| token(*row)).collect::<Value>(),
        // first token of the answer, and one past its last
        "span": uq.answer.as_ref().map(|answer| [answer.tokens.start, answer.tokens.end].map(in_response)),
        "ensemble": uq.ensemble.iter().map(member).collect::<Value>(),
    });
    item.as_object_mut().into_iter().for_each(|fields| fields.retain(|_, value| !value.is_null()));
    script_safe(&item.to_string())
}

/// The question: the dataset's field if it has a common name, else the rendered prompt.
fn question(sample: &Sample) -> &str {
    const NAMES: [&str; 4] = ["question", "problem", "input", "prompt"];
    let named = NAMES.iter().find_map(|name| sample.doc.get(name).and_then(Value::as_str));
    named.or_else(|| sample.arguments.first().map(|(prompt, _)| prompt.as_str())).unwrap_or_default()
}

/// Rounded to five significant digits; non-finite values become `null` in JSON.
fn short(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(x)
}

/// Makes JSON safe inside a `<script>` element: without a `<` there is neither `</script>` nor `<!--`.
pub(super) fn script_safe(json: &str) -> String {
    json.replace('<', "\\u003c")
}
