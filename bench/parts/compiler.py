"""The time from a large .proto file to compiled code: our generator and SBCL's compiler, beside protoc
with its plug-ins for Go and Go's compiler. The files are like the largest of googleapis
(large_proto.py), of half a megabyte and of two: the time must grow with the size and no faster. What is
compared is the CPU of all processes from their start to their end; ours is one, which loads clgrpc
first."""

import os
import shutil
import tempfile

import large_proto
import machine
import markdown
import series
import support
import svg
from answerer import Answerer

TITLE = "Compiling a large .proto file"
SIZES = [512000, 2048000]
FIGURES = [("total_s", "CPU s", True), ("generate_s", "parsing and generating", None),
           ("compile_s", "compiling", None), ("per_mb_s", "these two, CPU s/MB", None)]
LISP = support.lisp_command("scripts/load.lisp", "bench/ours/compiler.lisp", heap_mb=4096)
GRPC_PLUGIN = "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0"


class Sbcl:
    """Our generator and SBCL's compiler, in a process for each file."""

    name = "clgrpc"

    def __init__(self, folder):
        self.folder = folder
        with Answerer(LISP, 1):  # so that clgrpc is compiled
            pass

    def figures(self, proto):
        begin = machine.children_seconds()
        with Answerer(LISP, 1) as program:
            figures = program.ask(proto=proto, lisp=os.path.join(self.folder, "generated.lisp"))
        return {**figures, "total_s": machine.children_seconds() - begin}


class Go:
    """protoc, its plug-ins for Go, and `go build`."""

    name = "Go"

    def __init__(self, folder):
        self.folder = folder
        plugins = [support.go_build("protoc-gen-go",
                                    "google.golang.org/protobuf/cmd/protoc-gen-go"),
                   support.go_install("protoc-gen-go-grpc", GRPC_PLUGIN)]
        self.options = ["--plugin=" + plugin for plugin in plugins]
        for file in ("go.mod", "go.sum"):
            shutil.copy(os.path.join(support.PEERS, file), folder)
        small = os.path.join(folder, "small.proto")
        write(small, 1000, 0)
        self.figures(small)  # so that what all files need is compiled

    def figures(self, proto):
        core = machine.cores()[0]
        package = os.path.join(self.folder, "generated")
        shutil.rmtree(package, ignore_errors=True)
        os.mkdir(package)
        command = ["protoc", *self.options, "--proto_path=" + os.path.dirname(proto),
                   os.path.basename(proto),
                   *(option % package for option in ("--go_out=%s", "--go-grpc_out=%s")),
                   "--go_opt=paths=source_relative", "--go-grpc_opt=paths=source_relative"]
        begin = machine.children_seconds()
        support.run(machine.pinned(core, command))
        generated = machine.children_seconds()
        support.run(machine.pinned(core, ["go", "build", "-mod=mod", "./generated"]),
                    cwd=self.folder, env=dict(os.environ, GOFLAGS="", GOMAXPROCS="1"))
        end = machine.children_seconds()
        return {"generate_s": generated - begin, "compile_s": end - generated,
                "total_s": end - begin}


def write(path, octets, seed):
    """Write a file to PATH; return its size."""
    name = os.path.splitext(os.path.basename(path))[0]
    with open(path, "w", encoding="ascii") as file:
        return file.write(large_proto.text(octets, name, seed))


def measure(options):
    short = options.seconds < 1
    with tempfile.TemporaryDirectory() as folder:
        # Go's cache would know a file that it has compiled
        seed = int.from_bytes(os.urandom(3), "big")
        rows = []
        for size in (size // (8 if short else 1) for size in SIZES):
            path = os.path.join(folder, "large%d.proto" % size)
            rows.append({"octets": write(path, size, seed), "path": path})

        def run(row, side):
            figures = side.figures(row["path"])
            return {**figures, "per_mb_s": 1e6 * (figures["generate_s"] + figures["compile_s"])
                                           / row["octets"]}

        results = series.interleaved(rows, [Sbcl(folder), Go(folder)], 1, run)
    for row in results:
        del row["path"]
    return {"rounds": 1, "seed": seed, "commands": {}, "absent": [], "rows": results}


def describe(row):
    return "%.2f MB" % (row["octets"] / 1e6)


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "Files like googleapis' compute.proto, made from the seed %(seed)d; CPU seconds of all "
        "processes on one core. Ours include the start of SBCL and the loading of clgrpc, which are "
        "in neither of the steps; Go's steps are all that its processes do. "
        "Messages that are rarely used compile in a tenth of the time with :OPTIMIZE-FOR "
        ":CODE-SIZE, see [Protocol Buffers](protobuf.md)." % results, "",
        markdown.comparison(results["rows"], "file", describe, FIGURES)])


def plots(results):
    return {"compiler": svg.bars(TITLE, "CPU seconds", [
        (describe(row), markdown.values(row, "total_s")) for row in results["rows"]])}
