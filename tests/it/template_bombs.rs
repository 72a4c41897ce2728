//! Hostile chat templates: the program ends with an error or a text, quickly and using little memory.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Limits for a template.
const MAX_TIME: Duration = Duration::from_secs(2);
const MAX_BYTES: u64 = 512 << 20;

/// The embedded model's folder with a different chat template.
fn folder(template: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/abacus");
    for name in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        std::os::unix::fs::symlink(model.join(name), folder.path().join(name)).unwrap();
    }
    let config = serde_json::json!({"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"});
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

/// The peak resident memory of a running process; 0 once it has ended.
fn peak_bytes(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    1024 * peak.unwrap_or(0u64)
}

/// Renders a template in a separate process; returns how it escaped containment, if it did.
fn escape(template: &str) -> Option<String> {
    let folder = folder(template);
    // four times the limit in address space: 256 MiB are the thread's stack, and an escaping template must not fill the
    // machine
    let limited = format!("ulimit -v {}; exec \"$0\" \"$@\"", 4 * (MAX_BYTES >> 10));
    let mut command = Command::new("sh");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_uqac"), "inspect"]).arg(folder.path());
    command.args(["--json", "--device", "cpu"]).env("UQAC_CACHE", folder.path());
    #[expect(clippy::zombie_processes, reason = "wait4 below reaps it, together with its resource usage")]
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    // SAFETY: a `rusage` of zeros is valid.
    let (mut status, mut usage) = (0, unsafe { std::mem::zeroed::<libc::rusage>() });
    let pid = child.id() as i32;
    // not `ru_maxrss`: a child starts with the peak of the process that spawned it, here that of a whole test run
    let mut bytes = 0;
    // SAFETY: the child is not waited for anywhere else, and both pointers are to local variables.
    while unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) } == 0 {
        if start.elapsed() > 5 * MAX_TIME {
            // SAFETY: the child has not been waited for, so the id is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        bytes = bytes.max(peak_bytes(pid));
        std::thread::sleep(Duration::from_millis(2));
    }
    let cpu = Duration::from_secs(usage.ru_utime.tv_sec as u64) + Duration::from_micros(usage.ru_utime.tv_usec as u64);
    if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) > 2 {
        return Some(format!("status {status}"));
    }
    (cpu > MAX_TIME || bytes > MAX_BYTES).then(|| format!("{cpu:?}, {} MiB", bytes >> 20))
}

/// All except five: see the documentation of `model::chat::jinja`. One in three in the short variant: each starts a process.
#[test]
fn templates_end_soon_and_in_little_memory() {
    let Some(folder) = test_support::templates() else { return };
    let bombs = test_support::read_lines(&folder.join("template_bombs.jsonl.gz"));
    assert_eq!(bombs.len(), 123);
    let escaped: Vec<(&str, String)> = bombs
        .iter()
        .step_by(if test_support::long_tests() { 1 } else { 3 })
        .filter_map(|bomb| Some((bomb["name"].as_str().unwrap(), escape(bomb["source"].as_str().unwrap())?)))
        .collect();
    assert!(escaped.len() <= 5, "not contained: {escaped:#?}");
    assert!(escaped.iter().all(|(name, _)| name.contains("ns self") || name.contains("doubling")), "{escaped:#?}");
}
