//! A pool of threads for short parallel regions: a decode step of a small model has over a hundred of them.
//!
//! Every thread has a share of a region's tasks, the same part of their order each time, so that data it wrote in one
//! region is in its own caches in the next; a thread that has finished its share helps with the others'. Workers spin
//! briefly between regions, so that the next one starts without a system call, and then sleep. Workers that arrive too late
//! for a region are not waited for.
//!
//! `tests/attack/loom` compiles this file against loom, which tries every interleaving of a few threads.

#[cfg(loom)]
use loom::{sync, thread};
#[cfg(not(loom))]
use std::{sync, thread};

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::{any::Any, marker::PhantomData, ops::Range, sync::PoisonError};
use sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use sync::{Arc, Condvar, Mutex, MutexGuard};
use thread::JoinHandle;

/// Threads that run the tasks of one parallel region at a time together with the calling thread.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

type Task<'a> = *const (dyn Fn(usize) + Sync + 'a);

/// The task function of the open region; its lifetime is erased, [`ThreadPool::run`] outlives every use of it.
#[derive(Clone, Copy)]
struct Region {
    task: Task<'static>,
    tasks: usize,
}

// SAFETY: the function may be called from any thread (`Sync`); `ThreadPool::run` bounds how long.
unsafe impl Send for Region {}

struct Shared {
    /// Region number in the high half, [`OPEN`], and below it the number of workers inside.
    state: AtomicU64,
    /// Set before a region opens, read by workers that have entered it.
    region: Mutex<Option<Region>>,
    /// Per thread, the next task of its share to hand out.
    next: Vec<Counter>,
    /// The first panic of the region.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// A caller is in [`ThreadPool::run`]: nested calls see it and run inline.
    busy: AtomicBool,
    stop: AtomicBool,
    /// Workers asleep on `opened`; whether the caller sleeps on `emptied`. Both change only under `sleep`.
    sleepers: AtomicUsize,
    caller_sleeps: AtomicBool,
    sleep: Mutex<()>,
    opened: Condvar,
    emptied: Condvar,
}

/// On its own cache lines, so that threads do not contend for each other's counters.
#[repr(align(128))]
struct Counter(AtomicUsize);

/// Bit of `state`: workers may enter.
const OPEN: u64 = 1 << 31;
/// Bits of `state`: workers inside.
const INSIDE: u64 = OPEN - 1;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadPool {
    /// A pool of `threads` (at least one), the caller of [`run`](Self::run) included: `new(1)` starts no thread.
    pub fn new(threads: usize) -> ThreadPool {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            region: Mutex::new(None),
            next: (0..threads.max(1)).map(|_| Counter(AtomicUsize::new(0))).collect(),
            panic: Mutex::new(None),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
            sleep: Mutex::new(()),
            opened: Condvar::new(),
            emptied: Condvar::new(),
        });
        // Fewer threads if the system cannot create more.
        let workers = (1..threads)
            .filter_map(|i| {
                let shared = shared.clone();
                thread::Builder::new().name(format!("uqac-{i}")).spawn(move || shared.work(i)).ok()
            })
            .collect();
        ThreadPool { shared, workers }
    }

    /// Threads that take part in a region.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i)` once for every i in `0..tasks`, on all threads, and returns when all calls have returned.
    ///
    /// If a call panics, calls that have not started are dropped, and the panic resumes in the caller once no thread is
    /// inside a call. A nested call runs its tasks inline.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        if tasks <= 1 || self.workers.is_empty() || shared.busy.swap(true, Acquire) {
            return (0..tasks).for_each(task);
        }
        // SAFETY: only the lifetime changes. `close` below is always reached, as `take_part` catches panics, and
        // returns once no worker is inside and none can enter, so the pointer is not used after this call.
        let task = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        let region = Region { task, tasks };
        shared.open(region);
        shared.take_part(region, 0);
        shared.close();
        let panic = lock(&shared.panic).take();
        shared.busy.store(false, Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Results of `task(i)` for every i in `0..tasks`, called as by [`run`](Self::run).
    pub fn map<T: Default + Send>(&self, tasks: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let mut results: Vec<T> = std::iter::repeat_with(T::default).take(tasks).collect();
        let slots = Disjoint::new(&mut results);
        // SAFETY: one task per slot.
        self.run(tasks, &|i| unsafe { slots.slice(i..i + 1)[0] = task(i) });
        results
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Release);
        drop(lock(&self.shared.sleep));
        self.shared.opened.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Lets the workers in, and wakes sleeping ones.
    fn open(&self, region: Region) {
        *lock(&self.region) = Some(region);
        for (thread, next) in self.next.iter().enumerate() {
            next.0.store(self.share(region.tasks, thread).start, Relaxed);
        }
        let number = (self.state.load(Relaxed) >> 32).wrapping_add(1);
        self.state.store(number << 32 | OPEN, Release);
        // Both sides modify the count of sleepers: the later one sees the earlier one's prior writes. So either a worker
        // sees the region before it sleeps, or this thread sees the sleeper.
        if self.sleepers.fetch_add(0, AcqRel) > 0 {
            drop(lock(&self.sleep)); // no sleeper is between its last check and its wait
            self.opened.notify_all();
        }
    }

    /// The tasks that a thread starts with.
    fn share(&self, tasks: usize, thread: usize) -> Range<usize> {
        let threads = self.next.len();
        tasks * thread / threads..tasks * (thread + 1) / threads
    }

    /// Runs tasks until none is left: those of the thread's own share, then of the shares after it. A panic stops the
    /// hand-out and is kept for the caller.
    fn take_part(&self, region: Region, thread: usize) {
        // SAFETY: the region is open, or was when this worker entered it, and its caller waits for this thread.
        let task = unsafe { &*region.task };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for of in (thread..self.next.len()).chain(0..thread) {
                let end = self.share(region.tasks, of).end;
                let next = || self.next[of].0.fetch_add(1, Relaxed);
                std::iter::repeat_with(next).take_while(|i| *i < end).for_each(task);
            }
        }));
        if let Err(panic) = outcome {
            self.next.iter().for_each(|next| next.0.store(region.tasks, Relaxed));
            lock(&self.panic).get_or_insert(panic);
        }
    }

    /// Lets no more workers in and waits until those inside have left.
    fn close(&self) {
        let inside = |state: u64| state & INSIDE > 0;
        if !inside(self.state.fetch_and(!OPEN, AcqRel)) || spin_until(|| !inside(self.state.load(Acquire))) {
            return;
        }
        let mut guard = lock(&self.sleep);
        self.caller_sleeps.store(true, Relaxed);
        // as in `open`: either this thread sees that the last worker has left, or that worker sees it asleep
        while inside(self.state.fetch_add(0, AcqRel)) {
            guard = self.emptied.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Relaxed);
    }

    /// A worker's loop: enter each new region, run tasks, leave, wait for the next.
    fn work(&self, thread: usize) {
        let mut last = 0;
        let news = |last| self.stop.load(Acquire) || is_new(self.state.load(Acquire), last);
        loop {
            if !spin_until(|| news(last)) {
                let mut guard = lock(&self.sleep);
                self.sleepers.fetch_add(1, AcqRel);
                while !news(last) {
                    guard = self.opened.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleepers.fetch_sub(1, AcqRel);
            }
            if self.stop.load(Acquire) {
                return;
            }
            let state = self.state.load(Acquire);
            if is_new(state, last) && self.state.compare_exchange_weak(state, state + 1, AcqRel, Relaxed).is_ok() {
                last = state >> 32;
                let region = *lock(&self.region);
                if let Some(region) = region {
                    self.take_part(region, thread);
                }
                self.leave();
            }
        }
    }

    /// Checks a worker out of the region; the last one wakes a sleeping caller.
    fn leave(&self) {
        let before = self.state.fetch_sub(1, AcqRel);
        if before & (OPEN | INSIDE) == 1 && self.caller_sleeps.load(Relaxed) {
            drop(lock(&self.sleep));
            self.emptied.notify_one();
        }
    }
}

/// Whether `state` belongs to an open region other than region `last`.
fn is_new(state: u64, last: u64) -> bool {
    state & OPEN != 0 && state >> 32 != last
}

/// Time for which a thread spins before it sleeps: longer than the serial work between two regions of a decode step.
#[cfg(not(loom))]
const SPIN: std::time::Duration = std::time::Duration::from_micros(80);

/// Spins until `done` (true) or until [`SPIN`] has passed (false).
#[cfg(not(loom))]
fn spin_until(done: impl Fn() -> bool) -> bool {
    let start = std::time::Instant::now();
    loop {
        for _ in 0..32 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return false;
        }
    }
}

/// No time passes here: a single check is the whole spin.
#[cfg(loom)]
fn spin_until(done: impl Fn() -> bool) -> bool {
    done()
}

/// A mutable slice whose parts are handed to the tasks of a region.
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: hands out `&mut T` in parts that do not overlap (contract of `slice`): sound if T may move between threads.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as for `&mut [T]`.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// The part `range` (checked against the length).
    ///
    /// # Safety
    /// No two live parts overlap.
    #[allow(clippy::mut_from_ref)] // the point of this type
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice that `self` borrows; unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Pointer to the start of the part `range` (checked against the length), for vector stores.
    #[inline(always)]
    pub fn at(&self, range: Range<usize>) -> *mut T {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        self.start.wrapping_add(range.start)
    }

    /// Writes element `at` (checked against the length), for code in which a slice would be a call.
    ///
    /// # Safety
    /// No live part holds this element, and no other thread uses it.
    #[inline(always)]
    pub unsafe fn put(&self, at: usize, value: T) {
        // SAFETY: inside the slice that `self` borrows; used by no other thread, by the caller's promise.
        unsafe { self.at(at..at + 1).write(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in 1..=5 {
            let pool = ThreadPool::new(threads);
            assert_eq!(pool.threads(), threads);
            for tasks in (0..40).chain([1000]) {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|i| {
                    counts[i].fetch_add(1, SeqCst);
                });
                assert!(counts.iter().all(|c| c.load(SeqCst) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn regions_follow_each_other_with_and_without_sleep() {
        let pool = ThreadPool::new(3);
        let sum = AtomicUsize::new(0);
        for round in 0..3000 {
            if round % 500 == 0 {
                std::thread::sleep(4 * SPIN);
            }
            pool.run(7, &|i| {
                sum.fetch_add(i, SeqCst);
            });
        }
        assert_eq!(sum.load(SeqCst), 3000 * 21);
    }

    #[test]
    fn a_slow_task_is_waited_for() {
        let pool = ThreadPool::new(2);
        for slow in 0..2 {
            let done = AtomicUsize::new(0);
            pool.run(2, &|i| {
                if i == slow {
                    std::thread::sleep(4 * SPIN);
                }
                done.fetch_add(1, SeqCst);
            });
            assert_eq!(done.load(SeqCst), 2);
        }
    }

    #[test]
    fn nested_and_concurrent_calls_run() {
        let pool = ThreadPool::new(3);
        let count = AtomicUsize::new(0);
        let nested = || {
            pool.run(10, &|_| {
                pool.run(10, &|_| {
                    count.fetch_add(1, SeqCst);
                })
            })
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(nested);
            }
        });
        assert_eq!(count.load(SeqCst), 400);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        for threads in 1..=3 {
            let pool = ThreadPool::new(threads);
            for bad in [0, 5, 19] {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(20, &|i| {
                        if i == bad {
                            resume_unwind(Box::new(i)); // no message on stderr
                        }
                    })
                }));
                assert_eq!(outcome.unwrap_err().downcast_ref::<usize>(), Some(&bad));
                let count = AtomicUsize::new(0);
                pool.run(20, &|_| {
                    count.fetch_add(1, SeqCst);
                });
                assert_eq!(count.load(SeqCst), 20);
            }
        }
    }

    #[test]
    fn tasks_write_their_own_parts() {
        let mut numbers = vec![0; 1003];
        let parts = Disjoint::new(&mut numbers);
        ThreadPool::new(3).run(101, &|i| {
            // SAFETY: task i alone writes [10i, 10i + 10).
            let part = unsafe { parts.slice(10 * i..(10 * i + 10).min(1003)) };
            part.fill(i + 1);
        });
        assert!(numbers.iter().enumerate().all(|(i, &n)| n == i / 10 + 1));
    }
}
