"""Whether a client is as fast each time it starts: threads that make one blocking call after the
other on one connection. A process may settle into one manner of gathering calls or another for as
long as it lives, so each run is a process of its own, and what counts is how far the runs lie apart.
The machine moves them apart too: how far is seen of grpc-go's client, in turn with ours."""

import client
import markdown
import series
import svg

TITLE = "Blocking callers, from one process to the next"
ROWS = [{"manner": "threads", "in_flight": count} for count in (100, 10, 1)]
PROCESSES = 7  # fewer say nothing of a spread
SECONDS = 1  # of a run at most
KEYS = [("client_cpu_us_per_call", "client CPU µs/call"), ("us_per_call", "µs/call")]


def measure(options):
    runs = PROCESSES if options.rounds > 2 else options.rounds
    results = client.compare(options, ROWS, ROWS[0], runs, min(SECONDS, options.seconds))
    for row in results["rows"]:
        for side in row["sides"].values():
            side["runs"] = [{"client_cpu_us_per_call": one["client_cpu_us_per_call"],
                             "us_per_call": 1e6 / one["calls_per_second"]} for one in side["runs"]]
            side["median"] = series.medians(side["runs"])
            side["spread"] = {key: spread([one[key] for one in side["runs"]]) for key, _ in KEYS}
    return {"rounds": runs, **results}


def spread(values):
    """How far VALUES lie apart, as a part of their least."""
    return max(values) / min(values) - 1


def describe(row):
    return "1 × %(in_flight)d" % row


def comparisons(results):
    del results
    return []


def table(results):
    titles, lines = ["connections × callers", ""], []
    for _, name in KEYS:
        titles += [name, "most to least"]
    for row in results["rows"]:
        for position, (name, side) in enumerate(row["sides"].items()):
            line = ["" if position else describe(row), name]
            for key, _ in KEYS:
                line += [markdown.figure(side["median"][key]),
                         "+%.1f %%" % (100 * side["spread"][key])]
            lines.append(line)
    return "\n".join([
        "GetFeature on one connection; the client on one core, our server on the other. Each of %d "
        "runs is a process of its own; beside the median stands by how much the greatest of them "
        "exceeds the least. grpc-go's client shows how much of that is the machine's." % (
            results["rounds"]), "", markdown.table(titles, lines, text_columns=2)])


def plots(results):
    return {"callers": svg.bars(TITLE, "µs per call", [
        (describe(row), markdown.values(row, "us_per_call")) for row in results["rows"]])}
