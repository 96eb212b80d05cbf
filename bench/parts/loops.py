"""The client's event loops. Blocking callers of different channels, each to a server of its own,
beside one of them alone: on loops of their own, on one loop that they share, and in processes of
their own, which share nothing but the machine. Each caller is held to the core of its server: then
a call takes as long as the work for it, and not as long as the kernel takes to wake another core.
And calls that no thread waits for, on two channels and two loops beside one: the server answers
each request with the same octets (canned.c), so that it takes as little of the cores as can be."""

import contextlib
import json
import os
import subprocess

import machine
import markdown
import series
import support
import svg

TITLE = "Channels with event loops of their own"
PROGRAM = support.lisp_command("scripts/load.lisp", "bench/ours/loops.lisp")
ALONE, OWN, SHARED, APART = ("one alone", "two, a loop each", "two, one loop",
                             "two, a process each")
ONE, TWO = "one loop", "two loops"
# row: the work; side: loops allowed, channels of a process, processes
CALLERS = {ALONE: (0, 1, 1), OWN: (0, 2, 1), SHARED: (1, 2, 1), APART: (0, 1, 2)}
LOOPS = {ONE: (1, 2, 1), TWO: (2, 2, 1)}


class Side:
    """A way to share loops: NAME and the client's settings."""

    def __init__(self, name, places):
        self.name, (self.limit, self.channels, self.processes) = name, places


class Client:
    """A process of loops.lisp."""

    def __init__(self):
        self.process = subprocess.Popen(PROGRAM, cwd=support.ROOT, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.line("ready")

    def line(self, beginning):
        for line in self.process.stdout:
            if line.startswith(beginning):
                return line
        raise SystemExit("bench/ours/loops.lisp has ended")

    def begin(self, manner, limit, milliseconds, places):
        words = " ".join('("%s" %d)' % place for place in places)
        self.process.stdin.write("(:%s %d %d %s)\n" % (manner, limit, milliseconds, words))
        self.process.stdin.flush()
        self.line("begun")

    def end(self):
        return json.loads(self.line("{"))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def figures(side, manner, clients, servers, milliseconds):
    """The figures of one run of SIDE."""
    places = [(server.address, core) for server, core in zip(servers, machine.cores())]
    busy = [(client, places[i * side.channels:(i + 1) * side.channels])
            for i, client in enumerate(clients[:side.processes])]
    for client, its_places in busy:
        client.begin(manner, side.limit, milliseconds, its_places)
    meters = [machine.CpuMeter(server.pid) for server in servers]
    runs = [client.end() for client, _ in busy]
    served = sum(meter.seconds() for meter in meters)
    counts = [count for run in runs for count in run["calls"]]
    seconds = max(run["seconds"] for run in runs)
    cpu = sum(run["cpu_seconds"] for run in runs)
    return {"us_per_call": 1e6 * seconds * len(counts) / sum(counts),
            "slowest_us_per_call": 1e6 * seconds / min(counts),
            "calls_per_second": sum(counts) / seconds,
            "client_cpu_us_per_call": 1e6 * cpu / sum(counts),
            "cpu_us_per_call": 1e6 * (cpu + served) / sum(counts),
            "client_cores": cpu / seconds, "server_cores": served / seconds}


def measure(options):
    milliseconds = int(options.seconds * 1000)
    canned = support.c_build("canned")
    with contextlib.ExitStack() as stack:
        ours = [stack.enter_context(support.Server(machine.pinned(core, options.ours.split())))
                for core in machine.cores()]
        cheap = stack.enter_context(support.Server([canned]))
        clients = []
        for _ in range(2):
            clients.append(Client())
            stack.callback(clients[-1].close)
        rows = series.interleaved(
            [{"manner": "callers"}], [Side(*item) for item in CALLERS.items()], options.rounds,
            lambda row, side: figures(side, row["manner"], clients, ours, milliseconds))
        rows += series.interleaved(
            [{"manner": "loops"}], [Side(*item) for item in LOOPS.items()], options.rounds,
            lambda row, side: figures(side, row["manner"], clients, [cheap, cheap], milliseconds))
        return {"commands": {"server of blocking callers": options.ours, "other server": "canned"},
                "absent": [], "rows": rows}


def comparisons(results):
    del results
    return []


def ratio(row, key, side, base):
    sides = row["sides"]
    return sides[side]["median"][key] / sides[base]["median"][key]


def table(results):
    callers, loops = results["rows"]
    keys = [("us_per_call", "µs/call"), ("slowest_us_per_call", "µs/call of the slower"),
            ("client_cpu_us_per_call", "client CPU µs/call"),
            ("cpu_us_per_call", "CPU µs/call of both ends")]
    lines = [[name, *(markdown.figure(side["median"][key]) for key, _ in keys)]
             for name, side in callers["sides"].items()]
    more = [("calls_per_second", "calls/s"), ("client_cpu_us_per_call", "client CPU µs/call"),
            ("client_cores", "client's cores"), ("server_cores", "server's cores")]
    others = [[name, *(markdown.figure(side["median"][key]) for key, _ in more)]
              for name, side in loops["sides"].items()]
    return "\n".join([
        "Threads that make one blocking call of GetFeature after the other, each on a channel to a "
        "server of its own, which is pinned to the same core.",
        "", markdown.table(["callers"] + [title for _, title in keys], lines), "",
        "100 calls under way on each of two channels, each of which begins the next on its loop; "
        "the server sends the same octets as every answer, and shares the cores with "
        "the loops. Per second of the client's CPU two loops make %.2f times the calls of one, so "
        "on two cores of their own %.2f times in all." % (cpu_ratio(loops), 2 * cpu_ratio(loops)),
        "", markdown.table(["loops"] + [title for _, title in more], others), ""])


def cpu_ratio(row):
    """How many calls two loops make per second of CPU, to what one makes."""
    return ratio(row, "client_cpu_us_per_call", ONE, TWO)


def plots(results):
    callers, _ = results["rows"]
    return {"loops": svg.bars(TITLE, "µs per blocking call",
                              [(name, {"clgrpc": side["median"]["us_per_call"]})
                               for name, side in callers["sides"].items()])}
