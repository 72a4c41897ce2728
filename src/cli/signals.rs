//! Messages at signals that end the program, and settings of the environment that must not end it.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The message of an interrupted command: how to go on.
static INTERRUPTED: OnceLock<String> = OnceLock::new();

/// Message for a mapped file that has become shorter.
static TRUNCATED: OnceLock<String> = OnceLock::new();

/// Threads have at least the stack that the standard library gives them, whatever `RUST_MIN_STACK` is.
const MIN_STACK: usize = 2 << 20;

/// To be called first in `main`, while there is one thread.
pub fn restore_stack_size() {
    let stack = std::env::var("RUST_MIN_STACK").ok().map(|stack| stack.parse::<usize>());
    if stack.is_some_and(|stack| stack.is_ok_and(|stack| stack < MIN_STACK)) {
        // SAFETY: no other thread runs yet that could read the environment.
        unsafe { std::env::remove_var("RUST_MIN_STACK") };
    }
}

/// Sets the signal handlers of the program.
pub fn prepare() {
    #[cfg(target_os = "linux")]
    handlers::set([(libc::SIGBUS, handlers::on_bus_error), (libc::SIGINT, handlers::on_interrupt)]);
}

/// Sets the message of Ctrl-C.
pub fn on_interrupt(message: &str) {
    let _ = INTERRUPTED.set(format!("\n{message}\n"));
}

/// Whether a signal has requested the end of the program.
static STOP: AtomicBool = AtomicBool::new(false);

/// Ctrl-C and SIGTERM only ask from now on, see [`stop_requested`]; a second one ends the program at once.
pub fn stop_on_request() {
    #[cfg(target_os = "linux")]
    handlers::set([(libc::SIGINT, handlers::on_stop), (libc::SIGTERM, handlers::on_stop)]);
}

/// Whether one of them has come.
pub fn stop_requested() -> bool {
    STOP.load(Relaxed)
}

/// The weights of this folder are mapped from now on.
pub fn on_truncation(model: &Path) {
    let message = "a file of weights was truncated, or can no longer be read, while it was in use; leave model files alone \
                   while the program runs, and download this one again";
    let _ = TRUNCATED.set(format!("error: {}: {message}\n", model.display()));
}

/// They only read what was set before, and call `write`, `signal`, `raise` and `_exit`, which signal handlers may.
#[cfg(target_os = "linux")]
mod handlers {
    use super::{INTERRUPTED, STOP, TRUNCATED};
    use crate::cli::FAILED;
    use libc::{c_int, c_void, siginfo_t};
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering::Relaxed;

    /// As SA_SIGINFO promises.
    type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

    pub extern "C" fn on_stop(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
        if STOP.swap(true, Relaxed) {
            default(signal);
        }
    }

    /// Sets the handlers of signals, unless they are ignored, as Ctrl-C is in the background of a script.
    pub fn set(handlers: [(c_int, Handler); 2]) {
        for (signal, handler) in handlers {
            // SAFETY: a `sigaction` of zeros is valid; both pointers are to local variables.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, std::ptr::null(), &mut action) != 0 || action.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                action = std::mem::zeroed();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
    }

    /// A mapped page that its file no longer has; anything else is the default action's.
    pub extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the system passes a valid pointer.
        if unsafe { (*info).si_code } == libc::BUS_ADRERR {
            say(&TRUNCATED);
            // SAFETY: it ends the process at once, as a signal handler may.
            unsafe { libc::_exit(FAILED.into()) };
        }
        default(signal);
    }

    pub extern "C" fn on_interrupt(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
        say(&INTERRUPTED);
        default(signal);
    }

    /// Ends the process by the signal, so that a shell sees why.
    fn default(signal: c_int) {
        // SAFETY: both may be called in a signal handler.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }

    fn say(message: &OnceLock<String>) {
        let Some(message) = message.get() else { return };
        // SAFETY: the pointer and the length are of a text that is never changed.
        unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
    }
}
