//! What the machine itself does, without the engine: the rates of a roofline, and memory in use.

use crate::backend::cpu::simd::{Isa, Kernel, LANES, Simd, bytes_ahead};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, PinnedHostSlice, sys};
use std::hint::black_box;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The device under measurement.
pub enum Machine {
    Cpu(Cpu),
    Cuda(Cuda),
}

/// This many threads read together.
pub struct Cpu {
    threads: usize,
    buffer: Vec<f32>,
}

/// A context beside the engine's (the same one, as the driver sees it) with buffers to copy between.
pub struct Cuda {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    from: CudaSlice<u8>,
    to: CudaSlice<u8>,
    host: PinnedHostSlice<u8>,
}

/// Why the machine cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("no CUDA driver is installed (libcuda.so.1 is not found)")]
    NoDriver,
    #[error("the CUDA driver reports: {0}")]
    Driver(#[from] DriverError),
    #[error("{path}: {source}")]
    Proc { path: &'static str, source: std::io::Error },
    #[error("the thread that looks at the memory in use panicked")]
    Watch,
}

/// Whether there is a CUDA driver with a device.
pub fn has_cuda() -> bool {
    // SAFETY: looks the library up and calls nothing in it.
    let present = unsafe { sys::is_culib_present() };
    present && CudaContext::device_count().is_ok_and(|count| count > 0)
}

impl Machine {
    /// `bytes`: of each buffer. They have to be many times the caches.
    pub fn cpu(threads: usize, bytes: usize) -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if threads == 0 { cores } else { threads };
        Machine::Cpu(Cpu { threads, buffer: (0..bytes / 4).map(|i| i as f32).collect() })
    }

    /// The device with this number.
    pub fn cuda(ordinal: usize, bytes: usize) -> Result<Machine, MachineError> {
        if !has_cuda() {
            return Err(MachineError::NoDriver);
        }
        let context = CudaContext::new(ordinal)?;
        let stream = context.new_stream()?;
        // SAFETY: u8 has no invalid values, and the first copy fills all of it before anything reads it.
        let (mut from, to) = unsafe { (stream.alloc::<u8>(bytes)?, stream.alloc::<u8>(bytes)?) };
        // SAFETY: as above; filled in the next lines.
        let mut host = unsafe { context.alloc_pinned_with_flags::<u8>(bytes.min(256 << 20), 0)? };
        // random bytes: zeros are cheaper to move
        let mut state = 1u64;
        for word in host.as_mut_slice()?.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        for start in (0..bytes).step_by(host.len()) {
            let part = host.len().min(bytes - start);
            stream.memcpy_htod(&host.as_slice()?[..part], &mut from.slice_mut(start..start + part))?;
        }
        stream.synchronize()?;
        Ok(Machine::Cuda(Cuda { context, stream, from, to, host }))
    }

    /// Name, and what the driver says of it.
    pub fn describe(&self) -> Result<String, MachineError> {
        match self {
            Machine::Cpu(cpu) => Ok(format!("CPU, {} threads", cpu.threads)),
            Machine::Cuda(cuda) => {
                let (_, total) = cuda.context.mem_get_info()?;
                let processors =
                    cuda.context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
                let name = cuda.context.name()?;
                Ok(format!("{name}, {processors} multiprocessors, {:.0} GiB", total as f64 / (1u64 << 30) as f64))
            }
        }
    }

    /// What [`Machine::bandwidth`] measures.
    pub fn bandwidth_kind(&self) -> &'static str {
        match self {
            Machine::Cpu(_) => "memory read",
            Machine::Cuda(_) => "device-to-device copy, bytes read plus written",
        }
    }

    /// Bytes a second between the chip and its memory: the reference of everything bound by memory.
    pub fn bandwidth(&mut self) -> Result<f64, MachineError> {
        match self {
            Machine::Cpu(cpu) => Ok(cpu.read_rate()),
            Machine::Cuda(cuda) => Ok(cuda.copy_rate()?),
        }
    }

    /// Bytes a second from the host's pinned memory to the device; none where they are the same.
    pub fn upload_rate(&mut self) -> Result<Option<f64>, MachineError> {
        match self {
            Machine::Cpu(_) => Ok(None),
            Machine::Cuda(cuda) => Ok(Some(cuda.upload_rate()?)),
        }
    }

    /// Fused multiply-adds in f32, counted as two operations each, that the CPU's cores do a second; none for a device.
    pub fn arithmetic_peak(&self) -> Option<f64> {
        match self {
            Machine::Cpu(cpu) => Some(cpu.arithmetic_peak()),
            Machine::Cuda(_) => None,
        }
    }

    /// Bytes of this process that the measurements of the machine itself take.
    pub fn own_bytes(&self) -> u64 {
        match self {
            Machine::Cpu(cpu) => size_of_val(&cpu.buffer[..]) as u64,
            Machine::Cuda(_) => 0,
        }
    }

    /// Bytes in use now.
    pub fn in_use(&self) -> Result<u64, MachineError> {
        match self {
            Machine::Cpu(_) => status_bytes("VmRSS:"),
            Machine::Cuda(cuda) => Ok(in_use(&cuda.context)?),
        }
    }

    /// Begins to watch for the maximum of memory in use.
    pub fn watch(&self) -> Result<Watch, MachineError> {
        match self {
            Machine::Cpu(_) => {
                let path = "/proc/self/clear_refs";
                std::fs::write(path, "5").map_err(|source| MachineError::Proc { path, source })?;
                Ok(Watch::Process)
            }
            Machine::Cuda(cuda) => Ok(Watch::device(cuda.context.clone())),
        }
    }
}

/// Watches for the maximum of memory in use.
pub enum Watch {
    /// The kernel keeps this process's peak.
    Process,
    /// A GPU's driver keeps none: a thread asks again and again. What lasts less than the pause escapes it.
    Device { alive: Arc<()>, thread: JoinHandle<Result<u64, DriverError>> },
}

impl Watch {
    const PAUSE: Duration = Duration::from_micros(100);

    fn device(context: Arc<CudaContext>) -> Watch {
        let alive = Arc::new(());
        let watched = Arc::downgrade(&alive);
        let thread = std::thread::spawn(move || {
            let mut peak = 0;
            while watched.strong_count() > 0 {
                peak = peak.max(in_use(&context)?);
                std::thread::sleep(Watch::PAUSE);
            }
            Ok(peak.max(in_use(&context)?))
        });
        Watch::Device { alive, thread }
    }

    /// The maximum of bytes in use since it began.
    pub fn peak(self) -> Result<u64, MachineError> {
        match self {
            Watch::Process => status_bytes("VmHWM:"),
            Watch::Device { alive, thread } => {
                drop(alive);
                let peak = thread.join().map_err(|_| MachineError::Watch)?;
                Ok(peak?)
            }
        }
    }
}

/// Bytes of the device's memory that are in use, by any process.
fn in_use(context: &Arc<CudaContext>) -> Result<u64, DriverError> {
    let (free, total) = context.mem_get_info()?;
    Ok((total - free) as u64)
}

/// A line of this process's status, in bytes.
fn status_bytes(key: &str) -> Result<u64, MachineError> {
    let path = "/proc/self/status";
    let text = std::fs::read_to_string(path).map_err(|source| MachineError::Proc { path, source })?;
    let kib = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let missing = || MachineError::Proc { path, source: std::io::Error::other(format!("there is no line {key}")) };
    Ok(kib.ok_or_else(missing)? * 1024)
}

/// Times that [`MultiplyAdds`] goes round, some tens of milliseconds: beside them a thread's start is nothing.
const ITERATIONS: usize = 1 << 23;

/// Multiply-adds that do not wait for one another, all in registers: how many there were.
pub struct MultiplyAdds {
    pub x: f32,
    pub iterations: usize,
}

impl Kernel for MultiplyAdds {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        if S::REGISTERS >= 32 { multiply_adds::<S, 24>(self) } else { multiply_adds::<S, 6>(self) }
    }
}

#[inline(always)]
fn multiply_adds<S: Simd, const N: usize>(MultiplyAdds { x, iterations }: MultiplyAdds) -> usize {
    // SAFETY: started by `Isa::run`.
    unsafe {
        let (a, b) = (S::splat(x), S::splat(1.0 - x));
        let mut sums = [S::splat(0.0); N];
        for _ in 0..iterations {
            for sum in &mut sums {
                *sum = S::fma(a, *sum, b);
            }
        }
        for sum in sums {
            black_box(S::sum(sum));
        }
    }
    iterations * N * LANES
}

impl Cpu {
    fn arithmetic_peak(&self) -> f64 {
        let run = || Isa::detect().run(MultiplyAdds { x: black_box(0.5), iterations: ITERATIONS });
        let start = Instant::now();
        let done: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
        });
        2.0 * done as f64 / start.elapsed().as_secs_f64()
    }

    fn read_rate(&self) -> f64 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in self.buffer.chunks(self.buffer.len().div_ceil(self.threads)) {
                scope.spawn(move || black_box(Isa::detect().run(ReadAll(part))));
            }
        });
        size_of_val(&self.buffer[..]) as f64 / start.elapsed().as_secs_f64()
    }
}

/// Adds up numbers in the way that memory delivers them fastest to a core: four streams, asked for some way ahead, which never are
/// at the same place of a page (their lines would meet in the same sets of the caches, and in the same banks of memory).
struct ReadAll<'a>(&'a [f32]);

impl Kernel for ReadAll<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        const STREAMS: usize = 4;
        const LINES: usize = 2;
        const PAGE: usize = 4096 / size_of::<f32>();
        let all = self.0.len() / STREAMS;
        let length = (all.saturating_sub(PAGE) / PAGE * PAGE + PAGE / STREAMS).min(all);
        let ahead = bytes_ahead(STREAMS);
        // SAFETY: started by `Isa::run`; every load ends within a stream.
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

impl Cuda {
    /// Seconds of device time that `work` takes on the stream, once it runs without interruption.
    fn time(
        &mut self,
        mut work: impl FnMut(&mut Cuda) -> Result<(), DriverError>,
        times: usize,
    ) -> Result<f64, DriverError> {
        work(self)?;
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let start = self.stream.record_event(timed)?;
        for _ in 0..times {
            work(self)?;
        }
        let end = self.stream.record_event(timed)?;
        Ok(f64::from(start.elapsed_ms(&end)?) / 1e3 / times as f64)
    }

    fn copy_rate(&mut self) -> Result<f64, DriverError> {
        let bytes = 2.0 * self.from.len() as f64;
        Ok(bytes / self.time(|cuda| cuda.stream.memcpy_dtod(&cuda.from, &mut cuda.to), 3)?)
    }

    fn upload_rate(&mut self) -> Result<f64, DriverError> {
        let bytes = self.host.len() as f64;
        let copy = |cuda: &mut Cuda| {
            let len = cuda.host.len();
            cuda.stream.memcpy_htod(&cuda.host, &mut cuda.to.slice_mut(..len))
        };
        Ok(bytes / self.time(copy, 3)?)
    }
}
