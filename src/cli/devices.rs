//! `uqac devices`: devices, and the self-test of their kernels.

use super::error::Failure;
use super::{print, print_json, show};
use crate::backend::cpu::simd::Isa;
use crate::backend::cuda;
use crate::report::term::{Style, TermStyle, TextTable, visible};
use crate::units;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use std::process::ExitCode;

/// List the devices
#[derive(Args)]
#[command(after_help = "Examples:\n  uqac devices --json | jq .devices\n  uqac devices --check")]
pub struct DevicesArgs {
    /// Test every kernel on every CUDA device against f64 sums on the CPU; exit code 1 if one fails or there is no device.
    /// Tests run in child processes: a kernel that faults, or has no result within 60 s, is named and left out.
    #[arg(long)]
    check: bool,
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: &DevicesArgs) -> Result<ExitCode, Failure> {
    if args.check {
        return check(args.json);
    }
    let (devices, text) = devices();
    show(args.json, &devices, || text)?;
    Ok(ExitCode::SUCCESS)
}

/// The self-test of one device.
#[derive(Serialize)]
struct Checked {
    device: String,
    name: String,
    kernels: Vec<Row>,
    /// Why the list ends early.
    error: Option<String>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    check: cuda::Check,
    ok: bool,
}

impl Checked {
    fn ok(&self) -> bool {
        self.error.is_none() && self.kernels.iter().all(|row| row.ok)
    }
}

fn check(as_json: bool) -> Result<ExitCode, Failure> {
    let (found, why) = cuda_devices();
    let checked: Vec<Checked> = found.iter().map(|found| checked(&found.info)).collect();
    let ok = !checked.is_empty() && checked.iter().all(Checked::ok);
    if as_json {
        print_json(&json!({"checked": checked, "cuda_error": why, "ok": ok}))?;
    } else {
        let style = TermStyle::of_stdout();
        let mut text: String = checked.iter().map(|checked| table(checked, style)).collect();
        if checked.is_empty() {
            text += &format!("nothing to check: {}\n", visible(why.as_deref().unwrap_or("there is no CUDA device")));
        }
        print(&text)?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The CUDA devices, or why there are none.
fn cuda_devices() -> (Vec<cuda::FoundDevice>, Option<String>) {
    cuda::devices().map_or_else(|error| (Vec::new(), Some(error.to_string())), |devices| (devices, None))
}

fn checked(info: &cuda::DeviceInfo) -> Checked {
    let row = |check: cuda::Check| Row { ok: check.ok(), check };
    let (kernels, error) = match cuda::check_all(info.ordinal) {
        Ok(checks) => (checks.into_iter().map(row).collect(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    Checked { device: format!("cuda:{}", info.ordinal), name: info.name.clone(), kernels, error }
}

fn table(checked: &Checked, style: TermStyle) -> String {
    let mut table = TextTable::new("lrrrl", ["kernel", "numbers", "error", "bound", ""]);
    for Row { check, ok } in &checked.kernels {
        let verdict = if *ok { "ok".to_owned() } else { format!("FAILS: {}", check.describe()) };
        let (error, bound) = (format!("{:.1e}", check.error), format!("{:.1e}", check.bound));
        let cells = [check.kernel.clone(), check.numbers.to_string(), error, bound, verdict];
        table.row(cells.map(|cell| (cell, Style::PLAIN)));
    }
    let passed = checked.kernels.iter().filter(|row| row.ok).count();
    let error = checked.error.as_ref().map_or(String::new(), |error| format!("{}\n", visible(error)));
    let name = visible(&checked.name);
    let table = if checked.kernels.is_empty() { String::new() } else { table.render(style) };
    format!("{table}{error}{} ({name}): {passed} of {} kernels are right\n", checked.device, checked.kernels.len())
}

/// The CPU, the CUDA devices (and why there are no more), and the reference; as JSON, and a line each.
fn devices() -> (Value, String) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (chosen, sets) = (Isa::detect().name(), Isa::available().into_iter().map(Isa::name).collect::<Vec<_>>());
    let mut list = vec![json!({"device": "cpu", "name": chosen, "threads": threads, "instruction_sets": sets})];
    let others = sets.into_iter().filter(|set| *set != chosen).collect::<Vec<_>>().join(", ");
    let choice = if others.is_empty() { String::new() } else { format!(" (UQAC_SIMD chooses {others} instead)") };
    let mut text = format!("cpu     {chosen}, {threads} threads{choice}\n");
    let (found, cuda_error) = cuda_devices();
    for cuda::FoundDevice { info, kernels } in found {
        let (device, name) = (format!("cuda:{}", info.ordinal), info.name);
        let capability = format!("{}.{}", info.capability.0, info.capability.1);
        let memory = format!("{} free of {}", units::bytes(info.free), units::bytes(info.total));
        let state = kernels.as_ref().map_or_else(|error| format!("cannot be used: {error}"), String::clone);
        text += &format!("{device:<7} {name}, compute capability {capability}, {memory}, {state}\n");
        list.push(json!({
            "device": device,
            "name": name,
            "compute_capability": capability,
            "multiprocessors": info.multiprocessors,
            "free": info.free,
            "memory": info.total,
            "kernels": kernels.as_ref().ok(),
            "error": kernels.err().map(|error| error.to_string()),
        }));
    }
    if let Some(error) = &cuda_error {
        text += &format!("cuda    none: {error}\n");
    }
    text += "reference  scalar, one thread: slow, for checking; auto never takes it\n";
    list.push(json!({"device": "reference", "name": "scalar", "threads": 1}));
    (json!({"devices": list, "cuda_error": cuda_error}), visible(&text).into_owned())
}
