#!/usr/bin/env python3
"""Checks, counts and times the versions of a kernel side by side, and prints one table.

  run.py [options] [JOB..]     JOB: see JOBS; default: all

  checked   on the CPU (tests/cuda_host): the largest error as a share of the derived bound and of the sum of |x w|, and
            whether the bits are those of the version in use
  counted   in the machine code that nvcc makes: instructions of the hot loop for each KiB of weights that it fetches,
            registers, spilled bytes, shared memory, and the warps a multiprocessor holds
  timed     on a CUDA device, if there is one: the median, and weight bytes over time. Otherwise "no device": nothing here
            is ever estimated.

Needs Python 3 and g++; nvcc and nvdisasm come from PyPI (--no-count does without). Exits with 1 if a version fails its
check.
"""

import argparse
import ctypes
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

LAB = Path(__file__).resolve().parent
ROOT = LAB.parent.parent
HOST = ROOT / "tests" / "cuda_host"
sys.dont_write_bytecode = True  # no __pycache__ among the sources
sys.path.insert(0, str(HOST))
import build  # noqa: E402  the host-run kernels' builder
import sass  # noqa: E402  what nvcc makes of them


# ---- what is compared ------------------------------------------------------------------------------------------------

class Gemv:
    """y = W x for a few rows: kernels/gemv.cu's, and those whose x comes as fragments."""

    def __init__(self, name, max_rows, fragments):
        self.name, self.max_rows, self.fragments = name, max_rows, fragments
        self.threads = 256
        self.shared = 0  # bytes of dynamic shared memory: the kernel's file exports them, and the check prints them

    def rows_that_fit(self):
        return [rows for rows in (1, 4, 5, 8) if rows <= self.max_rows]

    @staticmethod
    def shapes():
        """(what, k, outs) of Llama-3.1-8B."""
        return [("o", 4096, 4096), ("down", 14336, 4096), ("head", 4096, 128256)]

    def prepare(self, device, k, outs, rows):
        """The launches of a run, and the bytes of weights that they read: [(kernel, grid, shared, parameters)]."""
        x = device.filled(rows * k, 4, 0x3F800000)  # ones
        w = device.filled(outs * k, 2, 0x20002000)  # small: 2^-7
        y = device.filled(rows * outs, 4, 0)
        jobs = MatrixJobs()
        jobs.job[0] = MatrixJob(w, None, None, y, outs)
        launches, source = [], x
        if self.fragments:
            chunks = -(-k // 64) * -(-rows // 2)
            source = device.filled(chunks * 32, 16, 0)
            launches.append(("lab_fragments_f16", -(-chunks // 8), 0,
                             [ctypes.c_uint64(x), ctypes.c_uint64(source), ctypes.c_int(k), ctypes.c_int(rows)]))
        launches.append((self.name, -(-outs // 16), self.shared,
                         [ctypes.c_uint64(source), jobs, ctypes.c_int(k), ctypes.c_int(rows), ctypes.c_int(0)]))
        return launches, 2 * outs * k


class MatrixJob(ctypes.Structure):
    _fields_ = [("w", ctypes.c_void_p), ("scales", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("y", ctypes.c_void_p),
                ("outs", ctypes.c_int)]


class MatrixJobs(ctypes.Structure):
    _fields_ = [("job", MatrixJob * 3)]


class Job:
    """Versions of one kernel; the first is the one in use. `source` holds all of them, `check` is NAME of NAME.cpp."""

    def __init__(self, source, check, versions):
        self.source, self.check, self.versions = source, check, versions


JOBS = {
    "gemv": Job("gemv_fragments.cu", "gemv", [
        Gemv("gemv_f16_r8", 8, fragments=False),
        Gemv("lab_gemv_f16_r8", 8, fragments=True),
    ]),
}


# ---- checked ---------------------------------------------------------------------------------------------------------

def check(job, options):
    """{version: cells}, and whether the check passed; its lines `lab VERSION key value ..` are the cells."""
    builder = build.Builder(SimpleNamespace(root=ROOT, kernels=None, out=None, sanitize=options.sanitize, jobs=None))
    [program] = builder.build_tests([job.check], builder.lab)
    status, said = builder.run_program(program)
    shown = {}
    for line in said.splitlines():
        if line.startswith("lab "):
            _, version, *words = line.split()
            shown[version] = dict(zip(words[::2], words[1::2]))
        elif status != 0 or options.verbose:
            print(line)
    for version in job.versions:
        version.shared = int(shown.get(version.name, {}).get("shared", 0))
    passed = status == 0 and all(version.shared for version in job.versions)
    return shown, passed


# ---- counted ---------------------------------------------------------------------------------------------------------

def cubin(job, arch):
    return sass.cubin(LAB / job.source, arch, sass.tool("nvcc.sh"), sass.target() / "kernel_lab")


def count(job, options):
    """{(version, arch): cells}."""
    nvdisasm = sass.tool("nvdisasm.sh")
    counted = {}
    for arch in options.arch:
        image, report = cubin(job, arch)
        kernels = sass.instructions(nvdisasm, image)
        for version in job.versions:
            registers, spilled, static_shared = sass.ptxas(report, version.name)
            body = sass.hot_loop(kernels[version.name])
            copied = sass.copies(body)
            counted[version.name, arch] = {
                "loop": len(body), "hmma": sass.hmma(body),
                "per_kib": len(body) * 1024 / (copied * sass.CP_ASYNC_BYTES) if copied else None,
                "registers": registers, "spilled": spilled, "shared": version.shared + static_shared,
                "warps": sass.warps(arch, version.threads, registers, version.shared + static_shared)}
    return counted


# ---- timed -----------------------------------------------------------------------------------------------------------

class Device:
    """The first CUDA device, by the driver's C interface."""

    def __init__(self, library):
        self.library = library
        self.call("cuInit", 0)
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(number), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, number)
        self.name = name.value.decode()
        capability = [ctypes.c_int(), ctypes.c_int()]
        for value, attribute in zip(capability, (75, 76)):
            self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, number)
        self.capability = capability[0].value * 10 + capability[1].value
        self.held = []

    def call(self, function, *arguments):
        status = getattr(self.library, function)(*arguments)
        if status != 0:
            sys.exit(f"run.py: {function}: CUDA error {status}")

    def filled(self, count, size, word):
        """An array of `count` elements of `size` bytes, filled with a 32-bit word."""
        address, words = ctypes.c_uint64(), -(-count * size // 4)
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(words * 4))
        self.call("cuMemsetD32Async", address, ctypes.c_uint(word), ctypes.c_size_t(words), None)
        self.held.append(address)
        return address.value

    def release(self):
        for address in self.held:
            self.call("cuMemFree_v2", address)
        self.held = []

    def kernels(self, image, names):
        module, functions = ctypes.c_void_p(), {}
        self.call("cuModuleLoadData", ctypes.byref(module), image.read_bytes())
        for name in names:
            functions[name] = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(functions[name]), module, name.encode())
        return functions

    def seconds(self, launches, functions, repeats=20):
        """The median time of each launch. The weights are read in turn with the other launches': large ones miss L2."""
        for kernel, _, shared, _ in launches:
            self.call("cuFuncSetAttribute", functions[kernel], 8, shared)
        events = [ctypes.c_void_p() for _ in range(len(launches) + 1)]
        for event in events:
            self.call("cuEventCreate", ctypes.byref(event), 0)
        times = [[] for _ in launches]
        for repeat in range(repeats + 3):
            self.call("cuEventRecord", events[0], None)
            for event, (kernel, grid, shared, parameters) in zip(events[1:], launches):
                pointers = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in parameters]
                array = (ctypes.c_void_p * len(pointers))(*pointers)
                self.call("cuLaunchKernel", functions[kernel], grid, 1, 1, 256, 1, 1, shared, None, array, None)
                self.call("cuEventRecord", event, None)
            self.call("cuEventSynchronize", events[-1])
            elapsed = ctypes.c_float()
            for i in range(len(launches)):
                self.call("cuEventElapsedTime", ctypes.byref(elapsed), events[i], events[i + 1])
                if repeat >= 3:  # the first three are warm-up
                    times[i].append(elapsed.value / 1e3)
        return [statistics.median(each) for each in times]


def device():
    """The first device and its name, or None and the reason."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "no CUDA driver"
    number = ctypes.c_int()
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(number)) != 0 or number.value == 0:
        return None, "a CUDA driver, but no device"
    found = Device(library)
    if "CPU" in found.name:
        return None, f"the driver is the host-run one ({found.name})"
    return found, found.name


def time(job, found):
    """Rows of times: (what, {version: text})."""
    arch = "sm_90a" if found.capability == 90 else "sm_80"
    if found.capability // 10 != int(arch[3]):
        return [(f"no machine code for capability {found.capability / 10}", {})]
    image, _ = cubin(job, arch)
    names = {version.name for version in job.versions} | ({"lab_fragments_f16"} if job.check == "gemv" else set())
    functions = found.kernels(image, names)
    rows_of = []
    for what, k, outs in job.versions[0].shapes():
        for rows in job.versions[0].rows_that_fit():
            cells = {}
            for version in job.versions:
                if rows > version.max_rows:
                    continue
                launches, weight_bytes = version.prepare(found, k, outs, rows)
                *before, seconds = found.seconds(launches, functions)
                cells[version.name] = f"{seconds * 1e6:.1f} us, {weight_bytes / seconds / 1e9:.0f} GB/s"
                if before:
                    cells[version.name] += f" (+ {sum(before) * 1e6:.1f} us for the fragments)"
                found.release()
            rows_of.append((f"{what} [{outs}, {k}], {rows} rows", cells))
    return rows_of


# ---- the table -------------------------------------------------------------------------------------------------------

def show(name, job, options, found, why):
    shown, passed = check(job, options)
    counted = {} if options.no_count else count(job, options)
    arches = [None] if options.no_count else options.arch
    head = ["version", "checked", "of bound", "error", "bits", "arch", "SASS/KiB", "loop", "HMMA", "registers", "spilled",
            "shared", "warps/SM", "time"]
    rows = []
    for version in job.versions:
        cells = shown.get(version.name, {})
        in_use = version is job.versions[0]
        checked = [version.name, "yes" if passed else "FAILED" if cells else "MISSING", cells.get("max_error_of_bound", "-"),
                   cells.get("max_error", "-"),
                   "in use" if in_use else "equal" if cells.get("bits_equal") == "1" else "differ"]
        for arch in arches:
            c = counted.get((version.name, arch))
            static = [arch, f"{c['per_kib']:.0f}" if c["per_kib"] else "-", str(c["loop"]), str(c["hmma"]),
                      str(c["registers"]), str(c["spilled"]), str(c["shared"]), str(c["warps"])] if c else ["-"] * 8
            rows.append([*checked, *static, "below" if found else "no device"])
    print(f"{name} ({job.source})")
    sass.table(head, rows)
    print(f"timed on: {why}")
    if found:
        names = [version.name for version in job.versions]
        sass.table(["shape", *names], [[what, *(cells.get(each, "-") for each in names)] for what, cells in time(job, found)])
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"valid names: {', '.join(JOBS)}")
    parser.add_argument("--arch", action="append", choices=sass.MULTIPROCESSORS, help="default: sm_80 and sm_90a")
    parser.add_argument("--no-count", action="store_true", help="checks (and times) alone")
    parser.add_argument("--sanitize", action="store_true", help="checks under the sanitizers")
    parser.add_argument("--verbose", action="store_true", help="prints what the checks say")
    options = parser.parse_args()
    options.arch = options.arch or list(sass.MULTIPROCESSORS)
    if unknown := [name for name in options.jobs if name not in JOBS]:
        parser.error(f"unknown job {unknown[0]}; valid names: {', '.join(JOBS)}")
    found, why = (None, "no device (--no-count)") if options.no_count else device()
    try:
        passed = [show(name, JOBS[name], options, found, why) for name in options.jobs or JOBS]
    except build.BuildError as error:
        sys.exit(f"run.py: {error}")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
