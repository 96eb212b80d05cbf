"""The calls of a cluster's nodes, ours beside the same services written with grpc-go: joining and
leaving, Raft's votes and entries of three lengths, and a workflow's state; one call after the other and
a hundred at once (ten of a megabyte). Client and server are one process over loopback TCP, or two, held to one core or to
two. Tables in memory answer, so what is measured is the transport."""

import contextlib
import os
import shutil

import markdown
import series
import support
import svg
from answerer import Answerer

TITLE = "The calls of a cluster"
CASES = {"join": "Join", "leave": "Leave", "vote": "RequestVote",
         "append-100": "AppendEntries, 100 octets", "append-10k": "AppendEntries, 10 KB",
         "append-1m": "AppendEntries, 1 MB", "workflow": "GetWorkflowState"}
LISP = support.lisp_command("scripts/load.lisp", "bench/ours/cluster.lisp")
# of a .proto file, the Go package that is made of it
SOURCES = {"cluster/membership.proto": "cluster", "cluster/raft.proto": "raft",
           "cluster/workflow.proto": "workflow", "bench/cluster.proto": "bench"}
MANNERS = {"clgrpc": "ahead", "clgrpc, threads": "threads", "grpc-go": "threads"}
PLACES = [{"processes": processes, "cores": cores} for processes in (1, 2) for cores in (1, 2)]
CROWD = {"append-1m": 10}  # a server holds 32 MB of one connection's messages, and refuses others
ROWS = [dict(place, case=case, callers=callers)
        for place in PLACES for crowd in (False, True) for case in CASES
        for callers in [CROWD.get(case, 100) if crowd else 1]]
OBJECT_CALLS = {"append-1m": 50}  # a collection between would spoil the count


def go_program():
    """Generate the Go code of the services and build bench/peers/cluster.go with it."""
    folder = os.path.join(support.CACHE, "bench-cluster")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for file in ("go.mod", "go.sum"):
        shutil.copy(os.path.join(support.PEERS, file), folder)
    shutil.copy(os.path.join(support.ROOT, "bench", "peers", "cluster.go"), os.path.join(folder, "main.go"))
    messages = support.go_build("protoc-gen-go", "google.golang.org/protobuf/cmd/protoc-gen-go")
    stubs = support.go_install("protoc-gen-go-grpc",
                               "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0")
    support.run(["protoc", "--plugin=" + messages, "--plugin=" + stubs,
                 "--proto_path=" + os.path.join(support.ROOT, "proto"),
                 *("--go%s_%s" % (kind, option) for kind in ("", "-grpc")
                   for option in ["out=" + folder, "opt=module=clgrpc/peers",
                                  *("opt=M%s=clgrpc/peers/pb/%s" % source
                                    for source in SOURCES.items())]), *SOURCES])
    program = os.path.join(folder, "cluster")
    support.run(["go", "build", "-o", program, "."], cwd=folder)
    return program


class Place:
    """A client and a server, of one process or two."""

    def __init__(self, stack, command, processes, cores):
        self.programs = [stack.enter_context(Answerer(command, cores)) for _ in range(processes)]
        self.client = self.programs[0]
        self.address = self.programs[-1].ask(do="serve")["address"]

    def used(self):
        counters = [program.ask(do="counters") for program in self.programs]
        return {key: sum(one[key] for one in counters) for key in counters[0]}

    def measure(self, row, manner, milliseconds):
        before = self.used()
        figures = self.client.ask(do="measure", address=self.address, case=row["case"],
                                  callers=row["callers"],
                                  manner=manner if row["callers"] > 1 else "threads",
                                  milliseconds=milliseconds)
        used = self.used()
        return dict(figures, **{key: (used[key] - before[key]) / figures["operations"]
                                for key in used})


class Side:
    """One of the programs, in its four places."""

    def __init__(self, name, places):
        self.name, self.places = name, places

    def place(self, row):
        return self.places[row["processes"], row["cores"]]

    def measure(self, row, milliseconds):
        return self.place(row).measure(row, MANNERS[self.name], milliseconds)


def measure(options):
    milliseconds = int(options.seconds * 1000 / 5)
    commands = {"clgrpc": LISP, "grpc-go": [go_program()]}
    with contextlib.ExitStack() as stack:
        places = {name: {(place["processes"], place["cores"]): Place(stack, command, **place)
                         for place in PLACES} for name, command in commands.items()}
        sides = {name: Side(name, places[name.split(",")[0]]) for name in MANNERS}
        rows = series.interleaved(
            ROWS, [sides["clgrpc"], sides["grpc-go"]], options.rounds,
            lambda row, side: side.measure(row, milliseconds),
            lambda row, side: side.measure(row, milliseconds))
        threads = series.interleaved(
            [row for row in ROWS if row["callers"] > 1 and row["case"] == "append-100"],
            [sides["clgrpc, threads"], sides["grpc-go"]], options.rounds,
            lambda row, side: side.measure(row, milliseconds),
            lambda row, side: side.measure(row, milliseconds))
        objects = {name: {case: place[1, 1].client.ask(
            do="objects", address=place[1, 1].address, case=case,
            calls=OBJECT_CALLS.get(case, 1000))["objects"] for case in CASES}
                   for name, place in places.items()}
        return {"commands": {"clgrpc": " ".join(LISP), "Go": "GOMAXPROCS=CORES cluster"},
                "absent": [], "rows": rows, "thread_rows": threads, "objects": objects}


def describe(row):
    return "%s, %s, %d process%s, %d core%s" % (
        CASES[row["case"]], "%d at once" % row["callers"] if row["callers"] > 1 else "one by one",
        row["processes"], "es" * (row["processes"] > 1), row["cores"], "s" * (row["cores"] > 1))


def ratio(row, key, us="clgrpc"):
    return row["sides"][us]["median"][key] / row["sides"]["grpc-go"]["median"][key]


def comparisons(results):
    figures = [("ns", "ns per call", True), ("octets", "octets per call", True)]
    return (series.comparisons(results["rows"], describe, figures)
            + series.comparisons(results["thread_rows"], describe, figures, "clgrpc, threads"))


def lines(rows, us):
    for row in rows:
        ours, theirs = (row["sides"][name]["median"] for name in (us, "grpc-go"))
        yield [CASES[row["case"]], "%d" % row["callers"], "%d" % row["processes"],
               "%d" % row["cores"],
               *(markdown.figure(side["ns"] / 1000) for side in (ours, theirs)),
               "%.2f" % ratio(row, "ns", us),
               *(markdown.figure(side["cpu_ns"] / 1000) for side in (ours, theirs)),
               *(markdown.figure(side["octets"]) for side in (ours, theirs)),
               "%.2f" % ratio(row, "octets", us)]


def table(results):
    titles = ["call", "callers", "processes", "cores", "µs", "grpc-go's", "ratio", "CPU µs",
              "grpc-go's", "octets", "grpc-go's", "ratio"]
    objects = results["objects"]
    return "\n".join([
        "Tables in memory answer on both sides, so this is the cost of the transport, not of the "
        "services, which wait for their store (`make bench-services`). Microseconds of wall-clock "
        "time per call (with 100 callers, the time divided by the calls of all), CPU and octets "
        "consed, or allocated, of client and server together. A hundred callers are futures that "
        "one thread awaits for clgrpc, and goroutines for grpc-go. In both programs one service, "
        "made for this table, answers all calls from hash tables: the figures of Join, Leave and "
        "GetWorkflowState are of messages and transport, not of the real services, which ask "
        "etcd; those of Raft include no disk.", "",
        markdown.table(titles, lines(results["rows"], "clgrpc"), text_columns=1),
        "A hundred threads that block, beside a hundred goroutines:", "",
        markdown.table(titles, lines(results["thread_rows"], "clgrpc, threads"), text_columns=1),
        "Objects allocated per call, one by one, client and server together:", "",
        markdown.table(["call", "clgrpc", "grpc-go"],
                       [[CASES[case], *(markdown.figure(objects[name][case]) for name in objects)]
                        for case in CASES])])


def plots(results):
    def groups(callers):
        return [("%s, %d process%s" % (CASES[row["case"]], row["processes"],
                                       "es" * (row["processes"] > 1)),
                 {name: side["median"]["ns"] / 1000 for name, side in row["sides"].items()})
                for row in results["rows"] if row["cores"] == 2 and row["callers"] == callers
                and row["case"] != "append-1m"]

    return {"cluster": svg.bars("One by one, two cores", "µs", groups(1)),
            "cluster-crowd": svg.bars("A hundred at once, two cores", "µs", groups(100))}
