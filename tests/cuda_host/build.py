#!/usr/bin/env python3
"""Compiles kernels/*.cu for the host, and builds libraries and tests from them.

  build.py [options] lib              libcuda.so.1 with all kernels, and a matching libnvrtc.so;
                                      prints their folder (for LD_LIBRARY_PATH)
  build.py [options] tests [NAME..]   tests/cuda_kernels/NAME.cpp (default: all), built and run
  build.py [options] lab [NAME..]     kernels/lab/NAME.cpp (default: all): likewise, the lab's checks
  build.py [options] library FILE.cu  a file with kernels and the functions that launch them, through shim/runtime.h; prints its path
  build.py [options] selftest         the shim's and the driver's own tests

A test that includes .cu files exports their kernels itself and is linked with the shim only; any other is linked with all
kernels and finds them through ch_find. Both include shim.h first, and the kernel files by their bare names. Objects are cached by
the hash of their source and of what it includes here: nothing is compiled twice. shim.h, most of what a small kernel takes to compile,
is precompiled. Programs run in parallel, one per core.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
# -march=native: fused multiply-adds, which nvcc emits too, and fast f16 conversions.
# -fno-strict-aliasing: kernels read floats as 16-byte words. -fno-extern-tls-init: dyn_smem has no initialiser.
# -Wno-psabi: wide vectors stay inside a program.
FLAGS = """-std=c++17 -g1 -march=native -fno-strict-aliasing -fno-extern-tls-init -fPIC -pthread -fvisibility=hidden
           -Wall -Wno-unknown-pragmas -Wno-psabi""".split()
# Kernels and tests: -O2 takes twice as long to compile and runs no faster, because the time goes into switching fibers.
PLAIN = ["-O1"]
# The shim's and the driver's own files, which do the switching.
PLAIN_SHIM = ["-O2"]
SANITIZED = "-O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined".split()


INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


class BuildError(Exception):
    pass


def run(command, **options):
    """A command's standard output; its stderr passes through to ours."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, **options)
    if done.returncode != 0:
        raise BuildError(f"failed: {' '.join(str(word) for word in command)}")
    return done.stdout


def compiler_id(cxx):
    """What distinguishes its output from another machine's: its version and the meaning of `native`."""
    native = [cxx, "-march=native", "-Q", "--help=target"]
    target = subprocess.run(native, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return run([cxx, "--version"]).splitlines()[0] + target.stdout


def exports_kernels(test_object):
    """Whether a test includes its kernels, and so needs none linked to it."""
    return b"cuda_host_kernel_" in run(["nm", test_object])


class Builder:
    def __init__(self, options):
        self.root = Path(options.root or HERE.parent.parent).resolve()
        self.kernels = Path(options.kernels or self.root / "kernels").resolve()
        self.tests = self.root / "tests" / "cuda_kernels"
        self.lab = self.root / "kernels" / "lab"
        out = options.out or Path(os.environ.get("CARGO_TARGET_DIR", self.root / "target")) / "cuda_host"
        self.variant = "sanitized" if options.sanitize else "plain"
        self.folder = Path(out).resolve() / self.variant
        self.objects, self.work = self.folder / "objects", self.folder / "work"
        for folder in (self.objects, self.work):
            folder.mkdir(parents=True, exist_ok=True)
        self.cxx = os.environ.get("CXX", "g++")
        self.flags = FLAGS + (SANITIZED if options.sanitize else PLAIN)
        self.shim_flags = FLAGS + (SANITIZED if options.sanitize else PLAIN_SHIM)
        self.compiler = compiler_id(self.cxx)
        self.jobs = options.jobs or os.cpu_count()
        self.header = threading.Lock()

    def each(self, function, items):
        """Applies function to every item, several at a time; results are in the items' order."""
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(function, items))

    # ---- objects ----

    def text(self, source, folders, seen):
        """A source file and, once each, the files that it includes from its own folder or from these."""
        seen.add(source)
        text = source.read_bytes()
        for name in INCLUDE.findall(text):
            found = next((path for folder in [source.parent, *folders] if (path := (folder / name.decode()).resolve()).is_file()), None)
            if found and found not in seen:
                text += self.text(found, folders, seen)
        return text

    def object(self, source, includes=(), flags=None, header=False):
        """A source file's object; compiled only if there is none of the same text. `header`: a precompiled header instead."""
        flags, source, folders = flags or self.flags, Path(source).resolve(), [HERE, *includes]
        text = self.text(source, folders, set())
        key = hashlib.sha256(self.compiler + " ".join(flags).encode() + text).hexdigest()[:32]
        made = self.objects / (f"{key}/{source.name}.gch" if header else f"{key}.o")
        if made.exists():
            return made
        made.parent.mkdir(exist_ok=True)
        if not header and flags is self.flags and b'#include "shim.h"' in text:
            with self.header:
                folders = [self.object(HERE / "shim.h", header=True).parent, *folders]
        # Two threads, or two processes, may build the same object: each writes its own file.
        part = self.objects / f"{key}.{threading.get_native_id()}.part"
        words = [word for folder in folders for word in ("-I", folder)]
        run([self.cxx, *flags, *words, *([] if header else ["-c"]), "-x", "c++-header" if header else "c++", source, "-o", part])
        part.rename(made)
        return made

    def kernel_names(self, file):
        """The kernels in a file, including those generated by macros."""
        text = run([self.cxx, "-std=c++17", "-I", self.kernels, "-E", "-P", "-DCUDA_HOST_SHIM",
                    "-D__global__=CUDA_HOST_KERNEL_MARK", "-D__launch_bounds__(...)=", "-x", "c++", file]).decode()
        names = re.findall(r"CUDA_HOST_KERNEL_MARK\s+void\s+(\w+)\s*\(", text)
        if len(names) != len(re.findall("CUDA_HOST_KERNEL_MARK", text)):
            raise BuildError(f"{file}: a __global__ that is not followed by `void name(`")
        return names

    def kernel_object(self, file):
        """A kernel file with its exports, in its own namespace: helpers with the same name in two files stay apart."""
        lines = ['#include "shim.h"', f"namespace kernels_in_{file.stem} {{", "CUDA_HOST_DECLARE_DYN_SMEM;",
                 f'#include "{file}"', *(f"CUDA_HOST_EXPORT({name})" for name in self.kernel_names(file)), "}", ""]
        wrapper = self.work / f"{file.stem}.cpp"
        text = "\n".join(lines)
        if not wrapper.exists() or wrapper.read_text() != text:
            wrapper.write_text(text)
        return self.object(wrapper, [self.kernels])

    def kernel_objects(self):
        return self.each(self.kernel_object, sorted(self.kernels.glob("*.cu")))

    def shim_object(self, source=HERE / "shim" / "main.cpp"):
        return self.object(source, flags=self.shim_flags)

    # ---- libcuda ----

    def inputs_hash(self):
        words = [*self.flags, *self.shim_flags, str(self.kernels)]
        digest = hashlib.sha256(self.compiler + " ".join(words).encode())
        files = [*HERE.glob("*.*"), *HERE.glob("*/*.h"), *HERE.glob("*/*.cpp"), *self.kernels.glob("*.cu*")]
        for file in sorted(files):
            digest.update(str(file).encode() + file.read_bytes())
        return digest.hexdigest()

    def lib(self):
        """The folder of an up-to-date libcuda.so.1."""
        library, stamp = self.folder / "libcuda.so.1", self.folder / "inputs"
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            inputs = self.inputs_hash()
            if library.exists() and stamp.exists() and stamp.read_text() == inputs:
                return self.folder
            own = self.each(self.shim_object, [HERE / "shim" / "main.cpp", *sorted(HERE.glob("driver/*.cpp"))])
            part = self.folder / "libcuda.so.part"
            # Its soname is what a loader asks for first, so that a process that has loaded it gets it again.
            run([self.cxx, *self.flags, "-shared", "-Wl,-soname,libcuda.so", "-o", part, *own, *self.kernel_objects()])
            part.rename(library)
            nvrtc = self.object(HERE / "nvrtc" / "libnvrtc.cpp")
            run([self.cxx, *self.flags, "-shared", "-Wl,-soname,libnvrtc.so", "-o", self.folder / "libnvrtc.so", nvrtc, "-ldl"])
            link = self.folder / "libcuda.so"
            link.unlink(missing_ok=True)
            link.symlink_to(library.name)
            stamp.write_text(inputs)
        return self.folder

    def library(self, file):
        """A shared library of the C functions of a file that launches its own kernels."""
        wrapper, library = self.work / f"{file.stem}.cpp", self.folder / f"{file.stem}.so"
        wrapper.write_text(f'#include "shim.h"\n#include "shim/runtime.h"\n#pragma GCC visibility push(default)\n#include "{file.resolve()}"\n')
        part = self.folder / f"{file.stem}.{os.getpid()}.part"
        run([self.cxx, *self.flags, "-shared", "-o", part, self.object(wrapper, [self.kernels]), self.shim_object()])
        part.rename(library)
        return library

    # ---- tests ----

    def test_object(self, source):
        return self.object(source, [self.kernels, self.tests, source.parent])

    def link(self, source, test_object, other_objects):
        program = self.folder / source.stem
        run([self.cxx, *self.flags, "-o", program, test_object, *other_objects, "-ldl"])
        return program

    def build_tests(self, names, folder=None):
        folder = folder or self.tests
        sources = [folder / f"{name}.cpp" for name in names] or sorted(folder.glob("*.cpp"))
        objects = self.each(self.test_object, sources)
        alone = [exports_kernels(test) for test in objects]
        shim = [self.shim_object()]
        with_kernels = shim if all(alone) else [*shim, *self.kernel_objects()]
        tests = zip(sources, objects, alone)
        return self.each(lambda test: self.link(test[0], test[1], shim if test[2] else with_kernels), tests)

    def run_program(self, program, arguments=(), timeout=None, environment={}):
        """The exit status and output; the program ends at a sanitizer's first finding."""
        environment = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", **os.environ, **environment}
        command = [program, *arguments]
        try:
            done = subprocess.run(command, env=environment, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            return done.returncode, done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired:
            return -1, ""

    def run_all(self, programs, arguments=()):
        """Runs programs in parallel and prints each one's output, in order."""
        failed = []
        with ThreadPoolExecutor(self.jobs) as pool:
            runs = [(program, pool.submit(self.run_program, program, arguments)) for program in programs]
            for program, done in runs:
                status, said = done.result()
                print(f"== {program.name} ({self.variant})\n{said}", end="", flush=True)
                if status != 0:
                    failed.append(program.name)
        for name in failed:
            print(f"FAILED: {name} ({self.variant})", file=sys.stderr)
        return not failed

    def selftest(self):
        """The shim's and the driver's tests; self.kernels are the self-test's own here."""
        sources = sorted(HERE.glob("selftest/*.cpp"))
        shim = [self.shim_object()]
        programs = [self.link(source, test, shim) for source, test in zip(sources, self.each(self.test_object, sources))]
        return self.run_all(programs, [self.lib() / "libcuda.so.1"])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitize", action="store_true", help="under the address and undefined-behaviour sanitizers")
    parser.add_argument("--root", help="the repository (default: this one)")
    parser.add_argument("--kernels", help="the kernels' folder (default: ROOT/kernels)")
    parser.add_argument("--out", help="default: ROOT/target/cuda_host")
    parser.add_argument("--jobs", type=int, help="default: all cores")
    parser.add_argument("what", choices=["lib", "library", "tests", "lab", "selftest"])
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def main():
    options = arguments()
    try:
        if not shutil.which(os.environ.get("CXX", "g++")):
            raise BuildError("no C++ compiler (g++, or the one that $CXX names)")
        if options.what == "selftest":
            options.kernels = HERE / "selftest"
            options.out = Path(options.out or HERE.parent.parent / "target" / "cuda_host") / "selftest"
        builder = Builder(options)
        if options.what == "lib":
            print(builder.lib())
        elif options.what == "library":
            print(*(builder.library(Path(name)) for name in options.names))
        elif options.what == "tests":
            return 0 if builder.run_all(builder.build_tests(options.names)) else 1
        elif options.what == "lab":
            return 0 if builder.run_all(builder.build_tests(options.names, builder.lab)) else 1
        else:
            return 0 if builder.selftest() else 1
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
