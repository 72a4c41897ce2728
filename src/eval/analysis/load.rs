//! Reads run folders into runs of items.

use super::Method;
use crate::eval::sample::{ResponseTokens, Sample, ScoreMap, SweepPoint, Uq};
use crate::files::{self, FileError, entries, json_fault, name};
use crate::io::jsonl::{Lines, ReadError};
use crate::{
    eval::metrics::Confidence,
    eval::run::manifest::comparable,
    eval::run::sweep::SweepRow,
    io::record::{Samples, Status},
    uq::answer::pattern,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, collections::BTreeSet, collections::HashMap, io, path::Path, path::PathBuf};
use thiserror::Error;

/// Run folders cannot be read.
#[derive(Debug, Error)]
pub enum AnalysisError {
    #[error("{}: not a run folder (no manifest.json); expected a folder written by `uqac eval --output`{}", folder.display(),
        inside.as_ref().map_or(String::new(), |run| format!("; there are runs in it, such as {}", run.display())))]
    NotARun { folder: PathBuf, inside: Option<PathBuf> },
    #[error("{}: no such folder; expected one written by `uqac eval --output`", .0.display())]
    NoFolder(PathBuf),
    #[error("{}: expected a run's manifest, a JSON object: {why}", file.display())]
    Manifest { file: PathBuf, why: String },
    #[error("{}: format {found}, but this version reads format {}; use the version that wrote it", file.display(), super::FORMAT)]
    Format { file: PathBuf, found: u64 },
    #[error("{}: no readable line ({why})", file.display())]
    NoSamples { file: PathBuf, why: String },
    #[error("no run has scores of a method {method:?}; valid names: {}", known.join(", "))]
    NoMethod { method: String, known: Vec<String> },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The fields of a [`Sample`] used in analysis.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub task: String,
    pub doc_id: usize,
    /// `None`: not graded.
    pub correct: Option<bool>,
    pub correct_reference: Option<bool>,
    /// Whether the majority answer is correct, if there are several samples.
    pub majority_correct: Option<bool>,
    pub response_tokens: usize,
    /// Links of the chain without the answer's tokens.
    pub chain: usize,
    pub sweep: Vec<SweepItem>,
    /// The sample's, without tokens and sweep.
    pub uq: Uq,
}

/// The item under other parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepItem {
    pub setting: BTreeMap<String, Value>,
    /// |A ∩ B| / |A ∪ B| of its chain and the run's own, without the answer's tokens; 1 for two empty chains.
    pub overlap: f64,
    pub chain: usize,
    pub scores: ScoreMap,
}

impl Item {
    /// Adds the response under another setting, replacing an earlier one under the same setting.
    fn add(&mut self, point: SweepPoint) {
        let answer = rows(&self.uq, true);
        let chain: BTreeSet<i64> = point.chain.into_iter().filter(|row| !answer.contains(row)).collect();
        self.sweep.retain(|other| other.setting != point.setting);
        self.sweep.push(SweepItem {
            setting: point.setting,
            overlap: jaccard(&rows(&self.uq, false), &chain),
            chain: chain.len(),
            scores: point.scores,
        });
    }

    /// An answer was found and scored.
    pub fn answered(&self) -> bool {
        self.uq.status == Status::Ok
    }

    /// The method's score; `None` also if it is not finite.
    pub fn score(&self, method: &str) -> Option<f64> {
        finite(&self.uq.scores, method)
    }

    /// The responses sampled beside its own.
    pub fn samples(&self) -> Option<Samples> {
        Samples::deserialize(self.uq.details.get("self_consistency")?).ok()
    }

    /// Whether the answer that the method scores is correct; `None`: not graded.
    pub fn label(&self, method: &Method) -> Option<bool> {
        if method.own_answer { self.majority_correct } else { self.correct }
    }

    /// The method's confidence in the answer it scores; `None` if there is no such answer or no score for it.
    pub fn confidence(&self, method: &Method) -> Option<Confidence> {
        let there = self.answered() || method.own_answer;
        if there { confidence(&self.uq.scores, method) } else { None }
    }

    /// The confidence, and whether the answer is correct; `None` if either is unknown.
    pub fn judged(&self, method: &Method) -> Option<(Confidence, bool)> {
        Some((self.confidence(method)?, self.label(method)?))
    }
}

/// A method's confidence from `scores`, ranked by its logarithm if the method has one.
pub(super) fn confidence(scores: &ScoreMap, method: &Method) -> Option<Confidence> {
    let score = finite(scores, &method.key)?;
    let rank = method.log.map_or(score, |log| finite(scores, log).unwrap_or_else(|| libm::log(score)));
    Some(Confidence { score, rank })
}

/// A method's score, if finite.
pub(super) fn finite(scores: &ScoreMap, method: &str) -> Option<f64> {
    scores.get(method).copied().flatten().filter(|score| score.is_finite())
}

impl From<Sample> for Item {
    fn from(sample: Sample) -> Item {
        let label = |key: &str| sample.metrics.get(key).map(|value| *value >= 0.5);
        let uq = Uq { tokens: ResponseTokens::default(), sweep: Vec::new(), ..sample.uq };
        let mut item = Item {
            task: sample.task,
            doc_id: sample.doc_id,
            correct: label("acc"),
            correct_reference: label("acc_reference"),
            majority_correct: label("acc_majority"),
            response_tokens: sample.uq.tokens.ids.len(),
            chain: rows(&uq, false).len(),
            sweep: Vec::new(),
            uq,
        };
        sample.uq.sweep.into_iter().for_each(|point| item.add(point));
        item
    }
}

/// Rows of the chain: those of the answer's tokens, or the rest.
fn rows(uq: &Uq, of_answer: bool) -> BTreeSet<i64> {
    uq.chain.iter().filter(|link| link.from.is_none() == of_answer).map(|link| link.row).collect()
}

fn jaccard(a: &BTreeSet<i64>, b: &BTreeSet<i64>) -> f64 {
    let union = a.union(b).count();
    if union == 0 { 1.0 } else { a.intersection(b).count() as f64 / union as f64 }
}

/// A run as found on disk.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub folders: Vec<PathBuf>,
    pub manifest: Value,
    /// By task, then doc_id.
    pub items: BTreeMap<(String, usize), Item>,
    /// The shards found, each as (index, total).
    shards: BTreeSet<(usize, usize)>,
    pub notes: Vec<String>,
}

/// Reads every folder; shards of one run are merged.
pub(super) fn load(folders: &[PathBuf]) -> Result<Vec<Run>, AnalysisError> {
    let mut runs: Vec<Run> = Vec::new();
    let mut seen = BTreeSet::new();
    for folder in folders {
        if !seen.insert(folder.canonicalize().unwrap_or_else(|_| folder.clone())) {
            continue; // given twice
        }
        let run = load_folder(folder)?;
        match runs.iter_mut().find(|other| other.is_shard_of_same(&run)) {
            Some(other) => other.merge(run),
            None => runs.push(run),
        }
    }
    runs.iter_mut().for_each(Run::note_missing_shards);
    Ok(runs)
}

impl Run {
    /// Whether both are shards, of runs that differ in nothing that could change a result.
    fn is_shard_of_same(&self, other: &Run) -> bool {
        let fit = |a: &(usize, usize)| other.shards.iter().all(|b| a.0 != b.0 && a.1 == b.1);
        let sharded = !self.shards.is_empty() && !other.shards.is_empty();
        sharded && self.shards.iter().all(fit) && comparable(&self.manifest) == comparable(&other.manifest)
    }

    fn merge(&mut self, other: Run) {
        self.folders.extend(other.folders);
        self.shards.extend(other.shards);
        self.notes.extend(other.notes);
        self.add(other.items);
    }

    fn add(&mut self, items: impl IntoIterator<Item = ((String, usize), Item)>) {
        let mut twice = 0;
        for (key, item) in items {
            if let Some(other) = self.items.get_mut(&key) {
                // duplicates from two processes of one run are identical except for timing
                other.uq.seconds.clone_from(&item.uq.seconds);
                twice += usize::from(*other != item);
            }
            self.items.insert(key, item);
        }
        if twice > 0 {
            self.notes.push(format!("{twice} items are there twice: the later ones count"));
        }
    }

    fn note_missing_shards(&mut self) {
        let Some(&(_, n)) = self.shards.iter().max_by_key(|(_, n)| *n) else { return };
        let missing: Vec<String> = (1..=n).filter(|i| !self.shards.contains(&(*i, n))).map(|i| i.to_string()).collect();
        if !missing.is_empty() {
            self.notes.push(format!("shards missing, of {n}: {}", missing.join(", ")));
        }
    }
}

fn load_folder(folder: &Path) -> Result<Run, AnalysisError> {
    if !folder.exists() {
        return Err(AnalysisError::NoFolder(folder.to_owned()));
    }
    let manifest = read_manifest(folder)?;
    let mut run = Run { folders: vec![folder.to_owned()], manifest, ..Run::default() };
    for file in sample_files(folder)? {
        run.shards.extend(shard_of(&file));
        let (items, notes) = load_task(&file)?;
        run.notes.extend(notes);
        run.add(items.into_iter().map(|item| ((item.task.clone(), item.doc_id), item)));
    }
    if run.items.is_empty() {
        run.notes.push("no samples yet".to_owned());
    }
    Ok(run)
}

/// The items of a sample file, with results added by a sweep in the corresponding `sweep_` file; and notes on problems.
fn load_task(file: &Path) -> Result<(Vec<Item>, Vec<String>), AnalysisError> {
    let mut items: Vec<Item> = Vec::new();
    let mut notes = for_each_line(file, |sample: Sample| items.push(sample.into()))?;
    let swept = file.with_file_name(name(file).replacen("samples_", "sweep_", 1));
    if swept.is_file() {
        let place: HashMap<usize, usize> = items.iter().enumerate().map(|(i, item)| (item.doc_id, i)).collect();
        notes.extend(for_each_line(&swept, |row: SweepRow| {
            if let Some(&i) = place.get(&row.doc_id) {
                items[i].add(row.point);
            }
        })?);
    }
    Ok((items, notes))
}

/// The sample files of a run folder, by name.
pub fn sample_files(folder: &Path) -> Result<Vec<PathBuf>, AnalysisError> {
    let mut files = entries(folder).map_err(FileError::at(folder))?;
    files.retain(|file| pattern!(r"^samples_.*\.jsonl(?:\.gz)?$").is_match(&name(file)) && file.is_file());
    Ok(files)
}

fn read_manifest(folder: &Path) -> Result<Value, AnalysisError> {
    let file = folder.join("manifest.json");
    let text = match files::read_to_string(&file, files::MAX_SETTINGS) {
        Ok(text) => text,
        // a folder without one, or something that is not a folder
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            let inside =
                entries(folder).unwrap_or_default().into_iter().find(|path| path.join("manifest.json").is_file());
            return Err(AnalysisError::NotARun { folder: folder.to_owned(), inside });
        }
        Err(error) => return Err(FileError::at(&file)(error).into()),
    };
    let manifest: Map<String, Value> = serde_json::from_str(&text)
        .map_err(|error| AnalysisError::Manifest { file: file.clone(), why: json_fault(&error) })?;
    match manifest.get("format").and_then(Value::as_u64) {
        Some(found) if found > u64::from(super::FORMAT) => Err(AnalysisError::Format { file, found }),
        _ => Ok(manifest.into()),
    }
}

/// `samples_gsm8k.shard-2-of-4.jsonl`: (2, 4). The file may have been compressed since.
fn shard_of(file: &Path) -> Option<(usize, usize)> {
    let name = name(file);
    let found = pattern!(r"\.shard-([0-9]+)-of-([0-9]+)\.jsonl(?:\.gz)?$").captures(&name)?;
    Some((found[1].parse().ok()?, found[2].parse().ok()?))
}

/// Passes every line of a file, a sample or a sweep row, to `each` in order; returns notes on problems. A half-written last
/// line (of a run that died) and damaged lines are skipped; a file with only damaged lines is an error.
pub fn for_each_line<T: DeserializeOwned>(file: &Path, mut each: impl FnMut(T)) -> Result<Vec<String>, AnalysisError> {
    let name = name(file);
    let (mut lines, mut good) = (Lines::open(file)?, 0);
    let (mut notes, mut bad): (Vec<String>, Vec<(u64, String)>) = (Vec::new(), Vec::new());
    while let Some(line) = lines.next_line()? {
        match serde_json::from_slice(line.bytes) {
            Ok(found) => {
                good += 1;
                each(found);
            }
            Err(_) if !line.bytes.ends_with(b"\n") => {
                notes.push(format!("{name}: line {} is half-written and left out", line.number));
            }
            Err(error) => bad.push((line.number, json_fault(&error))),
        }
    }
    match bad.first() {
        Some((_, why)) if good == 0 => {
            return Err(AnalysisError::NoSamples { file: file.to_owned(), why: why.clone() });
        }
        Some((first, why)) => {
            notes.push(format!("{name}: {} lines cannot be read and are left out; line {first}: {why}", bad.len()));
        }
        None => (),
    }
    Ok(notes)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// An answered item with the score `p`.
    pub fn item(doc_id: usize, correct: bool, p: f64) -> Item {
        let uq = json!({
            "status": "ok", "profile": "corrected", "finish": "stop", "n_instr": 0,
            "tokens": {"ids": [0], "offsets": [[0, 0]], "logprobs": [null]},
            "answer": {"text": "", "tokens": [0, 1]}, "chain": [], "kept": [], "ensemble": [],
            "scores": {"p": p}, "seconds": {},
        });
        let sample = json!({
            "doc_id": doc_id, "task": "task", "doc": null, "target": "", "arguments": [], "resps": [],
            "filtered_resps": [], "metrics": {"acc": f64::from(correct)}, "uq": uq,
        });
        serde_json::from_value::<Sample>(sample).unwrap().into()
    }

    #[test]
    fn shards_are_read_from_names() {
        let of = |name: &str| shard_of(Path::new(name));
        assert_eq!(of("samples_bbh_x.shard-2-of-4.jsonl"), Some((2, 4)));
        assert_eq!(of("samples_bbh_x.shard-2-of-4.jsonl.gz"), Some((2, 4)));
        assert_eq!(of("samples_gsm8k.jsonl"), None);
        assert_eq!(of("samples_a.shard-x-of-4.jsonl"), None);
    }

    #[test]
    fn overlap_of_chains() {
        let set = |rows: &[i64]| rows.iter().copied().collect::<BTreeSet<i64>>();
        assert_eq!(jaccard(&set(&[1, 2, 3]), &set(&[2, 3, 4])), 0.5);
        assert_eq!((jaccard(&set(&[]), &set(&[])), jaccard(&set(&[1]), &set(&[]))), (1.0, 0.0));
    }
}
