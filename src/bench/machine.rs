//! Hardware limits, measured independently of the engine: read bandwidth, peak arithmetic rate, memory in use.

use crate::backend::cpu::simd::{Isa, Kernel, LANES, Simd, bytes_ahead};
use crate::{backend::DeviceChoice, model::weights::Noise};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, sys};
use std::{hint::black_box, sync::Arc, time::Duration, time::Instant};

/// The device under measurement.
pub enum Machine {
    /// The number of reading threads, and the buffer they read.
    Cpu { threads: usize, buffer: Vec<f32> },
    /// The device's primary context, which the engine uses too, with buffers to copy between.
    Cuda { context: Arc<CudaContext>, stream: Arc<CudaStream>, from: CudaSlice<u8>, to: CudaSlice<u8> },
}

/// Why a limit cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("no CUDA driver is installed (libcuda.so.1 is not found)")]
    NoDriver,
    #[error("CUDA driver: {0}")]
    Driver(#[from] DriverError),
    #[error("{path}: {source}")]
    Proc { path: &'static str, source: std::io::Error },
}

/// Whether there is a CUDA driver with a device.
pub fn has_cuda() -> bool {
    // SAFETY: looks the library up and calls nothing in it.
    let present = unsafe { sys::is_culib_present() };
    present && CudaContext::device_count().is_ok_and(|count| count > 0)
}

/// Resolves `auto`, so that engine and machine use the same device.
pub fn resolve(choice: DeviceChoice) -> DeviceChoice {
    match choice {
        DeviceChoice::Auto if has_cuda() => DeviceChoice::Cuda(0),
        DeviceChoice::Auto => DeviceChoice::Cpu,
        other => other,
    }
}

impl Machine {
    /// `threads`: CPU threads, 0 for one per core; `bytes`: size of each buffer, many times the caches.
    pub fn open(choice: DeviceChoice, threads: usize, bytes: usize) -> Result<Machine, MachineError> {
        if let DeviceChoice::Cuda(ordinal) = resolve(choice) {
            return Machine::cuda(ordinal, bytes);
        }
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if threads == 0 { cores } else { threads };
        Ok(Machine::Cpu { threads, buffer: (0..bytes / 4).map(|i| i as f32).collect() })
    }

    fn cuda(ordinal: usize, bytes: usize) -> Result<Machine, MachineError> {
        if !has_cuda() {
            return Err(MachineError::NoDriver);
        }
        let context = CudaContext::new(ordinal)?;
        let stream = context.new_stream()?;
        // SAFETY: u8 has no invalid values, and the copies below fill `from` before anything reads it.
        let (mut from, to) = unsafe { (stream.alloc::<u8>(bytes)?, stream.alloc::<u8>(bytes)?) };
        // random data: moving zeros costs less
        let numbers = Noise::new(1).floats(bytes.min(64 << 20).div_ceil(4), 1.0);
        let part: &[u8] = bytemuck::cast_slice(&numbers);
        for start in (0..bytes).step_by(part.len()) {
            let len = part.len().min(bytes - start);
            stream.memcpy_htod(&part[..len], &mut from.slice_mut(start..start + len))?;
        }
        stream.synchronize()?;
        Ok(Machine::Cuda { context, stream, from, to })
    }

    /// Bytes per second between the chip and its memory: reads on a CPU, copies (read plus written) on a GPU.
    pub fn bandwidth(&mut self) -> Result<f64, MachineError> {
        match self {
            Machine::Cpu { threads, buffer } => {
                let start = Instant::now();
                std::thread::scope(|scope| {
                    for part in buffer.chunks(buffer.len().div_ceil(*threads)) {
                        scope.spawn(move || black_box(Isa::detect().run(ReadAll(part))));
                    }
                });
                Ok(size_of_val(&buffer[..]) as f64 / start.elapsed().as_secs_f64())
            }
            Machine::Cuda { stream, from, to, .. } => {
                const TIMES: usize = 3;
                let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
                stream.memcpy_dtod(&*from, to)?;
                let start = stream.record_event(timed)?;
                for _ in 0..TIMES {
                    stream.memcpy_dtod(&*from, to)?;
                }
                let end = stream.record_event(timed)?;
                let seconds = f64::from(start.elapsed_ms(&end)?) / 1e3;
                Ok((TIMES * 2 * from.len()) as f64 / seconds)
            }
        }
    }

    /// f32 operations per second, counting a multiply-add as two; `None` on a GPU.
    pub fn arithmetic_peak(&self) -> Option<f64> {
        let Machine::Cpu { threads, .. } = self else { return None };
        let run = || Isa::detect().run(MultiplyAdds { x: black_box(0.5), iterations: ITERATIONS });
        let start = Instant::now();
        let done: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..*threads).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
        });
        Some(2.0 * done as f64 / start.elapsed().as_secs_f64())
    }

    /// Bytes of this process's memory used by these measurements' buffers.
    pub fn own_bytes(&self) -> u64 {
        if let Machine::Cpu { buffer, .. } = self { size_of_val(&buffer[..]) as u64 } else { 0 }
    }

    /// Bytes currently in use.
    pub fn in_use(&self) -> Result<u64, MachineError> {
        match self {
            Machine::Cpu { .. } => status_bytes("VmRSS:"),
            Machine::Cuda { context, .. } => Ok(in_use(context)?),
        }
    }

    /// Starts tracking peak memory use.
    pub fn watch(&self) -> Result<Watch, MachineError> {
        match self {
            Machine::Cpu { .. } => {
                let path = "/proc/self/clear_refs";
                std::fs::write(path, "5").map_err(|source| MachineError::Proc { path, source })?;
                Ok(Watch(Box::new(|| status_bytes("VmHWM:"))))
            }
            Machine::Cuda { context, .. } => {
                let (alive, context) = (Arc::new(()), context.clone());
                let watched = Arc::downgrade(&alive);
                // its driver tracks no peak, so a thread polls it; peaks shorter than a pause are missed
                let thread = std::thread::spawn(move || -> Result<u64, DriverError> {
                    let mut peak = 0;
                    while watched.strong_count() > 0 {
                        peak = peak.max(in_use(&context)?);
                        std::thread::sleep(PAUSE);
                    }
                    Ok(peak.max(in_use(&context)?))
                });
                Ok(Watch(Box::new(move || {
                    drop(alive);
                    Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
                })))
            }
        }
    }
}

/// Time between two looks at a device's memory.
const PAUSE: Duration = Duration::from_micros(100);

/// Tracks peak memory use.
pub struct Watch(Box<dyn FnOnce() -> Result<u64, MachineError>>);

impl Watch {
    /// Peak bytes in use since the start.
    pub fn peak(self) -> Result<u64, MachineError> {
        (self.0)()
    }
}

/// Bytes of device memory in use, by any process.
fn in_use(context: &Arc<CudaContext>) -> Result<u64, DriverError> {
    let (free, total) = context.mem_get_info()?;
    Ok((total - free) as u64)
}

/// A line of this process's status, in bytes.
fn status_bytes(key: &str) -> Result<u64, MachineError> {
    let path = "/proc/self/status";
    let text = std::fs::read_to_string(path).map_err(|source| MachineError::Proc { path, source })?;
    let kib = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let missing = || MachineError::Proc { path, source: std::io::Error::other(format!("no line {key}")) };
    Ok(kib.ok_or_else(missing)? * 1024)
}

/// Iterations of [`MultiplyAdds`]: tens of milliseconds, long compared with starting a thread.
const ITERATIONS: usize = 1 << 23;

/// Independent multiply-adds in registers; returns their number.
pub struct MultiplyAdds {
    pub x: f32,
    pub iterations: usize,
}

impl Kernel<usize> for MultiplyAdds {
    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        if S::REGISTERS >= 32 { multiply_adds::<S, 24>(self) } else { multiply_adds::<S, 6>(self) }
    }
}

#[inline(always)]
fn multiply_adds<S: Simd, const N: usize>(MultiplyAdds { x, iterations }: MultiplyAdds) -> usize {
    // SAFETY: called through `Isa::run`.
    unsafe {
        let (a, b) = (S::splat(x), S::splat(1.0 - x));
        let mut sums = [S::splat(0.0); N];
        for _ in 0..iterations {
            for sum in &mut sums {
                *sum = S::fma(a, b, *sum); // the register of the sum is the result's on every CPU
            }
        }
        for sum in sums {
            black_box(S::sum(sum));
        }
    }
    iterations * N * LANES
}

/// Sums values in the fastest read order: four prefetched streams at different offsets within a page, since equal
/// offsets share cache sets and memory banks.
struct ReadAll<'a>(&'a [f32]);

impl Kernel<f32> for ReadAll<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        const STREAMS: usize = 4;
        const LINES: usize = 2;
        const PAGE: usize = 4096 / size_of::<f32>();
        let all = self.0.len() / STREAMS;
        let length = (all.saturating_sub(PAGE) / PAGE * PAGE + PAGE / STREAMS).min(all);
        let ahead = bytes_ahead(STREAMS);
        // SAFETY: called through `Isa::run`; every load ends within a stream.
        unsafe {
            let mut sums = [[S::splat(0.0); LINES]; STREAMS];
            for i in 0..length / (LINES * LANES) {
                for (stream, sums) in sums.iter_mut().enumerate() {
                    for (line, sum) in sums.iter_mut().enumerate() {
                        let p = self.0.as_ptr().add(stream * length + (i * LINES + line) * LANES);
                        S::prefetch(p.cast::<u8>().wrapping_add(ahead));
                        *sum = S::add(*sum, S::load(p));
                    }
                }
            }
            sums.as_flattened().iter().map(|sum| S::sum(*sum)).sum()
        }
    }
}
