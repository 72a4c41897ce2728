//! Self-tests in a child process: a kernel that faults or hangs takes the child with it, and the next child goes on without
//! that kernel. Where no `uqac` program is found (Python, other programs), tests run in the caller's process.

use super::super::kernel_set::Variants;
use super::record::{Verdict, Verdicts};
use super::{Check, SelfTest};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The request, in the child's environment.
const VARIABLE: &str = "UQAC_SELF_TEST";

/// Seconds for the test of one kernel, if not [`LIMIT`].
const LIMIT_VARIABLE: &str = "UQAC_SELF_TEST_SECONDS";
const LIMIT: Duration = Duration::from_secs(60);

/// For everything between tests: opening the device, compiling kernels.
const BETWEEN: Duration = Duration::from_secs(600);

/// What a child tests.
#[derive(Clone, Serialize, Deserialize)]
pub struct Request {
    pub ordinal: usize,
    /// The kernels of one model; `None`: all.
    pub variants: Option<Variants>,
    /// Kernels that are not tested again.
    pub known: Verdicts,
}

/// A child's line on standard output.
#[derive(Serialize, Deserialize)]
pub enum Message {
    /// The kernels' fingerprint: the parent's kernels must be the same.
    Started(u64),
    Running(String),
    Checked(Check),
    /// All kernels are tested.
    Done,
    /// The tests cannot run in a child.
    Failed,
}

impl Message {
    pub fn send(&self) {
        let line = serde_json::to_string(self).unwrap_or_default();
        // without a reader the parent is gone
        if writeln!(std::io::stdout(), "{line}").is_err() {
            std::process::exit(1);
        }
    }
}

/// Runs the tests if this process is such a child.
pub fn run_if_child() -> Option<ExitCode> {
    let request = serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok()?;
    match super::answer(request) {
        Ok(()) => Message::Done.send(),
        Err(_) => Message::Failed.send(),
    }
    Some(ExitCode::SUCCESS)
}

/// This program, or in another one the `uqac` on the path.
fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok().filter(|own| own.file_stem().is_some_and(|stem| stem == "uqac"));
    let is_child = std::env::var_os(VARIABLE).is_some();
    (!is_child).then(|| own.unwrap_or_else(|| PathBuf::from("uqac")))
}

/// How a child has ended.
enum Ended {
    Done,
    /// In the test of this kernel, and why.
    During(String, String),
    Otherwise,
}

impl SelfTest<'_> {
    /// Tests the kernels of `request` in children, as far as that is possible.
    pub fn test_in_children(&mut self, mut request: Request) {
        let Some(program) = program() else { return };
        loop {
            request.known = self.record.ended();
            let (Ok(text), tested) = (serde_json::to_string(&request), self.checks.len()) else { return };
            let mut command = Command::new(&program);
            // another version of the program does no harm with these arguments
            command.args(["devices", "--json"]).env(VARIABLE, text).stdin(Stdio::null()).stdout(Stdio::piped());
            let Ok(mut child) = command.spawn() else { return };
            let ended = self.watch(&mut child);
            // it may have ended by itself
            let _ = child.kill();
            let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            match ended {
                Ended::Done => return,
                Ended::During(kernel, why) => {
                    let fault = if why.is_empty() { format!("its process ended: {status}") } else { why };
                    self.end(Check { kernel, fault: Some(fault), ..Check::default() });
                }
                Ended::Otherwise if self.checks.len() == tested => return,
                Ended::Otherwise => {}
            }
        }
    }

    /// Notes what the child reports until it ends or takes too long.
    fn watch(&mut self, child: &mut Child) -> Ended {
        let Some(messages) = child.stdout.take().map(messages) else { return Ended::Otherwise };
        let seconds = std::env::var(LIMIT_VARIABLE).ok().and_then(|text| text.parse().ok());
        let limit = seconds.map_or(LIMIT, Duration::from_secs);
        let mut running: Option<String> = None;
        let mut started = false;
        loop {
            match messages.recv_timeout(if running.is_some() { limit } else { BETWEEN }) {
                Ok(Message::Started(fingerprint)) if fingerprint == self.files.fingerprint() => started = true,
                Ok(Message::Running(kernel)) if started => {
                    self.record.note(&kernel, Some(Verdict::Running));
                    running = Some(kernel);
                }
                Ok(Message::Checked(check)) if started => {
                    running = None;
                    self.end(check);
                }
                Ok(Message::Done) if started => return Ended::Done,
                Err(why) => {
                    let why = match why {
                        RecvTimeoutError::Timeout => format!("it hangs: no result within {} s", limit.as_secs()),
                        RecvTimeoutError::Disconnected => String::new(),
                    };
                    return running.map_or(Ended::Otherwise, |kernel| Ended::During(kernel, why));
                }
                Ok(_) => {
                    running.iter().for_each(|kernel| self.record.note(kernel, None));
                    return Ended::Otherwise;
                }
            }
        }
    }
}

/// The lines of a child's standard output.
fn messages(from: std::process::ChildStdout) -> Receiver<Message> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let Ok(message) = serde_json::from_str(&line) else { return };
            if send.send(message).is_err() {
                return;
            }
        }
    });
    receive
}
