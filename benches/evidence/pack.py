#!/usr/bin/env python3
"""A run folder without what tables and figures do not need, compressed: pack.py RUN FOLDER

Of points of a sweep (the controls) the scores over the chain stay, and neither the chain's rows nor other scores. These
scores and every number of a token or a chain's row have 7 digits, as float32 has; a response's own scores stay whole,
for their order near 1 is what AUROC asks. Of paths in the command the last part stays: a machine's folders are nobody's
business. `uqac report FOLDER` and tables.py read what it writes.
"""
import gzip
import json
import re
import sys
from pathlib import Path

SCORES = ["p", "p_logprob", "p_sim", "sim_logprob", "p_attn", "attn_logprob"]


def rounded(value):
    """The same with 7 digits in every float of it."""
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
        # no name and no date in the header: the same bytes each time
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
