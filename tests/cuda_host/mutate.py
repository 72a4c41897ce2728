#!/usr/bin/env python3
"""Removes one barrier from the kernels at a time and expects a test to fail each time.

  mutate.py [options] [FILE..]      FILE: a name in kernels/ (attn_decode.cu, common.cuh); default: all with barriers

A mutant is the kernels without one statement that orders memory accesses: __syncthreads, __syncwarp, a wait for asynchronous copies
or products, an arrival at an mbarrier, or a wait for the preceding kernels. All mutants share one program per test: the copy of the
kernels that is built has a switch at each of these statements, and UQAC_HOST_CUDA_LEAVE_OUT names the one that is off. On the
unmodified kernels each test records the barriers it reaches. For a mutant only the tests that reach its barrier are run (no other
can notice), shortest first, until one fails; a test may take several times as long as on the unmodified kernels. Mutants run in
parallel, one per core, those with the longest tests first. Prints the fate of every mutant, and exits with 1 if one survived: then
a test is missing, or the barrier is not needed.

A file none of whose mutants survives is recorded in mutants.sha256, with the hash of its sources: itself, what it includes, and the
tests that reach it, without comments. --unless-recorded leaves out files whose hash is still the same. The shim and these scripts are
not part of it: a full run, before a release, repeats all.
"""

import argparse
import hashlib
import re
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.dont_write_bytecode = True  # no __pycache__ among the sources
import build

# A call statement of one of these; template arguments and one level of parentheses inside the arguments are allowed.
BARRIER = re.compile(r"""
    (?<! > ) \b (?: \w+ :: )*
    (?: __syncthreads | __syncwarp | start_early | wait_for_earlier_grids
      | cluster_sync | mbarrier_wait | mbarrier_arrive | mbarrier_expect | wgmma_fence | wgmma_fence_shared | wgmma_wait
      | \w* (?: cp_wait | async_wait | wait_group | wait_all ) \w* )
    \s* (?: < [^<>;]* > )? \s* \( (?: [^();] | \( [^()]* \) )* \) \s* ;""", re.VERBOSE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


ROOT = build.HERE.parent.parent
RECORD = build.HERE / "mutants.sha256"


def recorded():
    """The hash of each recorded file's sources."""
    lines = RECORD.read_text().split("\n") if RECORD.exists() else []
    return {name: digest for digest, name in (line.split() for line in lines if line)}


class Mutant:
    def __init__(self, number, file, line, statement):
        self.number, self.file, self.line, self.statement = number, file, line, statement

    def __str__(self):
        return f"{self.file}:{self.line}: {self.statement}"


def with_switches(name, text, mutants):
    """The text with a switch at each barrier outside comments; appends the mutants to the list."""
    code = COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), text)
    made, end = [], 0
    for match in BARRIER.finditer(code):
        mutant = Mutant(len(mutants) + 1, name, code.count("\n", 0, match.start()) + 1, match[0])
        mutants.append(mutant)
        made += [text[end:match.start()], f"{{ if (!::cuda_host::left_out({mutant.number})) {match[0]} }}"]
        end = match.end()
    return "".join(made) + text[end:]


class Mutation:
    def __init__(self, options):
        root = Path(options.root or ROOT).resolve()
        self.factor = options.factor
        self.records = root == ROOT and not options.sanitize
        self.builder = build.Builder(SimpleNamespace(
            root=root, kernels=None, out=None, sanitize=options.sanitize, jobs=options.jobs))
        objects = self.builder.objects  # shared with the other tests: only sources with barriers are recompiled
        out = root / "target" / "cuda_host" / "mutants"
        kernels = out / "kernels"
        shutil.rmtree(kernels, ignore_errors=True)
        shutil.copytree(root / "kernels", kernels)
        self.builder = build.Builder(SimpleNamespace(
            root=root, kernels=kernels, out=out, sanitize=options.sanitize, jobs=options.jobs))
        self.builder.objects = objects
        self.mutants, self.includes, self.code = [], {}, {}
        for file in [*sorted(kernels.glob("*.cu*")), *sorted(self.builder.tests.glob("*"))]:
            text = file.read_text()
            self.includes[file.name] = INCLUDE.findall(text)
            self.code[file.name] = " ".join(COMMENT.sub(" ", text).split())
            if file.parent == kernels:
                file.write_text(with_switches(file.name, text, self.mutants))
        known = recorded() if options.unless_recorded else {}
        chosen = {file for file in self.code if not options.files or file in options.files}
        chosen = {file for file in chosen if known.get(file) != self.sources_hash(file)}
        self.wanted = [mutant for mutant in self.mutants if mutant.file in chosen]

    def sources_hash(self, file):
        """Hash of a kernel file, of what it includes, and of the tests that reach it."""
        included = lambda name: {name, *(inner for other in self.includes.get(name, []) for inner in included(other))}  # noqa: E731
        tests = {name for name in self.code if (self.builder.tests / name).exists() and self.reaches(name, file)}
        text = hashlib.sha256()
        for name in sorted((included(file) | tests) & self.code.keys()):
            text.update(f"{name}\0{self.code[name]}\0".encode())
        return text.hexdigest()

    def reaches(self, file, header):
        return file == header or any(self.reaches(inner, header) for inner in self.includes.get(file, []))

    def concerning(self, mutant):
        """The tests that reach a mutant's barrier, shortest first."""
        tests = [test for test in self.seconds if mutant.number in self.met[test]]
        return sorted(tests, key=self.seconds.get)

    def fails(self, program, mutant, timeout, **environment):
        environment |= {"UQAC_TEST_FIRST_FAILURE": "1", "UQAC_HOST_CUDA_LEAVE_OUT": str(mutant.number)}
        status, _ = self.builder.run_program(program, timeout=timeout, environment=environment)
        return status != 0

    def killer(self, mutant):
        """(the first test that fails, or None; the seconds it took)."""
        start = time.monotonic()
        for program in self.concerning(mutant):
            if self.fails(program, mutant, 10 + self.factor * self.seconds[program]):
                return program.name, time.monotonic() - start
        return None, time.monotonic() - start

    def baseline(self):
        """Builds and runs all tests with every barrier in place; returns the seconds that each takes, or the failing ones."""
        files = {mutant.file for mutant in self.wanted}
        names = [test.stem for test in sorted(self.builder.tests.glob("*.cpp"))]
        names = [name for name in names if any(self.reaches(f"{name}.cpp", file) for file in files)]
        programs = self.builder.build_tests(names)
        nothing = Mutant(-1, "", 0, "")
        def timed(program):
            start = time.monotonic()
            met = program.with_suffix(".met")
            met.unlink(missing_ok=True)
            passed = not self.fails(program, nothing, None, UQAC_HOST_CUDA_MET=str(met))
            numbers = set(map(int, met.read_text().split())) if met.exists() else set()
            return passed, time.monotonic() - start, numbers
        results = self.builder.each(timed, programs)
        broken = [program.name for program, (passed, _, _) in zip(programs, results) if not passed]
        self.seconds = {program: seconds for program, (_, seconds, _) in zip(programs, results)}
        self.met = {program: numbers for program, (_, _, numbers) in zip(programs, results)}
        return broken

    def run(self):
        if not self.wanted:
            print(f"SKIPPED: {RECORD.name} records these sources")
            return 0
        if broken := self.baseline():
            print(f"mutate.py: {', '.join(broken)} fails on the kernels as they are", file=sys.stderr)
            return 2
        first = lambda mutant: max((self.seconds[test] for test in self.concerning(mutant)[:1]), default=0)  # noqa: E731
        wanted = sorted(self.wanted, key=first, reverse=True)
        def verdict(mutant):
            killer, seconds = self.killer(mutant)
            unmet = "" if self.concerning(mutant) else ": no test meets it"
            says = f"killed by {killer}" if killer else f"SURVIVES{unmet}"
            print(f"{mutant!s:<60} {says} ({seconds:.1f} s)", flush=True)
            return killer
        killers = self.builder.each(verdict, wanted)
        survivors = [mutant for mutant, killer in zip(wanted, killers) if not killer]
        print(f"{len(wanted)} mutants, {len(wanted) - len(survivors)} killed, {len(survivors)} survived")
        for mutant in survivors:
            print(f"SURVIVED: {mutant}", file=sys.stderr)
        if self.records:
            sound = {mutant.file for mutant in wanted} - {mutant.file for mutant in survivors}
            record = {file: digest for file, digest in recorded().items() if any(mutant.file == file for mutant in self.mutants)}
            record |= {file: self.sources_hash(file) for file in sound}
            RECORD.write_text("".join(f"{digest}  {file}\n" for file, digest in sorted(record.items())))
        return 1 if survivors else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--sanitize", action="store_true", help="run the tests under the sanitizers")
    parser.add_argument("--root", help="the repository (default: this one)")
    parser.add_argument("--jobs", type=int, help="default: all cores")
    parser.add_argument("--factor", type=float, default=10,
                        help="a test counts as failed when it takes this many times as long as on the whole kernels")
    parser.add_argument("--unless-recorded", action="store_true", help="leave out files that are recorded as they are")
    options = parser.parse_args()
    options.files = [Path(file).name for file in options.files]
    try:
        return Mutation(options).run()
    except build.BuildError as error:
        print(f"mutate.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
