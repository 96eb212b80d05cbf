"""The cost of observation in a server's CPU: unary GetFeature at 10 connections with 100 calls at
once each, with and without metrics, and with metrics, traces of which 1 % are recorded and an
access log of 1 %; beside it grpc-go with and without its OpenTelemetry plugin. Runs are short and
many, and each figure is the median of its ratio to the run without observers of the same round,
since the speed of a machine drifts by more than the expected difference."""

import shlex
import statistics
import tempfile

import load
import machine
import markdown
import series
import servers
import svg
import unary

TITLE = "What it costs to be observed: server CPU per unary call (GetFeature)"
ROWS = [{"connections": 10, "streams": 100}]
METRICS = ["--metrics", "127.0.0.1:0"]
ALL = [*METRICS, "--trace-sample", "0.01", "--access-log=0.01"]
FIGURES = [("cpu_us_per_call", "CPU µs/call", True), ("ratio", "to the same without", True),
           ("ratio_low", "lower quartile", None), ("ratio_high", "upper quartile", None)]
ROUNDS_EACH = 8                         # short runs in place of one


def base_of(name):
    """The name of the server that the one with NAME is compared with."""
    return name.split(",")[0]


def add_ratios(row):
    """Add to each side of ROW how its runs stand to those of its base, round by round."""
    for name, side in row["sides"].items():
        base = row["sides"][base_of(name)]["runs"]
        ratios = [run["cpu_us_per_call"] / other["cpu_us_per_call"]
                  for run, other in zip(side["runs"], base)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        side["median"].update(ratio=middle, ratio_low=low, ratio_high=high)


def measure(options):
    with tempfile.TemporaryDirectory() as directory, servers.Contenders(options) as contenders:
        call = load.GetFeature(directory)
        ours = options.ours.split()
        go = [servers.peer(), "bench-server", "-listen", "127.0.0.1:0"]
        for name, command, environment in [
                ("clgrpc", ours, None), ("clgrpc, metrics", [*ours, *METRICS], None),
                ("clgrpc, metrics, 1 % traced and logged", [*ours, *ALL], None),
                ("grpc-go", go, {"GOMAXPROCS": "1"}),
                ("grpc-go, OpenTelemetry", [*go, "-metrics", "127.0.0.1:0"], {"GOMAXPROCS": "1"})]:
            contenders.add(name, command, environment)
        core = machine.cores()[0]
        runs = unary.Runs(call, options.seconds / ROUNDS_EACH, core)
        rows = series.interleaved(ROWS, contenders.members, max(2, options.rounds * ROUNDS_EACH),
                                  runs.run, runs.calibrate)
        for row in rows:
            add_ratios(row)
        command = shlex.join(machine.pinned(core, call.command("ADDRESS", "C", "S", "N")))
        return {"commands": {**contenders.commands(), "load": command.replace(call.body, "BODY")},
                "absent": contenders.absent, "rows": rows}


describe = unary.describe


def comparisons(results):
    del results
    return []


def table(results):
    return "\n".join([
        "h2load on one core, the server on the other. The ratio is a server's CPU time to its time "
        "without observers in the same round, the median over %d rounds."
        % max(2, results["rounds"] * ROUNDS_EACH), "",
        markdown.comparison(results["rows"], "connections × streams", describe, FIGURES)])


def plots(results):
    return {"observed": svg.bars(TITLE, "µs of server CPU per call",
                                 [(describe(row), markdown.values(row, "cpu_us_per_call"))
                                  for row in results["rows"]])}
