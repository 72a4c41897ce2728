//! Which process of a run does which items, where they take them as they go (`--shard auto`).
//!
//! The items of a task are cut into chunks. A process takes a chunk by making the file `claims/TASK.CHUNK.0`, which one alone can
//! (O_EXCL, over NFS too), and which has the process's name; its samples go into a file of its own. While it runs, its file
//! `claims/NAME.alive` grows. A process for which no chunk is left watches those of the others: where a chunk's process has not
//! been seen to grow for a lease, it takes the chunk over by making `TASK.CHUNK.1`, and so on.
//!
//! No file is written by two processes, renamed or removed, and no clocks are compared: a process measures by its own how
//! long a file has looked the same to it. Claims only save work. What is done is what the sample files have, and an item
//! that two processes have done, because one of them was only slow, has the same sample twice and counts once.

use super::folder::{FolderError, file_name};
use crate::eval::tasks::Question;
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Items of a chunk, by their place in the task: all processes of a run must agree on it.
const CHUNK: usize = 4;

/// A process among those of a run.
pub struct Claims {
    folder: PathBuf,
    worker: String,
    lease: Duration,
    /// Dropped, it ends the thread that says that this process lives.
    _alive: Sender<()>,
}

impl Claims {
    /// Joins the run in a folder. `lease`: how long a process must have been silent before what it has begun is taken over.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn join(run: &Path, lease: Duration) -> Result<Claims, FolderError> {
        let folder = run.join("claims");
        let io = |source| FolderError::Io { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(io)?;
        // a name that no process has had: the system's own random numbers
        let worker = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let mut alive = File::create_new(folder.join(format!("{worker}.alive"))).map_err(io)?;
        let (sender, ended) = channel();
        let beat = lease / 6;
        let beats = move || {
            while ended.recv_timeout(beat) == Err(RecvTimeoutError::Timeout) {
                // one that cannot be written is noticed by the others, who take over
                let _ = alive.write_all(b".").and_then(|()| alive.sync_data());
            }
        };
        std::thread::Builder::new().name("alive".to_owned()).spawn(beats).map_err(io)?;
        Ok(Claims { folder, worker, lease, _alive: sender })
    }

    /// The process's name, a part of its files' names.
    pub fn worker(&self) -> &str {
        &self.worker
    }

    /// Between two looks at what the others do.
    fn pause(&self) -> Duration {
        (self.lease / 20).clamp(Duration::from_millis(10), Duration::from_secs(2))
    }

    /// Tries to take a chunk for the `attempt`-th time; whether nobody else had.
    fn take(&self, task: &str, chunk: usize, attempt: usize) -> Result<bool, FolderError> {
        let path = self.folder.join(format!("{}.{chunk}.{attempt}", file_name(task)));
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        match made.and_then(|mut file| file.write_all(self.worker.as_bytes()).and_then(|()| file.sync_all())) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(FolderError::Io { path, source }),
        }
    }

    /// The last attempt at each chunk of a task.
    fn attempts(&self, task: &str) -> Result<HashMap<usize, usize>, FolderError> {
        let io = |source| FolderError::Io { path: self.folder.clone(), source };
        let start = format!("{}.", file_name(task));
        let mut last = HashMap::new();
        for entry in self.folder.read_dir().map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            let numbers = name.to_str().and_then(|name| name.strip_prefix(&start)?.split_once('.'));
            let Some((Ok(chunk), Ok(attempt))) = numbers.map(|(c, a)| (c.parse(), a.parse::<usize>())) else {
                continue;
            };
            let known = last.entry(chunk).or_insert(attempt);
            *known = attempt.max(*known);
        }
        Ok(last)
    }

    /// How a claim looks: who has it, and how long their file is. The file is opened, which over NFS asks the server.
    fn look(&self, task: &str, chunk: usize, attempt: usize) -> Claim {
        let mut worker = String::new();
        let path = self.folder.join(format!("{}.{chunk}.{attempt}", file_name(task)));
        let _ = File::open(path).and_then(|file| file.take(64).read_to_string(&mut worker));
        let alive = File::open(self.folder.join(format!("{worker}.alive"))).and_then(|file| file.metadata());
        Claim { attempt, pulse: alive.ok().map(|alive| alive.len()), worker }
    }
}

/// A claim as another process sees it. One that was killed before it had written its name has none.
#[derive(Clone, Debug, Default, PartialEq)]
struct Claim {
    attempt: usize,
    worker: String,
    pulse: Option<u64>,
}

/// Items that are not done, and who does them as far as is known.
struct Chunk<'t> {
    items: Vec<&'t Question>,
    /// `None`: nobody. Since when it has looked like that.
    claim: Option<(Claim, Instant)>,
}

/// The chunks of a task that this process has not taken and that are not done.
pub(super) struct Chunks<'t, 'c> {
    claims: &'c Claims,
    task: &'t str,
    open: BTreeMap<usize, Chunk<'t>>,
    looked: Option<Instant>,
}

/// What a process can do.
pub(super) enum Next<'t> {
    Items(Vec<&'t Question>),
    /// All that is left is being done by others: look again, after what they have done since was noted.
    Later,
    Nothing,
}

impl<'t, 'c> Chunks<'t, 'c> {
    pub fn new(claims: &'c Claims, task: &'t str, items: impl Iterator<Item = &'t Question>) -> Chunks<'t, 'c> {
        let mut open: BTreeMap<usize, Chunk> = BTreeMap::new();
        for item in items {
            let chunk = open.entry(item.doc_id / CHUNK).or_insert(Chunk { items: Vec::new(), claim: None });
            chunk.items.push(item);
        }
        Chunks { claims, task, open, looked: None }
    }

    /// The name of the process that takes them.
    pub fn worker(&self) -> &'c str {
        self.claims.worker()
    }

    /// Notes that an item is done; whether it was open.
    pub fn done(&mut self, doc_id: usize) -> bool {
        let number = doc_id / CHUNK;
        let Some(chunk) = self.open.get_mut(&number) else { return false };
        let before = chunk.items.len();
        chunk.items.retain(|item| item.doc_id != doc_id);
        let was_open = chunk.items.len() < before;
        if chunk.items.is_empty() {
            self.open.remove(&number);
        }
        was_open
    }

    /// Takes a chunk that nobody has.
    pub fn take(&mut self) -> Result<Next<'t>, FolderError> {
        while let Some((&number, chunk)) = self.open.iter_mut().find(|(_, chunk)| chunk.claim.is_none()) {
            if self.claims.take(self.task, number, 0)? {
                return Ok(self.remove(number));
            }
            chunk.claim = Some((Claim::default(), Instant::now()));
        }
        Ok(if self.open.is_empty() { Next::Nothing } else { Next::Later })
    }

    /// Whether it is time to look at the others again; waits until it is, if told to.
    pub fn is_time(&mut self, wait: bool) -> bool {
        let left = self.looked.map_or(Duration::ZERO, |looked| self.claims.pause().saturating_sub(looked.elapsed()));
        if wait {
            std::thread::sleep(left);
        }
        let is_time = wait || left.is_zero();
        if is_time {
            self.looked = Some(Instant::now());
        }
        is_time
    }

    /// Takes a chunk over whose process has been silent for a lease. What is done must have been noted just before.
    pub fn take_over(&mut self) -> Result<Next<'t>, FolderError> {
        let attempts = self.claims.attempts(self.task)?;
        let now = Instant::now();
        let mut silent = Vec::new();
        for (&number, chunk) in &mut self.open {
            let claim = self.claims.look(self.task, number, attempts.get(&number).copied().unwrap_or(0));
            match &chunk.claim {
                Some((known, since)) if *known == claim && now - *since > self.claims.lease => {
                    silent.push((number, claim.attempt + 1));
                }
                Some((known, _)) if *known == claim => (),
                _ => chunk.claim = Some((claim, now)),
            }
        }
        for (number, attempt) in silent {
            if self.claims.take(self.task, number, attempt)? {
                return Ok(self.remove(number));
            }
        }
        Ok(if self.open.is_empty() { Next::Nothing } else { Next::Later })
    }

    fn remove(&mut self, number: usize) -> Next<'t> {
        self.open.remove(&number).map_or(Next::Nothing, |chunk| Next::Items(chunk.items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::tasks::Grader;

    fn question(doc_id: usize) -> Question {
        let doc = serde_json::Value::Null;
        Question { doc_id, doc, messages: Vec::new(), target: String::new(), grader: Grader::Number }
    }

    fn doc_ids(next: Next) -> Option<Vec<usize>> {
        match next {
            Next::Items(items) => Some(items.iter().map(|item| item.doc_id).collect()),
            Next::Later | Next::Nothing => None,
        }
    }

    #[test]
    fn a_chunk_has_one_process_until_that_is_silent() {
        let folder = tempfile::tempdir().unwrap();
        let items: Vec<Question> = (1..3 * CHUNK - 1).map(question).collect();
        let lease = Duration::from_millis(1500);
        let [first, second] = [(), ()].map(|()| Claims::join(folder.path(), lease).unwrap());
        assert_ne!(first.worker(), second.worker());
        let mut ours = Chunks::new(&first, "a task", items.iter());
        let mut theirs = Chunks::new(&second, "a task", items.iter());
        assert_eq!(doc_ids(ours.take().unwrap()), Some((1..CHUNK).collect()));
        assert_eq!(doc_ids(theirs.take().unwrap()), Some((CHUNK..2 * CHUNK).collect()));
        assert_eq!(doc_ids(ours.take().unwrap()), Some((2 * CHUNK..3 * CHUNK - 1).collect()));
        assert!(matches!((ours.take().unwrap(), theirs.take().unwrap()), (Next::Later, Next::Later)));
        assert!(ours.done(CHUNK + 1) && !ours.done(CHUNK + 1) && !ours.done(1), "only what others do is open");
        // a process that lives keeps what it has
        let begun = Instant::now();
        while begun.elapsed() < 2 * lease {
            assert!(matches!(ours.take_over().unwrap(), Next::Later));
            ours.is_time(true);
        }
        drop(second);
        let dropped = Instant::now();
        let taken = loop {
            if let Some(taken) = doc_ids(ours.take_over().unwrap()) {
                break taken;
            }
            assert!(dropped.elapsed() < 10 * lease);
            ours.is_time(true);
        };
        assert!(dropped.elapsed() > lease - lease / 3, "{:?}", dropped.elapsed());
        assert_eq!(taken, (CHUNK..2 * CHUNK).filter(|id| *id != CHUNK + 1).collect::<Vec<_>>());
        assert!(matches!(ours.take().unwrap(), Next::Nothing));
    }

    /// What a process leaves that is killed between making a claim and writing its name.
    #[test]
    fn a_claim_without_a_name_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let items = [question(0)];
        let claims = Claims::join(folder.path(), Duration::from_millis(50)).unwrap();
        std::fs::write(folder.path().join("claims/t.0.0"), "").unwrap();
        let mut chunks = Chunks::new(&claims, "t", items.iter());
        assert!(matches!(chunks.take().unwrap(), Next::Later));
        let begun = Instant::now();
        while doc_ids(chunks.take_over().unwrap()).is_none() {
            assert!(begun.elapsed() < Duration::from_secs(10));
            chunks.is_time(true);
        }
        assert!(folder.path().join("claims/t.0.1").is_file());
    }
}
