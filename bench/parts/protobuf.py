"""Encoding and decoding of messages, ours beside Go's google.golang.org/protobuf: the same octets,
on one core in turn. Decoding includes reading every field of the decoded message; time is the CPU
of the whole process, so garbage collection counts on both sides."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile

import machine
import markdown
import series
import support
import svg

TITLE = "Encoding and decoding messages"
SOURCE = os.path.join(support.ROOT, "proto", "bench", "protobuf.proto")
NAMES = {"feature": "small: RouteGuide's Feature", "mixed": "mixed, 1 KB",
         "list": "nested list, 100 KB", "blob": "blob, 100 KB", "maps": "maps",
         "ints": "packed integers", "doubles": "packed doubles", "ascii": "strings, ASCII",
         "unicode": "strings, not ASCII"}
ROWS = [{"message": name, "operation": operation}
        for name in NAMES for operation in ("encode", "decode")]
FIGURES = [("ns", "ns", True), ("octets", "octets consed", None)]
LISP = support.lisp_command("scripts/load.lisp", "bench/ours/protobuf.lisp")


def lisp_program():
    """Save the program of bench/ours/protobuf.lisp."""
    program = os.path.join(support.CACHE, "bench-protobuf-lisp")
    support.run(LISP, cwd=support.ROOT, env=dict(os.environ, CLGRPC_PROGRAM=program))
    return program


def go_program():
    """Generate the Go code of the messages and build bench/peers/protobuf.go with it."""
    folder = os.path.join(support.CACHE, "bench-protobuf")
    os.makedirs(os.path.join(folder, "pb"), exist_ok=True)
    for file in ("go.mod", "go.sum"):
        shutil.copy(os.path.join(support.PEERS, file), folder)
    shutil.copy(os.path.join(support.ROOT, "bench", "peers", "protobuf.go"),
                os.path.join(folder, "main.go"))
    plugin = support.go_build("protoc-gen-go", "google.golang.org/protobuf/cmd/protoc-gen-go")
    support.run(["protoc", "--plugin=" + plugin, "--proto_path=" + os.path.dirname(SOURCE),
                 "--go_out=" + os.path.join(folder, "pb"), "--go_opt=paths=source_relative",
                 os.path.basename(SOURCE)])
    program = os.path.join(folder, "protobuf")
    support.run(["go", "build", "-o", program, "."], cwd=folder)
    return program


class Side:
    """One of the two programs, which answers lines."""

    def __init__(self, name, command, environment):
        self.name = name
        self.process = subprocess.Popen(
            ["taskset", "-c", str(machine.cores()[0]), *command], cwd=support.ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ, **environment))

    def ask(self, row, milliseconds):
        self.process.stdin.write("%s %s %d\n" % (row["message"], row["operation"], milliseconds))
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit("bench/protobuf: %s ended" % self.name)
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def measure(options):
    milliseconds = int(options.seconds * 1000 / 5)
    with contextlib.ExitStack() as stack:
        octets = stack.enter_context(tempfile.TemporaryDirectory())
        program = go_program()
        ours = stack.enter_context(Side("clgrpc", [lisp_program(), octets], {}))
        ours.process.stdout.readline()
        go = stack.enter_context(Side("Go", [program, octets], {"GOMAXPROCS": "1"}))
        rows = series.interleaved(ROWS, [ours, go], options.rounds,
                                  lambda row, side: side.ask(row, milliseconds),
                                  lambda row, side: side.ask(row, milliseconds / 5))
    for row in rows:
        sums = {name: side["median"]["sum"] for name, side in row["sides"].items()}
        if len(set(sums.values())) != 1:
            raise SystemExit("bench/protobuf: %s was read differently: %s" % (describe(row), sums))
    return {"commands": {"clgrpc": "protobuf DIRECTORY, saved by " + " ".join(LISP),
                         "Go": "protobuf DIRECTORY, GOMAXPROCS=1"},
            "absent": [], "rows": rows}


def describe(row):
    return "%s, %s" % (NAMES[row["message"]], row["operation"])


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    lines = []
    for row in results["rows"]:
        ours, go = (row["sides"][name]["median"] for name in ("clgrpc", "Go"))
        lines.append([describe(row), markdown.figure(ours["size"]), markdown.figure(ours["ns"]),
                      markdown.figure(go["ns"]), "%.2f" % (ours["ns"] / go["ns"]),
                      markdown.figure(ours["octets"]), markdown.figure(go["octets"])])
    return "\n".join([
        "CPU per operation; decoding includes reading every field. Both libraries have one core, in turn.",
        "",
        markdown.table(["message", "octets", "ns", "Go, ns", "ours to Go's", "octets consed",
                        "Go, octets allocated"], lines)])


def plots(results):
    return {"protobuf": svg.bars(TITLE, "ns per operation", [
        ("%s, %s" % (row["message"], row["operation"]), markdown.values(row, "ns"))
        for row in results["rows"]])}
