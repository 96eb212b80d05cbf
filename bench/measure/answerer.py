"""A program that is held to some cores and answers lines of JSON, one for each that it is sent."""

import json
import os
import subprocess

import machine
import support


class Answerer:
    """A program that prints a line `ready` and then answers, alive inside the `with` block."""

    def __init__(self, command, cores):
        held = ",".join(str(core) for core in machine.cores()[:cores])
        self.process = subprocess.Popen(
            machine.pinned(held, command), cwd=support.ROOT, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=dict(os.environ, GOMAXPROCS=str(cores)))
        self.answer("ready")

    def answer(self, beginning):
        line = self.process.stdout.readline()
        if not line.startswith(beginning):
            raise SystemExit("%s: %s" % (self.process.args, line))
        return line

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.answer("{"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
