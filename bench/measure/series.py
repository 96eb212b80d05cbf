"""Runs of several rows and sides in turn, so that the machine's other load falls on all of them,
and the medians of their measurements."""

import json
import statistics

import support

FLOOR = "C"  # the side that makes the system calls of a server, or a load, and does nothing else


def medians(runs):
    """The median of each figure that all RUNS, a list of dictionaries, have."""
    return {key: statistics.median(run[key] for run in runs)
            for key in runs[0] if all(key in run for run in runs)}


def kept(value):
    """Return the parts of VALUE that are kept in a file: of runs the least and the greatest of each
    figure, beside the medians; of figures five digits."""
    if isinstance(value, dict):
        short = {key: kept(part) for key, part in value.items() if key != "runs"}
        for name, choose in [("least", min), ("most", max)] if "runs" in value else []:
            short[name] = {key: kept(choose(run[key] for run in value["runs"]))
                           for key in value["median"]
                           if isinstance(value["median"][key], (int, float))
                           and all(key in run for run in value["runs"])}
        return short
    if isinstance(value, list):
        return [kept(part) for part in value]
    return float("%.5g" % value) if isinstance(value, float) else value


def text(results):
    """RESULTS, a dictionary, as JSON with a line for each of its keys and of its rows."""
    def line(value):
        return json.dumps(value, ensure_ascii=False)

    def lines(value):
        if isinstance(value, list) and value:
            return "[\n  %s]" % ",\n  ".join(map(line, value))
        return line(value)

    return "{%s}\n" % ",\n ".join("%s: %s" % (line(key), lines(value))
                                  for key, value in kept(results).items())


def interleaved(rows, sides, rounds, run, warm_up=None):
    """Call RUN(row, side) ROUNDS times for each pair, never twice in a row for one, after WARM_UP.
    ROWS are dictionaries that describe themselves, SIDES have names. Return the rows, each with
    `sides`: by name, the median and all runs."""
    results = [dict(row, sides={side.name: {"runs": []} for side in sides}) for row in rows]
    progress = support.Progress(len(rows) * len(sides) * (rounds + bool(warm_up)))
    for turn in range(0 if warm_up else 1, rounds + 1):
        for row, result in zip(rows, results):
            for side in sides:
                what = " ".join(str(value) for value in row.values())
                progress.step("%s, %s%s" % (what, side.name, ", warming up" * (turn == 0)))
                if turn == 0:
                    warm_up(row, side)
                else:
                    result["sides"][side.name]["runs"].append(run(row, side))
    progress.clear()
    for result in results:
        for side in result["sides"].values():
            side["median"] = medians(side["runs"])
    return results


def comparisons(rows, describe, figures, us="clgrpc"):
    """How US stands against each other side but FLOOR: a list of dictionaries for every row and each of
    FIGURES, which are (key, name, whether less is better, or None if neither is)."""
    found = []
    for row in rows:
        ours = row["sides"][us]["median"]
        for name, side in row["sides"].items():
            theirs = side["median"]
            found += [{"row": describe(row), "figure": title, "peer": name, "ours": ours[key],
                       "theirs": theirs[key],
                       "lost": (ours[key] > theirs[key]) == less and ours[key] != theirs[key]}
                      for key, title, less in figures
                      if less is not None and name not in (us, FLOOR) and key in ours and key in theirs]
    return found
