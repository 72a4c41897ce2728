#!/usr/bin/env python3
"""The array job of EVALUATION.md under a real Slurm on this machine: Debian's slurm-wlm and munge are started from a separate
folder, and stopped again. One task of the job is killed and requeued while it works; the merged report must be byte-identical to
that of a run without shards, except for timings.

    apt-get install slurm-wlm munge
    tests/cluster/slurm.py [--uqac target/release/uqac]

Must run as root, like Slurm's daemons when they run other users' jobs.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ["munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol"]
TASKS = 8

CONFIG = """\
ClusterName=here
SlurmctldHost={host}
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
MinJobAge=300
NodeName={host} CPUs=4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for(what, is_so, seconds=120, failed=lambda: ""):
    begun = time.monotonic()
    while not is_so():
        if time.monotonic() - begun > seconds:
            raise SystemExit(f"waited {seconds} s: {what}\n{failed()}")
        time.sleep(0.2)


@contextlib.contextmanager
def slurm(folder):
    """Slurm's daemons, as child processes."""
    host = socket.gethostname().split(".")[0]
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, host=host, ports=free_ports(2)))
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
         f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"],
        ["slurmctld", "-D", "-i"],
        ["slurmd", "-D", "-N", host],
    ]
    daemons = []
    try:
        for command in commands:
            with open(folder / f"{command[0]}.out", "w") as out:
                daemons.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
            time.sleep(1)
        logs = lambda: "".join((folder / f"{command[0]}.out").read_text()[-2000:] for command in commands)
        idle = lambda: "idle" in subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True).stdout
        wait_for("the node is idle", idle, 60, logs)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def job(run, uqac, items):
    """EVALUATION.md's array job, on abacus."""
    text = (ROOT / "EVALUATION.md").read_text()
    script = next(block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "#SBATCH" in block)
    for old, new in [
        (" --gres=gpu:1", " --requeue"),
        ("uqac eval", f"{uqac} eval --threads 1 --limit {items} --methods self-consistency"),
        ('"$MODEL"', "abacus"), ("gsm8k,math", "abacus"), (' --data "$DATA"', ""), ("runs/big", str(run)),
    ]:
        assert old in script, f"EVALUATION.md's job has no {old!r}"
        script = script.replace(old, new)
    own = '--shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"'
    assert own in script and f"--array=1-{TASKS}" in script, "EVALUATION.md's job is another one"
    return script


def lines(run):
    return sum(path.read_text().count("\n") for path in run.glob("samples_*"))


def start_job(environment, folder, script, run, items):
    """Submits a job, then kills and requeues one of its tasks once it is working; returns (job number, task)."""
    output = folder / f"{run.name}.out"
    output.mkdir()
    command = ["sbatch", "--parsable", f"--output={output}/%a", "--open-mode=append"]
    number = subprocess.run(command, env=environment, input=script, capture_output=True, text=True, check=True).stdout.strip()
    wait_for("samples", lambda: lines(run) > items // 8, 600)
    states = subprocess.run(["squeue", "-h", "-r", "-j", number, "-t", "RUNNING", "-o", "%K"], env=environment, capture_output=True, text=True, check=True)
    task = states.stdout.split()[0]
    subprocess.run(["scontrol", "requeue", f"{number}_{task}"], env=environment, check=True)
    return number, task


def finish_job(environment, number):
    """Waits for a job's end; every task must have completed, one of them on its second start."""
    left = lambda: subprocess.run(["squeue", "-h", "-r", "-j", number], env=environment, capture_output=True, text=True).stdout
    wait_for("the job ends", lambda: not left(), 900, left)
    shown = subprocess.run(["scontrol", "show", "job", number], env=environment, capture_output=True, text=True).stdout
    restarts = sum(map(int, re.findall(r"Restarts=(\d+)", shown)))
    codes = re.findall(r"JobState=(\w+)", shown)
    assert restarts == 1 and set(codes) == {"COMPLETED"} and len(codes) == TASKS, shown


def reports(uqac, run, manifest):
    """The output of `uqac report` for a run, with the given manifest and without timings."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, "run")
        copy.mkdir()
        (copy / "manifest.json").write_bytes(manifest)
        for path in run.glob("samples_*"):
            with open(copy / path.name, "w") as target:
                for line in path.read_text().splitlines(keepends=True):
                    if line.endswith("\n"):
                        sample = json.loads(line)
                        sample["uq"]["seconds"] = dict.fromkeys(sample["uq"]["seconds"], 1.0)
                        line = json.dumps(sample) + "\n"
                    target.write(line)
        command = [uqac, "report", "run", "--format"]
        return [subprocess.run([*command, name], cwd=place, capture_output=True, check=True).stdout for name in ("table", "csv", "json", "html")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uqac", default=ROOT / "target/release/uqac")
    parser.add_argument("--items", type=int, default=240)
    arguments = parser.parse_args()
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        print(f"SKIPPED: {', '.join(missing)} not installed" if missing else "SKIPPED: Slurm's daemons need root")
        return
    uqac = Path(arguments.uqac).resolve()
    with tempfile.TemporaryDirectory(prefix="uqac-slurm-") as name:
        folder = Path(name)
        whole = folder / "whole"
        subprocess.run([uqac, "eval", "--threads", "2", "--limit", str(arguments.items), "--methods", "self-consistency",
                        "--tasks", "abacus", "--output", whole], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        manifest = (whole / "manifest.json").read_bytes()
        expected = reports(uqac, whole, manifest)
        run = folder / "sharded"
        with slurm(folder) as environment:
            number, task = start_job(environment, folder, job(run, uqac, arguments.items), run, arguments.items)
            finish_job(environment, number)
        equal = reports(uqac, run, manifest) == expected
        print(f"{TASKS} tasks, task {task} killed and requeued, {lines(run)} samples of {arguments.items} items: "
              f"reports {'equal' if equal else 'DIFFER'}", flush=True)
    sys.exit(not equal)


if __name__ == "__main__":
    main()
