#!/usr/bin/env python3
"""The seed's experiment: 5,000 calls a second of GetFeature, 300,000 to each server, under ghz and
under `clgrpc load` in turn; our server, grpc-go's, tonic's. Then what the loads themselves cost, at
that rate and at full speed, beside h2load. Writes bench/results/report.txt, .json and .html.

The load has one core and the server another. The CPU of a load is that of its whole process, from
start to end; that of a server is what it used while it was loaded."""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, folder) for folder in ("parts", "measure", "../scripts")]
import load  # noqa: E402
import machine  # noqa: E402
import openloop  # noqa: E402
import servers  # noqa: E402
import support  # noqa: E402

CLGRPC = os.path.join("bin", "clgrpc")
CONNECTIONS, STREAMS = 10, 100


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="parts that the requests come in")
    parser.add_argument("--requests", type=int, default=300000,
                        help="requests to each server from each load, in all rounds")
    parser.add_argument("--full-speed-requests", type=int, default=400000)
    parser.add_argument("--ours", default="bin/clgrpc-testee serve bench --loops 1 --listen 127.0.0.1:0",
                        help="command of our server")
    parser.add_argument("--short", action="store_true", help="two rounds of 10,000 requests")
    parser.add_argument("--keep", help="a directory for the reports of the loads, which are large")
    options = parser.parse_args()
    if options.short:
        options.rounds, options.requests, options.full_speed_requests = 2, 20000, 100000
    return options


def point():
    return json.dumps(load.first_feature()["location"])


def ours(requests, *more):
    return [CLGRPC, "load", "--proto", openloop.PROTO, "-d", point(), "-n", str(requests),
            "--quiet", *more]


def at_rate(name, ghz, requests, output, address):
    """The command of the load NAME at the experiment's rate."""
    if name == "ghz":
        return openloop.command(ghz, requests, output, address)
    return ours(requests, "--rps", str(openloop.RATE), "-c", "50", "--connections", "1",
                "-O", "json", "-o", output, address, load.METHOD.strip("/"))


def run(command, server, core):
    """Run COMMAND, a load of SERVER, on CORE; return the CPU seconds of both and its output."""
    meter = machine.CpuMeter(server.pid)
    before = machine.children_seconds()
    done = subprocess.run(machine.pinned(core, command), cwd=support.ROOT, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    after = machine.children_seconds()
    if done.returncode != 0:
        sys.exit("%s failed:\n%s" % (shlex.join(command), done.stdout))
    return {"serverCpu": meter.seconds(),
            "loadCpu": after - before,
            "output": done.stdout}


def measure_at_rate(options, members, ghz, core, directory):
    """Rows (server, load, round) of the experiment, each with the file of its report."""
    rows, size = [], options.requests // options.rounds
    progress = support.Progress(2 * len(members) * options.rounds)
    for turn in range(options.rounds):
        for server in members:
            for name in ("ghz", "clgrpc load"):
                progress.step("%d a second, %s, %s" % (openloop.RATE, server.name, name))
                path = os.path.join(directory, "%s-%s-%d.json" % (
                    server.name, name.replace(" ", "-"), turn))
                figures = run(at_rate(name, ghz, size, path, server.address), server, core)
                del figures["output"]
                rows.append({"server": server.name, "load": name, "round": turn, "requests": size,
                             "report": path, **figures})
    progress.clear()
    return rows


def measure_full_speed(options, members, core, directory):
    """Rows (server, load, round) of h2load and ours as fast as they go."""
    rows, requests = [], options.full_speed_requests
    get_feature = load.GetFeature(directory)
    progress = support.Progress(2 * len(members) * options.rounds)
    for turn in range(options.rounds):
        for server in members:
            path = os.path.join(directory, "%s-full-%d.json" % (server.name, turn))
            for name, command in (
                    ("h2load", get_feature.command(server.address, CONNECTIONS, STREAMS, requests)),
                    ("clgrpc load", ours(requests, "-c", str(CONNECTIONS * STREAMS),
                                         "--connections", str(CONNECTIONS), "-O", "json",
                                         "-o", path, server.address, load.METHOD.strip("/")))):
                progress.step("full speed, %s, %s" % (server.name, name))
                figures = run(command, server, core)
                rows.append({"server": server.name, "load": name, "round": turn,
                             "requests": requests,
                             "rate": rate_of(name, figures.pop("output"), path), **figures})
    progress.clear()
    return rows


def rate_of(name, text, path):
    """Calls a second of the load NAME, from its output TEXT or its report at PATH."""
    if name == "h2load":
        return load.rate_of(text)
    with open(path, encoding="utf-8") as file:
        return json.load(file)["rps"]


def main():
    options = arguments()
    core = machine.cores()[0]
    ghz = support.go_install("ghz", openloop.GHZ)
    others = machine.Others()
    with tempfile.TemporaryDirectory() as scratch, servers.Contenders(options) as contenders:
        directory = options.keep or scratch
        contenders.add_ours()
        contenders.add_grpc_go()
        contenders.add_tonic()
        members = list(contenders.members)
        cheap = support.c_build("canned")
        contenders.add("canned answers", [cheap])
        for server in contenders.members:  # to warm up
            run(at_rate("clgrpc load", ghz, openloop.RATE, os.path.join(directory, "warm"),
                        server.address), server, core)
        rows = measure_at_rate(options, members, ghz, core, directory)
        full = measure_full_speed(options, contenders.members, core, directory)
        manifest = {"machine": {**machine.description(), "others": others.percent()},
                    "rate": openloop.RATE, "requests": options.requests, "rounds": options.rounds,
                    "absent": contenders.absent,
                    "commands": {**contenders.commands(), **{
                        name: shlex.join(machine.pinned(core, at_rate(
                            name, "ghz", options.requests // options.rounds, "OUTPUT", "ADDRESS")))
                        for name in ("ghz", "clgrpc load")}},
                    "rows": rows, "fullSpeed": full}
        path = os.path.join(directory, "manifest.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(manifest, file)
        results = os.path.join(support.ROOT, "bench", "results")
        print(support.run(support.lisp_command(os.path.join(HERE, "ours", "experiment.lisp")),
                          env=dict(os.environ, CLGRPC_MANIFEST=path, CLGRPC_RESULTS=results),
                          stderr=subprocess.DEVNULL))
    return 0


if __name__ == "__main__":
    sys.exit(main())
