"""The services of a cluster as they are, one call after the other over loopback: a node whose state is in
an etcd of one member, beside one whose state is in the engine in memory. The cost of a call beyond
the transport is its store: Join and Leave each wait for etcd's disk several times, reads once for
etcd."""

import contextlib

import etcds
import markdown
import series
import support
from answerer import Answerer

TITLE = "The services of a cluster, with etcd"
CASES = {"join-leave": "Join and Leave", "members": "Members", "stale": "Members, stale",
         "state": "GetWorkflowState", "vote": "RequestVote",
         "append": "AppendEntries, 100 octets"}
LISP = support.lisp_command("scripts/load.lisp", "bench/ours/services.lisp")
SIDES = ("with etcd", "in memory")


class Side:
    """A node and its caller, in one process."""

    def __init__(self, name, stack, store):
        self.name, self.program = name, stack.enter_context(Answerer(LISP, 2))
        self.program.ask(do="serve", store=store)

    def measure(self, row, milliseconds):
        return self.program.ask(do="measure", case=row["case"], milliseconds=milliseconds)


def measure(options):
    milliseconds = int(options.seconds * 1000 / 2)
    with contextlib.ExitStack() as stack:
        etcd = stack.enter_context(etcds.Etcd())
        sides = [Side(name, stack, store)
                 for name, store in zip(SIDES, ("etcd:" + etcd.address, "memory"))]
        rows = series.interleaved([{"case": case} for case in CASES], sides, options.rounds,
                                  lambda row, side: side.measure(row, milliseconds),
                                  lambda row, side: side.measure(row, milliseconds))
        return {"commands": {"clgrpc": " ".join(LISP), "etcd": " ".join(etcd.command[:1])},
                "absent": [], "rows": rows, "etcd": etcds.version()}


def comparisons(_):
    return []


def table(results):
    def figures(row):
        for name in SIDES:
            median = row["sides"][name]["median"]
            yield from (markdown.figure(value) for value in
                        (median["ns"] / 1000, median["p50"], median["p99"]))

    return "\n".join([
        "The table above measures a service of hash tables, this one the real services: a node, "
        "%s and one caller; microseconds of wall-clock time for each call." % results["etcd"], "",
        markdown.table(["call", *("%s %s" % (figure, name) for name in SIDES
                                  for figure in ("µs", "p50", "p99"))],
                       ([CASES[row["case"]], *figures(row)] for row in results["rows"]))])


def plots(_):
    return {}
