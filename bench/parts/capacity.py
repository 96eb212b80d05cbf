"""The capacity of one etcd: workflows a second, octets for each, and the time until 20,000 timers
of one moment are done, by one node and by two. Nodes, workers and etcd share the machine, so a
second node adds nothing where its processors are the bound."""

import contextlib
import os
import re
import statistics
import time

import etcds
import markdown
import scale
import support
from answerer import Answerer

TITLE = "What a cluster's etcd carries"
WORKFLOWS = os.path.join(support.ROOT, "bench", "workflows")
CASES = [("5 steps, 100 octets", 5, 100, 3000), ("5 steps, 1,000 octets", 5, 1000, 2000),
         ("256 steps, 100 octets", 256, 100, 30)]
FIGURES = ("rate", "requests", "kept", "written")
TIMERS = 20000
ROOM = 0.7 * 2 ** 31  # octets in use from which on no workflow is started
LISP = support.lisp_command("scripts/load.lisp", "bench/ours/timers.lisp")


def throughput(steps, octets, count):
    said = support.run([WORKFLOWS, "--rounds", "1", "--steps", str(steps), "--octets", str(octets),
                        "--count", str(count)])
    numbers = re.findall(r"([\d.]+) (?:workflows|requests|octets)", said.splitlines()[0])
    return dict(zip(FIGURES, map(float, numbers)))


def cpu(pids):
    return [scale.cpu_seconds(pid) for pid in pids]


def timers(count):
    """How late the last of TIMERS of one moment is with COUNT nodes, each a process, and what
    processors that took."""
    with contextlib.ExitStack() as stack:
        etcd = stack.enter_context(etcds.Etcd())
        nodes = [stack.enter_context(scale.Node("n%d" % i, "etcd:" + etcd.address))
                 for i in range(count)]
        program = stack.enter_context(Answerer(LISP, 2))
        due = program.ask(do="start", addresses=[node.address for node in nodes],
                          etcd=etcd.address, count=TIMERS)["due"]
        pids = [etcd.process.pid, *(node.process.pid for node in nodes)]
        time.sleep(max(0, due - time.time() - 0.2))
        began, before = cpu(pids), scale.requests(etcd)[0]
        late = program.ask(do="await", count=TIMERS)["late"]
        used = [after - first for first, after in zip(began, cpu(pids))]
        return {"late": late, "etcd_cpu": used[0], "nodes_cpu": sum(used[1:]),
                "requests": scale.requests(etcd)[0] - before}


def medians(rounds, function, *arguments):
    runs = [function(*arguments) for _ in range(rounds)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def measure(options):
    rounds = min(3, options.rounds)
    return {"commands": {"workflows": "bench/workflows --steps STEPS --octets OCTETS --count COUNT",
                         "timers": " ".join(LISP)},
            "absent": [], "etcd": etcds.version(),
            "rows": [dict(medians(rounds, throughput, steps, octets, count), case=case)
                     for case, steps, octets, count in CASES],
            "timers": [dict(medians(rounds, timers, count), nodes=count) for count in (1, 2)]}


def comparisons(_):
    return []


def table(results):
    def line(row):
        return [row["case"], *(markdown.figure(row[key]) for key in FIGURES),
                "%.0f" % (ROOM / row["written"] / row["rate"] / 60),
                "{:,.0f}".format(ROOM / row["kept"])]

    def timers_line(row):
        return ["%d" % row["nodes"], *(markdown.figure(row[key]) for key in
                                       ("late", "etcd_cpu", "nodes_cpu", "requests"))]

    return "\n".join([
        "Workflows of echo steps, done by two nodes and two workers of 16 tasks each in one "
        "process, on %s with its default quota of 2 GB, of which workflows are started until 70 "
        "%% are in use. The quota is exhausted first: without compaction after the minutes in the "
        "table, with compaction when the store keeps the number of workflows in the table."
        % results["etcd"], "",
        markdown.table(["workflows", "a second", "requests", "octets kept", "octets written",
                        "minutes until full", "kept when full"], map(line, results["rows"])),
        "{:,} timers due at one moment; each node is a process. The seconds from that moment "
        "until the last timer is done, and the processor time of all in "
        "seconds.".format(TIMERS), "",
        markdown.table(["nodes", "s", "etcd's CPU s", "the nodes' CPU s", "requests"],
                       map(timers_line, results["timers"]))])


def plots(_):
    return {}
