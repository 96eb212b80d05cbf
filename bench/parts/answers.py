"""Five thousand calls, each on a connection of its own, that the server answers some seconds later,
all at nearly the same time: when the last answer has arrived, counted from the first request. Once
on connections that are opened for it, and once more on the same connections. C does what the kernel
asks of any such server (canned.c): the rest above the delay is the kernel's time for as many
connections, reads and writes, and the client's."""

import connections
import machine
import markdown
import series
import servers
import support
import svg

CONNECTIONS = 5000
TITLE = "5,000 answers that are due at once"
ROWS = [{"connections": "new"}, {"connections": "open"}]
FIGURES = [("last_s", "last answer after s", True), ("late_p50_ms", "p50 late ms", True),
           ("late_p99_ms", "p99 late ms", True), ("lost", "without answer", True)]


class Asked:
    """A server and its figures of one round: connections are opened, and asked again."""

    def __init__(self, server, delay):
        self.name, self.address, self.delay, self.figures = server.name, server.address, delay, {}

    def figure(self, row):
        if row == ROWS[0]:
            with connections.Crowd("grpc", self.delay, connections.sources(2), self.address,
                                   machine.cores()[0]) as crowd:
                for one, command in zip(ROWS, ("open %d" % CONNECTIONS, "ask")):
                    crowd.tell(command)
                    crowd.asked()
                    self.figures[one["connections"]] = crowd.figures()
        found = self.figures[row["connections"]]
        lost = CONNECTIONS - found["answers"]
        # times without all answers of C, or without any, would say nothing
        if lost == CONNECTIONS or (lost and self.name == series.FLOOR):
            raise SystemExit("%s has not answered %d of %d calls: %s" % (
                self.name, lost, CONNECTIONS, found["complaints"]))
        return {"last_s": found["last_answer_seconds"], "lost": lost,
                "late_p50_ms": found["late_p50_ms"], "late_p99_ms": found["late_p99_ms"]}


def measure(options):
    delay, rounds = (5 if options.seconds >= 1 else 1), min(options.rounds, 2)
    connections.most_connections()
    with servers.Contenders(options) as contenders:
        connections.KINDS["gRPC"].contend(contenders, delay)
        contenders.add(series.FLOOR, [support.c_build("canned"), "%d" % (1000 * delay)])
        rows = series.interleaved(ROWS, [Asked(server, delay) for server in contenders.members],
                                  rounds, lambda row, asked: asked.figure(row))
        return {"rounds": rounds, "commands": contenders.commands(), "absent": [],
                "delay": delay, "rows": rows}


def describe(row):
    return "%(connections)s connections" % row


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "{:,} calls of SayHello, each on a connection of its own, which the server answers {:g} s "
        "later; from the first connection, or request, until the last answer has arrived. Clients "
        "on one core, the server on the other.".format(CONNECTIONS, results["delay"]), "",
        markdown.comparison(results["rows"], "calls on", describe, FIGURES)])


def plots(results):
    return {"answers": svg.bars(TITLE, "ms by which half of the answers are late",
                                [(describe(row), markdown.values(row, "late_p50_ms"))
                                 for row in results["rows"]])}
