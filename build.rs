//! Prepares the CUDA kernels. Their sources, with local headers inlined, are always embedded (for NVRTC at first use); if nvcc is
//! found they are also compiled, one fatbin per file. Writes to OUT_DIR:
//! - `kernels.rs`: the table of kernel files, included by the CUDA backend;
//! - `ptxas_report.txt`: registers, shared memory and spills per kernel and architecture (with nvcc).
//!
//! nvcc is searched for in $NVCC, $CUDA_HOME/bin, $CUDA_PATH/bin and PATH; an empty $NVCC means none. $UQAC_CUDA_ARCHITECTURES
//! selects among [`ARCHITECTURES`]. A kernel that spills more registers than [`ALLOWED_SPILLS`] permits fails the build.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashSet};
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The first release that supports the C++17 used by the kernels.
const OLDEST_NVCC: (u32, u32) = (12, 0);
/// Architectures compiled to machine code, each with the first release that supports it; PTX for compute_80 covers everything
/// newer. A device runs code of its own major version up to its minor version: 10.3 runs sm_100, 12.1 runs sm_120 (90a runs on
/// 9.0 only).
const ARCHITECTURES: [(&str, (u32, u32)); 6] = [
    ("80", OLDEST_NVCC),
    ("86", OLDEST_NVCC),
    ("89", OLDEST_NVCC),
    ("90a", OLDEST_NVCC),
    ("100", (12, 8)),
    ("120", (12, 8)),
];
/// Selects among them by number, separated by spaces or commas; all if unset. Building one takes a sixth of the time.
const CHOICE: &str = "UQAC_CUDA_ARCHITECTURES";
/// Max bytes of spill stores and loads per kernel, where nonzero, by substrings of the architecture's and the kernel's name.
/// Nothing was tuned for these architectures. `gemv` for 64 rows has 128 sums; beyond those, ptxas takes all remaining registers
/// and a few more (in 8 bits up to a hundred), in a loop of a thousand instructions (`tests/cuda_host/sass.py`). So does `gemm`
/// for 128 rows, which spills up to sixteen values, a few of them in its loop; `gemv_wide` spills up to sixteen, outside its
/// inner loop.
const ALLOWED_SPILLS: [(&str, &str, u32); 5] =
    [("sm_100", "", 64), ("sm_120", "", 64), ("", "_r64", 448), ("", "gemm_", 64), ("", "gemv_wide_", 128)];

/// Fatbin compression by release, newest first: the smallest form readable by every driver that the release supports. `size`
/// needs the driver of 12.4 or newer, which 13 requires anyway but 12.x does not (sizes in benches/BUILD.md).
const COMPRESSION: [((u32, u32), &[&str]); 3] = [
    ((13, 0), &["--compress-mode=size"]),
    ((12, 8), &["--compress-mode=speed", "-Xfatbin=-compress-all"]),
    (OLDEST_NVCC, &["-Xfatbin=-compress-all"]),
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if Path::new("kernels").is_dir() {
        println!("cargo::rerun-if-changed=kernels"); // a missing path would rerun this on every build
    }
    for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH", CHOICE] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rustc-env=UQAC_COMMIT={}", commit().as_deref().unwrap_or("not recorded"));
    if let Err(message) = prepare() {
        for line in message.lines() {
            println!("cargo::error={line}");
        }
        exit(1);
    }
}

/// The commit, for `--version`: for a published package the one recorded in it; for a checkout its HEAD, in release builds only,
/// since a new commit recompiles the crate.
fn commit() -> Option<String> {
    const PACKAGED: &str = ".cargo_vcs_info.json";
    if let Ok(text) = fs::read_to_string(PACKAGED) {
        println!("cargo::rerun-if-changed={PACKAGED}");
        let (_, rest) = text.split_once("\"sha1\"")?;
        return rest.split('"').nth(1).map(str::to_owned);
    }
    if env::var_os("PROFILE")? != "release" || !Path::new(".git").exists() {
        return None;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    git(&["rev-parse", "HEAD"])
}

fn prepare() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("kernels");
    let files = kernel_files(&folder)?;
    for file in &files {
        write_if_changed(&out.join(format!("{}.cu", file.name)), &file.source)?;
    }
    let compiler = find_nvcc()?;
    if let Some(nvcc) = &compiler {
        println!("cargo::rerun-if-changed={}", nvcc.path.display());
        compile_all(nvcc, &files, &out)?;
    }
    write_if_changed(&out.join("kernels.rs"), &table(&files, compiler.as_ref()))
}

// ---- sources ----

struct KernelFile {
    name: String,
    /// With the text of local headers in place of their `#include` lines.
    source: String,
}

fn kernel_files(folder: &Path) -> Result<Vec<KernelFile>, String> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(_) => return Ok(Vec::new()),
    };
    let paths: BTreeSet<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let sources = paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().ok_or_else(|| format!("{}: not UTF-8", path.display()))?;
            let mut source = String::new();
            flatten(path, &mut HashSet::new(), &mut source)?;
            Ok(KernelFile { name: name.to_string(), source })
        })
        .collect()
}

/// Appends a file with its local includes inlined, each once; compiler messages still refer to the original lines.
fn flatten(path: &Path, seen: &mut HashSet<PathBuf>, into: &mut String) -> Result<(), String> {
    if !seen.insert(path.to_path_buf()) {
        return Ok(());
    }
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let name = path.file_name().unwrap().to_string_lossy();
    writeln!(into, "#line 1 \"{name}\"").unwrap();
    for (number, line) in text.lines().enumerate() {
        if line.trim() == "#pragma once" {
            into.push('\n');
        } else if let Some(header) = local_include(line) {
            flatten(&path.with_file_name(header), seen, into)?;
            writeln!(into, "#line {} \"{name}\"", number + 2).unwrap();
        } else {
            into.push_str(line);
            into.push('\n');
        }
    }
    Ok(())
}

/// The name in `#include "name"`.
fn local_include(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split_once('"').map(|(name, _)| name)
}

fn write_if_changed(path: &Path, text: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn table(files: &[KernelFile], compiler: Option<&Nvcc>) -> String {
    let mut code = String::from("// Written by build.rs.\n\n");
    code.push_str("/// One file of `kernels/`.\npub struct KernelFile {\n    pub name: &'static str,\n");
    code.push_str("    /// CUDA C++ with the project's own headers put in; the toolkit's are included by name.\n");
    code.push_str("    pub source: &'static str,\n    /// What nvcc made of it when the crate was built.\n");
    code.push_str("    pub fatbin: Option<&'static [u8]>,\n}\n\n");
    code.push_str("/// The nvcc that made the fatbins.\n");
    writeln!(code, "pub const NVCC: Option<&str> = {:?};\n", compiler.map(|nvcc| &nvcc.version)).unwrap();
    code.push_str("pub static KERNEL_FILES: &[KernelFile] = &[\n");
    for KernelFile { name, .. } in files {
        let fatbin = match compiler {
            Some(_) => format!("Some(include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin\")))"),
            None => String::from("None"),
        };
        writeln!(code, "    KernelFile {{").unwrap();
        writeln!(code, "        name: {name:?},").unwrap();
        writeln!(code, "        source: include_str!(concat!(env!(\"OUT_DIR\"), \"/{name}.cu\")),").unwrap();
        writeln!(code, "        fatbin: {fatbin},\n    }},").unwrap();
    }
    code.push_str("];\n");
    code
}

// ---- nvcc ----

struct Nvcc {
    path: PathBuf,
    version: String,
    release: (u32, u32),
    /// Numbers of [`ARCHITECTURES`].
    architectures: Vec<&'static str>,
}

fn find_nvcc() -> Result<Option<Nvcc>, String> {
    let named = env::var_os("NVCC");
    if named.as_ref().is_some_and(|name| name.is_empty()) {
        return Ok(None);
    }
    let folders = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os).map(|home| PathBuf::from(home).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let program = OsString::from(format!("nvcc{}", env::consts::EXE_SUFFIX));
    let found = folders.chain(env::split_paths(&path)).map(|folder| folder.join(&program)).find(|path| path.is_file());
    let Some(path) = named.clone().map(PathBuf::from).or(found) else { return Ok(None) };
    let ignored = |why: &str| println!("cargo::warning={}: {why}; the kernels are left to NVRTC", path.display());
    let Ok(output) = Command::new(&path).arg("--version").output() else {
        ignored("does not run");
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(version) = text.lines().find(|line| line.contains("release")).map(|line| line.trim().to_string()) else {
        ignored("does not say its release");
        return Ok(None);
    };
    let digits = version.split("release ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or("");
    let number = |part: Option<&str>| part.and_then(|digits| digits.parse().ok()).unwrap_or(0);
    let mut parts = digits.split('.');
    let release = (number(parts.next()), number(parts.next()));
    if release < OLDEST_NVCC {
        ignored(&format!("release {digits} is older than {}.{}", OLDEST_NVCC.0, OLDEST_NVCC.1));
        return Ok(None);
    }
    Ok(Some(Nvcc { path, version, release, architectures: architectures(release)? }))
}

/// The architectures in [`CHOICE`], or all, that this release of nvcc supports.
fn architectures(release: (u32, u32)) -> Result<Vec<&'static str>, String> {
    let made: Vec<&str> =
        ARCHITECTURES.iter().filter(|(_, since)| release >= *since).map(|(number, _)| *number).collect();
    let choice = env::var(CHOICE).unwrap_or_default();
    let chosen: Vec<&str> = choice.split([' ', ',']).filter(|number| !number.is_empty()).collect();
    if let Some(unknown) = chosen.iter().find(|number| !made.contains(number)) {
        return Err(format!("{CHOICE}: expected some of {}, found {unknown:?}", made.join(", ")));
    }
    Ok(made.into_iter().filter(|number| chosen.is_empty() || chosen.contains(number)).collect())
}

/// Compiles every file whose source, compiler or flags have changed, several at a time, and writes the report.
fn compile_all(nvcc: &Nvcc, files: &[KernelFile], out: &Path) -> Result<(), String> {
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1).min(files.len());
    let (next, errors) = (AtomicUsize::new(0), Mutex::new(String::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(message) = compile(nvcc, file, out) {
                        errors.lock().unwrap().push_str(&message);
                    }
                }
            });
        }
    });
    let errors = errors.into_inner().unwrap();
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut report =
        format!("{:<8} {:<44} {:>9} {:>7} {:>6} {:>6}\n", "arch", "kernel", "registers", "shared", "stack", "spills");
    for file in files {
        report.push_str(&fs::read_to_string(out.join(format!("{}.ptxas", file.name))).unwrap_or_default());
    }
    write_if_changed(&out.join("ptxas_report.txt"), &report)
}

fn compile(nvcc: &Nvcc, file: &KernelFile, out: &Path) -> Result<(), String> {
    let at = |suffix: &str| out.join(format!("{}.{suffix}", file.name));
    let mut command = Command::new(&nvcc.path);
    command.args(["-std=c++17", "-O3", "--fatbin", "-Xptxas", "-v", "-gencode", "arch=compute_80,code=compute_80"]);
    for number in &nvcc.architectures {
        command.arg("-gencode").arg(format!("arch=compute_{number},code=sm_{number}"));
    }
    let compression = COMPRESSION.iter().find(|(since, _)| nvcc.release >= *since);
    command.args(compression.map_or(&[][..], |(_, options)| options));
    let mut hasher = DefaultHasher::new();
    (&file.source, &nvcc.version, format!("{command:?}")).hash(&mut hasher);
    let key = hasher.finish().to_string();
    if at("fatbin").is_file() && fs::read_to_string(at("key")).is_ok_and(|old| old == key) {
        return Ok(());
    }
    let output = command.arg("-o").arg(at("fatbin")).arg(at("cu")).current_dir(out).output();
    let output = output.map_err(|error| format!("{}: {error}\n", nvcc.path.display()))?;
    let messages = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let told: Vec<&str> = messages.lines().filter(|line| !line.starts_with("ptxas info")).collect();
        return Err(format!("kernels/{}.cu: nvcc failed\n{}\n", file.name, told.join("\n")));
    }
    let rows = ptxas_rows(&messages);
    let spilling: Vec<&str> = rows.lines().filter(|row| spills_too_much(row)).collect();
    if !spilling.is_empty() {
        return Err(format!(
            "kernels/{}.cu: registers are spilled (last column)\n{}\n",
            file.name,
            spilling.join("\n")
        ));
    }
    write_if_changed(&at("ptxas"), &rows)?;
    write_if_changed(&at("key"), &key)
}

/// The output of `-Xptxas -v`, one row per kernel and architecture: registers, shared memory, stack and spilled bytes.
fn ptxas_rows(messages: &str) -> String {
    let mut rows = String::new();
    let (mut kernel, mut architecture, mut stack, mut spills) = ("", "", 0, 0);
    for line in messages.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let mut quoted = rest.split('\'');
            kernel = quoted.next().unwrap_or("");
            architecture = quoted.nth(1).unwrap_or("");
        } else if line.contains("bytes stack frame") {
            stack = number_before(line, " bytes stack frame");
            spills = number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
        } else if line.contains("Used ") && line.contains(" registers") {
            let (registers, shared) = (number_before(line, " registers"), number_before(line, " bytes smem"));
            writeln!(rows, "{architecture:<8} {kernel:<44} {registers:>9} {shared:>7} {stack:>6} {spills:>6}").unwrap();
        }
    }
    rows
}

/// Whether a row of [`ptxas_rows`] spills more than allowed.
fn spills_too_much(row: &str) -> bool {
    let cells: Vec<&str> = row.split_whitespace().collect();
    let [architecture, kernel, ..] = cells[..] else { return true };
    let applies = |(of_architecture, of_kernel, _): &&(&str, &str, u32)| {
        architecture.contains(of_architecture) && kernel.contains(of_kernel)
    };
    let allowed = ALLOWED_SPILLS.iter().filter(applies).map(|allowed| allowed.2).max().unwrap_or(0);
    cells.last().and_then(|spills| spills.parse().ok()).is_none_or(|spills: u32| spills > allowed)
}

/// The number right before `unit`; 0 if there is none.
fn number_before(line: &str, unit: &str) -> u32 {
    let before = line.split(unit).next().filter(|_| line.contains(unit)).unwrap_or("");
    before.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
