//! The limits of a GPU's memory, each the floor of some kind of work: copies within it, copies from the host, and
//! reads by bulk copies. A separate program, so that a hanging kernel affects nothing else.

use crate::machine::{Machine, resolve};
use crate::measure::StageError;
use crate::report::{Report, Row};
use crate::{Fatal, write, write_json};
use cudarc::driver::{CudaContext, CudaStream, DriverError, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uqac::DeviceChoice;

#[derive(clap::Args)]
pub struct RatesArgs {
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Small buffers: does it run?
    #[arg(long)]
    quick: bool,
    /// read_rate.cu as a fatbin
    #[arg(long, value_name = "FILE")]
    read_kernel: Option<PathBuf>,
    /// Write the read rate here, in bytes per second, for `run --read-rate`
    #[arg(long, value_name = "FILE")]
    read_rate: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Bytes read per round.
const READ: usize = 4 << 30;

/// The sizes used in read_rate.cu.
const THREADS: u32 = 256;
const RING: u32 = 8 * CHUNK as u32;
const CHUNK: usize = 16 << 10;

pub fn run(arguments: &RatesArgs) -> Result<bool, Fatal> {
    let (buffer, uploaded) = if arguments.quick { (16 << 20, 1 << 20) } else { (2 << 30, 256 << 20) };
    let machine = &mut Machine::open(arguments.device, 0, buffer)?;
    let rounds = usize::from(arguments.rounds);
    let mut report = Report::default();
    let row = |what, rates: &[f64]| {
        let rates: Vec<f64> = rates.iter().map(|rate| rate / 1e9).collect();
        let row = Row::new("the machine", what, "GB/s", &rates);
        println!("{}", row.line());
        row
    };
    let copied = (0..rounds).map(|_| machine.bandwidth()).collect::<Result<Vec<_>, _>>()?;
    report.rows.push(row("memory bandwidth by copies", &copied));
    if let DeviceChoice::Cuda(ordinal) = resolve(arguments.device) {
        let stream = CudaContext::new(ordinal).and_then(|context| context.new_stream()).map_err(StageError::from)?;
        report
            .rows
            .push(row("copy from pinned host memory", &uploads(&stream, uploaded, rounds).map_err(StageError::from)?));
        if let Some(kernel) = &arguments.read_kernel {
            let rates = reads(&stream, kernel, rounds)?;
            let read = row("memory read by bulk copies", &rates);
            if let Some(path) = &arguments.read_rate {
                write(path.clone(), &format!("{:.6e}\n", 1e9 * read.median))?;
            }
            report.rows.push(read);
        }
    }
    arguments.json.clone().map_or(Ok(()), |path| write_json(path, &report))?;
    Ok(true)
}

/// Seconds of device time.
fn time(stream: &Arc<CudaStream>, work: impl FnOnce() -> Result<(), DriverError>) -> Result<f64, DriverError> {
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let start = stream.record_event(timed)?;
    work()?;
    let end = stream.record_event(timed)?;
    Ok(f64::from(start.elapsed_ms(&end)?) / 1e3)
}

fn uploads(stream: &Arc<CudaStream>, bytes: usize, rounds: usize) -> Result<Vec<f64>, DriverError> {
    // SAFETY: u8 has no invalid values.
    let (host, mut device) =
        unsafe { (stream.context().alloc_pinned_with_flags::<u8>(bytes, 0)?, stream.alloc::<u8>(bytes)?) };
    stream.memcpy_htod(&host, &mut device)?;
    let mut rate = || Ok(bytes as f64 / time(stream, || stream.memcpy_htod(&host, &mut device))?);
    (0..rounds).map(|_| rate()).collect()
}

fn reads(stream: &Arc<CudaStream>, kernel: &Path, rounds: usize) -> Result<Vec<f64>, StageError> {
    let module = stream.context().load_module(Ptx::from_file(kernel))?;
    let function = module.load_function("read_rate")?;
    let most_shared = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    function.set_attribute(most_shared, RING as i32)?;
    let blocks = stream.context().attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
    let config = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: RING };
    // pseudo-random words: reading zeros costs less
    let part: Vec<u32> = (0..1u32 << 24).map(|i| i.wrapping_mul(0x9E37_79B9).rotate_left(13)).collect();
    let repeats = READ / size_of_val(&part[..]);
    let expected = part.iter().fold(0u32, |sum, word| sum.wrapping_add(*word)).wrapping_mul(repeats as u32);
    // SAFETY: u32 has no invalid values, and the copies below fill it.
    let mut data = unsafe { stream.alloc::<u32>(repeats * part.len())? };
    for i in 0..repeats {
        stream.memcpy_htod(&part, &mut data.slice_mut(i * part.len()..(i + 1) * part.len()))?;
    }
    let chunks = (READ / CHUNK) as u64;
    let mut rates = Vec::new();
    for round in 0..=rounds {
        let mut sum = stream.alloc_zeros::<u32>(1)?;
        let seconds = time(stream, || {
            // SAFETY: the kernel's arguments, in order; `data` has `chunks` chunks.
            unsafe { stream.launch_builder(&function).arg(&data).arg(&chunks).arg(&mut sum).launch(config) }.map(drop)
        })?;
        let found = stream.clone_dtoh(&sum)?[0];
        if found != expected {
            return Err(StageError::ReadSum { found, expected });
        }
        // the first is a warm-up
        if round > 0 {
            rates.push(READ as f64 / seconds);
        }
    }
    Ok(rates)
}
