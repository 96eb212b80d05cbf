"""Long messages: how much of them goes through, what that costs the server, and what small calls of
others notice. grpc-go's client, one call after the other or four messages on their way on one
stream; the small calls are made a millisecond apart, on a connection of another process or on the
same one."""

import json
import subprocess
import sys

import machine
import markdown
import series
import servers
import svg

TITLE = "Long messages"
MOST_OCTETS = 64 << 20
ROWS = [{"scenario": scenario, "octets": octets}
        for octets in (1 << 20, 16 << 20)
        for scenario in ("unary-up", "unary-down", "unary-both", "stream-both")]
BESIDE = [{"scenario": scenario, "octets": 16 << 20, "bystander": bystander}
          for scenario in ("none", "unary-both", "stream-both") for bystander in ("other", "same")]
FIGURES = [("mb_per_second", "MB/s", False), ("server_cpu_ms_per_mb", "CPU ms/MB", True)]
BESIDE_FIGURES = [("bystander_p50_us", "p50 µs", True), ("bystander_p99_us", "p99 µs", True)]


def _start(peer, core, arguments, seconds, address):
    command = machine.pinned(core, [peer, "bulk-client", "-time", "%gs" % seconds, *arguments,
                                    address])
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def _figures(process, seconds):
    text = process.communicate(timeout=60 + 10 * seconds)[0]
    if process.returncode != 0:
        sys.exit("%s\n%s" % (" ".join(process.args), text))
    return json.loads(text)


def measure(options):
    core = machine.cores()[0]
    peer = servers.peer()
    seconds = options.seconds

    def run(row, server):
        arguments = ["-octets", str(row["octets"]), row["scenario"]]
        bystander = row.get("bystander")
        if bystander == "same":
            arguments[:0] = ["-bystander", "same"]
        meter = machine.CpuMeter(server.pid)
        bulk = _start(peer, core, arguments, seconds, server.address)
        if bystander == "other":
            beside = _figures(_start(peer, core, ["-octets", "1", "-bystander", "other", "none"],
                                     0.8 * seconds, server.address), seconds)
        figures = _figures(bulk, seconds)
        if not bystander:
            megabytes = figures["messages"] * figures["octets"] / 1e6
            return {"mb_per_second": figures["mb_per_second"],
                    "server_cpu_ms_per_mb": meter.seconds() * 1e3 / megabytes}
        source = beside if bystander == "other" else figures
        return {key: source[key] for key, _, _ in BESIDE_FIGURES}

    with servers.Contenders(options) as contenders:
        contenders.add_ours("--max-receive-octets", str(MOST_OCTETS))
        contenders.add_grpc_go("-max-receive-octets", str(MOST_OCTETS))
        rows = series.interleaved(ROWS, contenders.members, options.rounds, run)
        beside = series.interleaved(BESIDE, contenders.members, options.rounds, run)
        return {"commands": {**contenders.commands(),
                             "load": "taskset -c %d peer bulk-client -time %gs SCENARIO ADDRESS"
                                     % (core, seconds)},
                "absent": contenders.absent, "rows": rows, "beside": beside}


def describe(row):
    text = "%s, %d MB" % (row["scenario"], row["octets"] >> 20)
    if "bystander" not in row:
        return text
    return "%s connection, %s" % (row["bystander"], "alone" if row["scenario"] == "none" else text)


def comparisons(results):
    return (series.comparisons(results["rows"], describe, FIGURES)
            + series.comparisons(results["beside"], describe, BESIDE_FIGURES))


def table(results):
    return "\n".join([
        "One client of grpc-go on one core, the server on the other; payload both ways together.", "",
        markdown.comparison(results["rows"], "messages", describe, FIGURES),
        "Latency of small calls beside such messages:", "",
        markdown.comparison(results["beside"], "small calls", describe, BESIDE_FIGURES)])


def plots(results):
    return {"bulk": svg.bars(TITLE, "MB/s", [(describe(row), markdown.values(row, "mb_per_second"))
                                             for row in results["rows"]])}
