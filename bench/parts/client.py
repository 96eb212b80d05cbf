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


def measure(options):
    core = machine.cores()[0]
    milliseconds = int(options.seconds * 1000)
    ours = options.ours.split()[0]
    clients = sides(servers.peer(), ours)
    with servers.Contenders(options) as contenders:
        contenders.add_ours()
        server = contenders.members[0]

        def run(row, side):
            command = [*side.command(row, milliseconds), server.address]
            with driven.Load(command, core, side.environment) as load:
                return driven.measured(load, server)

        rows = series.interleaved(ROWS, clients, options.rounds, run)
        shown = [side.command(ROWS[2], milliseconds) for side in sides("peer", "clgrpc")]
        return {"commands": {"server": server.command,
                             **{side.name: "taskset -c %d %s ADDRESS" % (core, " ".join(words))
                                for side, words in zip(clients, shown)}},
                "absent": [], "rows": rows}


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
