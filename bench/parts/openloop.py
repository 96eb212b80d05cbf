"""Latency of GetFeature when requests come at a fixed rate, independent of the answers: ghz at
5,000 a second, our server, grpc-go and tonic in turn, in as many slices as there are rounds. The
quantiles are those of all calls of a server together, exact, since ghz lists the latency of
each."""

import bisect
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile

import load
import machine
import markdown
import servers
import support
import svg

RATE = 5000
TITLE = "Open loop: latency at {:,} requests a second".format(RATE)
GHZ = "github.com/bojand/ghz/cmd/ghz@v0.120.0"
QUANTILES = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)]
PROTO = os.path.join("proto", "examples", "route_guide.proto")


def command(ghz, requests, output, address):
    point = load.first_feature()["location"]
    return [ghz, "--insecure", "--proto", PROTO, "--call", load.METHOD.strip("/"),
            "--data", json.dumps(point), "--rps", str(RATE), "--total", str(requests),
            "--connections", "1", "--concurrency", "50", "--format", "json", "--output", output,
            address]


class Slices:
    """The calls of one server: latencies in microseconds, and its CPU."""

    def __init__(self, server):
        self.server, self.latencies, self.cpu_seconds = server, [], 0.0

    def run(self, ghz, requests, core, directory):
        output = os.path.join(directory, "ghz.json")
        words = machine.pinned(core, command(ghz, requests, output, self.server.address))
        meter = machine.CpuMeter(self.server.pid)
        done = subprocess.run(words, cwd=support.ROOT, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.cpu_seconds += meter.seconds()
        with open(output, encoding="utf-8") as file:
            report = json.load(file)
        if report["statusCodeDistribution"] != {"OK": requests}:
            sys.exit("calls went wrong: %s\n%s%s" % (shlex.join(words), done.stdout,
                                                     report["statusCodeDistribution"]))
        self.latencies += [call["latency"] / 1000 for call in report["details"]]

    def summary(self):
        self.latencies.sort()
        count = len(self.latencies)
        return {**{name: self.latencies[min(count - 1, int(share * count))]
                   for name, share in QUANTILES},
                "mean_us": sum(self.latencies) / count,
                "cpu_us_per_call": self.cpu_seconds * 1e6 / count}


def histogram(slices):
    """Edges of buckets, eight for each doubling, and the share of each server's calls in them."""
    low = min(one.latencies[0] for one in slices)
    high = max(one.latencies[-1] for one in slices)
    first = math.floor(8 * math.log2(low))
    edges = [2 ** (step / 8) for step in range(first, math.ceil(8 * math.log2(high)) + 1)]
    shares = {}
    for one in slices:
        places = [bisect.bisect_left(one.latencies, edge) for edge in edges[:-1]]
        places.append(len(one.latencies))
        shares[one.server.name] = [(after - before) / len(one.latencies)
                                   for before, after in zip(places, places[1:])]
    return edges, shares


def measure(options):
    core = machine.cores()[0]
    ghz = support.go_install("ghz", GHZ)
    slice_size = max(1, options.requests // options.rounds)
    with tempfile.TemporaryDirectory() as directory, servers.Contenders(options) as contenders:
        contenders.add_ours()
        contenders.add_grpc_go()
        contenders.add_tonic()
        slices = [Slices(server) for server in contenders.members]
        progress = support.Progress(len(slices) * (options.rounds + 1))
        for turn in range(options.rounds + 1):
            for one in slices:
                progress.step("%d requests a second, %s" % (RATE, one.server.name))
                one.run(ghz, slice_size if turn else RATE, core, directory)
                if not turn:  # to warm up
                    one.latencies, one.cpu_seconds = [], 0.0
        progress.clear()
        summaries = {one.server.name: {"median": one.summary()} for one in slices}
        edges, shares = histogram(slices)
        shown = shlex.join(machine.pinned(core, command("ghz", slice_size, "OUTPUT", "ADDRESS")))
        return {"commands": {**contenders.commands(), "load": shown},
                "absent": contenders.absent, "requests": slice_size * options.rounds,
                "rows": [{"rate": RATE, "sides": summaries}], "edges_us": edges, "shares": shares}


def comparisons(results):
    medians = {name: side["median"] for name, side in results["rows"][0]["sides"].items()}
    ours = medians.pop("clgrpc")
    return [{"row": name, "figure": "latency µs", "peer": peer, "ours": ours[name],
             "theirs": theirs[name], "lost": ours[name] > theirs[name]}
            for name, _ in QUANTILES for peer, theirs in medians.items()]


def table(results):
    sides = results["rows"][0]["sides"]
    keys = [name for name, _ in QUANTILES] + ["mean_us", "cpu_us_per_call"]
    lines = [[name, *(markdown.figure(side["median"][key]) for key in keys)]
             for name, side in sides.items()]
    return "\n".join([
        "ghz with 50 workers and one connection on one core, the server on the other; {:,} "
        "requests to each in {} slices. Latencies in µs, as ghz sees them.".format(
            results["requests"], results["rounds"]), "",
        markdown.table(["server"] + [name for name, _ in QUANTILES]
                       + ["mean", "server CPU µs/call"], lines)])


def plots(results):
    sides = results["rows"][0]["sides"]
    marks = {name: {quantile: side["median"][quantile] for quantile, _ in QUANTILES}
             for name, side in sides.items()}
    return {"openloop": svg.histograms(TITLE, "latency in µs, logarithmic", results["edges_us"],
                                       results["shares"], marks)}
