"""Connections that have made one call each and wait for more: how much resident memory of the server
each takes, with and without TLS. The figure is the slope between a thousand connections and six
thousand, after a full collection; the kernel's own memory does not count. Each round has a new
server, and each connection over TLS a whole handshake. After the measurement each connection makes
one more call, so all of them were alive."""

import json
import os

import connections
import driven
import machine
import markdown
import series
import servers
import support
import svg

TITLE = "Idle connections"
FEW, MOST = 1000, 6000
ROWS = [{"security": "plain"}, {"security": "TLS"}]
FIGURES = [("octets", "resident octets each", True), ("opened_per_second", "opened/s", None)]


class Idle(driven.Load):
    """The connections of one client process, `peer idle`."""

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self._expect("{"))

    def have(self, count):
        """Open connections until there are COUNT; return the seconds that this takes."""
        return self.tell("open %d" % count)["seconds"]

    def ask(self):
        """Make a call on each connection, which must be answered; return their number."""
        return self.tell("ask")["held"]


class Side:
    """A server, NAME, and the COMMAND that starts it."""

    def __init__(self, name, command):
        self.name, self.command = name, command

    def figures(self, row):
        secure = row["security"] == "TLS"
        load_core, core = machine.cores()
        options = support.tls_options() if secure else []
        roots = ["-tls-ca", support.certificate("ca.pem")] if secure else []
        resident = {}
        with connections.Server(machine.pinned(core, [*self.command, *options]),
                                {"GOMAXPROCS": "1"}) as server:
            with Idle([servers.peer(), "idle", *roots, server.address], load_core) as idle:
                for count in (FEW, MOST):
                    seconds = idle.have(count)
                    resident[count], _ = server.collect()
                if idle.ask() != MOST:
                    raise SystemExit("not all connections have been measured")
        return {"octets": (resident[MOST] - resident[FEW]) / (MOST - FEW),
                "opened_per_second": (MOST - FEW) / seconds}


def measure(options):
    rounds = min(options.rounds, 2)
    connections.most_connections()
    sides = [Side("clgrpc", connections.greeter("127.0.0.1:0", 0)[0]),
             Side("grpc-go", [servers.peer(), "scenario-server", "-collect"])]
    rows = series.interleaved(ROWS, sides, rounds, lambda row, side: side.figures(row))
    return {"rounds": rounds, "absent": [], "rows": rows, "commands": {
        side.name + " without TLS": " ".join([os.path.basename(side.command[0]), *side.command[1:]])
        for side in sides}}


def describe(row):
    return "gRPC over TLS" if row["security"] == "TLS" else "gRPC"


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "Connections that have made one call and wait; octets are those resident in the server's "
        "process after a full collection, the slope between {:,} connections and {:,}. The kernel's "
        "own are not among them.".format(FEW, MOST), "",
        markdown.comparison(results["rows"], "connections", describe, FIGURES)])


def plots(results):
    return {"idle": svg.bars(TITLE, "resident octets each",
                             [(describe(row), markdown.values(row, "octets"))
                              for row in results["rows"]])}
