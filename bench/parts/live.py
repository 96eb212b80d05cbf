"""A gigabyte of live data in the server's process, small records in a table, some of which are
replaced all the time: how long small calls take that come at a fixed rate, alone and beside a
crowd of others, and what memory the process has then, after a storm of long messages, and when it
has been left alone for a while."""

import json
import subprocess
import sys
import time

import connections
import machine
import markdown
import series
import servers
import support
import svg

TITLE = "A gigabyte of live data"
RECORDS, RENEWALS, RATE, HEAP_MB = 9000000, 20000, 1000, 4096
STORM_OCTETS, REST_SECONDS = 16 << 20, 30
MOST_OCTETS = 64 << 20
PHASES = [{"phase": phase} for phase in ("alone", "beside ten callers without pause",
                                         "beside messages of 16 MB")]
FIGURES = [("p50_ms", "p50 ms", True), ("p99_ms", "p99 ms", True), ("p999_ms", "p99.9 ms", True),
           ("longest_ms", "longest ms", True), ("stopped_ms", "longest stop ms", True),
           ("heap_mb", "heap MB", True), ("resident_mb", "resident MB", True)]
REST_FIGURES = [("heap_mb", "heap MB", True), ("resident_mb", "resident MB", True)]


class Server(support.Server):
    """A server that says what it has for each line of its standard input, once it has all records."""

    stdin = subprocess.PIPE
    start_seconds = 300  # where ours is to be compiled first

    def figures(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        words = dict(word.split("=") for word in
                     ("heap=" + self.line_with("heap=", self.start_seconds)).split())
        return {"heap_mb": int(words["heap"]) / 1e6, "stopped_ms": float(words["stopped"]),
                "resident_mb": connections.resident(self.pid) / 1e6}


def paced(peer, core, seconds, address):
    """The latencies of small calls at a fixed rate."""
    done = subprocess.run(machine.pinned(core, [peer, "paced-client", "-rate", str(RATE), "-time",
                                                "%gs" % seconds, address]),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit("calls went wrong: " + done.stdout)
    return json.loads(done.stdout)


def beside(row, peer, core, seconds, address):
    """The command of the server's other load in ROW, or None."""
    if row["phase"] == PHASES[0]["phase"]:
        return None
    arguments = (["load", "-method", "get-feature", "-clients", "10", "-duration", "%gs" % seconds]
                 if row["phase"] == PHASES[1]["phase"] else
                 ["bulk-client", "-octets", str(STORM_OCTETS), "-time", "%gs" % seconds,
                  "unary-both"])
    return machine.pinned(core, [peer, *arguments, address])


def run(row, server, peer, core, seconds):
    """The figures of one phase."""
    command = beside(row, peer, core, seconds + 1, server.address)
    server.running.figures()
    other = command and subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, text=True)
    if other and "load" in command:
        other.stdout.readline()  # ready
        other.stdin.write("\n")
        other.stdin.flush()
    figures = paced(peer, core, seconds, server.address)
    if other:
        other.communicate(timeout=60 + 10 * seconds)
    return {**figures, **server.running.figures()}


def contend(contenders):
    peer = servers.peer()
    contenders.add("clgrpc",
                   support.lisp_command("scripts/load.lisp", "bench/ours/live.lisp", heap_mb=HEAP_MB),
                   {"CLGRPC_RECORDS": str(RECORDS), "CLGRPC_RENEWALS": str(RENEWALS),
                    "CLGRPC_SERVE": "serve bench --loops 1 --listen 127.0.0.1:0 "
                                    "--max-receive-octets %d" % MOST_OCTETS}, kind=Server)
    contenders.add("grpc-go", [peer, "bench-server", "-listen", "127.0.0.1:0", "-records",
                               str(RECORDS), "-renewals", str(RENEWALS), "-max-receive-octets",
                               str(MOST_OCTETS)], {"GOMAXPROCS": "1"}, kind=Server)


def measure(options):
    core, peer = machine.cores()[0], servers.peer()
    seconds = 10 * options.seconds
    with servers.Contenders(options) as contenders:
        contend(contenders)
        before = series.interleaved([{"when": "at first"}], contenders.members, 1,
                                    lambda row, server: server.running.figures())
        rows = series.interleaved(PHASES, contenders.members, 1, lambda row, server:
                                  run(row, server, peer, core, seconds))
        time.sleep(REST_SECONDS)
        after = series.interleaved([{"when": "after %d s of rest" % REST_SECONDS}],
                                   contenders.members, 1,
                                   lambda row, server: server.running.figures())
        return {"rounds": 1, "commands": contenders.commands(), "absent": [], "rows": rows,
                "rest": before + after, "seconds": seconds}


def describe(row):
    return row.get("phase") or row["when"]


def comparisons(results):
    return (series.comparisons(results["rows"], describe, FIGURES)
            + series.comparisons(results["rest"], describe, REST_FIGURES))


def table(results):
    return "\n".join([
        "{:,} records, of which a thread replaces {:,} a second; {:,} small calls a second for "
        "{:g} s, each timed from when it was due. Clients on one core, the server on the other. A "
        "stop is a stop of all threads for the collector: ours in processor time, Go's as its "
        "runtime reports.".format(RECORDS, RENEWALS, RATE, results["seconds"]), "",
        markdown.comparison(results["rows"], "calls", describe, FIGURES),
        "Memory before and after these loads:", "",
        markdown.comparison(results["rest"], "when", describe, REST_FIGURES)])


def plots(results):
    return {"live": svg.bars(TITLE, "longest call in ms",
                             [(describe(row), markdown.values(row, "longest_ms"))
                              for row in results["rows"]])}
