//! Checks the thread pool's protocol under every interleaving of two and three threads with a few preemptions:
//!
//!     RUSTFLAGS="--cfg loom" cargo run --release --manifest-path tests/attack/loom/Cargo.toml
//!
//! loom reports deadlocks (lost wake-ups), data races and failed assertions, together with the interleaving.

#[allow(dead_code)] // used by the backend, but not here
#[path = "../../../../src/backend/cpu/threads.rs"]
mod threads;

use loom::cell::UnsafeCell;
use threads::ThreadPool;

/// Output slots of the tasks: loom fails if two threads may write at once, or if the caller reads before they
/// are done.
struct Slots(Vec<UnsafeCell<usize>>);

// SAFETY: every task writes its own slot, which is what loom checks.
unsafe impl Sync for Slots {}

/// Runs regions with these numbers of tasks, one after the other; every task must have run once when its region
/// ends.
fn regions(threads: usize, tasks: &[usize]) {
    let pool = ThreadPool::new(threads);
    for (round, &tasks) in tasks.iter().enumerate() {
        let slots = Slots((0..tasks).map(|_| UnsafeCell::new(0)).collect());
        let slots = &slots;
        pool.run(tasks, &move |i| slots.0[i].with_mut(|slot| unsafe { *slot += round + 1 }));
        for slot in &slots.0 {
            slot.with(|slot| assert_eq!(unsafe { *slot }, round + 1));
        }
    }
}

fn main() {
    let check = |name: &str, preemptions: Option<usize>, threads: usize, tasks: &'static [usize]| {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        model.max_branches = 100_000;
        model.check(move || regions(threads, tasks));
        println!("ok: {name}");
    };
    check("a pool that is dropped unused", None, 2, &[]);
    check("one region, two threads, at most 4 preemptions", Some(4), 2, &[2]);
    check("two regions, two threads, at most 3 preemptions", Some(3), 2, &[2, 2]);
    check("one region, three threads, at most 2 preemptions", Some(2), 3, &[2]);
}
