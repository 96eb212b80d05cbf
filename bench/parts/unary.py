"""Server CPU per unary GetFeature: h2load on one core, each server on the other in turn. Each row
is a number of connections and of calls at once on each; the CPU figure stands beside throughput,
latency and calls per turn of the loop, so that idling to gather larger batches would show."""

import os
import re
import shlex
import signal
import tempfile

import load
import machine
import markdown
import series
import servers
import svg

TITLE = "Server CPU per unary call (GetFeature)"
ROWS = [{"connections": connections, "streams": streams}
        for connections, streams in [(1, 1), (1, 10), (1, 100), (10, 1), (10, 10), (10, 100)]]
FIGURES = [("cpu_us_per_call", "CPU µs/call", True), ("requests_per_second", "req/s", False),
           ("mean_latency_us", "mean latency µs", True),
           ("calls_per_turn", "calls per turn of the loop", None)]


def counters(server):
    """The turns and calls that our server has counted, or None if it does not say."""
    os.kill(server.pid, signal.SIGUSR1)
    line = server.running.try_line("turns=", 3)
    found = re.match(r"(\d+) calls=(\d+)", line or "")
    return (int(found[1]), int(found[2])) if found else None


class Runs:
    """The settings of a run besides its row and its server."""

    def __init__(self, call, seconds, core):
        self.call, self.seconds, self.core = call, seconds, core
        self.requests = {}

    def calibrate(self, row, server):
        """Find how many requests take about the time wanted; this also warms the server up."""
        connections, streams = row["connections"], row["streams"]
        trial = max(2000, 20 * connections * streams)
        figures = self.call.run(server.address, connections, streams, trial, self.core)
        self.requests[describe(row), server.name] = max(
            trial, int(figures["requests_per_second"] * self.seconds))

    def run(self, row, server):
        requests = self.requests[describe(row), server.name]
        before = counters(server) if server.name == "clgrpc" else None
        meter = machine.CpuMeter(server.pid)
        figures = self.call.run(server.address, row["connections"], row["streams"], requests,
                                self.core)
        figures["cpu_us_per_call"] = meter.seconds() * 1e6 / requests
        after = counters(server) if before else None
        if after and after[0] > before[0]:
            figures["calls_per_turn"] = (after[1] - before[1]) / (after[0] - before[0])
        return figures


def measure(options):
    with tempfile.TemporaryDirectory() as directory, servers.Contenders(options) as contenders:
        call = load.GetFeature(directory)
        contenders.add_ours()
        contenders.add_grpc_go()
        contenders.add_tonic()
        contenders.add_nghttpd(load.METHOD, call.answer, directory)
        contenders.add_floor()
        core = machine.cores()[0]
        runs = Runs(call, options.seconds, core)
        rows = series.interleaved(ROWS, contenders.members, options.rounds, runs.run,
                                  runs.calibrate)
        command = shlex.join(machine.pinned(core, call.command("ADDRESS", "C", "S", "N")))
        return {"commands": {**contenders.commands(), "load": command.replace(call.body, "BODY")},
                "absent": contenders.absent, "rows": rows}


def describe(row):
    return "%(connections)d × %(streams)d" % row


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "h2load on one core, the server on the other; connections × calls at once on each.", "",
        markdown.comparison(results["rows"], "connections × streams", describe, FIGURES)])


def plots(results):
    return {"unary": svg.bars(TITLE, "µs of server CPU per call",
                              [(describe(row), markdown.values(row, "cpu_us_per_call"))
                               for row in results["rows"]])}
