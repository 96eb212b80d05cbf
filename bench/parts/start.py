"""What it takes until clgrpc does something: the system "clgrpc" compiled and loaded by ASDF with an
empty cache, and loaded again; the first call of a program, from its start (`clgrpc call`); and the
size of that program. Seconds are the processor's."""

import os
import subprocess
import tempfile
import time

import load
import machine
import markdown
import openloop
import series
import support

TITLE = "Loading, and the first call"
CLGRPC = os.path.join(support.ROOT, "bin", "clgrpc")
ROWS = [{"what": what} for what in ("compiled and loaded, s", "loaded, s",
                                    "first call of a program, ms", "executable, MB")]
PROGRAM = [*support.lisp_command(), "--eval", "(require :asdf)",
           "--eval", "(asdf:initialize-source-registry '(:source-registry (:directory %r)"
                     " :inherit-configuration))".replace("%r", '"%s/"' % support.ROOT),
           "--eval", "(handler-bind ((warning (function muffle-warning)))"
                     " (asdf:load-system \"clgrpc\"))"]


def load_seconds(cache, core):
    """CPU seconds of a Lisp that loads the system, with its compiled files in CACHE."""
    before = machine.children_seconds()
    support.run(machine.pinned(core, PROGRAM), cwd=support.ROOT,
                env=dict(os.environ, XDG_CACHE_HOME=cache))
    return machine.children_seconds() - before


class Tree:
    """This tree, whose figures are measured together, once a round."""

    name = "clgrpc"

    def __init__(self, address, core):
        self.address, self.core, self.figures = address, core, {}

    def figure(self, row):
        if row == ROWS[0]:
            with tempfile.TemporaryDirectory() as cache:
                self.figures = {row["what"]: load_seconds(cache, self.core),
                                "loaded, s": load_seconds(cache, self.core)}
        elif row == ROWS[2]:
            command = machine.pinned(self.core, [
                CLGRPC, "call", "--proto", openloop.PROTO, "-d", "{}", self.address,
                load.METHOD.strip("/")])
            begin = time.monotonic()
            subprocess.run(command, cwd=support.ROOT, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, check=True)
            self.figures[row["what"]] = 1e3 * (time.monotonic() - begin)
        elif row == ROWS[3]:
            self.figures[row["what"]] = os.path.getsize(CLGRPC) / 1e6
        return {"figure": self.figures[row["what"]]}


def measure(options):
    cores = machine.cores()
    with support.Server(machine.pinned(cores[1], options.ours.split())) as server:
        rows = series.interleaved(ROWS, [Tree(server.address, cores[0])], min(options.rounds, 3),
                                  lambda row, tree: tree.figure(row))
    return {"rounds": min(options.rounds, 3), "commands": {}, "absent": [], "rows": rows}


def describe(row):
    return row["what"]


def comparisons(results):
    del results
    return []


def table(results):
    lines = [[describe(row), markdown.figure(row["sides"]["clgrpc"]["median"]["figure"])]
             for row in results["rows"]]
    return "\n".join(["On one core; seconds are the processor's.", "",
                      markdown.table(["", "clgrpc"], lines)])


def plots(results):
    del results
    return {}
