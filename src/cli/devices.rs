//! `uqac devices`: devices, and the self-test of their kernels.

use super::error::Failure;
use super::{print, print_json};
use crate::backend::cpu::simd::Isa;
use crate::backend::cuda;
use crate::report::term::colour::{Style, TermStyle};
use crate::report::term::layout::TextTable;
use crate::report::term::sanitize::visible;
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
    let devices = devices();
    if args.json { print_json(&devices) } else { print(&lines(&devices)) }?;
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
    let (found, why) = match cuda::devices() {
        Ok(devices) => (devices, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
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

/// The CPU, the CUDA devices (and why there are no more), and the reference.
fn devices() -> Value {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let sets: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    let cpu = json!({"device": "cpu", "name": Isa::detect().name(), "threads": threads, "instruction_sets": sets});
    let mut list = vec![cpu];
    let mut cuda_error = None;
    match cuda::devices() {
        Ok(devices) => list.extend(devices.into_iter().map(|cuda::FoundDevice { info, kernels }| {
            json!({
                "device": format!("cuda:{}", info.ordinal),
                "name": info.name,
                "compute_capability": format!("{}.{}", info.capability.0, info.capability.1),
                "multiprocessors": info.multiprocessors,
                "free": info.free,
                "memory": info.total,
                "kernels": kernels.as_ref().ok(),
                "error": kernels.err().map(|error| error.to_string()),
            })
        })),
        Err(error) => cuda_error = Some(error.to_string()),
    }
    list.push(json!({"device": "reference", "name": "scalar", "threads": 1}));
    json!({"devices": list, "cuda_error": cuda_error})
}

fn lines(devices: &Value) -> String {
    let mut text = String::new();
    for device in devices["devices"].as_array().into_iter().flatten() {
        let word = |key: &str| device[key].as_str().unwrap_or_default();
        let bytes = |key: &str| units::bytes(device[key].as_u64().unwrap_or(0) as usize);
        let line = match device.get("threads") {
            _ if word("device") == "reference" => continue, // printed last
            Some(threads) => {
                let sets = device["instruction_sets"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let others: Vec<&str> = sets.filter(|set| *set != word("name")).collect();
                let others = others.join(", ");
                let choice =
                    if others.is_empty() { String::new() } else { format!(" (UQAC_SIMD chooses {others} instead)") };
                format!("cpu     {}, {threads} threads{choice}", word("name"))
            }
            None => {
                let capability = word("compute_capability");
                let memory = format!("{} free of {}", bytes("free"), bytes("memory"));
                let state = device["kernels"]
                    .as_str()
                    .map_or_else(|| format!("cannot be used: {}", word("error")), str::to_owned);
                format!("{:<7} {}, compute capability {capability}, {memory}, {state}", word("device"), word("name"))
            }
        };
        text += &format!("{}\n", visible(&line));
    }
    if let Some(error) = devices["cuda_error"].as_str() {
        text += &format!("cuda    none: {}\n", visible(error));
    }
    text += "reference  scalar, one thread: slow, for checking; auto never takes it\n";
    text
}
