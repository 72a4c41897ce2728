//! `uqac devices`: lists devices and self-tests their kernels.

use super::*;
use crate::backend::{cpu::simd::Isa, cuda};
use crate::report::term::{Style, TermStyle, TextTable, visible};
use serde_json::{Value, json};

/// List the devices
#[derive(Args)]
#[command(after_help = "Examples:\n  uqac devices --json | jq .devices\n  uqac devices --check")]
pub struct DevicesArgs {
    /// Test every kernel of the fast and of the plain set on every CUDA device against f64 sums on the CPU; exit code 1 if one
    /// fails or there is no device. Tests run in child processes: a kernel that faults, or has no result within 60 s, has failed.
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

/// Tests every kernel on every device; prints the results as JSON, or as a table for each device.
fn check(as_json: bool) -> Result<ExitCode, Failure> {
    let (found, why) = cuda_devices();
    let (mut list, mut text, mut ok) = (Vec::new(), String::new(), !found.is_empty());
    for cuda::FoundDevice { info, .. } in &found {
        let device = format!("cuda:{}", info.ordinal);
        // an error ends the list early
        let (checks, error) = match cuda::check_all(info.ordinal) {
            Ok(checks) => (checks, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let passed = checks.iter().filter(|check| check.kernel.is_none()).count();
        ok &= error.is_none() && passed == checks.len();
        text += &table(&checks);
        text += &error.as_ref().map_or(String::new(), |error| format!("{}\n", visible(error)));
        text += &format!("{device} ({}): {passed} of {} tests pass\n", visible(&info.name), checks.len());
        list.push(json!({"device": device, "name": info.name, "tests": checks, "error": error}));
    }
    if found.is_empty() {
        text += &format!("nothing to check: {}\n", visible(why.as_deref().unwrap_or("there is no CUDA device")));
    }
    show(as_json, &json!({"checked": list, "cuda_error": why, "ok": ok}), || text)?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The CUDA devices, or why there are none.
fn cuda_devices() -> (Vec<cuda::FoundDevice>, Option<String>) {
    cuda::devices().map_or_else(|error| (Vec::new(), Some(error.to_string())), |devices| (devices, None))
}

fn table(checks: &[cuda::Check]) -> String {
    let mut table = TextTable::new("ll", ["test", ""]);
    for check in checks {
        let failure = check.kernel.as_ref().zip(check.reason.as_ref());
        let verdict = failure.map_or_else(|| "ok".to_owned(), |(kernel, reason)| format!("{kernel} FAILS: {reason}"));
        table.row([check.tested.clone(), verdict].map(|cell| (cell, Style::PLAIN)));
    }
    if checks.is_empty() { String::new() } else { table.render(TermStyle::of_stdout()) }
}

/// The CPU, the CUDA devices (and why there are no more), and the reference backend; as JSON, and as one line each.
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
            "device": device, "name": name, "compute_capability": capability, "multiprocessors": info.multiprocessors,
            "free": info.free, "memory": info.total, "kernels": kernels.as_ref().ok(),
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
