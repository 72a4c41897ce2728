#!/usr/bin/env python3
"""A run folder without what tables and figures do not need, compressed: pack.py RUN FOLDER

Of points of a sweep (the controls) the scores over the chain stay, rounded to 7 digits, and neither the chain's rows nor
other scores. `uqac report FOLDER` and tables.py read what it writes.
"""
import gzip
import json
import sys
from pathlib import Path

SCORES = ["p", "p_logprob", "p_sim", "sim_logprob", "p_attn", "attn_logprob"]


def slim(point):
    scores = {key: value if value is None else float(f"{value:.7g}")
              for key, value in point["scores"].items() if key in SCORES}
    return {**point, "chain": [], "kept": [], "scores": scores}


def main():
    run, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(run.iterdir()):
        lines = file.read_text() if file.suffix in (".json", ".jsonl") else None
        if file.name == "manifest.json":
            (folder / file.name).write_text(lines)
        if file.suffix != ".jsonl":
            continue
        # no name and no date in the header: the same bytes each time
        with open(folder / f"{file.name}.gz", "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
            for line in lines.splitlines():
                record = json.loads(line)
                if file.name.startswith("sweep_"):
                    record = slim(record)
                else:
                    record["uq"]["sweep"] = [slim(point) for point in record["uq"].get("sweep", [])]
                packed.write(json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")


if __name__ == "__main__":
    main()
