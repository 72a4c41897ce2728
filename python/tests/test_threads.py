"""Ctrl-C, threads and forks."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import PENCILS

import uqac

ENDLESS = {"temperature": 5.0, "seed": 1, "stop": [], "max_tokens": 1_000_000}


def test_threads_share_a_model(model):
    expected = model.ask(PENCILS).scores
    found = []
    threads = [threading.Thread(target=lambda: found.append(model.ask(PENCILS).scores)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_the_interpreter_runs_while_the_engine_does(model):
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    clock = threading.Thread(target=tick)
    clock.start()
    begun = time.monotonic()
    model.ask_many([PENCILS] * 8, progress=False)
    ended = time.monotonic()
    done.set()
    clock.join()
    during = [at for at in ticks if begun < at < ended]
    # if the lock were held, there would be one gap as long as the whole call
    gaps = [b - a for a, b in zip([begun, *during], [*during, ended])]
    assert max(gaps) < (ended - begun) / 2


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or os.name == "nt", reason="SKIPPED: no signals here")
@pytest.mark.parametrize("call", ["model.ask_many([Q] * 100_000, progress=False)", "list(model.generate(Q, **endless))"])
def test_ctrl_c_stops_the_engine(call):
    script = f"""
import os, signal, threading, time, uqac
Q = {PENCILS!r}
endless = dict(temperature=100.0, max_tokens=10**6)
model = uqac.load("abacus", device="cpu")
threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True:
        {call}
except KeyboardInterrupt:
    print("stopped", model.ask("What is 17 + 25?").answer)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "stopped 42\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SKIPPED: no fork here")
def test_a_fork_says_that_it_has_no_model(model):
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            model.ask(PENCILS)
            said = "answered"
        except uqac.Error as error:
            said = str(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "load it in the process that uses it" in pipe.read()
    os.wait()
