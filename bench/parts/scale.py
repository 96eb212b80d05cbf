"""A cluster with much to remember and little to do: two nodes, one etcd of one member, 100,000 workflows
that wait for a signal, 1,000 workers without tasks, 10,000 watchers, one of these after the other.
Measures the cost of each for etcd and the nodes, in processor time, memory and requests, while
nothing happens."""

import contextlib
import os
import subprocess
import time

import connections
import etcds
import machine
import markdown
import support
from answerer import Answerer

TITLE = "Workers, workflows and watchers that wait"
NODES = 2
LISP = support.lisp_command("scripts/load.lisp", "bench/ours/scale.lisp", heap_mb=4096)
NODE = [os.path.join(support.ROOT, "bin", "clgrpc"), "cluster-node", "--listen", "127.0.0.1:0"]
STAGES = [("nothing", None, 0), ("100,000 workflows", "workflows", 100000),
          ("and 1,000 workers", "workers", 1000), ("and 10,000 watchers", "watchers", 10000)]
SETTLE_SECONDS = 15


class Node:
    """A process of cluster-node."""

    def __init__(self, name, store):
        self.process = subprocess.Popen([*NODE, "--name", name, "--store", store], text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.address = line.split()[-1]
                return
        raise SystemExit("bench: a node does not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid, encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def requests(etcd):
    """How many requests etcd has got, on streams or not, and the streams among them that were begun."""
    metrics = etcd.metrics()
    return (sum(value for name, value in metrics.items()
                if name.startswith("grpc_server_msg_received_total")),
            sum(value for name, value in metrics.items()
                if name.startswith("grpc_server_started_total") and "stream" in name))


def figures(etcd, nodes, seconds):
    """The consumption of etcd and the nodes while nothing happens."""
    pids = [etcd.process.pid, *(node.process.pid for node in nodes)]
    before, began = requests(etcd), [cpu_seconds(pid) for pid in pids]
    time.sleep(seconds)
    after, ended = requests(etcd), [cpu_seconds(pid) for pid in pids]
    used = [100 * (b - a) / seconds for a, b in zip(began, ended)]
    resident = [connections.resident(pid) / 1e6 for pid in pids]
    metrics = etcd.metrics()
    return {"etcd_percent": used[0], "etcd_mb": resident[0],
            "requests": (after[0] - before[0]) / seconds,
            "streams": (after[1] - before[1]) / seconds,
            "watches": metrics.get("etcd_debugging_mvcc_watcher_total", 0),
            "nodes_percent": sum(used[1:]), "nodes_mb": sum(resident[1:])}


def measure(options):
    seconds = max(5, 20 * options.seconds / 1.5)
    with contextlib.ExitStack() as stack:
        etcd = stack.enter_context(etcds.Etcd())
        nodes = [stack.enter_context(Node("n%d" % i, "etcd:" + etcd.address)) for i in range(NODES)]
        crowd = stack.enter_context(Answerer(LISP, len(machine.cores())))
        crowd.ask(do="reach", addresses=[node.address for node in nodes])
        rows = []
        for stage, what, count in STAGES:
            took = crowd.ask(do=what, count=count)["seconds"] if what else 0
            time.sleep(SETTLE_SECONDS)
            rows.append(dict(figures(etcd, nodes, seconds), stage=stage, began_seconds=took))
        return {"commands": {"nodes": "bin/clgrpc " + " ".join(NODE[1:]) + " --store etcd:…",
                             "workers and watchers": " ".join(LISP)},
                "absent": [], "rows": rows, "told": crowd.ask(do="told", count=200),
                "failures": crowd.ask(do="failures")["failures"], "etcd": etcds.version()}


def comparisons(_):
    return []


def table(results):
    keys = ("began_seconds", "etcd_percent", "etcd_mb", "requests", "streams", "watches",
            "nodes_percent", "nodes_mb")
    return "\n".join([
        "Two nodes and %s on one machine; each row adds more waiting workers, workflows or "
        "watchers. Requests are those to etcd, streams those begun at etcd." % results["etcd"], "",
        markdown.table(["", "began in s", "etcd's CPU %", "MB", "requests/s", "streams/s",
                        "watches", "the nodes' CPU %", "MB"],
                       ([row["stage"], *(markdown.figure(row[key]) for key in keys)]
                        for row in results["rows"])),
        "With all of these half of the watchers learn of their workflow's end within %s ms after "
        "the signal was sent, 99 of 100 within %s ms. Calls that failed: %d." % (
            markdown.figure(results["told"]["p50"]), markdown.figure(results["told"]["p99"]),
            results["failures"]), ""])


def plots(_):
    return {}
