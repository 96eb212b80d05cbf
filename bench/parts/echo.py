"""Server CPU per echoed message on `clgrpc-async`, beside an echo server in C that is epoll and nothing
else (bench/peers/echo.c, which is the load as well). One core each."""

import driven
import machine
import markdown
import series
import servers
import support
import svg

TITLE = "Echo over plain TCP on clgrpc-async"
ROWS = [{"connections": connections, "depth": depth}
        for connections, depth in [(1, 1), (10, 1), (10, 10), (10, 100)]]
LISP = support.lisp_command("scripts/load.lisp", "bench/ours/echo.lisp")
C, COPYING = "epoll in C", "clgrpc-async, fresh vectors"
FIGURES = [("cpu_ns_per_message", "server CPU ns/message", True),
           ("messages_per_second", "messages/s", False)]


class Echo(driven.Load):
    """The load at SERVER, as many connections and messages in flight as ROW says."""

    def __init__(self, row, server, core):
        super().__init__([support.c_build("echo"), "load", server.running.port, str(row["connections"]),
                          str(row["depth"])], core)

    def exchange(self, messages, pid):
        meter = machine.CpuMeter(pid)
        self.process.stdin.write("%d\n" % messages)
        self.process.stdin.flush()
        figures = driven.json.loads(self._expect("{"))
        return dict(figures, cpu=meter.seconds())


def measure(options):
    core = machine.cores()[0]
    calibrated = {}

    def run(row, server, seconds=options.seconds):
        key = (row["connections"], row["depth"])
        with Echo(row, server, core) as load:
            if key not in calibrated:
                trial = load.exchange(20000 * min(row["depth"], 10), server.pid)
                calibrated[key] = trial["messages"] / trial["seconds"]
            figures = load.exchange(int(calibrated[key] * seconds), server.pid)
        return {"cpu_ns_per_message": 1e9 * figures["cpu"] / figures["messages"],
                "messages_per_second": figures["messages"] / figures["seconds"]}

    with servers.Contenders(options) as contenders:
        contenders.add("clgrpc", LISP)
        contenders.add(COPYING, LISP, {"CLGRPC_ECHO": "copy"})
        contenders.add(C, [support.c_build("echo"), "serve"])
        rows = series.interleaved(ROWS, contenders.members, options.rounds, run,
                                  lambda row, server: run(row, server, 0.2))
        return {"commands": {**contenders.commands(), "load": "echo load PORT CONNECTIONS DEPTH"},
                "absent": contenders.absent, "rows": rows}


def describe(row):
    return "%d × %d" % (row["connections"], row["depth"])


def comparisons(results):
    return [one for one in series.comparisons(results["rows"], describe, FIGURES)
            if one["peer"] == C]


def table(results):
    return "\n".join([
        "Connections × messages of 32 octets in flight on each. `clgrpc` is the echo server of "
        "the examples, which reads its input in place; with fresh vectors the callback gets one "
        "for each read, as cl-async's does. Most of the time both servers make the same system "
        "calls: one recv and one send for each connection with input.", "",
        markdown.comparison(results["rows"], "connections × messages", describe, FIGURES)])


def plots(results):
    return {"echo": svg.bars(TITLE, "ns of server CPU per message",
                             [(describe(row), markdown.values(row, "cpu_ns_per_message"))
                              for row in results["rows"]])}
