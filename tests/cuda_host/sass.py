#!/usr/bin/env python3
"""Checks nvcc's machine code for the performance-critical kernels against a committed budget.

  sass.py [--update] [--arch ARCH,..] [--show]

For each kernel and architecture: registers, spilled bytes, the warps that fit on a multiprocessor (by registers and shared memory),
and the instructions of the hot loop per unit of work: KiB of weights or of cache that it fetches, or tensor core instructions. All
are counted in the machine code; none is measured. A loop inside the hot loop counts once (but see INNER_ROUNDS), and paths that
most passes skip count in full.

Kernels that start before the preceding ones have ended (STARTS_EARLY) must wait before they access those kernels' data: checked in
the same machine code.

Exit code 1 if a kernel exceeds sass_budget.tsv, is missing from it, or waits too late; --update writes the current values. The last
column is the hardware counter (ncu) that would falsify the row. --show prints the loops' instructions by kind.

Needs nvcc and nvdisasm, which nvcc.sh and nvdisasm.sh fetch; no GPU. Cubins are cached in target/sass by the hash of the sources.
"""

import argparse
import collections
import hashlib
import os
import re
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUDGET = HERE / "sass_budget.tsv"

# Per multiprocessor: (registers, bytes of shared memory, warps); a block needs 1 KiB of shared memory in addition to its own.
MULTIPROCESSORS = {"sm_80": (65536, 164 << 10, 64), "sm_90a": (65536, 228 << 10, 64)}
REGISTER_UNIT = 256  # registers are allocated to a warp in units of this
CP_ASYNC_BYTES = 32 * 16  # for one LDGSTS.128 by a warp
SLACK = 0.01  # in instructions per unit, for values printed with one decimal

# Loops inside the hot loop that run this many times per iteration of it (gemv.cu: the steps of a line; gemm.cu: the halves of a
# slice); others count once.
INNER_ROUNDS = {f"gemv{part}_{kernel}": rounds for part in ("", "_qkv", "_gated")
                for kernel, rounds in (("f16_r64", 2), ("q8_r64", 4), ("q8_r16", 4))}
INNER_ROUNDS |= {f"gemm{part}_m{rows}": 2 for part in ("", "_gated") for rows in (64, 128)}

# Units of work, and the hardware counter for the instructions per unit.
WEIGHTS, CACHE, HMMA, HGMMA = "KiB of weights", "KiB of cache", "HMMA", "HGMMA"
COUNTERS = {
    WEIGHTS: "smsp__inst_executed.sum / (dram__bytes_read.sum / 1024)",
    CACHE: "smsp__inst_executed.sum / (dram__bytes_read.sum / 1024)",
    HMMA: "smsp__inst_executed.sum / sm__inst_executed_pipe_tensor.sum",
    HGMMA: "smsp__inst_executed.sum / sm__inst_executed_pipe_tensor.sum",
}
# file: (threads of a block, unit, kernels)
KERNELS = {
    "gemv": (256, WEIGHTS, [f"gemv{part}_{w}_r{rows}" for w in ("f16", "q8") for part in ("", "_qkv", "_gated") for rows in (8, 16, 64)]),
    "gemv_ring": (288, HMMA, [f"gemv{part}_{w}_ring" for w in ("f16", "q8") for part in ("", "_qkv", "_gated")]),
    "gemv_wide": (128, HMMA, ["gemv_wide_m64", "gemv_wide_gated_m64", "gemv_wide_m128", "gemv_wide_gated_m128"]),
    "gemm": (128, HMMA, ["gemm_m64", "gemm_m128", "gemm_gated_m64", "gemm_gated_m128"]),
    "gemm_hopper": (384, HGMMA, ["gemm_hopper", "gemm_gated_hopper"]),
    "attn_prefill": (128, HMMA, ["attn_prefill_kf32_vf16_d64_t2", "attn_prefill_kf32_vf16_d128_t2"]),
    "attn_prefill_hopper": (128, HGMMA, ["attn_prefill_hopper_kf32_vf16_d64_t2", "attn_prefill_hopper_kf32_vf16_d128_t2"]),
    "attn_decode": (128, CACHE, [f"attn_decode_kf32_vf16_d{d}{plain}" for d in (64, 128) for plain in ("", "_plain")]),
}
# Kernels whose block size differs from the rest of their file: threads.
THREADS = {"gemv_wide_m128": 256, "gemv_wide_gated_m128": 256}
# Files with code for only one of the architectures.
ONLY = {"gemv_ring": "sm_90a", "gemm_hopper": "sm_90a", "attn_prefill_hopper": "sm_90a"}
# The architecture of kernels that start early, and the instructions that access device memory.
EARLY_ARCH = "sm_90a"
GLOBAL_ACCESSES = {"LDG", "STG", "LD", "ST", "ATOM", "ATOMG", "RED", "LDGSTS", "UBLKCP", "UTMALDG", "CALL"}
# What the kernels in a file may do before they wait, because nothing writes that data while they run: products copy weights, the norm
# loads its own; attention reads its rows, their sequences and all positions not contributed by a row of the step (PRECOND of
# attn_decode.cu).
BEFORE_THE_WAIT = {"gemv": {"LDGSTS"}, "gemv_ring": {"UBLKCP"}, "gemv_wide": {"LDGSTS"}, "norm": {"LDG"}, "attn_decode": {"LDG", "LDGSTS"}}
HEAD = ["kernel", "arch", "registers", "spilled", "warps", "instructions", "per", "counter"]


# ---- machine code ----------------------------------------------------------------------------------------------------

def tool(script):
    return subprocess.run([HERE / script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def cubin(source, arch, nvcc, folder):
    """The machine code of a kernel file and ptxas' report on it; rebuilt only when a source has changed."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(f"{nvcc} {arch}".encode())
    for file in sorted({*ROOT.glob("kernels/*.cu*"), *source.parent.glob("*.cu*")}):
        digest.update(file.name.encode() + file.read_bytes())
    image = folder / f"{source.stem}.{arch}.{digest.hexdigest()[:16]}.cubin"
    report = image.with_suffix(".ptxas")
    if not report.exists():
        command = [nvcc, "-std=c++17", "-O3", "-cubin", f"-arch={arch}", "-Xptxas", "-v", "-o", image, source]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"nvcc failed on {source}\n{done.stdout}")
        report.write_text(done.stdout)
    return image, report.read_text()


def target():
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def ptxas(report, kernel):
    """(registers, spilled bytes, static shared memory) of a kernel."""
    text = report.split(f"Compiling entry function '{kernel}'", 1)[1].split("Compiling entry function", 1)[0]
    number = lambda pattern: sum(int(found) for found in re.findall(pattern, text))  # noqa: E731
    return number(r"Used (\d+) registers"), number(r"(\d+) bytes spill"), number(r"(\d+) bytes smem")


def instructions(nvdisasm, image):
    """{kernel: [("label", name) or ("code", text)]}."""
    listing = subprocess.run([nvdisasm, "-c", image], check=True, stdout=subprocess.PIPE, text=True).stdout
    kernels, current = {}, []
    for line in listing.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            current = kernels[section[1]] = []
        elif label := re.match(r"(\.L_x_\d+):", line):
            current.append(("label", label[1]))
        elif code := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            current.append(("code", code[1]))
    return kernels


def hot_loop(code):
    """The instructions of the innermost loop with the most tensor core instructions and, if possible, copies. A loop that writes
    results encloses such a loop."""
    bodies = loops_of(code)
    bodies = [body for body in bodies if hmma(body) and not any(kind(text) == "STG" for text in body)] or bodies
    return max(bodies, key=lambda body: (hmma(body), copies(body) > 0, -len(body)), default=[])


def loops_of(code):
    """The instructions of every loop. Code placed after the kernel's end that jumps back from there (paths of a diverged
    __syncwarp) is not a loop."""
    labels = {name: at for at, (kind, name) in enumerate(code) if kind == "label"}
    bodies = []
    for at, (kind, text) in enumerate(code):
        target = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", text) if kind == "code" else None
        if target and labels.get(target[1], at) < at:
            body = [text for kind, text in code[labels[target[1]]:at] if kind == "code"] + [text]
            bodies += [body] if "EXIT" not in body else []
    return bodies


def inner_loop(code, outer):
    """The loop inside `outer` that contains its tensor core instructions; empty if there is none."""
    bodies = [body for body in loops_of(code) if hmma(body) == hmma(outer) and len(body) < len(outer)]
    return min(bodies, key=len, default=[])


def hmma(body):
    return sum("HMMA" in text or "HGMMA" in text for text in body)


def copies(body):
    """Copies of 16 bytes per lane. ptxas inserts some that never run (@!PT) before a group of copies; these do not count."""
    return sum(re.match(r"(@!?U?P\d\s+)?LDGSTS", text) is not None for text in body)


def exported(image, suffix):
    """{kernel: value}: the values of the variables NAME_suffix, from the ELF."""
    data = image.read_bytes()
    at, size, count = struct.unpack_from("<Q", data, 0x28)[0], *struct.unpack_from("<HH", data, 0x3A)
    # (name, type, flags, address, offset, size, link, info, alignment, entry size)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(count)]
    found = {}
    for section in (section for section in sections if section[1] == 2):  # symbols
        names = sections[section[6]][4]
        for entry in range(section[4], section[4] + section[5], 24):
            name_at, _, _, index, value, bytes_ = struct.unpack_from("<IBBHQQ", data, entry)
            start = names + name_at
            name = data[start:data.index(b"\0", start)].decode()
            if name.endswith(suffix) and bytes_ == 4 and index < count:
                home = sections[index]
                number = 0 if home[1] == 8 else struct.unpack_from("<I", data, home[4] + value)[0]  # 8: all zeros
                found[name.removesuffix(suffix)] = number
    return found


def warps(arch, threads, registers, shared):
    """Warps that fit on a multiprocessor, in blocks with this many bytes of shared memory."""
    all_registers, all_shared, max_warps = MULTIPROCESSORS[arch]
    a_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    a_block = threads // 32
    return min(max_warps // a_block, all_registers // (a_warp * a_block), all_shared // (shared + 1024)) * a_block


# ---- the budget ------------------------------------------------------------------------------------------------------

def count(file, arch, nvcc, nvdisasm):
    """The rows of a kernel file: {(kernel, arch): [registers, spilled, warps, instructions, unit]}, and the loops."""
    threads, unit, names = KERNELS[file]
    image, report = cubin(ROOT / "kernels" / f"{file}.cu", arch, nvcc, target() / "sass")
    kernels, shared = instructions(nvdisasm, image), exported(image, "_shared_bytes")
    rows, loops = {}, {}
    for name in names:
        registers, spilled, static_shared = ptxas(report, name)
        body = hot_loop(kernels[name])
        body += inner_loop(kernels[name], body) * (INNER_ROUNDS.get(name, 1) - 1)
        work = hmma(body) if unit in (HMMA, HGMMA) else copies(body) * CP_ASYNC_BYTES / 1024
        if not work:
            sys.exit(f"sass.py: no loop of {name} does any work that is counted in {unit}")
        fit = warps(arch, THREADS.get(name, threads), registers, static_shared + shared[name])
        rows[name, arch] = [registers, spilled, fit, round(len(body) / work, 1), unit]
        loops[name, arch] = collections.Counter(kind(text) for text in body)
    return rows, loops


def early_defects(file, nvcc, nvdisasm):
    """The memory accesses that kernels that start early (STARTS_EARLY) make before waiting for the preceding ones, in words, except
    those that BEFORE_THE_WAIT allows."""
    image, _ = cubin(file, EARLY_ARCH, nvcc, target() / "sass")
    defects = []
    for name, code in instructions(nvdisasm, image).items():
        code = [kind(text) for what, text in code if what == "code"]
        early = name in exported(image, "_starts_early")
        if early != ("ACQBULK" in code) or early != ("PREEXIT" in code):
            defects.append(f"{name}: STARTS_EARLY, but no wait" if early else f"{name}: waits, but is not STARTS_EARLY")
            continue
        before = set(code[:code.index("ACQBULK")]) & GLOBAL_ACCESSES if early else set()
        if before := before - BEFORE_THE_WAIT.get(file.stem, set()):
            defects.append(f"{name}: {', '.join(sorted(before))} before it waits")
    return defects


def kind(text):
    return re.sub(r"^@!?U?P\w+\s+", "", text).split()[0].split(".")[0]


def budget():
    """In the format of count's rows."""
    lines = [line.split("\t") for line in BUDGET.read_text().splitlines()[1:]] if BUDGET.exists() else []
    return {(name, arch): [int(registers), int(spilled), int(fit), float(each), unit]
            for name, arch, registers, spilled, fit, each, unit, _ in lines}


def over(now, allowed):
    """The budget violations, in words."""
    found = [f"{what} {n}, budget {most}" for what, n, most in zip(("registers", "spilled bytes"), now, allowed) if n > most]
    if now[2] < allowed[2]:
        found.append(f"{now[2]} warps a multiprocessor, budget {allowed[2]}")
    if now[3] > allowed[3] * (1 + SLACK):
        found.append(f"{now[3]} instructions a {now[4]}, budget {allowed[3]}")
    return found


def table(head, rows):
    """Columns as wide as their widest cell."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the budget")
    parser.add_argument("--arch", default=",".join(MULTIPROCESSORS), help="default: %(default)s")
    parser.add_argument("--show", action="store_true", help="the loops' instructions by kind")
    options = parser.parse_args()
    arches = options.arch.split(",")
    if unknown := set(arches) - set(MULTIPROCESSORS):
        parser.error(f"--arch: {', '.join(unknown)}: expected {', '.join(MULTIPROCESSORS)}")
    nvcc, nvdisasm = tool("nvcc.sh"), tool("nvdisasm.sh")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(file, arch) for file in KERNELS for arch in arches if ONLY.get(file, arch) == arch]
        counted = list(pool.map(lambda job: count(*job, nvcc, nvdisasm), jobs))
        sources = sorted(ROOT.glob("kernels/*.cu"))
        early = sum(pool.map(lambda source: early_defects(source, nvcc, nvdisasm), sources), [])
    rows = {key: row for found, _ in counted for key, row in found.items()}
    cells = [[*key, *map(str, row), COUNTERS[row[4]]] for key, row in sorted(rows.items())]
    table(HEAD, cells)
    if options.show:
        for key, loop in sorted((key, loop) for _, loops in counted for key, loop in loops.items()):
            print(*key, sum(loop.values()), "instructions:", ", ".join(f"{n} {what}" for what, n in loop.most_common()))
    for defect in early:
        print(defect, file=sys.stderr)
    if early:
        return 1
    if options.update:
        kept = {key: row for key, row in budget().items() if key[1] not in arches}
        lines = [[*key, *map(str, row), COUNTERS[row[4]]] for key, row in sorted({**kept, **rows}.items())]
        BUDGET.write_text("".join("\t".join(line) + "\n" for line in [HEAD, *lines]))
        print(f"written: {BUDGET}")
        return 0
    allowed, failed = budget(), 0
    for key, row in sorted(rows.items()):
        found = over(row, allowed[key]) if key in allowed else ["not in the budget"]
        failed += bool(found)
        for what in found:
            print(f"{' '.join(key)}: {what}", file=sys.stderr)
    for key in sorted(key for key in allowed if key[1] in arches and key not in rows):
        failed += 1
        print(f"{' '.join(key)}: in the budget, but not among the kernels", file=sys.stderr)
    if failed:
        print(f"{failed} kernels are over the budget; if that is meant: sass.py --update, and commit", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
