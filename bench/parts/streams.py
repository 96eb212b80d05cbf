"""Server CPU per message of the streaming calls: the same grpc-go load against each server. A
message is a feature of ListFeatures, a point of RecordRoute, a note of RouteChat with its echo."""

import driven
import machine
import markdown
import series
import servers
import svg

TITLE = "Server CPU per message of a stream"
ROWS = [{"method": "ListFeatures", "messages": 100, "outstanding": 1, "clients": 10},
        {"method": "RecordRoute", "messages": 1000, "outstanding": 1, "clients": 10},
        {"method": "RouteChat", "messages": 1000, "outstanding": 100, "clients": 10}]
ROWS += [dict(row, clients=100) for row in ROWS]
FIGURES = [("server_cpu_us_per_message", "CPU µs/message", True),
           ("messages_per_second", "messages/s", False),
           ("mean_latency_us", "mean latency of a call µs", None)]
METHODS = {"GetFeature": "get-feature", "ListFeatures": "list-features",
           "RecordRoute": "record-route", "RouteChat": "route-chat"}


def load_command(row, seconds):
    """The load that ROW, a dictionary with method, messages, outstanding and clients, describes."""
    return ["peer", "load", "-method", METHODS[row["method"]], "-clients", str(row["clients"]),
            "-messages", str(row["messages"]), "-outstanding", str(row["outstanding"]),
            "-duration", "%gs" % seconds]


def measure(options):
    core = machine.cores()[0]
    peer = servers.peer()

    def run(row, server):
        command = [peer, *load_command(row, options.seconds)[1:], server.address]
        with driven.Load(command, core, {"GOMAXPROCS": "1"}) as load:
            return driven.measured(load, server)

    with servers.Contenders(options) as contenders:
        contenders.add_ours()
        contenders.add_grpc_go()
        contenders.add_tonic()
        contenders.add_floor()
        rows = series.interleaved(ROWS, contenders.members, options.rounds, run)
        return {"commands": {**contenders.commands(),
                             "load": "GOMAXPROCS=1 taskset -c %d %s ADDRESS" % (core, " ".join(
                                 load_command(ROWS[2], options.seconds)))},
                "absent": contenders.absent, "rows": rows}


def describe(row):
    return "%(method)s, %(clients)d" % row


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    shapes = ["%(method)s %(messages)d" % row for row in ROWS if row["clients"] == 10]
    return "\n".join([
        "10 and 100 clients, each with one call at a time on its own connection, grpc-go's client on "
        "one core, the server on the other. Messages per call: %s; RouteChat keeps %d in flight."
        % (", ".join(shapes), ROWS[2]["outstanding"]), "",
        markdown.comparison(results["rows"], "call, clients", describe, FIGURES)])


def plots(results):
    return {"streams": svg.bars(TITLE, "µs of server CPU per message",
                                [(describe(row),
                                  markdown.values(row, "server_cpu_us_per_message"))
                                 for row in results["rows"]])}
