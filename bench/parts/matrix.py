"""RouteGuide's four kinds of call, each with 1, 10 and 100 clients, the same grpc-go load against
our server and grpc-go's. A client has a connection of its own and makes one call after the other. A
cell in which the load used over 90 % of its core against both servers says more of the load than of
them, and is marked."""

import driven
import machine
import markdown
import series
import servers
import streams
import svg

TITLE = "The matrix: four kinds of call, 1 to 100 clients"
SHAPES = [{"method": "GetFeature", "messages": 1, "outstanding": 1},
          {"method": "ListFeatures", "messages": 100, "outstanding": 1},
          {"method": "RecordRoute", "messages": 100, "outstanding": 1},
          {"method": "RouteChat", "messages": 10, "outstanding": 1}]
CLIENTS = [1, 10, 100]
ROWS = [dict(shape, clients=clients) for shape in SHAPES for clients in CLIENTS]
FIGURES = [("server_cpu_us_per_call", "server CPU µs/call", True),
           ("calls_per_second", "calls/s", False), ("mean_latency_us", "mean latency µs", True),
           ("client_core_percent", "client's core %", None),
           ("server_core_percent", "server's core %", None),
           ("scaling_efficiency", "scaling efficiency", None)]
BOUND_PERCENT = 90


def measure(options):
    core = machine.cores()[0]
    peer = servers.peer()

    def run(row, server):
        words = streams.load_command(row, options.seconds)
        with driven.Load([peer, *words[1:], server.address], core, {"GOMAXPROCS": "1"}) as load:
            return driven.measured(load, server)

    with servers.Contenders(options) as contenders:
        contenders.add_ours()
        contenders.add_grpc_go()
        contenders.add_floor()
        rows = series.interleaved(ROWS, contenders.members, options.rounds, run)
        add_scaling(rows)
        shown = " ".join(streams.load_command(ROWS[-1], options.seconds))
        return {"commands": {**contenders.commands(),
                             "load": "GOMAXPROCS=1 taskset -c %d %s ADDRESS" % (core, shown)},
                "absent": contenders.absent, "rows": rows}


def add_scaling(rows):
    """Add to each cell its throughput per client, as a share of that with one client."""
    alone = {(row["method"], name): side["median"]["calls_per_second"]
             for row in rows if row["clients"] == 1 for name, side in row["sides"].items()}
    for row in rows:
        row["client_bound"] = all(side["median"]["client_core_percent"] > BOUND_PERCENT
                                  for name, side in row["sides"].items() if name != series.FLOOR)
        for name, side in row["sides"].items():
            median = side["median"]
            median["scaling_efficiency"] = (median["calls_per_second"] / row["clients"]
                                            / alone[row["method"], name])


def describe(row):
    return "%s, %d%s" % (row["method"], row["clients"], " *" * row["client_bound"])


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "grpc-go's client on one core, the server on the other, each with one thread. Per call, "
        "ListFeatures answers 100 features, RecordRoute sends 100 points, RouteChat sends 10 notes "
        "and awaits the echo of each. Cells with * are bound by the client: it used over 90 % of "
        "its core against both servers. Scaling efficiency is throughput per client, as a share of "
        "that with one client.", "",
        markdown.comparison(results["rows"], "call, clients", describe, FIGURES)])


def plots(results):
    return {"matrix": svg.bars(TITLE, "µs of server CPU per call",
                               [(describe(row), markdown.values(row, "server_cpu_us_per_call"))
                                for row in results["rows"]])}
