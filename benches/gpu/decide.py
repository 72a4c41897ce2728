#!/usr/bin/env python3
"""What a session's figures decide, as a table in Markdown: each decision with its threshold, the figure, and the answer.

  decide.py [--quick] FIGURES OUT.md [NAME=RESULTS.json ..]

FIGURES has the labs' lines `figure KEY VALUE UNIT`; RESULTS are of benches/gpu.rs: walk0 (a block per split), walk2 and walk3 (that many
blocks per multiprocessor). A decision whose figures are missing is `open`. With --quick the figures are those of a host run: the table
shows that every decision can be made, and makes none. Exits with 1 if a figure is no number, or with --quick if a lab's is missing.
"""

import json
import math
import sys
from pathlib import Path


def figures_of(path):
    found = {}
    for line in Path(path).read_text().splitlines():
        _, key, value, _ = line.split()
        found[key] = float(value)
    return found


def batch_of(path):
    """Tokens/s of the largest batch with the trace."""
    rows = json.loads(Path(path).read_text())["rows"]
    rows = [row for row in rows if row["what"].startswith("decode, batch") and row["unit"] == "tokens/s" and "trace" in row["what"]]
    return max(rows, key=lambda row: row["median"])["median"] if rows else None


def least(found, *keys):
    return min(found[key] for key in keys)


# (question, threshold in words, figures it needs, [(holds, answer)..]): the first answer that holds
DECISIONS = [
    ("How are weights copied?", "tiles at least 97 % of rows' rate", ["8b.copies.tiles", "8b.copies.rows"],
     lambda f: f["8b.copies.tiles"] / f["8b.copies.rows"], "{:.3f} of rows' rate",
     [(lambda x: x >= 0.97, "tiles by TMA"), (lambda x: True, "rows by bulk copies, with exchanges of chunks")]),
    ("Products of 16 rows", "gemv_rows at most 4,700 us a step (8B), and less than r16", ["8b.16.fused", "8b.16.r16"],
     lambda f: max(f["8b.16.fused"] / 4700, f["8b.16.fused"] / f["8b.16.r16"]), "{:.3f} of the threshold",
     [(lambda x: x <= 1, "promote gemv_rows"), (lambda x: True, "keep r16")]),
    ("Products of 8 rows", "gemv_rows less than r8 (8B)", ["8b.8.fused", "8b.8.r8"], lambda f: f["8b.8.fused"] / f["8b.8.r8"], "{:.3f} of r8's time",
     [(lambda x: x < 1, "promote gemv_rows"), (lambda x: True, "keep r8")]),
    ("One row", "gemv_rows 2 % faster than the ring (8B), splits included", ["8b.1.rows", "8b.1.ring"], lambda f: f["8b.1.rows"] / f["8b.1.ring"],
     "{:.3f} of the ring's time", [(lambda x: x <= 0.98, "gemv_rows replaces the ring"), (lambda x: True, "the ring stays")]),
    ("Two blocks of a cluster halve k (o, down)", "o and down of 16 rows at least 250 us a step (8B) over their copies",
     ["8b.16.rows.o", "8b.16.rows.down", "8b.copies.tiles"],
     lambda f: 32 * (f["8b.16.rows.o"] + f["8b.16.rows.down"] - 1e-3 * 2 * 4096 * (4096 + 14336) / f["8b.copies.tiles"]), "{:.0f} us",
     [(lambda x: x >= 250, "build it"), (lambda x: True, "not worth it")]),
    ("One row, small layers: L2 ahead", "the ring with 8, 16 or 24 MB of the next weights in L2 2 % faster (1B)",
     ["1b.1.ring", "1b.1.ahead8", "1b.1.ahead16", "1b.1.ahead24"],
     lambda f: min((f[f"1b.1.ahead{mb}"] / f["1b.1.ring"], mb) for mb in (8, 16, 24)), "{0[0]:.3f} of the ring's time with {0[1]} MB",
     [(lambda x: x[0] <= 0.98, "so many MB per product, from the shape"), (lambda x: True, "nothing ahead")]),
    ("One row, small layers: shared memory", "the ring with as many stages as a block fills 1 % faster (1B)", ["1b.1.ring", "1b.1.need"],
     lambda f: f["1b.1.need"] / f["1b.1.ring"], "{:.3f} of the ring's time",
     [(lambda x: x <= 0.99, "stages by need"), (lambda x: True, "all of it")]),
    ("Persistent layers", "waiting under load at most 1.5 us: yes; at least 2.5: never", ["wait.fence.loaded", "wait.release.loaded", "wait.words.loaded"],
     lambda f: least(f, "wait.release.loaded", "wait.words.loaded"), "{:.2f} us",
     [(lambda x: x <= 1.5, "build them"), (lambda x: x >= 2.5, "never"), (lambda x: True, "only beside L2 prefetch; measure a layer first")]),
    ("What limits prefill's products", "550 TFLOP/s without promotion: chains; without copies: feeding; neither: 128 x 256 tiles",
     ["gemm.up.c32", "gemm.up.c64", "gemm.up.c0", "gemm.up.c32_cached"], lambda f: (f["gemm.up.c0"], f["gemm.up.c32_cached"], f["gemm.up.c64"]),
     "no promotion {0[0]:.0f}, no copies {0[1]:.0f}, chains of 64 {0[2]:.0f} TFLOP/s",
     [(lambda x: x[0] >= 550, "chains of 64 (all golden chains stay: NOTES)"), (lambda x: x[1] >= 550, "feed them: L2, clusters"),
      (lambda x: True, "tiles of 128 x 256")]),
    ("Rotation in the products' end", "q, k, v and rotation of 512 rows 5 % faster", ["rotation.512.apart", "rotation.512.together"],
     lambda f: f["rotation.512.together"] / f["rotation.512.apart"], "{:.3f} of the time",
     [(lambda x: x <= 0.95, "promote gemm_rotated, where no head is normed"), (lambda x: True, "rope_cache stays")]),
    ("Attention walks splits", "at least 1 % more tokens/s at 16 rows", ["walk0", "walk2", "walk3"],
     lambda f: max(f["walk2"], f["walk3"]) / f["walk0"], "{:.3f} times",
     [(lambda x: x >= 1.01, "decode_blocks: that many per multiprocessor"), (lambda x: True, "a block per split stays")]),
]
NOT_IN_HOST_RUN = ("wait.", "walk")


def main():
    quick = "--quick" in sys.argv
    figures, out, *results = [argument for argument in sys.argv[1:] if argument != "--quick"]
    found = figures_of(figures)
    for name, path in (pair.split("=", 1) for pair in results):
        if Path(path).exists() and (rate := batch_of(path)) is not None:
            found[name] = rate
    broken = [key for key, value in found.items() if not math.isfinite(value) or value <= 0]
    lines = ["| question | threshold | figure | decision |", "| --- | --- | ---: | --- |"]
    for question, threshold, needs, ratio, text, answers in DECISIONS:
        missing = [key for key in needs if key not in found]
        if missing:
            lines.append(f"| {question} | {threshold} | no {', '.join(missing)} | open |")
            broken += [key for key in missing if quick and not key.startswith(NOT_IN_HOST_RUN)]
            continue
        value = ratio(found)
        answer = next(answer for holds, answer in answers if holds(value))
        lines.append(f"| {question} | {threshold} | {text.format(value)} | {'none: a host run' if quick else answer} |")
    lines += ["", "| figure | value |", "| --- | ---: |"] + [f"| {key} | {value:.5g} |" for key, value in sorted(found.items())]
    Path(out).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    if broken:
        sys.exit(f"decide.py: no figures: {', '.join(broken)}")


if __name__ == "__main__":
    main()
