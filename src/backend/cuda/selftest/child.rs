//! Self-tests in a child process: a kernel that faults or hangs takes the child with it, and the next child continues without
//! that kernel. If no `uqac` executable is found (Python, other programs), or no folder for the record, tests run in the caller's
//! process.

use super::super::kernel_set::Variants;
use super::SelfTest;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The request, in the child's environment.
const VARIABLE: &str = "UQAC_SELF_TEST";

/// Time limit in seconds from one launch to the next, in place of [`LIMIT`].
const LIMIT_VARIABLE: &str = "UQAC_SELF_TEST_SECONDS";
const LIMIT: Duration = Duration::from_secs(60);

/// Time limit while no kernel is running: opening the device, compiling kernels.
const BETWEEN: Duration = Duration::from_secs(600);

/// Polling interval.
const INTERVAL: Duration = Duration::from_millis(10);

/// The work of a child.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Request {
    pub ordinal: usize,
    /// The kernels of one model; `None`: all.
    pub variants: Option<Variants>,
    /// Fingerprint of the parent's kernels, which must match the child's; `None` in the parent.
    pub kernels: Option<u64>,
}

/// Runs the tests if this process is such a child; success if all of them ran.
pub fn run_if_child() -> Option<ExitCode> {
    let request = serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok()?;
    Some(if super::run(request).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// This executable if it is `uqac`, else the `uqac` on the path; `None` in a child.
fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok().filter(|own| own.file_stem().is_some_and(|stem| stem == "uqac"));
    std::env::var_os(VARIABLE).is_none().then(|| own.unwrap_or_else(|| PathBuf::from("uqac")))
}

impl SelfTest<'_> {
    /// Tests the kernels of `request` in child processes, as far as possible; the verdicts are in the record.
    pub fn test_in_children(&self, mut request: Request) {
        let record = &self.ledger.record;
        let Some(program) = program().filter(|_| record.borrow().path.is_some()) else { return };
        request.kernels = Some(self.files.fingerprint());
        let Ok(request) = serde_json::to_string(&request) else { return };
        loop {
            record.borrow().save();
            let failed = record.borrow().known.failed.len();
            let mut command = Command::new(&program);
            // harmless if this is another version of the program
            command.args(["devices", "--json"]).env(VARIABLE, &request).stdin(Stdio::null()).stdout(Stdio::null());
            let Ok(mut child) = command.spawn() else { return };
            let ended = self.watch(&mut child);
            let done = ended.as_ref().is_ok_and(ExitStatus::success);
            let reason = ended.map_or_else(|hangs| hangs, |status| format!("its process ended: {status}"));
            record.borrow_mut().take_over(&reason);
            if done || record.borrow().known.failed.len() == failed {
                return; // without a new fault, another child would end the same way
            }
        }
    }

    /// Waits for a child to exit; an error if it hangs.
    fn watch(&self, child: &mut Child) -> Result<ExitStatus, String> {
        let seconds = std::env::var(LIMIT_VARIABLE).ok().and_then(|text| text.parse().ok());
        let limit = seconds.map_or(LIMIT, Duration::from_secs);
        let mut idle = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Ok(status);
            }
            let running = self.ledger.record.borrow().running_time();
            if running.is_some() {
                idle = Instant::now();
            }
            if running.is_some_and(|time| time > limit) || idle.elapsed() > BETWEEN {
                // it may have exited on its own
                let _ = child.kill().and_then(|()| child.wait());
                return Err(format!("it hangs: no result within {} s", limit.as_secs()));
            }
            std::thread::sleep(INTERVAL);
        }
    }
}
