"""The suite otlp of tests/conformance/run: ours tell a real collector of OpenTelemetry
(tests/peers/otelcol) of metrics and spans, while it is killed and restarted, and together with a
service of grpc-go. It writes what it has taken to files before it answers, so that nothing is lost
with it."""

import collections
import json
import os
import subprocess
import tempfile
import time

import support

CASES = 26
CONFIG = """receivers:
  otlp: {protocols: {grpc: {endpoint: "%s"}}}
exporters:
  file/metrics: {path: %s, rotation: {max_megabytes: 1000}}
  file/traces: {path: %s, rotation: {max_megabytes: 1000}}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    metrics: {receivers: [otlp], exporters: [file/metrics]}
    traces: {receivers: [otlp], exporters: [file/traces]}
"""
BOUND = 2048  # max-queued-spans; as many again may be on their way

# gRFC A66: kind, unit and attributes of what a server has
SECONDS = [0, 1e-5, 5e-5, 1e-4, 3e-4, 6e-4, 8e-4, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008,
           0.01, 0.013, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13, 0.16, 0.2,
           0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1, 2, 5, 10, 20, 50, 100]
OCTETS = [0, 1024, 2048, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
          268435456, 1073741824, 4294967296]
INSTRUMENTS = {
    "grpc.server.call.started": ("sum", "{call}", ["grpc.method"], None),
    "grpc.server.call.duration": ("histogram", "s", ["grpc.method", "grpc.status"], SECONDS),
    "grpc.server.call.sent_total_compressed_message_size":
        ("histogram", "By", ["grpc.method", "grpc.status"], OCTETS),
    "grpc.server.call.rcvd_total_compressed_message_size":
        ("histogram", "By", ["grpc.method", "grpc.status"], OCTETS)}

NAME_OCTETS = 3000  # of whom traced/greeter.lisp greets
METHOD = "helloworld.Greeter.SayHello"
CHAIN = [("front", "outside", "INTERNAL"), ("front", "Sent." + METHOD, "CLIENT"),
         ("front", "Attempt." + METHOD, "INTERNAL"), ("relay", "Recv." + METHOD, "SERVER"),
         ("relay", "Sent." + METHOD, "CLIENT"), ("relay", "Attempt." + METHOD, "INTERNAL"),
         ("back", "Recv." + METHOD, "SERVER"), ("back", "greet", "INTERNAL")]
KINDS = ["UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]


def plain(attributes):
    """ATTRIBUTES, as OTLP's JSON has them, as a dictionary; integers stay with what says so."""
    values = {}
    for attribute in attributes:
        (kind, value), = attribute["value"].items()
        values[attribute["key"]] = int(value) if kind == "intValue" else value
    return values


class Collector:
    """A collector of OpenTelemetry in DIRECTORY, which can be killed and started again."""

    def __init__(self, directory):
        self.program = support.go_build("otelcol", ".", os.path.join(support.PEERS, "otelcol"))
        self.directory, self.port, self.lives = directory, support.free_port(), 0
        self.address = "127.0.0.1:" + self.port

    def file(self, kind, life):
        return os.path.join(self.directory, "%s.%d" % (kind, life))

    def start(self):
        self.lives += 1
        config = os.path.join(self.directory, "config.yaml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG % (self.address, self.file("metrics", self.lives),
                                 self.file("traces", self.lives)))
        with open(self.file("log", self.lives), "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([self.program, "--config", config],
                                            stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT)
        support.await_port(self.port, self.process)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def lines(self, kind):
        """What all lives of this have written of KIND, as JSON, whole lines only."""
        for life in range(1, self.lives + 1):
            if os.path.exists(self.file(kind, life)):
                with open(self.file(kind, life), encoding="utf-8") as file:
                    yield from (json.loads(line) for line in file if line.endswith("\n"))

    def spans(self):
        """The spans, with the service that each is of; some may have come twice."""
        return [(plain(resource["resource"]["attributes"])["service.name"], span)
                for line in self.lines("traces") for resource in line["resourceSpans"]
                for scope in resource["scopeSpans"] for span in scope["spans"]]

    def ids(self):
        return {(span["traceId"], span["spanId"]) for _, span in self.spans()}

    def metrics(self, name):
        """The metric NAME, each time that it came."""
        return [metric for line in self.lines("metrics") for resource in line["resourceMetrics"]
                for scope in resource["scopeMetrics"] for metric in scope["metrics"]
                if metric["name"] == name]

    def sums(self, name):
        """The last values of the counter NAME: a dictionary from its attributes' values."""
        last = (self.metrics(name) or [{"sum": {"dataPoints": []}}])[-1]
        return {tuple(plain(point.get("attributes", [])).values()): int(point["asInt"])
                for point in last["sum"]["dataPoints"]}

    def started(self):
        """How many calls of any method the server has counted."""
        return sum(self.sums("grpc.server.call.started").values())

    def greeted(self):
        return self.sums("grpc.server.call.started").get(("helloworld.Greeter/SayHello",), 0)

    def fates(self):
        """What has become of spans by the exporter's own count, by outcome."""
        return collections.Counter({outcome: count for (signal, outcome), count
                                    in self.sums("clgrpc.otlp.items").items()
                                    if signal == "traces"})


def eventually(function, wanted, seconds=30):
    """What FUNCTION returns once it is WANTED, or after SECONDS."""
    end = time.monotonic() + seconds
    while True:
        value = function()
        if value == wanted or time.monotonic() > end:
            return value
        time.sleep(0.1)


def run_cases(outcome, ghz):
    def check(name, wanted, function):
        try:
            value = eventually(function, wanted)
        except (AssertionError, IndexError, KeyError, ValueError) as error:
            value = repr(error)
        if value == wanted:
            outcome.passed += 1
        else:
            outcome.fail(name, "%r, not %r" % (value, wanted))

    for part in (run_restarts, run_services):
        with tempfile.TemporaryDirectory() as directory:
            collector = Collector(directory)
            collector.start()
            try:
                part(collector, check, ghz)
            finally:
                collector.kill()


# A server of ours, and a collector that is killed and restarted

def run_restarts(collector, check, ghz):
    """Nothing is lost but what the bound says, and that is counted."""
    environment = {"OTEL_METRIC_EXPORT_INTERVAL": "300", "OTEL_BSP_SCHEDULE_DELAY": "300",
                   "OTEL_SERVICE_NAME": "greeter", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
                   "OTEL_EXPORTER_OTLP_TIMEOUT": "1000"}
    command = ["bin/clgrpc", "serve", "greeter", "--listen", "127.0.0.1:0", "--otlp",
               collector.address, "--trace-sample", "1"]
    with support.Server(command, environment) as server:
        def load(count, *options):
            return [ghz, "--insecure", "-n", str(count), "-c", "10", "--call",
                    "helloworld.Greeter.SayHello", "-d", '{"name": "x"}', *options,
                    "%s:%s" % (server.host, server.port)]

        def all_accounted():
            """What was sent is what came, or was counted as dropped."""
            fates, came = collector.fates(), len(collector.ids())
            return {"sent": collector.started(), "rejected": fates["rejected"],
                    "dropped": fates["dropped"], "came": fates["exported"],
                    "sum": came + fates["overflowed"]}

        def nothing_else(count):
            return {"sent": count, "rejected": 0, "dropped": 0, "came": len(collector.ids()),
                    "sum": count}

        support.run(load(500))
        check("metrics", 500, collector.greeted)
        check("spans", True, lambda: len(collector.ids()) == collector.started())
        check_resource(collector, check)
        check_metrics(collector, check)
        collector.kill()
        support.run(load(BOUND // 2))
        collector.start()
        check("metrics after a restart", 500 + BOUND // 2, collector.greeted)
        check("spans of before it", True, lambda: len(collector.ids()) == collector.started())
        check("no more than the bound, so none lost", 0, lambda: collector.fates()["overflowed"])
        collector.kill()
        support.run(load(3 * BOUND))
        collector.start()
        total = 500 + BOUND // 2 + 3 * BOUND
        check("metrics after much", total, collector.greeted)
        check("what the bound has no room for is lost", True,
              lambda: BOUND // 2 <= collector.fates()["overflowed"] <= 2 * BOUND + 100)
        check("that is counted", True,
              lambda: all_accounted() == nothing_else(collector.started()))
        # now while calls are made: what was under way is sent again, and may have come before
        calls = subprocess.Popen(load(8000, "--rps", "1600"), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        try:
            for _ in range(3):
                time.sleep(0.6)
                collector.kill()
                time.sleep(0.4)
                collector.start()
        finally:
            calls.wait()
        check("metrics after restarts under load", total + 8000, collector.greeted)
        check("every span of these came or was counted", True,
              lambda: all_accounted() == nothing_else(collector.started()))


def check_resource(collector, check):
    for kind, part in (("traces", "resourceSpans"), ("metrics", "resourceMetrics")):
        resource = plain(next(collector.lines(kind))[part][0]["resource"]["attributes"])
        check("resource of " + kind, ("greeter", "clgrpc", True),
              lambda: (resource["service.name"], resource["telemetry.sdk.name"],
                       "service.instance.id" in resource))


def check_metrics(collector, check):
    """Instruments are as gRFC A66 has them."""
    for name, (kind, unit, attributes, bounds) in INSTRUMENTS.items():
        def look():
            metric = collector.metrics(name)[-1]
            points = [point for point in metric[kind]["dataPoints"]
                      if plain(point["attributes"])["grpc.method"] == "helloworld.Greeter/SayHello"]
            assert metric[kind]["aggregationTemporality"] == 2  # cumulative
            assert kind == "histogram" or metric["sum"]["isMonotonic"]
            assert len(points) == 1, points
            assert int(points[0].get("count", points[0].get("asInt"))) == 500, points
            assert int(points[0]["startTimeUnixNano"]) < int(points[0]["timeUnixNano"])
            return metric["unit"], sorted(plain(points[0]["attributes"])), points[0].get(
                "explicitBounds")
        check(name, (unit, attributes, bounds), look)


# Three services: ours, grpc-go's, ours

def run_services(collector, check, _):
    peer = support.run([os.path.join(support.ROOT, "scripts", "peer")], stderr=None).strip()
    traced = support.lisp_command("scripts/load.lisp", "tests/conformance/traced/greeter.lisp")
    for form in ("tracecontext", "grpc-trace-bin"):
        def environment(name):
            return {"CLGRPC_PROPAGATOR": form, "OTEL_SERVICE_NAME": name,
                    "OTEL_BSP_SCHEDULE_DELAY": "100",
                    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + collector.address}

        with Back(traced, environment("back")) as back, \
                support.Server([peer, "traced-relay", "-otlp", collector.address, "-propagator",
                                form, back.address]) as relay:
            trace = support.run(traced, cwd=support.ROOT, stderr=None,
                                env=dict(os.environ, CLGRPC_ADDRESS=relay.address,
                                         **environment("front"))).split()[-1]

            def mine():
                return [(service, span) for service, span in collector.spans()
                        if span["traceId"] == trace]

            check("all spans, by " + form, sorted(CHAIN), lambda: sorted(
                (service, span["name"], KINDS[span["kind"]]) for service, span in mine()))
            check("parents, by " + form, CHAIN, lambda: chain(mine()))
            check("attempt, by " + form,
                  {"previous-rpc-attempts": 0, "transparent-retry": False},
                  lambda: plain(of("front", "Attempt.", mine())["attributes"]))
            check("messages, by " + form, (2, [0, NAME_OCTETS + 3, True]), lambda: (
                # what one end sends the other receives
                len({tuple(message(*end, mine())) for end in (
                    ("front", "Attempt.", "Outbound"), ("relay", "Recv.", "Inbound"),
                    ("relay", "Recv.", "Outbound"), ("front", "Attempt.", "Inbound"))}),
                [value if value in (0, NAME_OCTETS + 3) else value < 200
                 for value in message("relay", "Recv.", "Inbound", mine())]))
            check("statuses, by " + form, {1}, lambda: {
                span["status"]["code"] for _, span in mine() if "." in span["name"]})


class Back(support.Server):
    """The last of the services, which ends when its standard input does."""

    stdin = subprocess.PIPE
    start_seconds = 120


def of(service, prefix, spans):
    span, = (span for name, span in spans if name == service and span["name"].startswith(prefix))
    return span


def message(service, prefix, direction, spans):
    """What the event of the only message in DIRECTION of a span says: number and sizes."""
    events = [plain(event["attributes"]) for event in of(service, prefix, spans)["events"]
              if event["name"] == direction + " message"]
    event, = events
    return [event["sequence-number"], event["message-size"], event["message-size-compressed"]]


def chain(spans):
    """SPANS from the root on, each the only one whose parent is the one before."""
    found, parent = [], ""
    for _ in spans:
        (service, span), = ((service, span) for service, span in spans
                            if span.get("parentSpanId", "") == parent)
        found.append((service, span["name"], KINDS[span["kind"]]))
        parent = span["spanId"]
    return found
