//! Our figures beside those of transformers in the same run.

use super::report::Row;

/// What rivals' rows are called begins with this (`benches/rivals_gpu.py`).
const RIVAL: &str = "transformers, ";

/// How many times as fast we are, for every rival's row that has one of ours beside it. Ours does the whole method's
/// part of that work. `counts`: they are held against the target.
pub fn comparisons(rows: &[Row], counts: bool) -> Vec<Row> {
    rows.iter()
        .filter_map(|theirs| {
            let (what, memory) = counterpart(theirs.what.strip_prefix(RIVAL)?)?;
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

/// The memory that a row reports, beside its own figure or as that.
fn peak(row: &Row) -> Option<f64> {
    row.facts.get("peak MB").copied().or((row.unit == "MB").then_some(row.median))
}

/// The names of our rows for the same work: its time, and its memory.
fn counterpart(what: &str) -> Option<(String, String)> {
    let decode =
        |batch: &str| (format!("decode{batch}, with UQAC's trace"), format!("UQAC on against off{batch}, peak memory"));
    let decoding = ["SDPA decode", "eager decode with attentions"];
    let pass = |tokens: &str| (format!("traced pass and chain{tokens}"), format!("peak memory{tokens}"));
    decoding
        .iter()
        .find_map(|name| what.strip_prefix(name).map(decode))
        .or_else(|| what.strip_prefix("eager pass with attentions").map(pass))
}
