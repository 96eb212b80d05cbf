"""The allocation of a unary call on the server and on the client: octets by GET-BYTES-CONSED, and a
histogram of the heap by kind of object (allocation.lisp)."""

import json
import os
import subprocess
import tempfile

import load
import machine
import markdown
import support
import svg

TITLE = "Octets consed per unary call (GetFeature)"
CALLS = 20000
PROGRAM = support.lisp_command("scripts/load.lisp", "bench/ours/allocation.lisp")


def lisp(address=None):
    environment = dict(os.environ, **({"CLGRPC_ADDRESS": address} if address else {}))
    return subprocess.Popen(PROGRAM, cwd=support.ROOT, stdin=subprocess.PIPE, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def line_of(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return line
    raise SystemExit("bench/ours/allocation.lisp: " + process.stderr.read())


def measure(options):
    del options
    core = machine.cores()[0]
    with tempfile.TemporaryDirectory() as directory, lisp() as server:
        address = line_of(server, "listening on ").split()[-1]
        call = load.GetFeature(directory)
        call.run(address, 1, 100, CALLS, core)
        server.stdin.write("\n")
        server.stdin.flush()
        call.run(address, 1, 100, CALLS, core)
        with lisp(address) as client:
            clients = [json.loads(line_of(client, "{")) for _ in range(2)]
        server.stdin.write("\n")
        server.stdin.flush()
        return {"rounds": 1, "commands": {}, "absent": [],
                "rows": [json.loads(line_of(server, "{")), *clients]}


def comparisons(results):
    del results
    return []


def table(results):
    kinds = {}
    for row in results["rows"]:
        for kind in row["kinds"]:
            kinds.setdefault(kind["kind"], {})[row["name"]] = kind["octets"]
    names = [row["name"] for row in results["rows"]]
    order = sorted(kinds, key=lambda kind: -sum(kinds[kind].values()))
    lines = [["**all**", *(markdown.figure(row["consed_per_call"]) for row in results["rows"])]]
    lines += [["`%s`" % kind, *(markdown.figure(kinds[kind].get(name)) for name in names)]
              for kind in order]
    return "\n".join([
        "`get-bytes-consed` and a histogram of the heap before and after many calls, without a "
        "collection between them; by kind of object, those of half an octet per call or more. "
        "The server under h2load with 100 calls at once, the client one call at a time and with "
        "100 futures.", "", markdown.table(["kind"] + names, lines)])


def plots(results):
    groups = [(row["name"].replace(", ", " "), {"clgrpc": row["consed_per_call"]})
              for row in results["rows"]]
    return {"allocation": svg.bars(TITLE, "octets", groups)}
