"""Loads that are driven through their standard input: `load` of tests/peers and our `bench-client`.
Each connects, warms up, prints `ready`, and then makes one measurement per line it reads."""

import json
import os
import subprocess
import sys

import machine
import support


class Load:
    """A running load; use it in a `with` block."""

    def __init__(self, command, core, environment=None):
        self.command = machine.pinned(core, command)
        self.environment = dict(os.environ, **(environment or {}))

    def __enter__(self):
        self.process = subprocess.Popen(self.command, cwd=support.ROOT, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, env=self.environment)
        self._expect("ready")
        return self

    def _expect(self, beginning):
        line = self.process.stdout.readline()
        if not line.startswith(beginning):
            rest = self.process.communicate(timeout=10)[0]
            sys.exit("%s: %s%s" % (" ".join(self.command), line, rest))
        return line

    def measure(self, server_pid):
        """Make one measurement; return its figures and the CPU of the process SERVER_PID."""
        meter = machine.CpuMeter(server_pid)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        figures = json.loads(self._expect("{"))
        return figures, meter.seconds()

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measured(load, server):
    """The figures of one measurement of LOAD at SERVER, per second and per call."""
    figures, server_seconds = load.measure(server.pid)
    calls, messages, seconds = figures["calls"], figures["messages"], figures["seconds"]
    return {"calls_per_second": calls / seconds,
            "messages_per_second": messages / seconds,
            "mean_latency_us": figures["mean_latency_us"],
            "p50_us": figures["p50_us"], "p99_us": figures["p99_us"],
            "server_cpu_us_per_call": server_seconds * 1e6 / calls,
            "server_cpu_us_per_message": server_seconds * 1e6 / messages,
            "server_core_percent": 100 * server_seconds / seconds,
            "client_cpu_us_per_call": figures["cpu_seconds"] * 1e6 / calls,
            "client_core_percent": 100 * figures["cpu_seconds"] / seconds}
