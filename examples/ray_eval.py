#!/usr/bin/env python3
"""Runs `uqac eval` as Ray tasks, one per shard, into one folder that every node can write to.

    pip install ray
    examples/ray_eval.py --shards 32 --gpus 1 -- --model M --tasks gsm8k,math --data DATA --output runs/big
    uqac report runs/big

Using several shards per node keeps a slow one from determining the finish time. Ray retries a shard whose node dies; the shard
resumes at its last finished item.
"""

import argparse
import subprocess

import ray

SOME_ITEMS_FAILED = 1  # exit code of `uqac eval`; the failures are in the samples


def evaluate(shard, uqac, options):
    """Runs one shard; returns its exit code."""
    ran = subprocess.run([uqac, "eval", *options, "--quiet", "--json", "--shard", shard], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ran.returncode not in (0, SOME_ITEMS_FAILED):
        raise RuntimeError(f"shard {shard}: {ran.stderr.strip()}")
    return ran.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=8, help="several times the number of workers")
    parser.add_argument("--cpus", type=float, default=1, help="per shard")
    parser.add_argument("--gpus", type=float, default=0, help="per shard")
    parser.add_argument("--address", help="Ray cluster [default: this machine]")
    parser.add_argument("--uqac", default="uqac")
    parser.add_argument("options", nargs="+", help="options of `uqac eval`, after --")
    arguments = parser.parse_args()
    ray.init(address=arguments.address, log_to_driver=False)
    task = ray.remote(num_cpus=arguments.cpus, num_gpus=arguments.gpus, max_retries=5)(evaluate)
    shards = [f"{i}/{arguments.shards}" for i in range(1, arguments.shards + 1)]
    pending = {task.remote(shard, arguments.uqac, arguments.options): shard for shard in shards}
    failed = 0
    while pending:
        [done], _ = ray.wait(list(pending))
        failed |= ray.get(done)
        print(f"shard {pending.pop(done)} done, {len(pending)} left", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
