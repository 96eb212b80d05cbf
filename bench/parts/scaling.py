"""Server loops on two cores, and what follows for more. Two loops of one process beside one loop, and
beside two processes with a loop each, which share nothing but the machine. If the processes share a
port, each load has connections to both, as it has to both loops: the difference is the cost of what
loops share. If each load has a process of its own, that process finds more calls in each turn.
Counted beside the processor's time are the context switches, the collector's part, and, in a run of
their own, the futex calls, in which threads wait for locks. From these a model computes the
throughput of more loops than there are cores here."""

import contextlib
import json
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
SERVE = "serve bench --loops %s --limits reuse-port=true --listen %s"
ONE, TWO = "one loop", "two loops"
SHARED, APART = "two processes, one port", "two processes, a load each"
SIDES = {ONE: (1, 1), TWO: (1, 2), SHARED: (2, 1), APART: (2, 1)}  # processes, loops of each
ROWS = [{"streams": 25}, {"streams": 1}]
CONNECTIONS = 20  # of each of two loads
FIGURES = [("cpu_us_per_call", "server CPU µs/call"), ("calls_per_second", "calls/s"),
           ("switches_per_1000", "context switches in 1,000 calls"),
           ("futex_per_1000", "futex calls in 1,000 calls"),
           ("consed_per_call", "octets consed a call")]
FEW_REQUESTS = 20000  # of loads that are not timed
COLLECTIONS = 10  # of which the mean time is taken
THREADS = (0, 64)
LOOPS = (1, 2, 4, 8, 16, 32, 64)


class Server(support.Server):
    """A process of scaling.lisp."""

    stdin = subprocess.PIPE
    start_seconds = 60

    def __init__(self, loops, address):
        super().__init__(LISP, {"CLGRPC_SERVE": SERVE % (loops, address)})

    def ask(self, line):
        self.process.stdin.write("%s\n" % line)
        self.process.stdin.flush()
        return json.loads(self.line_with("figures ", 60))


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
        self.servers = []
        address = "127.0.0.1:0"
        for _ in range(processes):
            self.servers.append(stack.enter_context(Server(loops, address)))
            if name == SHARED:
                address = self.servers[0].address

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

    def counted(self, before):
        return {key: value - before[key] for key, value in self.totals().items()}

    def collector(self, call, row):
        """The milliseconds of CPU of a collection, the mean of some, and the octets of the nursery."""
        before = self.totals()
        collections = 0
        while collections < COLLECTIONS:
            self.load(call, row["streams"], 10 * FEW_REQUESTS)
            counted, nursery = self.counted(before), self.totals()["nursery"]
            collections = counted["consed"] / nursery
        return counted["collector_ms"] / collections, nursery

    def figures(self, call, row, seconds):
        self.load(call, row["streams"], FEW_REQUESTS)
        begin = time.monotonic()
        self.load(call, row["streams"], FEW_REQUESTS)
        requests = 2 * int(FEW_REQUESTS / 2 * max(1, seconds / (time.monotonic() - begin)))
        pids = [server.pid for server in self.servers]
        before = self.totals()
        meters = [machine.CpuMeter(pid) for pid in pids]
        begin = time.monotonic()
        self.load(call, row["streams"], requests)
        took = time.monotonic() - begin
        cpu = sum(meter.seconds() for meter in meters)
        counted = self.counted(before)
        figures = {"cpu_us_per_call": 1e6 * cpu / requests, "calls_per_second": requests / took,
                   "switches_per_1000": 1000 * counted["switches"] / requests,
                   "consed_per_call": counted["consed"] / requests}
        with FutexCounter(pids) as futex:  # the tracepoint takes time, so in no other figure
            self.load(call, row["streams"], FEW_REQUESTS)
        if futex.count is not None:
            figures["futex_per_1000"] = 1000 * futex.count / FEW_REQUESTS
        return figures


def measure(options):
    rounds = min(options.rounds, 3)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        call = load.GetFeature(directory)
        sides = [Side(name, stack) for name in SIDES]
        rows = series.interleaved(ROWS, sides, rounds,
                                  lambda row, side: side.figures(call, row, options.seconds))
        collection_ms, nursery = sides[list(SIDES).index(TWO)].collector(call, ROWS[0])
        stops = {count: sides[0].servers[0].ask(count)["stop_ms"] for count in THREADS}
        command = " ".join(call.command("ADDRESS", CONNECTIONS, "S", "N")).replace(call.body, "BODY")
    return {"rounds": rounds, "rows": rows, "absent": [], "collection_ms": collection_ms,
            "nursery": nursery, "stop_ms": [stops[count] for count in THREADS], "commands": {
                "server": "CLGRPC_SERVE='%s' %s" % (SERVE % ("N", "127.0.0.1:P"), " ".join(LISP)),
                "load, twice": command}}


# The model

def model(results):
    """The terms of the model, in microseconds: the work of a call on its own loop; the collector's CPU
    for a call; and the wait for one more thread to stop, for the part of a collection that a call
    causes. The last is 0 where other things hide it."""
    figures = results["rows"][0]["sides"][TWO]["median"]
    few, many = results["stop_ms"]
    collections = figures["consed_per_call"] / results["nursery"]  # that a call causes
    collector = 1000 * results["collection_ms"] * collections
    stop = max(0, 1000 * (many - few) / (THREADS[1] - THREADS[0]))
    return {"work": figures["cpu_us_per_call"] - collector, "collector": collector,
            "each": stop * collections}


def throughput(terms, loops):
    """Calls a microsecond of LOOPS loops with a core each: while one of them collects all stop."""
    return 1 / (terms["work"] / loops + terms["collector"] + terms["each"] * loops)


def describe(row):
    return "%d × %d" % (2 * CONNECTIONS, row["streams"])


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
    measured = {SIDES[name][1]: 1e6 / row["cpu_us_per_call"] for name, row in (
        (name, results["rows"][0]["sides"][name]["median"]) for name in (ONE, TWO))}
    computed = [["%d" % loops, "%.2f" % (throughput(terms, loops) / alone),
                 markdown.figure(1e6 * throughput(terms, loops) / loops),
                 markdown.figure(measured.get(loops))] for loops in LOOPS]
    return "\n".join([
        "GetFeature; two loads of %d connections, connections × calls at once on each; neither "
        "loads nor servers are held to a core. Processes that share a port share it by SO_REUSEPORT, "
        "and each load has connections to both." % CONNECTIONS, "",
        markdown.table(["connections × streams", ""] + [name for _, name in FIGURES], lines,
                       text_columns=2),
        "With two loops, %.0f MB of garbage are collected at once, in %.2f ms of CPU. A "
        "collection of almost nothing takes %.2f ms of wall-clock time, and beside %d threads "
        "that sleep %.2f ms." % (
            results["nursery"] / 1e6, results["collection_ms"], few, THREADS[1], many), "",
        "Computed from these, of %s: a call is %.2f µs of work on its own loop, %.4f µs of the "
        "collector's CPU, in which no loop works, and %.6f µs for each loop that has to be stopped. "
        "Nothing else is in the model, which [scaling](scaling.md) explains. The table has the "
        "calls a second of each loop by the model, and beside them the measured calls for a "
        "second of the server's CPU." % (
            describe(results["rows"][0]), terms["work"], terms["collector"], terms["each"]), "",
        markdown.table(["loops, each with a core", "computed throughput, to one loop",
                        "computed calls/s of each", "measured"], computed, text_columns=0)])


def plots(results):
    return {"scaling": svg.bars(TITLE, "µs of server CPU per call", [
        (describe(row), markdown.values(row, "cpu_us_per_call")) for row in results["rows"]])}
