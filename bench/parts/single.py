"""One client that waits for each answer, on a machine that is its and the server's alone: neither is
held to a core, as it is where people run programs. The four kinds of call, and notes in a row
without waiting; the server's CPU and how long a call takes."""

import driven
import markdown
import series
import servers
import streams
import svg

TITLE = "One client, not pinned"
ROWS = [{"method": "GetFeature", "messages": 1, "outstanding": 1, "clients": 1},
        {"method": "ListFeatures", "messages": 100, "outstanding": 1, "clients": 1},
        {"method": "RecordRoute", "messages": 10, "outstanding": 1, "clients": 1},
        {"method": "RouteChat", "messages": 5, "outstanding": 1, "clients": 1},
        {"method": "RouteChat", "messages": 100, "outstanding": 100, "clients": 1}]
FIGURES = [("server_cpu_us_per_call", "server CPU µs/call", True), ("p50_us", "p50 µs", True),
           ("p99_us", "p99 µs", None), ("client_cpu_us_per_call", "client CPU µs/call", None)]


def measure(options):
    peer = servers.peer()

    def run(row, server):
        command = [peer, *streams.load_command(row, options.seconds)[1:], server.address]
        with driven.Load(command, None) as load:
            return driven.measured(load, server)

    with servers.Contenders(options, pinned=False) as contenders:
        contenders.add_ours()
        contenders.add_grpc_go()
        contenders.add_tonic()
        contenders.add_floor()
        rows = series.interleaved(ROWS, contenders.members, options.rounds, run)
        return {"commands": {**contenders.commands(), "load": "%s ADDRESS" % " ".join(
                    streams.load_command(ROWS[-1], options.seconds))},
                "absent": contenders.absent, "rows": rows}


def describe(row):
    text = "%(method)s, %(messages)d" % row
    return text + " at once" if row["outstanding"] > 1 else text


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "grpc-go's client with one call at a time; the number after the method is that of the "
        "messages of a call. Each server has one thread. RouteChat with 5 notes sends each note "
        "when the previous one has come back; with 100 notes it does not wait.", "",
        markdown.comparison(results["rows"], "call", describe, FIGURES)])


def plots(results):
    return {"single": svg.bars(TITLE, "µs of server CPU per call",
                               [(describe(row), markdown.values(row, "server_cpu_us_per_call"))
                                for row in results["rows"]])}
