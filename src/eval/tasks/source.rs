//! Search for a benchmark's files on this machine.

use super::{Benchmark, TaskError, TaskOptions};
use crate::{files::FileError, files::entries, files::name, model::hub::dataset_snapshots};
use regex::Regex;
use std::path::{Path, PathBuf};

impl Benchmark {
    /// The benchmark's file or folder: the given file itself, or found in the given folder or the hub cache.
    pub(super) fn find(&self, options: &TaskOptions) -> Result<PathBuf, TaskError> {
        let snapshots = self.hub.iter().flat_map(|name| dataset_snapshots(name)).collect();
        self.find_in(options.data.as_deref(), snapshots)
    }

    fn find_in(&self, data: Option<&Path>, snapshots: Vec<PathBuf>) -> Result<PathBuf, TaskError> {
        if let Some(path) = data
            && std::fs::metadata(path).map_err(FileError::at(path))?.is_file()
        {
            return Ok(path.to_path_buf());
        }
        let sure = self.patterns.iter().map(|pattern| (pattern, true));
        let patterns = sure.chain(self.shared_patterns.iter().map(|pattern| (pattern, false)));
        let folders = data.into_iter().chain(snapshots.iter().map(PathBuf::as_path));
        for (folder, (pattern, sure)) in folders.flat_map(|folder| patterns.clone().map(move |p| (folder, p))) {
            let mut found = matches(folder, pattern);
            found.retain(|path| sure || (self.fits)(path));
            match found.len() {
                0 => {}
                1 => return Ok(found.remove(0)),
                _ => return Err(TaskError::Ambiguous { task: self.key, found }),
            }
        }
        Err(self.missing(data, &snapshots))
    }

    fn missing(&self, data: Option<&Path>, snapshots: &[PathBuf]) -> TaskError {
        let below = |folder: &Path| {
            let patterns = self.patterns.iter().chain(self.shared_patterns);
            patterns.map(|pattern| folder.join(pattern).display().to_string()).collect::<Vec<_>>()
        };
        let mut looked: Vec<String> = data.map_or_else(|| vec![String::from("--data (not given)")], below);
        if snapshots.is_empty() && !self.hub.is_empty() {
            looked.push(format!("{} in the Hugging Face cache", self.hub.join(", ")));
        }
        for snapshot in snapshots {
            let parquet = matches(snapshot, "*.parquet").len() + matches(snapshot, "*/*.parquet").len() > 0;
            let note = if parquet { " (has Parquet files, which are not read)" } else { "" };
            looked.push(format!("{}{note}", snapshot.display()));
        }
        TaskError::Missing { task: self.key.to_owned(), looked, how: self.how.to_owned() }
    }
}

/// Existing paths below a folder that match a pattern, sorted; `.` is the folder itself. `.jsonl` also matches
/// `.jsonl.gz`; `*` does not match training data.
pub(super) fn matches(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![folder.to_path_buf()];
    for part in pattern.split('/').filter(|part| *part != ".") {
        let glob = glob(part);
        let fits = |name: &str| glob.is_match(name) && !(part.contains('*') && name.to_lowercase().contains("train"));
        let inside = found.iter().flat_map(|folder| entries(folder).unwrap_or_default());
        found = inside.filter(|path| fits(&name(path))).collect();
    }
    found
}

/// A pattern of names: `*` is any text, case does not count, nor does `.gz` after `.jsonl`.
fn glob(pattern: &str) -> Regex {
    let packed = if pattern.ends_with(".jsonl") { r"(?:\.gz)?" } else { "" };
    let escaped = regex::escape(pattern).replace(r"\*", ".*");
    Regex::new(&format!("(?is)^{escaped}{packed}$")).expect("text and `.*`")
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIZ: Benchmark = Benchmark {
        key: "quiz",
        patterns: &["quiz/test.jsonl", "quiz*.jsonl"],
        shared_patterns: &["test.jsonl"],
        fits: |path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("quiz")),
        hub: &["org/quiz"],
        how: "buy it",
        ..super::super::gsm8k::GSM8K
    };

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn names_match() {
        for (name, pattern) in [("a", "a"), ("ab", "a*"), ("a", "a*"), ("xay", "*a*"), ("é-x.j", "*-x.j"), ("", "*")] {
            assert!(glob(pattern).is_match(name), "{name} {pattern}");
        }
        for (name, pattern) in [("a", "b"), ("ba", "a*"), ("ab", "*a"), ("a.jsonl.bak", "a*.jsonl")] {
            assert!(!glob(pattern).is_match(name), "{name} {pattern}");
        }
    }

    #[test]
    fn files_are_found_in_order() {
        let found = |files: &[(&str, &str)]| {
            let folder = folder(files);
            let path = QUIZ.find_in(Some(folder.path()), Vec::new());
            path.map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string())
        };
        assert_eq!(found(&[("quiz/test.jsonl", ""), ("quiz_test.jsonl", "")]).unwrap(), "quiz/test.jsonl");
        assert_eq!(found(&[("Quiz/TEST.jsonl.gz", "")]).unwrap(), "Quiz/TEST.jsonl.gz");
        assert_eq!(found(&[("quiz_train.jsonl", ""), ("quiz_2.jsonl", "")]).unwrap(), "quiz_2.jsonl");
        assert_eq!(found(&[("test.jsonl", "a quiz")]).unwrap(), "test.jsonl");
        assert!(matches!(found(&[("test.jsonl", "a test")]), Err(TaskError::Missing { .. })));
        let ambiguous = found(&[("quiz_1.jsonl", ""), ("quiz_2.jsonl", "")]).unwrap_err().to_string();
        assert!(ambiguous.contains("quiz_1.jsonl, ") && ambiguous.contains("--data"), "{ambiguous}");
    }

    #[test]
    fn the_cache_comes_after_the_folder() {
        let (empty, full) = (folder(&[("a.parquet", "")]), folder(&[("quiz.jsonl", "")]));
        let snapshots = vec![empty.path().to_path_buf(), full.path().to_path_buf()];
        assert_eq!(QUIZ.find_in(Some(empty.path()), snapshots).unwrap(), full.path().join("quiz.jsonl"));
        let message = QUIZ.find_in(None, vec![empty.path().to_path_buf()]).unwrap_err().to_string();
        assert!(message.contains("Parquet") && message.ends_with("\nbuy it"), "{message}");
        let file = full.path().join("quiz.jsonl");
        assert_eq!(QUIZ.find_in(Some(&file), Vec::new()).unwrap(), file);
        let gone = QUIZ.find_in(Some(&full.path().join("gone")), Vec::new()).unwrap_err();
        assert!(matches!(gone, TaskError::File(_)), "{gone}");
    }
}
