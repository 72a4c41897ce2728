//! Tests of the program and of the public API: linked into one binary; `cargo test NAME` runs the tests whose path
//! contains NAME.

mod architecture;
mod bench_command;
mod calibrate;
mod cli_run;
mod cli_usage;
mod cuda_command;
mod cuda_nvrtc;
mod cuda_selftest;
mod early;
mod embedded_model;
mod eval_run;
#[cfg(unix)] // a shell script
mod gpu_bench;
mod isolation;
mod report;
mod report_page;
mod runs;
mod serve;
#[cfg(target_os = "linux")] // limits and peaks of processes
mod template_bombs;
mod thinking;
mod trust;
