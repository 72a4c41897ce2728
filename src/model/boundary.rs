//! Isolation of the libraries that read model files: their panics become errors, and nested data is traversed on a stack
//! of known size.

use std::{any::Any, cell::Cell, cell::RefCell, panic::AssertUnwindSafe, panic::PanicHookInfo, sync::Once};

/// Stack of [`on_known_stack`] in bytes: enough to drop a list nested as deeply as a chat template's fuel allows. Only
/// pages in use take memory.
const STACK: usize = 256 << 20;

thread_local! {
    /// Nested [`caught`] calls of this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Message of a library's panic.
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `call`, which should only call a library. A library's panic prints nothing; this crate's own panics unwind.
///
/// # Errors
/// The message of the library's error, or of its panic.
pub(super) fn caught<T, E: ToString>(call: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // outside of this crate
            let own = file!().strip_suffix("model/boundary.rs").unwrap_or(file!());
            if DEPTH.get() > 0 && info.location().is_some_and(|place| !place.file().starts_with(own)) {
                MESSAGE.with(|message| message.replace(Some(said(info))));
            } else {
                before(info);
            }
        }));
    });
    DEPTH.set(DEPTH.get() + 1);
    let result = std::panic::catch_unwind(AssertUnwindSafe(call));
    DEPTH.set(DEPTH.get() - 1);
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(MESSAGE.with(|message| message.take()).unwrap_or_else(|| std::panic::resume_unwind(panic))),
    }
}

fn said(info: &PanicHookInfo) -> String {
    let payload: &dyn Any = info.payload();
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    let place = info.location().map_or("", |place| place.file());
    // the library's name and version, as in .../tokenizers-0.23.2/src/...
    let library = place.rsplit("/src/").nth(1).and_then(|path| path.rsplit('/').next()).unwrap_or("a library");
    format!("{library} failed: {text}")
}

/// Runs `work` on a thread with a stack of [`STACK`] bytes.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn on_known_stack<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::normalizers::NormalizerWrapper;
    use tokenizers::{NormalizedString, Normalizer};

    /// The library panics on a charsmap without a trie.
    fn library_panic() -> tokenizers::Result<()> {
        let json = r#"{"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}"#;
        let normalizer: NormalizerWrapper = serde_json::from_str(json).unwrap();
        normalizer.normalize(&mut NormalizedString::from("a"))
    }

    #[test]
    fn a_librarys_panic_is_an_error() {
        let error = caught(library_panic).unwrap_err();
        assert!(error.starts_with("spm_precompiled-") && error.contains("index out of bounds"), "{error}");
        // in a call within a call, and many threads at once
        assert!(caught(|| Ok::<_, String>(caught(library_panic).is_err())).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!((0..50).all(|_| caught(library_panic).is_err())));
            }
        });
    }

    #[test]
    fn our_own_panic_goes_on() {
        let ours = || -> Result<(), String> { panic!("our own") };
        let panic = std::panic::catch_unwind(|| caught(ours)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"our own"));
        assert_eq!(caught(|| Ok::<_, String>(3)), Ok(3), "the next call is as any other");
    }

    #[test]
    fn the_stack_does_not_depend_on_the_callers() {
        fn deep(n: usize) -> usize {
            let block = std::hint::black_box([n as u8; 1024]);
            if n == 0 { 0 } else { deep(n - 1) + usize::from(block[0] == n as u8) }
        }
        let small = std::thread::Builder::new().stack_size(64 << 10);
        assert_eq!(small.spawn(|| on_known_stack(|| deep(20_000)).unwrap()).unwrap().join().unwrap(), 20_000);
    }
}
