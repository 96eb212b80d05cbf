"""Client CPU per call and latency: our client and grpc-go's in the same three manners of calling,
against one server, ours. One caller at a time; 100 callers that block, threads here and goroutines
there, on one connection; and 100 calls ahead, here from one thread with futures, for which grpc-go
has goroutines again."""

import driven
import machine
import markdown
import series
import servers
import svg

TITLE = "What a call costs the client"
ROWS = [{"manner": "one", "in_flight": 1}, {"manner": "threads", "in_flight": 100},
        {"manner": "async", "in_flight": 100}]
NAMES = {"one": "one blocking caller", "threads": "100 blocking callers",
         "async": "100 calls ahead"}
FIGURES = [("client_cpu_us_per_call", "client CPU µs/call", True), ("p50_us", "p50 µs", True),
           ("p99_us", "p99 µs", None), ("calls_per_second", "calls/s", False)]


class Side:
    """One of the clients: its NAME, and COMMAND, a function of row and milliseconds."""

    def __init__(self, name, command, environment):
        self.name, self.command, self.environment = name, command, environment


def sides(peer, ours):
    def our_command(row, milliseconds):
        return [ours, "bench-client", "--manner", row["manner"], "--in-flight",
                str(row["in_flight"]), "--milliseconds", str(milliseconds)]

    def their_command(row, milliseconds):
        return [peer, "load", "-in-flight", str(row["in_flight"]), "-duration",
                "%dms" % milliseconds]

    return [Side("clgrpc", our_command, {}), Side("grpc-go", their_command, {"GOMAXPROCS": "1"})]


def compare(options, rows, shown, rounds, seconds):
    """The results of ROUNDS runs of SECONDS for each of ROWS; SHOWN is the row whose commands they
    tell."""
    core = machine.cores()[0]
    milliseconds = int(seconds * 1000)
    clients = sides(servers.peer(), options.ours.split()[0])
    with servers.Contenders(options) as contenders:
        contenders.add_ours()
        server = contenders.members[0]

        def run(row, side):
            command = [*side.command(row, milliseconds), server.address]
            with driven.Load(command, core, side.environment) as load:
                return driven.measured(load, server)

        return {"rows": series.interleaved(rows, clients, rounds, run), "absent": [],
                "commands": {"server": server.command, **{
                    side.name: " ".join(machine.pinned(core, side.command(shown, milliseconds))) +
                    " ADDRESS" for side in sides("peer", "clgrpc")}}}


def measure(options):
    return compare(options, ROWS, ROWS[2], options.rounds, options.seconds)


def describe(row):
    return NAMES[row["manner"]]


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "GetFeature on one connection; the client on one core, our server on the other.", "",
        markdown.comparison(results["rows"], "client", describe, FIGURES)])


def plots(results):
    return {"client": svg.bars(TITLE, "µs of client CPU per call",
                               [(describe(row), markdown.values(row, "client_cpu_us_per_call"))
                                for row in results["rows"]])}
