"""The tournament of channels within a process: ours, in its modes and over TCP, beside Go's
grpchan, grpc-go over bufconn and grpc-go over TCP. Client and server are one process always, held
to one core or to two. The messages are google.protobuf.BytesValue; handlers send back what came.
Beside the echoes stands what two threads need to pass a word there and back (handoff.c)."""

import contextlib

import markdown
import series
import servers
import support
import svg
from answerer import Answerer

TITLE = "Calls within a process: the tournament"
LISP = support.lisp_command("scripts/load.lisp", "bench/ours/inproc.lisp")
# name, whose program, the transport's name there
SIDES = [("clgrpc", "ours", "inproc"), ("clgrpc :share", "ours", "share"),
         ("clgrpc :threads", "ours", "threads"), ("clgrpc :on LOOP", "ours", "loop"),
         ("clgrpc TCP", "ours", "tcp"), ("grpchan", "go", "grpchan"),
         ("grpc-go bufconn", "go", "bufconn"), ("grpc-go TCP", "go", "tcp")]
WORD = "a word, in C"
OURS = [side for side in SIDES if side[1] == "ours"]
CASES = {"unary": "unary", "server-stream": "server stream of 100",
         "client-stream": "client stream of 100",
         "client-stream-sent": "client stream of 100, sent one by one",
         "echo": "echo round trip", "echo-consumed": "echo round trip, by do-messages",
         "echo-reactive": "echo round trip, by callbacks"}


def row(case, cores=1, callers=1, octets=32, latencies=False):
    return {"case": case, "cores": cores, "callers": callers, "octets": octets,
            "latencies": latencies}


ONLY_OURS = ["echo-consumed", "echo-reactive"]  # the others have one way to write an echo
CALLS = [row(case, cores) for cores in (1, 2) for case in CASES if case not in ONLY_OURS]
OWN_CALLS = [row(case, cores) for cores in (1, 2) for case in ONLY_OURS]
CROWDS = [row("unary", cores, callers, latencies=callers == 10)
          for cores in (1, 2) for callers in (10, 100)]
PAYLOADS = [row("unary", octets=octets) for octets in (1 << 10, 10 << 10, 64 << 10)]
QUANTILES = ["p50", "p90", "p99", "p99.9"]


class Side:
    """A transport of a program, which runs once for each number of cores."""

    def __init__(self, name, programs, transport):
        self.name, self.programs, self.transport = name, programs, transport

    def measure(self, row, milliseconds):
        return self.programs[row["cores"]].ask(
            **row, transport=self.transport, milliseconds=milliseconds)


class Word(Side):
    """The yardstick, which knows but one case."""

    def measure(self, row, milliseconds):
        return super().measure(row, milliseconds) if row["case"] == "echo" else {}


def measure(options):
    milliseconds = int(options.seconds * 1000 / 10)
    word = support.c_build("handoff")
    commands = {"ours": lambda cores: LISP, "go": lambda cores: [servers.peer(), "inproc"],
                "c": lambda cores: [word, str(cores)]}
    with contextlib.ExitStack() as stack:
        programs = {name: {cores: stack.enter_context(Answerer(command(cores), cores))
                           for cores in (1, 2)}
                    for name, command in commands.items()}
        sides = [Side(name, programs[program], transport) for name, program, transport in SIDES]

        def rows(wanted, sides):
            return series.interleaved(
                wanted, sides, options.rounds, lambda row, side: side.measure(row, milliseconds),
                lambda row, side: side.measure(row, milliseconds // 5))

        return {"commands": {"clgrpc": " ".join(LISP), "Go": "GOMAXPROCS=CORES peer inproc",
                             "C": "handoff CORES"},
                "absent": [],
                "rows": rows(CALLS + CROWDS + PAYLOADS, sides + [Word(WORD, programs["c"], "")]),
                "own_rows": rows(OWN_CALLS, sides[:len(OURS)])}


def describe(row):
    return "%s, %d core%s%s%s" % (
        CASES[row["case"]], row["cores"], "s" * (row["cores"] > 1),
        ", %d callers" % row["callers"] if row["callers"] > 1 else "",
        "" if row["octets"] == 32 else ", {:,} octets".format(row["octets"]))


def find(results, case, **more):
    """The row of RESULTS that `row` describes."""
    wanted = row(case, **more)
    return next(one for one in results["rows"] + results["own_rows"]
                if all(one[key] == value for key, value in wanted.items()))


def comparisons(results):
    pairs = [("clgrpc", "grpchan"), ("clgrpc", "grpc-go bufconn"), ("clgrpc TCP", "grpc-go TCP")]
    found = []
    for one in results["rows"]:
        keys = ["ns"] + QUANTILES * one["latencies"]
        for us, peer in pairs:
            ours, theirs = (one["sides"][name]["median"] for name in (us, peer))
            found += [{"row": "%s, %s" % (us, describe(one)),
                       "figure": "ns" if key == "ns" else key + " µs", "peer": peer,
                       "ours": ours[key], "theirs": theirs[key], "lost": ours[key] > theirs[key]}
                      for key in keys]
    return found


def tournament(rows, key, title):
    """A table with a line for each of ROWS and a column for each side."""
    names = [name for name, *_ in SIDES] + [WORD]
    return markdown.table([title] + names, [
        [describe(one), *(markdown.figure(one["sides"].get(name, {"median": {}})["median"].get(key))
                          for name in names)] for one in rows])


def quantile_table(one):
    return markdown.table(["µs"] + QUANTILES, [
        [name, *(markdown.figure(side["median"][key]) for key in QUANTILES)]
        for name, side in one["sides"].items() if QUANTILES[0] in side["median"]])


def table(results):
    crowd = [find(results, "unary", cores=cores, callers=10, latencies=True) for cores in (1, 2)]
    return "\n".join([
        "Client and server in one process. Messages have 32 octets unless a row says otherwise, "
        "and are sent back by the handler; a client stream is given as a list, or sent one by "
        "one. Nanoseconds of wall-clock time per call or, for echoes, per round trip on an open "
        "stream; with several callers, the time divided by the calls of all. The last column is "
        "the time in which two threads of a C program pass a word to each other and back, by "
        "sched_yield or by spinning; on two processors it depends on where the host of this "
        "machine has put them.", "",
        tournament(results["rows"] + results["own_rows"], "ns", "ns"),
        "Octets consed, or allocated, per call or round trip, messages included:", "",
        tournament([one for one in results["rows"] if one["cores"] == one["callers"] == 1],
                   "octets", "octets"),
        "Latencies of unary calls, 10 callers, one core:", "", quantile_table(crowd[0]),
        "On two cores:", "", quantile_table(crowd[1])])


def plots(results):
    def groups(rows):
        return [(describe(one), {name: side["median"]["ns"] / 1000
                                 for name, side in one["sides"].items() if side["median"]})
                for one in rows]

    crowd = find(results, "unary", cores=2, callers=10, latencies=True)
    return {
        "inproc": svg.bars(TITLE, "µs", groups(
            [one for one in results["rows"] + results["own_rows"]
             if one["cores"] == one["callers"] == 1 and one["octets"] == 32])),
        "inproc-crowd": svg.bars("Unary calls, two cores, 10 callers", "µs", [
            (key, markdown.values(crowd, key)) for key in QUANTILES]),
        "inproc-payload": svg.bars("Unary calls by length of message, one core", "µs", groups(
            [one for one in results["rows"]
             if one["case"] == "unary" and one["cores"] == one["callers"] == 1]))}
