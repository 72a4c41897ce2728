//! Self-tests in a child process: a kernel that faults or hangs takes the child with it, and the next child goes on without
//! that kernel. Where no `uqac` program is found (Python, other programs), tests run in the caller's process.

use super::super::kernel_set::Variants;
use super::record::Verdicts;
use super::{Check, SelfTest};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The request, in the child's environment.
const VARIABLE: &str = "UQAC_SELF_TEST";

/// Seconds for one launch and what follows up to the next, if not [`LIMIT`].
const LIMIT_VARIABLE: &str = "UQAC_SELF_TEST_SECONDS";
const LIMIT: Duration = Duration::from_secs(60);

/// For everything before the first launch: opening the device, compiling kernels.
const BETWEEN: Duration = Duration::from_secs(600);

/// The work of a child.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Request {
    pub ordinal: usize,
    /// The kernels of one model; `None`: all.
    pub variants: Option<Variants>,
    /// Fingerprint of the parent's kernels, which must be the child's; `None` in the parent.
    pub kernels: Option<u64>,
    /// Kernels that have failed, and what is not tested again.
    pub known: Verdicts,
}

/// What happens in a test, as [`Ledger::note`](super::ledger::Ledger::note) has it; a child's line on standard output.
#[derive(Serialize, Deserialize)]
pub enum Message {
    /// A launch; or no kernel runs until the next one, when kernels are compiled perhaps.
    Running(Option<String>),
    Checked(Check),
    /// All kernels of these parts of a model.
    Tested(Vec<String>),
    /// Whether all kernels are tested. If not, the tests cannot run in a child.
    Ended(bool),
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
    Message::Ended(super::run(request).is_ok()).send();
    Some(ExitCode::SUCCESS)
}

/// This program, or in another one the `uqac` on the path; `None` in a child.
fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok().filter(|own| own.file_stem().is_some_and(|stem| stem == "uqac"));
    std::env::var_os(VARIABLE).is_none().then(|| own.unwrap_or_else(|| PathBuf::from("uqac")))
}

impl SelfTest<'_> {
    /// Tests the kernels of `request` in children, as far as that is possible.
    pub fn test_in_children(&self, mut request: Request) {
        let Some(program) = program() else { return };
        request.kernels = Some(self.files.fingerprint());
        loop {
            request.known = self.ledger.record.borrow().verdicts.clone();
            let Ok(text) = serde_json::to_string(&request) else { return };
            let mut command = Command::new(&program);
            // another version of the program does no harm with these arguments
            command.args(["devices", "--json"]).env(VARIABLE, text).stdin(Stdio::null()).stdout(Stdio::piped());
            let Ok(mut child) = command.spawn() else { return };
            let ended = self.watch(&mut child);
            // it may have ended by itself
            let _ = child.kill();
            let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            let done = ended == Ok(true);
            if let Some(kernel) = self.ledger.running() {
                let fault = ended.err().unwrap_or_else(|| format!("its process ended: {status}"));
                self.ledger.fault(&kernel, fault);
            }
            if done || self.ledger.record.borrow().verdicts == request.known {
                return;
            }
        }
    }

    /// Notes a child's messages until it ends: whether everything is tested; an error if it hangs.
    fn watch(&self, child: &mut Child) -> Result<bool, String> {
        let Some(messages) = messages(child) else { return Ok(false) };
        let seconds = std::env::var(LIMIT_VARIABLE).ok().and_then(|text| text.parse().ok());
        let limit = seconds.map_or(LIMIT, Duration::from_secs);
        loop {
            match messages.recv_timeout(if self.ledger.running().is_some() { limit } else { BETWEEN }) {
                Ok(Message::Ended(complete)) => {
                    self.ledger.runs(None);
                    return Ok(complete);
                }
                Ok(message) => self.ledger.note(message),
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("it hangs: no result within {} s", limit.as_secs()));
                }
            }
        }
    }
}

/// The lines of a child's standard output, as far as they are messages.
fn messages(child: &mut Child) -> Option<Receiver<Message>> {
    let (from, (send, receive)) = (child.stdout.take()?, channel());
    std::thread::spawn(move || {
        let lines = BufReader::new(from).lines().map_while(Result::ok);
        lines.map_while(|line| serde_json::from_str(&line).ok()).try_for_each(|message| send.send(message))
    });
    Some(receive)
}
