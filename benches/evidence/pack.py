#!/usr/bin/env python3
"""Compresses a run folder, dropping everything that tables and figures do not need: pack.py RUN FOLDER

For sweep points (the controls) only the scores over the chain are kept, without the chain's rows and other scores.
These scores and every value of a token or a chain row are rounded to 7 digits, the precision of float32; a response's
own scores stay exact, because AUROC depends on their order near 1. Paths in the command are cut to the last component,
since a machine's folders are private. `uqac report FOLDER` and tables.py read the output.
"""
import gzip
import json
import re
import sys
from pathlib import Path

SCORES = ["p", "p_logprob", "p_sim", "sim_logprob", "p_attn", "attn_logprob"]


def rounded(value):
    """The same value with every float in it rounded to 7 digits."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return value


def slim(point):
    scores = {key: value for key, value in point["scores"].items() if key in SCORES}
    return {**point, "chain": [], "kept": [], "scores": rounded(scores)}


def main():
    run, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(run.iterdir()):
        lines = file.read_text() if file.suffix in (".json", ".jsonl") else None
        if file.name == "manifest.json":
            (folder / file.name).write_text(re.sub(r"(?<=[ =])/[^ \"]*/", "", lines))
        if file.suffix != ".jsonl":
            continue
        # no name and no date in the header, so that the output is byte-identical each time
        with open(folder / f"{file.name}.gz", "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
            for line in lines.splitlines():
                record = json.loads(line)
                if file.name.startswith("sweep_"):
                    record = slim(record)
                else:
                    uq = record["uq"]
                    uq |= {key: rounded(uq[key]) for key in ("tokens", "chain") if key in uq}
                    uq["sweep"] = [slim(point) for point in uq.get("sweep", [])]
                packed.write(json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")


if __name__ == "__main__":
    main()
