"""Server CPU per unary call over gRPC-Web, Connect and REST, over HTTP/1.1 and HTTP/2, beside
connect-go, vanguard and grpc-gateway; of the gateway alone beside Envoy; and of plain gRPC with and
without these protocols. A hundred calls are in flight: 100 connections over HTTP/1.1, ten with ten
streams each over HTTP/2.

The peers in Go are the reference implementations of $CLGRPC_WEB, else ../shared/web, where also the
service is defined, PerfService."""

import os
import re
import struct
import subprocess
import sys
import tempfile

import envoy
import load
import machine
import markdown
import series
import servers
import support
import unary

TITLE = "Unary calls over gRPC-Web, Connect and REST"
WEB = os.environ.get("CLGRPC_WEB") or os.path.join(support.ROOT, "..", "shared", "web")
OUT = os.path.join(support.CACHE, "web")
METHOD = "/lab.web.v1.PerfService/Unary"
PROTO = b"\x0a\x09benchmark\x10\x2a\x1a\x0a0123456789"
JSON = b'{"name":"benchmark","number":42,"payload":"MDEyMzQ1Njc4OQ=="}'
FIGURES = [("cpu_us_per_call", "CPU µs/call", True)]


def framed(octets):
    return b"\0" + struct.pack(">I", len(octets)) + octets


# the protocol and the codec: path, content type, body
CALLS = {("gRPC-Web", "protobuf"): (METHOD, "application/grpc-web+proto", framed(PROTO)),
         ("gRPC-Web", "JSON"): (METHOD, "application/grpc-web+json", framed(JSON)),
         ("Connect", "protobuf"): (METHOD, "application/proto", PROTO),
         ("Connect", "JSON"): (METHOD, "application/json", JSON),
         ("REST", "JSON"): ("/v1/perf", "application/json", JSON),
         ("gRPC", "protobuf"): (METHOD, "application/grpc", framed(PROTO))}
VERSIONS = ("HTTP/1.1", "HTTP/2")


def rows(protocol, versions=VERSIONS, codecs=("protobuf", "JSON")):
    return [{"protocol": protocol, "codec": codec, "http": version}
            for codec in codecs if (protocol, codec) in CALLS for version in versions]


class LabServer(support.Server):
    """A server that says where it listens as the scenarios of transcoding want it."""

    def line_with(self, prefix, seconds):
        return super().line_with("LISTENING " if prefix == "listening on " else prefix, seconds)


def command(row, address, requests, body):
    path, content_type, _ = CALLS[row["protocol"], row["codec"]]
    flight = ["--h1", "-c", "100"] if row["http"] == "HTTP/1.1" else ["-c", "10", "-m", "10"]
    return ["h2load", "-n", str(requests), *flight, "-d", body, "-H", "content-type: " + content_type,
            "http://%s%s" % (address, path)]


class Runs:
    """The settings of runs: FOLDER for bodies, SECONDS that each takes, and the CORE of the
    load."""

    def __init__(self, folder, seconds, core):
        self.folder, self.seconds, self.core = folder, seconds, core
        self.requests = {}

    def call(self, row, server, requests):
        """Make REQUESTS calls; return how many a second. Ends the program if one went wrong."""
        body = os.path.join(self.folder, "body")
        with open(body, "wb") as file:
            file.write(CALLS[row["protocol"], row["codec"]][2])
        words = machine.pinned(self.core, command(row, server.address, requests, body))
        text = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120).stdout
        if not re.search(r"status codes: %d 2xx" % requests, text):
            sys.exit("calls went wrong: %s\n%s" % (" ".join(words), text))
        return load.rate_of(text)

    def calibrate(self, row, server):
        rate = self.call(row, server, 4000)
        self.requests[describe(row), server.name] = max(4000, int(rate * self.seconds))

    def run(self, row, server):
        requests = self.requests[describe(row), server.name]
        meter = machine.CpuMeter(server.pid)
        self.call(row, server, requests)
        return {"cpu_us_per_call": meter.seconds() * 1e6 / requests}


def anchor():
    """The program with the reference implementations, or None where there is none."""
    if not (os.path.isdir(WEB) and support.have("go")):
        return None
    subprocess.run([os.path.join(WEB, "setup.sh")], check=True, stdout=subprocess.DEVNULL,
                   env=dict(os.environ, WEB_OUT=OUT))
    return os.path.join(OUT, "bin", "anchor")


def group(options, runs, absent, of_rows, ours, peers):
    """Measure OF_ROWS with the server that OURS, a function of the contenders, adds, and with
    those of PEERS. Return the rows, and the commands by name."""
    with servers.Contenders(options) as contenders:
        ours(contenders)
        for peer in peers:
            peer(contenders)
        absent += contenders.absent
        found = series.interleaved(of_rows, contenders.members, options.rounds, runs.run,
                                   runs.calibrate)
        return found, contenders.commands()


def reference(name, front, program):
    """A function that adds the reference implementation FRONT, as NAME."""
    def add(contenders):
        if program:
            contenders.add(name, [program, "-front", front], {"GOMAXPROCS": "1"}, kind=LabServer)
        else:
            contenders.absent.append(name + " (there is no Go, or no folder of scenarios)")
    return add


def add_lab(contenders):
    contenders.add("clgrpc", ["bin/clgrpc-testee", "testee", "transcode"], kind=LabServer)


def add_gateway(backend):
    def add(contenders):
        contenders.add("clgrpc", ["bin/clgrpc", "gateway", backend, "--listen", "127.0.0.1:0", "--types",
                                  os.path.join(OUT, "lab.pb")])
    return add


def add_envoy(backend, folder):
    def add(contenders):
        program = envoy.program()
        if program:
            contenders.add("Envoy", [program, "--concurrency", "1", "--log-level", "error",
                                     "--disable-hot-restart"],
                           kind=envoy.Envoy, folder=folder, backend=backend.rpartition(":")[2])
        else:
            contenders.absent.append("Envoy (it could not be fetched)")
    return add


def measure_gateway(options, runs, absent, program, folder):
    if not program:
        absent.append("the gateway's rows (no server is there to stand before)")
        return [], {}
    core = machine.cores()[0]
    with LabServer(machine.pinned(core, [program, "-front", "grpc"])) as backend:
        return group(options, runs, absent, rows("gRPC-Web", codecs=["protobuf"]),
                     add_gateway(backend.address), [add_envoy(backend.address, folder)])


def measure_plain(options, folder):
    """Plain gRPC at our server with all protocols, and without."""
    runs = unary.Runs(load.GetFeature(folder), options.seconds, machine.cores()[0])
    with servers.Contenders(options) as contenders:
        contenders.add_ours("--web")
        contenders.add("without", options.ours.split())
        found = series.interleaved([{"connections": 10, "streams": streams} for streams in (1, 10, 100)],
                                   contenders.members, options.rounds, runs.run, runs.calibrate)
        return found, contenders.commands()


def measure(options):
    absent, commands = [], {}
    program = anchor()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(folder, options.seconds, machine.cores()[0])
        calls, commands["calls"] = group(options, runs, absent, rows("gRPC-Web") + rows("Connect"), add_lab,
                                         [reference("connect-go", "connect", program)])
        rest, commands["REST"] = group(options, runs, absent, rows("REST"), add_lab,
                                       [reference("vanguard", "vanguard", program),
                                        reference("grpc-gateway", "gateway", program)])
        gateway, commands["gateway"] = measure_gateway(options, runs, absent, program, folder)
        plain, commands["plain"] = measure_plain(options, folder)
    return {"commands": {"%s, %s" % (part, name): shown.replace(OUT, "OUT").replace(folder, "FOLDER")
                         for part, names in commands.items() for name, shown in names.items()},
            "absent": absent, "rows": calls + rest, "gateway": gateway, "plain": plain}


def describe(row):
    return "%(protocol)s, %(codec)s, %(http)s" % row


def comparisons(results):
    return (series.comparisons(results["rows"], describe, FIGURES)
            + series.comparisons(results["gateway"], lambda row: "gateway: " + describe(row), FIGURES))


def table(results):
    return "\n".join([
        "A hundred calls in flight, whose requests and answers have 36 octets or are JSON: 100 "
        "connections over HTTP/1.1, ten with ten streams each over HTTP/2.", "",
        markdown.comparison(results["rows"], "calls", describe, FIGURES),
        "The gateway alone is measured, in front of a server of grpc-go; clgrpc and Envoy have "
        "one worker each.", "",
        markdown.comparison(results["gateway"], "gateway", describe, FIGURES),
        "Plain gRPC, GetFeature, at a server with all protocols and at one without; connections × "
        "calls at once on each.", "",
        markdown.comparison(results["plain"], "gRPC", unary.describe, FIGURES)])


def plots(results):
    del results
    return {}
