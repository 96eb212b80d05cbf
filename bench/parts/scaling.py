"""Server loops on two cores, and what follows for more. Two loops of one process beside one loop, and
beside two processes with a loop each, which share nothing but the machine: the difference is the cost
of what loops share. Counted beside the processor's time are the futex calls, in which threads wait
for locks, the context switches, and the time for which the collector stops all loops. From these a
model computes the throughput of more loops than there are cores here."""

import contextlib
import json
import os
import re
import subprocess
import tempfile
import time

import load
import machine
import markdown
import series
import support
import svg

TITLE = "Server loops: one, two, and a model for more"
LISP = support.lisp_command("scripts/load.lisp", "bench/ours/scaling.lisp")
ONE, TWO, APART = "one loop", "two loops", "two processes"
SIDES = {ONE: (1, 1), TWO: (1, 2), APART: (2, 1)}  # processes, loops of each
ROWS = [{"streams": 100}, {"streams": 1}]
CONNECTIONS = 5  # of each of two loads
FIGURES = [("cpu_us_per_call", "server CPU µs/call"), ("calls_per_second", "calls/s"),
           ("switches_per_call", "context switches a call"), ("futex_per_call", "futex calls a call"),
           ("consed_per_call", "octets consed a call")]
THREADS = (0, 64)
LOOPS = (1, 2, 4, 8, 16, 32, 64)


class Server(support.Server):
    """A process of scaling.lisp."""

    stdin = subprocess.PIPE
    start_seconds = 60

    def __init__(self, loops):
        super().__init__(LISP, {"CLGRPC_SERVE": "serve bench --loops %d --listen 127.0.0.1:0" % loops})

    def ask(self, line):
        self.process.stdin.write("%s\n" % line)
        self.process.stdin.flush()
        return json.loads(self.line_with("figures ", 60))


def switches(pid):
    """How often the threads of PID have left a core."""
    count = 0
    for task in os.listdir("/proc/%d/task" % pid):
        with contextlib.suppress(OSError), open("/proc/%d/task/%s/status" % (pid, task),
                                                encoding="ascii") as file:
            count += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", file.read())))
    return count


class FutexCounter:
    """Counts the futex calls of PIDS inside the `with` block, if perf can: COUNT, or None."""

    def __init__(self, pids):
        self.command = ["perf", "stat", "-x,", "-e", "syscalls:sys_enter_futex",
                        "-p", ",".join(map(str, pids))]
        self.count = None

    def __enter__(self):
        self.process = support.have("perf") and subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True)
        if self.process:
            time.sleep(0.2)  # perf does not say when it counts
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.send_signal(2)
            words = self.process.communicate()[1].split(",")
            self.count = int(words[0]) if words[0].strip().isdigit() else None


class Side:
    """Servers whose loops share a process, or do not."""

    def __init__(self, name, stack):
        self.name = name
        processes, loops = SIDES[name]
        self.servers = [stack.enter_context(Server(loops)) for _ in range(processes)]
        self.requests, self.stopped_ms = 0, 0  # of all runs

    def load(self, call, streams, requests):
        """Two loads at once, of half the REQUESTS each, with a server each if there are two."""
        loads = [subprocess.Popen(
            call.command(self.servers[i % len(self.servers)].address, CONNECTIONS, streams,
                         requests // 2),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for i in range(2)]
        for text in [one.communicate()[0] for one in loads]:
            if "%d succeeded" % (requests // 2) not in text:
                raise SystemExit("calls went wrong: %s" % text)

    def totals(self):
        answers = [server.ask("totals") for server in self.servers]
        return {key: sum(answer[key] for answer in answers) for key in answers[0]}

    def stopped_ns_per_call(self):
        """What the collector has taken of each call in all runs; one is too short for many collections."""
        return 1e6 * self.stopped_ms / self.requests

    def figures(self, call, row, seconds):
        self.load(call, row["streams"], 20000)
        begin = time.monotonic()
        self.load(call, row["streams"], 20000)
        requests = 2 * int(10000 * max(1, seconds / (time.monotonic() - begin)))
        pids = [server.pid for server in self.servers]
        before, left = self.totals(), sum(map(switches, pids))
        meters = [machine.CpuMeter(pid) for pid in pids]
        with FutexCounter(pids) as futex:
            begin = time.monotonic()
            self.load(call, row["streams"], requests)
            took = time.monotonic() - begin
        cpu = sum(meter.seconds() for meter in meters)
        after, left = self.totals(), sum(map(switches, pids)) - left
        self.requests += requests
        self.stopped_ms += after["stopped_ms"] - before["stopped_ms"]
        figures = {"cpu_us_per_call": 1e6 * cpu / requests, "calls_per_second": requests / took,
                   "switches_per_call": left / requests,
                   "consed_per_call": (after["consed"] - before["consed"]) / requests}
        if futex.count is not None:
            figures["futex_per_call"] = futex.count / requests
        return figures


def measure(options):
    rounds = min(options.rounds, 3)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        call = load.GetFeature(directory)
        sides = [Side(name, stack) for name in SIDES]
        rows = series.interleaved(ROWS, sides, rounds,
                                  lambda row, side: side.figures(call, row, options.seconds))
        stopped = next(side for side in sides if side.name == TWO).stopped_ns_per_call()
        stops = {count: sides[0].servers[0].ask(count)["stop_ms"] for count in THREADS}
        command = " ".join(call.command("ADDRESS", CONNECTIONS, "S", "N")).replace(call.body, "BODY")
    return {"rounds": rounds, "rows": rows, "absent": [], "stopped_ns_per_call": stopped,
            "stop_ms": [stops[count] for count in THREADS], "commands": {
                "server": "CLGRPC_SERVE='serve bench --loops N --listen 127.0.0.1:0' " + " ".join(LISP),
                "load, twice": command}}


# The model

NURSERY = 64e6


def model(results):
    """The terms of the model, in microseconds: the work of a call on its own loop; the part of the
    collections that a call causes; and the stop of one more thread for that part."""
    figures = results["rows"][0]["sides"][TWO]["median"]
    few, many = results["stop_ms"]
    share = figures["consed_per_call"] / NURSERY  # the part of a collection that a call causes
    # short runs may have had no collection
    stopped = max(results["stopped_ns_per_call"] / 1000, 1000 * few * share)
    each = 1000 * (many - few) / (THREADS[1] - THREADS[0]) * share
    return {"work": figures["cpu_us_per_call"] - stopped, "stopped": stopped, "each": each}


def throughput(terms, loops):
    """Calls a microsecond of LOOPS loops with a core each: while one of them collects all stop."""
    return 1 / (terms["work"] / loops + terms["stopped"] + terms["each"] * loops)


def best(terms):
    """With how many loops the throughput is highest."""
    return (terms["work"] / terms["each"]) ** 0.5 if terms["each"] > 0 else float("inf")


def describe(row):
    return "10 × %(streams)d" % row


def comparisons(results):
    del results
    return []


def ratio(row, key, side, base):
    return row["sides"][side]["median"][key] / row["sides"][base]["median"][key]


def table(results):
    lines = [["" if position else describe(row), name,
              *(markdown.figure(side["median"].get(key)) for key, _ in FIGURES)]
             for row in results["rows"] for position, (name, side) in enumerate(row["sides"].items())]
    terms = model(results)
    alone = throughput(terms, 1)
    few, many = results["stop_ms"]
    computed = [["%d" % loops, "%.1f" % (throughput(terms, loops) / alone),
                 "%.0f %%" % (100 * throughput(terms, loops) / alone / loops)] for loops in LOOPS]
    return "\n".join([
        "GetFeature; two loads of %d connections, connections × calls at once on each; neither "
        "loads nor servers are held to a core. Two processes have a load each." % CONNECTIONS, "",
        markdown.table(["connections × streams", ""] + [name for _, name in FIGURES], lines,
                       text_columns=2),
        "A collection of next to nothing takes %.2f ms, beside %d threads that sleep %.2f ms." % (
            few, THREADS[1], many), "",
        "Computed, not measured: a call is %.2f µs of work on its own loop, %.4f µs of collections, "
        "for which all loops stop, and %.6f µs more of these for each loop that has to be stopped; "
        "so the collector is a serial part of %.2f %%. [Scaling](scaling.md) explains the model." % (
            terms["work"], terms["stopped"], terms["each"],
            100 * terms["stopped"] / (terms["work"] + terms["stopped"])), "",
        markdown.table(["loops, each with a core", "throughput, to one loop", "of as many loops"],
                       computed, text_columns=0)])


def plots(results):
    return {"scaling": svg.bars(TITLE, "µs of server CPU per call", [
        (describe(row), markdown.values(row, "cpu_us_per_call")) for row in results["rows"]])}
