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

/// The work of a child.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Request {
    pub ordinal: usize,
    /// The kernels of one model; `None`: all.
    pub variants: Option<Variants>,
    /// Fingerprint of the parent's kernels, which must be the child's; `None` in the parent.
    pub kernels: Option<u64>,
    /// Kernels that are not tested again.
    pub known: Verdicts,
}

/// A child's line on standard output.
#[derive(Serialize, Deserialize)]
pub enum Message {
    Running(String),
    Checked(Check),
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
    pub fn test_in_children(&mut self, mut request: Request) {
        let Some(program) = program() else { return };
        request.kernels = Some(self.files.fingerprint());
        loop {
            request.known = self.record.verdicts.clone();
            let (Ok(text), tested) = (serde_json::to_string(&request), self.checks.len()) else { return };
            let mut command = Command::new(&program);
            // another version of the program does no harm with these arguments
            command.args(["devices", "--json"]).env(VARIABLE, text).stdin(Stdio::null()).stdout(Stdio::piped());
            let Ok(mut child) = command.spawn() else { return };
            let mut running = None;
            let ended = self.watch(&mut child, &mut running);
            // it may have ended by itself
            let _ = child.kill();
            let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            let done = ended == Ok(true);
            if let Some(kernel) = running {
                let fault = ended.err().unwrap_or_else(|| format!("its process ended: {status}"));
                self.end(Check { kernel, fault: Some(fault), ..Check::default() });
            }
            if done || self.checks.len() == tested {
                return;
            }
        }
    }

    /// Notes a child's messages and the kernel under test until it ends: whether everything is tested; an error if it hangs.
    fn watch(&mut self, child: &mut Child, running: &mut Option<String>) -> Result<bool, String> {
        let Some(messages) = messages(child) else { return Ok(false) };
        let seconds = std::env::var(LIMIT_VARIABLE).ok().and_then(|text| text.parse().ok());
        let limit = seconds.map_or(LIMIT, Duration::from_secs);
        loop {
            match messages.recv_timeout(if running.is_some() { limit } else { BETWEEN }) {
                Ok(Message::Running(kernel)) => {
                    self.record.note(&kernel, Some(Verdict::Running));
                    *running = Some(kernel);
                }
                Ok(Message::Checked(check)) => {
                    *running = None;
                    self.end(check);
                }
                Ok(Message::Ended(complete)) => {
                    running.take().iter().for_each(|kernel| self.record.note(kernel, None));
                    return Ok(complete);
                }
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
