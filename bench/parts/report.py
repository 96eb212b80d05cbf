"""doc/performance.md, made from the results in bench/results and nothing else."""

import json
import os

import goals
import markdown
import series
import support

RESULTS = os.path.join(support.ROOT, "bench", "results")
PAGE = os.path.join(support.ROOT, "doc", "performance.md")

OPENING = """# Performance

This page is made by `make bench` from the files in `bench/results/`; do not edit it.

Everything is measured side by side in one run on one machine: the rounds of all servers, or
clients, take turns, and each figure is the median of the rounds. Read ratios, not absolute figures.
The load has one core and the server another, and every server is configured for that: one event loop for
clgrpc, `GOMAXPROCS=1` for grpc-go, the current-thread flavour for tonic. nghttpd is a file server in C: it
sends the same octets and a trailer without knowing gRPC, and so shows the cost of HTTP/2 alone. CPU is user
and kernel time of all threads of the process.
"""


def facts(results):
    machine = results["machine"]
    keys = ("sbcl", "grpc_go", "grpchan", "tonic", "h2load", "nghttpd")
    versions = "; ".join(machine[key] for key in keys if machine.get(key))
    text = ("%(processor)s, %(cores)s cores, Linux %(kernel)s; " % machine + versions
            + "; %(go)s. %(date)s, commit %(commit)s; others used %(others).0f %% of the machine."
            % machine)
    if results["rounds"] > 1:
        text += " %d rounds." % results["rounds"]
    if results["absent"]:
        text += " Missing: %s." % "; ".join(results["absent"])
    return text


def section(part, results):
    """The section of one PART, a module, with its RESULTS."""
    lines = ["## " + part.TITLE, "", part.table(results), facts(results), ""]
    lines += ["![%s](../bench/results/%s.svg)\n" % (part.TITLE, name)
              for name in part.plots(results)]
    if results["commands"]:
        lines += ["Commands:", ""]
        lines += ["- %s: `%s`" % item for item in results["commands"].items()] + [""]
    return "\n".join(lines)


def losses(parts, found):
    """A table of every figure in which a peer is ahead."""
    lines = [[part.TITLE, one["row"], one["figure"], one["peer"],
              markdown.figure(one["ours"]), markdown.figure(one["theirs"])]
             for name, part in parts.items() if name in found
             for one in part.comparisons(found[name]) if one["lost"]]
    if not lines:
        return "None in this run.\n"
    return markdown.table(["part", "row", "figure", "peer", "ours", "theirs"], lines,
                          text_columns=4)


def aims(parts, found):
    """A table of the goals and how far they are."""
    lines = []
    for name, results in found.items():
        for text, bound, value, *floor in goals.GOALS[name](results):
            verdict = "–" if value is None else "met" if value <= bound else "**missed**"
            lines.append([parts[name].TITLE, text, markdown.figure(bound),
                          markdown.figure(value), verdict,
                          "".join(markdown.figure(figure) for figure in floor if figure)])
    return ("The column C has, for comparison, the figure of a C program, where that was "
            "measured: it waits by epoll, receives, and sends the same octets as soon as they are "
            "due. The rest is the cost of a library; but under load a library that answers later "
            "receives more with one system call, and may need less.\n\n"
            + markdown.table(["part", "goal", "at most", "measured", "", series.FLOOR], lines,
                             text_columns=2))


def write(parts):
    """Write the page from the present results of PARTS, modules by name."""
    found = {}
    for name in parts:
        path = os.path.join(RESULTS, name + ".json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                found[name] = json.load(file)
    sections = [OPENING, "## Goals\n", aims(parts, found), "## Where a peer is ahead\n",
                losses(parts, found)]
    sections += [section(part, found[name]) for name, part in parts.items() if name in found]
    os.makedirs(os.path.dirname(PAGE), exist_ok=True)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write("\n".join(sections))
