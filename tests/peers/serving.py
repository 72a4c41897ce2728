"""`uqac serve` on a free port, for the client tests."""

import concurrent.futures
import subprocess


class Server:
    def __init__(self, program, model, *arguments):
        command = [program, "serve", "--model", model, "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = next(line for line in self.process.stderr if ": http://" in line)
        self.url = "http://" + line.rstrip().rsplit("http://", 1)[1]
        self.reader = concurrent.futures.ThreadPoolExecutor(1)
        self.reader.submit(self.process.stderr.read)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(60) == 0, "a server that is asked to stop ends with code 0"
