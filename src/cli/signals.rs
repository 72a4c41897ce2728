//! Messages for signals that end the program, and protection against environment settings that would end it.

use std::{path::Path, sync::OnceLock, sync::atomic::AtomicBool, sync::atomic::Ordering::Relaxed};

/// Message of an interrupted command: how to resume.
static INTERRUPTED: OnceLock<String> = OnceLock::new();

/// What a first Ctrl-C says where it only requests shutdown.
static FINISHING: OnceLock<String> = OnceLock::new();

/// Message for a mapped file that was truncated.
static TRUNCATED: OnceLock<String> = OnceLock::new();

/// Threads get at least the standard library's default stack size, whatever `RUST_MIN_STACK` is.
const MIN_STACK: usize = 2 << 20;

/// Must be called first in `main`, while there is only one thread.
pub fn restore_stack_size() {
    let stack = std::env::var("RUST_MIN_STACK").ok().map(|stack| stack.parse::<usize>());
    if stack.is_some_and(|stack| stack.is_ok_and(|stack| stack < MIN_STACK)) {
        // SAFETY: no other thread that could read the environment is running yet.
        unsafe { std::env::remove_var("RUST_MIN_STACK") };
    }
}

/// Installs the program's signal handlers.
pub fn prepare() {
    #[cfg(unix)]
    handlers::set([(libc::SIGBUS, handlers::on_bus_error), (libc::SIGINT, handlers::on_interrupt)]);
    #[cfg(windows)]
    handlers::set();
}

/// Sets the message of Ctrl-C.
pub fn on_interrupt(message: &str) {
    let _ = INTERRUPTED.set(format!("\n{message}\n"));
}

/// Whether a signal has requested shutdown.
static STOP: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C and SIGTERM only request shutdown, see [`stop_requested`]; a second one ends the program
/// immediately.
pub fn stop_on_request() {
    #[cfg(unix)]
    handlers::set([(libc::SIGINT, handlers::on_stop), (libc::SIGTERM, handlers::on_stop)]);
    #[cfg(windows)]
    CATCH.store(true, Relaxed);
}

/// Sets what the first request for shutdown says.
pub fn on_stop(message: &str) {
    let _ = FINISHING.set(format!("\n{message}\n"));
}

/// Ends the program as Ctrl-C does elsewhere, if shutdown was requested.
pub fn end_if_requested() {
    if stop_requested() {
        handlers::end();
    }
}

/// Whether Ctrl-C only requests shutdown.
#[cfg(windows)]
static CATCH: AtomicBool = AtomicBool::new(false);

/// Whether such a request has arrived.
pub fn stop_requested() -> bool {
    STOP.load(Relaxed)
}

/// Sets the message for truncated weights; this folder's weights are mapped from now on.
pub fn on_truncation(model: &Path) {
    let message = "a file of weights was truncated, or can no longer be read, while it was in use; leave model files alone \
                   while the program runs, and download this one again";
    let _ = TRUNCATED.set(format!("error: {}: {message}\n", model.display()));
}

/// The handlers only read what was set before, and call `write`, `signal`, `raise` and `_exit`, which are
/// async-signal-safe.
#[cfg(unix)]
mod handlers {
    use super::{FINISHING, INTERRUPTED, STOP, TRUNCATED};
    use crate::cli::FAILED;
    use libc::{c_int, c_void, siginfo_t};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

    /// The handler signature for SA_SIGINFO.
    type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

    pub extern "C" fn on_stop(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
        SIGNAL.store(signal, Relaxed);
        match STOP.swap(true, Relaxed) {
            true => default(signal),
            false => say(&FINISHING),
        }
    }

    /// Installs signal handlers, except for ignored signals, such as Ctrl-C in a script's background job.
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

    /// Reports access to a mapped page that its file no longer backs; other bus errors get the default action.
    pub extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the system passes a valid pointer.
        if unsafe { (*info).si_code } == libc::BUS_ADRERR {
            say(&TRUNCATED);
            // SAFETY: it ends the process immediately, as a signal handler may.
            unsafe { libc::_exit(FAILED.into()) };
        }
        default(signal);
    }

    pub extern "C" fn on_interrupt(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
        say(&INTERRUPTED);
        default(signal);
    }

    /// The signal that requested shutdown.
    static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGINT);

    pub fn end() {
        say(&INTERRUPTED);
        default(SIGNAL.load(Relaxed));
    }

    /// Ends the process with the signal, so that a shell sees the cause.
    fn default(signal: c_int) {
        // SAFETY: both are async-signal-safe.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }

    fn say(message: &OnceLock<String>) {
        let Some(message) = message.get() else { return };
        // SAFETY: pointer and length describe a string that never changes.
        unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
    }
}

/// Ctrl-C, Ctrl-Break and a closing console; Windows calls the handler on a thread of its own.
#[cfg(windows)]
mod handlers {
    use super::{CATCH, FINISHING, INTERRUPTED, STOP};
    use crate::cli::FAILED;
    use std::sync::{OnceLock, atomic::Ordering::Relaxed};
    use windows_sys::Win32::System::Console::SetConsoleCtrlHandler;
    use windows_sys::core::BOOL;

    pub fn set() {
        // SAFETY: the handler is a function for the program's whole life, and may run beside any thread.
        unsafe { SetConsoleCtrlHandler(Some(on_event), 1) };
    }

    /// 1: handled; 0: the next handler, Windows' own, ends the process.
    unsafe extern "system" fn on_event(_: u32) -> BOOL {
        if CATCH.load(Relaxed) && !STOP.swap(true, Relaxed) {
            say(&FINISHING);
            return 1;
        }
        say(&INTERRUPTED);
        0
    }

    pub fn end() {
        say(&INTERRUPTED);
        std::process::exit(FAILED.into());
    }

    fn say(message: &OnceLock<String>) {
        message.get().into_iter().for_each(|message| eprint!("{message}"));
    }
}
