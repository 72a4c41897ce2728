//! Our figures compared with the rivals' from the same run.

use super::report::Row;

/// Name prefixes of the rivals' decode rows (`benches/rivals_gpu.py`, `benches/rivals_compiled.py`).
const DECODING: [&str; 4] = [
    "transformers, SDPA decode",
    "transformers, eager decode with attentions",
    "torch, compiled, CUDA graph, static cache, decode",
    "torch, CUDA graph, static cache, decode",
];
const PASS: &str = "transformers, eager pass with attentions";
const PREFILL: &str = "torch, compiled, prefill";

/// Our speed relative to each rival's at the same work; ours includes the trace. `counts`: whether the target
/// applies.
pub fn comparisons(rows: &[Row], counts: bool) -> Vec<Row> {
    rows.iter()
        .filter_map(|theirs| {
            let (what, memory) = counterpart(&theirs.what)?;
            let find = |what: &str| rows.iter().find(|row| row.shape == theirs.shape && row.what == what);
            let ours = find(&what)?;
            let rate = ours.unit.ends_with("/s");
            let times = if rate { ours.median / theirs.median } else { theirs.median / ours.median };
            let mut row = Row::new(&ours.shape, format!("{what}: times as fast as {}", theirs.what), "×", &[times]);
            if let Some(peak) = peak(theirs) {
                row = row.fact("their peak MB", peak);
            }
            if let Some(peak) = find(&memory).and_then(peak) {
                row = row.fact("our peak MB", peak);
            }
            Some(row.target("faster", counts, |row| row.median > 1.0))
        })
        .collect()
}

/// The memory figure of a row: one of its facts, or the figure itself.
fn peak(row: &Row) -> Option<f64> {
    row.facts.get("peak MB").copied().or((row.unit == "MB").then_some(row.median))
}

/// The names of our rows that correspond to a rival's work: for time, and for memory.
fn counterpart(what: &str) -> Option<(String, String)> {
    let decode =
        |batch: &str| (format!("decode{batch}, with UQAC's trace"), format!("UQAC on against off{batch}, peak memory"));
    let pass = |tokens: &str| (format!("traced pass and chain{tokens}"), format!("peak memory{tokens}"));
    let prefill = |tokens: &str| (format!("prefill{tokens}"), String::new());
    let decoding = DECODING.iter().find_map(|name| what.strip_prefix(name)).map(decode);
    decoding.or_else(|| what.strip_prefix(PASS).map(pass)).or_else(|| what.strip_prefix(PREFILL).map(prefill))
}
