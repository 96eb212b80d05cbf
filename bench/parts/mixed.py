"""Short calls beside handlers that compute: how long the short ones take, at a fixed rate, while others
come at theirs and use 0.2 to 3 ms of CPU each. Servers and clients share the machine's two cores;
handlers run where each server has them by default."""

import json
import subprocess
import sys

import markdown
import series
import servers
import support
import svg

TITLE = "Short calls beside handlers that compute"
SHORT, LONGEST_MS = 1000, 3
ROWS = [{"computing": 0}, {"computing": 150}, {"computing": 300}]
FIGURES = [("p99_ms", "p99 ms", True), ("p50_ms", "p50 ms", True), ("p999_ms", "p99.9 ms", True),
           ("longest_ms", "longest ms", True)]


def begin(peer, rate, seconds, address, *more):
    return subprocess.Popen([peer, "paced-client", "-rate", str(rate), "-time", "%gs" % seconds,
                             *more, address], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def run(row, server, peer, seconds):
    other = row["computing"] and begin(peer, row["computing"], seconds + 1, server.address, "-burn")
    text, _ = begin(peer, SHORT, seconds, server.address).communicate(timeout=60 + 10 * seconds)
    if other and other.communicate(timeout=60 + 10 * seconds) and other.returncode != 0:
        sys.exit("the calls that compute went wrong")
    return json.loads(text)


def measure(options):
    peer, seconds = servers.peer(), 4 * options.seconds
    with servers.Contenders(options, pinned=False) as contenders:
        contenders.add("clgrpc", support.lisp_command("scripts/load.lisp", "bench/ours/mixed.lisp"))
        contenders.add("grpc-go", [peer, "bench-server", "-listen", "127.0.0.1:0", "-burn"])
        rows = series.interleaved(ROWS, contenders.members, options.rounds,
                                  lambda row, server: run(row, server, peer, seconds),
                                  lambda row, server: run(row, server, peer, 1))
        return {"commands": {**contenders.commands(),
                             "load": "peer paced-client -rate %d ADDRESS" % SHORT,
                             "calls that compute": "peer paced-client -rate RATE -burn ADDRESS"},
                "absent": [], "rows": rows, "seconds": seconds}


def describe(row):
    return "beside %d a second" % row["computing"] if row["computing"] else "alone"


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "%s short calls a second for %g s, each timed from when it was due, beside calls whose "
        "handlers compute for 0.2 to %d ms, by chance; nothing is held to a core."
        % ("{:,}".format(SHORT), results["seconds"], LONGEST_MS), "",
        markdown.comparison(results["rows"], "short calls", describe, FIGURES)])


def plots(results):
    return {"mixed": svg.bars(TITLE, "ms, p99 of short calls",
                              [(describe(row), markdown.values(row, "p99_ms"))
                               for row in results["rows"]])}
