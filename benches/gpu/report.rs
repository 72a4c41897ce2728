//! Result rows as a Markdown table and as JSON, and merging of several runs.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use uqac::internals::MedianRange;

/// The best possible figure, in the row's unit, and the reason for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Floor {
    pub value: f64,
    pub because: String,
}

/// The project's requirement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub text: String,
    /// `None` unless measured at full size on a GPU.
    pub met: Option<bool>,
}

/// One figure: median and range over its rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub shape: String,
    pub what: String,
    pub unit: String,
    pub median: f64,
    #[serde(rename = "least")]
    pub min: f64,
    #[serde(rename = "most")]
    pub max: f64,
    pub rounds: usize,
    #[serde(default)]
    pub floor: Option<Floor>,
    #[serde(default)]
    pub target: Option<Target>,
    /// Other values from the same measurement, by name.
    #[serde(default)]
    pub facts: BTreeMap<String, f64>,
}

impl Row {
    /// `values`: one per round, at least one.
    pub fn new(shape: &str, what: impl Into<String>, unit: &str, values: &[f64]) -> Row {
        let MedianRange { median, min, max } = MedianRange::of(values);
        Row {
            shape: shape.to_owned(),
            what: what.into(),
            unit: unit.to_owned(),
            median,
            min,
            max,
            rounds: values.len(),
            floor: None,
            target: None,
            facts: BTreeMap::new(),
        }
    }

    pub fn floor(mut self, value: Option<f64>, because: impl Into<String>) -> Row {
        self.floor = value.filter(|v| v.is_finite()).map(|value| Floor { value, because: because.into() });
        self
    }

    /// Adds a fact; non-finite values are skipped.
    pub fn fact(mut self, name: &str, value: f64) -> Row {
        if value.is_finite() {
            self.facts.insert(name.to_owned(), value);
        }
        self
    }

    /// Whether JSON can represent the row's values.
    pub fn is_finite(&self) -> bool {
        [self.median, self.min, self.max].iter().all(|x| x.is_finite())
    }

    /// Whether the target is met; `None` without a target or off a GPU.
    pub fn met(&self) -> Option<bool> {
        self.target.as_ref().and_then(|target| target.met)
    }

    /// Sets a target; if `counts`, `met` is evaluated on the row as filled in so far.
    pub fn target(mut self, text: &str, counts: bool, met: impl FnOnce(&Row) -> bool) -> Row {
        let met = counts.then(|| met(&self));
        self.target = Some(Target { text: text.to_owned(), met });
        self
    }

    /// Sets a target of this share of the floor.
    pub fn share_target(self, share: f64, counts: bool) -> Row {
        let text = format!("≥ {:.0} % of the floor", 100.0 * share);
        self.target(&text, counts, |row| row.share().is_some_and(|found| found >= share))
    }

    /// The figure relative to its floor, for rates and times alike: 1 is the floor itself. `None` for a difference in
    /// percent.
    pub fn share(&self) -> Option<f64> {
        if self.unit == "%" {
            return None;
        }
        let floor = self.floor.as_ref()?.value;
        let share = if self.unit.ends_with("/s") { self.median / floor } else { floor / self.median };
        (share.is_finite() && share > 0.0).then_some(share)
    }
}

/// The middle value; the mean of the middle two for an even count.
pub fn median(values: &[f64]) -> f64 {
    MedianRange::of(values).median
}

/// A measurement without a result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    pub shape: String,
    pub stage: String,
    pub message: String,
}

/// All results of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Date, device, driver, command and so on.
    #[serde(default)]
    pub about: BTreeMap<String, String>,
    /// Whether targets apply: full size, on a GPU.
    #[serde(default)]
    pub counts: bool,
    #[serde(default)]
    pub rows: Vec<Row>,
    #[serde(default)]
    pub problems: Vec<Problem>,
}

impl Report {
    /// Adds another run's results; on conflict, this run's facts take precedence.
    pub fn merge(&mut self, other: Report) {
        for (key, value) in other.about {
            self.about.entry(key).or_insert(value);
        }
        self.counts |= other.counts;
        self.rows.extend(other.rows);
        self.problems.extend(other.problems);
    }

    pub fn markdown(&self) -> String {
        let mut out = String::from("# GPU measurements\n\n");
        for (key, value) in &self.about {
            let _ = writeln!(out, "- {key}: {}", value.replace('\n', " "));
        }
        let _ = writeln!(out, "\n{}", self.verdict());
        out += "\nMedian (min–max of the rounds). Floor: the best possible figure, from bytes and operations; \
                100 % of the floor is the floor itself.\n";
        let mut shape = None;
        for row in &self.rows {
            if shape != Some(&row.shape) {
                shape = Some(&row.shape);
                let _ =
                    write!(out, "\n## {}\n\n| what | measured | floor | of the floor | must reach | |\n", row.shape);
                out += "| --- | ---: | ---: | ---: | --- | --- |\n";
            }
            let cells = row.cells();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
        if !self.problems.is_empty() {
            out += "\n## Not measured\n\n";
            for problem in &self.problems {
                let message = problem.message.replace('\n', " ");
                let _ = writeln!(out, "- {} · {}: {message}", problem.shape, problem.stage);
            }
        }
        let reasons = self.reasons();
        if !reasons.is_empty() {
            out += "\n## Floors\n\n";
            reasons.iter().for_each(|reason| out += &format!("- {reason}\n"));
        }
        out
    }

    /// The number of targets met, and the names of the missed ones.
    fn verdict(&self) -> String {
        let held = |met: bool| self.rows.iter().filter(move |row| row.met() == Some(met));
        let (met, missed) = (held(true).count(), held(false).count());
        let names: Vec<String> = held(false).map(|row| format!("{} · {}", row.shape, row.what)).collect();
        let names = if names.is_empty() { String::new() } else { format!(" Missed: {}.", names.join("; ")) };
        format!("Targets met: {met} of {}.{names}", met + missed)
    }

    /// The reason for each floor.
    fn reasons(&self) -> Vec<String> {
        let reason = |row: &Row| Some(format!("{} · {}: {}", row.shape, row.what, row.floor.as_ref()?.because));
        self.rows.iter().filter_map(reason).collect()
    }
}

impl Row {
    fn cells(&self) -> [String; 6] {
        let facts: Vec<String> = self.facts.iter().map(|(name, value)| format!("{name}: {}", number(*value))).collect();
        let facts = if facts.is_empty() { String::new() } else { format!(" · {}", facts.join(", ")) };
        let range =
            if self.rounds > 1 { format!(" ({}–{})", number(self.min), number(self.max)) } else { String::new() };
        let (target, met) = match &self.target {
            None => (String::new(), ""),
            Some(Target { text, met: None }) => (text.clone(), ""),
            Some(Target { text, met: Some(true) }) => (text.clone(), "✓"),
            Some(Target { text, met: Some(false) }) => (text.clone(), "✗"),
        };
        [
            format!("{}{facts}", self.what),
            format!("{} {}{range}", number(self.median), self.unit),
            self.floor.as_ref().map_or(String::new(), |floor| format!("{} {}", number(floor.value), self.unit)),
            self.share().map_or(String::new(), |share| format!("{:.0} %", 100.0 * share)),
            target,
            met.to_owned(),
        ]
    }

    /// One line for a terminal.
    pub fn line(&self) -> String {
        let [what, measured, floor, share, target, met] = self.cells();
        let share = if share.is_empty() { share } else { format!(" ({share})") };
        let floor = if floor.is_empty() { floor } else { format!("floor {floor}{share}") };
        format!("  {what:<58} {measured:>30}  {floor:<30} {target} {met}").trim_end().to_owned()
    }
}

/// Four significant digits, without an exponent where readable.
fn number(x: f64) -> String {
    match x.abs() {
        a if !x.is_finite() || a == 0.0 => format!("{x}"),
        a if (1e-4..1e6).contains(&a) => {
            let decimals = (3 - a.log10().floor() as i32).max(0) as usize;
            let text = format!("{x:.decimals$}");
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        }
        _ => format!("{x:.3e}"),
    }
}
