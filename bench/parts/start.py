"""What it takes until clgrpc does something: the system "clgrpc" compiled and loaded with an empty
cache, by scripts/load.lisp, which compiles two systems at once, and by ASDF alone; loaded again; the
first call of a program, from its start (`clgrpc call`); and the size of that program."""

import os
import statistics
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
COLD, ALONE, WARM, CALL, SIZE = ROWS = [{"what": what} for what in (
    "compiled and loaded on two cores, two systems at once, s",
    "compiled and loaded by ASDF alone, CPU s",
    "loaded, CPU s", "first call in a new process, ms", "executable, MB")]
ALONE_BEFORE = 25.4  # when the goal was set, to which it is relative
WARM_RUNS, CALLS = 3, 9
TOGETHER = [*support.lisp_command("scripts/load.lisp"),
            "--eval", '(clgrpc.scripts:load-strictly "clgrpc")']
PROGRAM = [*support.lisp_command(), "--eval", "(require :asdf)",
           "--eval", "(asdf:initialize-source-registry '(:source-registry (:directory %r)"
                     " :inherit-configuration))".replace("%r", '"%s/"' % support.ROOT),
           "--eval", "(handler-bind ((warning (function muffle-warning)))"
                     " (asdf:load-system \"clgrpc\"))"]


def run_with_cache(command, cache):
    """Run COMMAND with compiled files in the directory CACHE."""
    support.run(command, cwd=support.ROOT, env=dict(os.environ, XDG_CACHE_HOME=cache))


def load_seconds(cache, core):
    """CPU seconds of a Lisp that loads the system, with its compiled files in CACHE."""
    before = machine.children_seconds()
    run_with_cache(machine.pinned(core, PROGRAM), cache)
    return machine.children_seconds() - before


def elapsed(function, *arguments):
    """Seconds of the clock that a call of FUNCTION takes."""
    begin = time.monotonic()
    function(*arguments)
    return time.monotonic() - begin


class Tree:
    """This tree. The figures of a cache are measured together."""

    name = "clgrpc"

    def __init__(self, address, core):
        self.address, self.core, self.figures = address, core, {}

    def call(self):
        subprocess.run(machine.pinned(self.core, [
            CLGRPC, "call", "--proto", openloop.PROTO, "-d", "{}", self.address,
            load.METHOD.strip("/")]), cwd=support.ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, check=True)

    def figure(self, row):
        if row == COLD:
            with tempfile.TemporaryDirectory() as cache:
                return {"figure": elapsed(run_with_cache, TOGETHER, cache)}
        if row == ALONE:
            with tempfile.TemporaryDirectory() as cache:
                cold = load_seconds(cache, self.core)
                self.figures[WARM["what"]] = statistics.median(
                    load_seconds(cache, self.core) for _ in range(WARM_RUNS))
            return {"figure": cold}
        if row == CALL:
            return {"figure": 1e3 * statistics.median(elapsed(self.call) for _ in range(CALLS))}
        if row == SIZE:
            return {"figure": os.path.getsize(CLGRPC) / 1e6}
        return {"figure": self.figures[row["what"]]}


def measure(options):
    cores = machine.cores()
    with support.Server(machine.pinned(cores[1], options.ours.split())) as server:
        rows = series.interleaved(ROWS, [Tree(server.address, cores[0])], 1,
                                  lambda row, tree: tree.figure(row))
    return {"rounds": 1, "commands": {}, "absent": [], "rows": rows}


def describe(row):
    return row["what"]


def comparisons(results):
    del results
    return []


def table(results):
    lines = [[describe(row), markdown.figure(row["sides"]["clgrpc"]["median"]["figure"])]
             for row in results["rows"]]
    return "\n".join(["CPU seconds are those of one core; the others are the clock's, and the first row "
                      "has both cores.", "",
                      markdown.table(["", "clgrpc"], lines)])


def plots(results):
    del results
    return {}
