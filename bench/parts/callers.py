"""Whether a client is as fast each time it starts: threads that make one blocking call after the
other on one connection. A process may settle into one manner of gathering calls or another for as
long as it lives, so each run is a process of its own, and what counts is how far the runs lie
apart."""

import driven
import machine
import markdown
import series
import servers
import svg

TITLE = "Blocking callers, from one process to the next"
ROWS = [{"callers": 100}, {"callers": 10}, {"callers": 1}]
PROCESSES = 7
KEYS = [("client_cpu_us_per_call", "client CPU µs/call"), ("us_per_call", "µs/call")]


class Client:
    """The client whose processes are compared."""

    name = "clgrpc"


def measure(options):
    core = machine.cores()[0]
    milliseconds = int(options.seconds * 1000)
    runs = PROCESSES if options.rounds > 2 else options.rounds
    program = options.ours.split()[0]

    def command(callers):
        return [program, "bench-client", "--manner", "threads", "--in-flight", str(callers),
                "--milliseconds", str(milliseconds)]

    with servers.Contenders(options) as contenders:
        contenders.add_ours()
        server = contenders.members[0]

        def run(row, _):
            with driven.Load([*command(row["callers"]), server.address], core) as load:
                figures = driven.measured(load, server)
            return {"client_cpu_us_per_call": figures["client_cpu_us_per_call"],
                    "us_per_call": 1e6 / figures["calls_per_second"]}

        rows = series.interleaved(ROWS, [Client], runs, run)
        for row in rows:
            row["spread"] = {key: spread([one[key] for one in row["sides"]["clgrpc"]["runs"]])
                             for key, _ in KEYS}
        return {"rounds": runs, "absent": [], "rows": rows, "commands": {
            "server": server.command,
            "client": " ".join(machine.pinned(core, command("CALLERS"))) + " ADDRESS"}}


def spread(values):
    """How far VALUES lie apart, as a part of their least."""
    return max(values) / min(values) - 1


def describe(row):
    return "1 × %(callers)d" % row


def comparisons(results):
    del results
    return []


def table(results):
    titles, lines = ["connections × callers"], []
    for key, name in KEYS:
        titles += [name, "least", "most", "apart"]
    for row in results["rows"]:
        line = [describe(row)]
        for key, _ in KEYS:
            side = row["sides"]["clgrpc"]
            values = ([run[key] for run in side["runs"]] if "runs" in side
                      else [side["least"][key], side["most"][key]])
            line += [markdown.figure(figure) for figure in (
                side["median"][key], min(values), max(values))]
            line.append("%.1f %%" % (100 * row["spread"][key]))
        lines.append(line)
    return "\n".join([
        "GetFeature on one connection; the client on one core, our server on the other. Each of %d "
        "runs is a process of its own; the least and the greatest of them stand beside the "
        "median." % results["rounds"], "", markdown.table(titles, lines)])


def plots(results):
    return {"callers": svg.bars(TITLE, "µs per call", [
        (describe(row), markdown.values(row, "us_per_call")) for row in results["rows"]])}
