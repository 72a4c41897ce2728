//! Every number in full precision on a row of its own (RFC 4180).

use super::facts::{Fact, Facts};
use crate::eval::analysis::Analysis;
use crate::report::term::sanitize::one_line;

const HEADER: [&str; 12] =
    ["run", "profile", "task", "view", "setting", "method", "metric", "value", "low", "high", "sd", "items"];

/// A name from a file, harmless to a terminal and to a spreadsheet, which would run text that begins with one of these signs
/// as a formula. The apostrophe is the spreadsheets' own mark of text.
fn name(text: &str) -> String {
    let text = one_line(text);
    let formula = text.trim_start().starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    if formula { format!("'{text}") } else { text }
}

/// The whole analysis.
pub fn csv(analysis: &Analysis) -> Result<String, ::csv::Error> {
    let mut writer = ::csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(HEADER)?;
    for run in &analysis.runs {
        let tasks = run.tasks.iter().map(|task| (task.task.as_str(), Facts::of_task(task)));
        for (task, facts) in tasks.chain([("", Facts::of_run(run))]) {
            let scope = [&run.name, run.profile.as_deref().unwrap_or_default(), task].map(name);
            for Fact { view, setting, method, metric, number } in facts.0 {
                writer.serialize((&scope, view, name(&setting), name(method), metric, number))?;
            }
        }
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
