"""The cost of `clgrpc load` itself: CPU of the tool for each call, at a rate, with calls begun evenly
and with those of a millisecond begun together, beside a C program that makes the same system calls
(bench/peers/paced.c); and at full speed, beside h2load. The server is bench/peers/canned.c, which is
never the limit. The start of a program does not count: each figure is the difference between a long
run and a short one."""

import os
import shlex
import subprocess
import sys
import tempfile

import load
import machine
import markdown
import openloop
import series
import support
import svg

TITLE = "The cost of the load tester itself"
CLGRPC = os.path.join(support.ROOT, "bin", "clgrpc")
CONNECTIONS, STREAMS = 10, 100
PACED = [{"load": "%s a second, evenly" % "{:,}".format(openloop.RATE), "together_us": 0},
         {"load": "%s a second, 1 ms together" % "{:,}".format(openloop.RATE), "together_us": 1000}]
FULL = [{"load": "full speed, %d × %d" % (CONNECTIONS, STREAMS)}]
FIGURES = [("cpu_us_per_call", "CPU µs/call", True)]


class Side:
    """A load: its NAME, and COMMAND, a function of row, address and number of calls."""

    def __init__(self, name, command):
        self.name, self.command = name, command


def ours(calls, *more):
    return [CLGRPC, "load", "--proto", openloop.PROTO, "-d", "{}", "-n", str(calls), "--quiet", *more,
            load.METHOD.strip("/")]


def paced_sides():
    def our_command(row, address, calls):
        return ours(calls, "--rps", str(openloop.RATE), "-c", "50", "--connections", "1",
                    "--together", "%dus" % row["together_us"], address)

    def floor(row, address, calls):
        return [support.c_build("paced"), address.rpartition(":")[2], str(calls),
                str(openloop.RATE), str(row["together_us"])]

    return [Side("clgrpc", our_command), Side(series.FLOOR, floor)]


def full_sides(call):
    return [Side("clgrpc", lambda row, address, calls:
                 ours(calls, "-c", str(CONNECTIONS * STREAMS), "--connections", str(CONNECTIONS),
                      address)),
            Side("h2load", lambda row, address, calls:
                 call.command(address, CONNECTIONS, STREAMS, calls))]


def cpu_seconds(command, core):
    """The CPU seconds of COMMAND, which must succeed."""
    before = machine.children_seconds()
    done = subprocess.run(machine.pinned(core, command), cwd=support.ROOT, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    after = machine.children_seconds()
    if done.returncode != 0:
        sys.exit("%s failed:\n%s" % (shlex.join(command), done.stdout))
    return after - before


def measure(options):
    load_core, server_core = machine.cores()
    with tempfile.TemporaryDirectory() as directory, support.Server(
            machine.pinned(server_core, [support.c_build("canned")])) as server:
        call = load.GetFeature(directory)

        def run(row, side):
            rate = openloop.RATE if "together_us" in row else 400000
            few, many = (int(rate * options.seconds * share) for share in (0.2, 1.2))
            short, long = (cpu_seconds(side.command(row, server.address, count), load_core)
                           for count in (few, many))
            return {"cpu_us_per_call": 1e6 * (long - short) / (many - few)}

        paced, full = paced_sides(), full_sides(call)
        rows = (series.interleaved(PACED, paced, options.rounds, run)
                + series.interleaved(FULL, full, options.rounds, run))
        commands = {"server": "taskset -c %d canned" % server_core}
        for row, sides in ((PACED[1], paced), (FULL[0], full)):
            commands.update(("%s, %s" % (row["load"], side.name), shlex.join(machine.pinned(
                load_core, side.command(row, "ADDRESS", 10000)))
                .replace(CLGRPC, "clgrpc").replace(support.ROOT + os.sep, "")
                .replace(os.path.join(support.CACHE, "bin") + os.sep, "")
                .replace(call.body, "BODY")) for side in sides)
        return {"commands": commands, "absent": [], "rows": rows}


def describe(row):
    return row["load"]


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "The load on one core, a server that answers each call with the same octets on the other; "
        "one connection at a rate, connections × calls at once on each at full speed. C keeps no "
        "latencies.", "", markdown.comparison(results["rows"], "load", describe, FIGURES)])


def plots(results):
    return {"tool": svg.bars(TITLE, "µs of the tool's CPU per call",
                             [(describe(row), markdown.values(row, "cpu_us_per_call"))
                              for row in results["rows"]])}
