#!/usr/bin/env python3
"""Third-party cases of answer extraction and grading, run through `examples/grade.rs`.

    tests/peers/grading.py [--grade PROGRAM] [--data DIR] [--quiet]

Math-Verify's test cases are read from its source package, which pip fetches now: nothing of it is stored here.
Announced answers are generated from MATH-500's golds, if --data (or UQAC_DATA) contains them. Each suite prints n, the
number of agreements, and every disagreement; benches/PEERS.md judges those. A suite whose data is unavailable prints
SKIPPED.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "math-verify==0.9.0"
FORMULA = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|\$((?:\\.|[^$\\])+)\$", re.DOTALL)
ANNOUNCED = ["The answer is ${}$.", "The answer is: ${}$", "**Final Answer:** \\({}\\)", "Final answer:\n\\[\n{}\n\\]",
             "Thus the final answer is $${}$$, since the others fail."]


def grade(program, cases):
    """The program's output for each case."""
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def built():
    """The program, built in the dev profile."""
    subprocess.run(["cargo", "build", "--quiet", "--example", "grade"], cwd=ROOT, check=True)
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "examples" / "grade"


def sources(package):
    """The Python files of a source package, by path; None if pip cannot fetch it."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", folder]
        if subprocess.run([*pip, package], capture_output=True).returncode != 0:
            return None
        with tarfile.open(next(Path(folder).glob("*.tar.gz"))) as archive:
            names = [member for member in archive.getmembers() if member.isfile() and member.name.endswith(".py")]
            return {member.name: archive.extractfile(member).read().decode() for member in names}


def parametrized(source):
    """(function, {parameter: value}) for every case in a pytest file that consists of literals."""
    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        for mark in function.decorator_list:
            if not (isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize")):
                continue
            names = [name.strip() for name in ast.literal_eval(mark.args[0]).split(",")]
            for case in mark.args[1].elts:
                try:
                    yield function.name, dict(zip(names, ast.literal_eval(case)))
                except ValueError:
                    pass  # computed at run time


def isolated(text):
    """A case for the program with the answer of `text`: its box's, its last formula's, else the one found in it."""
    formulas = list(FORMULA.finditer(text))
    if "\\boxed" in text or not formulas or re.search(r"answer(?: is|:)", text, re.IGNORECASE):
        return {"response": text}
    outside = FORMULA.sub(" ", text).strip(" .")
    if outside and re.fullmatch(r"(?:and|or|miles|percent|pct|%|,|\s)+", outside):
        return {"answer": text}  # one answer made of several formulas: "$1$ and $2$"
    return {"answer": next(group for group in formulas[-1].groups() if group is not None).strip()}


def math_verify(program):
    files = sources(PACKAGE)
    if files is None:
        print(f"SKIPPED {PACKAGE}: pip could not fetch its source")
        return None
    cases = []
    for path in sorted(files):
        for function, case in parametrized(files[path]) if "/tests/" in path else ():
            wanted = case.get("expected", case.get("result"))
            if {"gold", "pred"} <= case.keys() and case.get("strict", True):
                cases.append((function, case["gold"], case["pred"], bool(wanted)))
    texts = [text for _, gold, pred, _ in cases for text in (gold, pred)]
    found = [found["answer"] if found["answer"] is not None else text
             for found, text in zip(grade(program, map(isolated, texts)), texts)]
    pairs = list(zip(found[::2], found[1::2]))
    graded = grade(program, [{"answer": pred, "target": gold} for gold, pred in pairs])
    rows = []
    for (function, _, _, wanted), (gold, pred), ours in zip(cases, pairs, graded):
        if ours["correct"] != wanted:
            rows.append(f"{function}: {gold!r} and {pred!r}: {'equal' if wanted else 'different'} for them")
    return len(cases), rows


def announced(program, golds, sentence):
    """Golds in a sentence that announces them: counts as found if the grader takes the result for the gold."""
    cases = [{"response": sentence.format(gold), "target": gold} for gold in golds]
    rows = [f"{gold!r}: found {ours['answer']!r}"
            for gold, ours in zip(golds, grade(program, cases)) if not ours["correct"]]
    return len(golds), rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grade", type=Path, help="the program, if it is built already")
    parser.add_argument("--data", type=Path, default=os.environ.get("UQAC_DATA", ROOT / "../shared/data"))
    parser.add_argument("--quiet", action="store_true", help="counts alone")
    args = parser.parse_args()
    program = args.grade or built()
    suites = [(PACKAGE, lambda: math_verify(program))]
    golds = Path(args.data) / "math500_test.jsonl"
    if golds.is_file():
        golds = [json.loads(line)["answer"] for line in golds.read_text().splitlines()]
        for sentence in ANNOUNCED:
            suites.append((f"MATH-500 in {sentence!r}", lambda sentence=sentence: announced(program, golds, sentence)))
    else:
        print(f"SKIPPED announced answers: no {golds}")
    for name, run in suites:
        result = run()
        if result is None:
            continue
        n, rows = result
        print(f"{name}: n {n}, agree {n - len(rows)}")
        if not args.quiet:
            print("".join(f"    {row}\n" for row in rows), end="")


if __name__ == "__main__":
    main()
