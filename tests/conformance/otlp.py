"""The suite otlp of tests/conformance/run: a server of ours tells a real collector of OpenTelemetry
(tests/peers/otelcol) of metrics and spans."""

import json
import os
import subprocess
import tempfile
import time

import support

CASES = 8
CONFIG = """receivers:
  otlp: {protocols: {grpc: {endpoint: "%s"}}}
exporters:
  file/metrics: {path: %s, flush_interval: 50ms}
  file/traces: {path: %s, flush_interval: 50ms}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    metrics: {receivers: [otlp], exporters: [file/metrics]}
    traces: {receivers: [otlp], exporters: [file/traces]}
"""


class Collector:
    """A collector of OpenTelemetry in DIRECTORY, which can be killed and started again."""

    def __init__(self, directory):
        self.program = support.go_build("otelcol", ".",
                                        os.path.join(support.PEERS, "otelcol"))
        self.directory, self.port, self.lives = directory, support.free_port(), 0

    def file(self, kind, life):
        return os.path.join(self.directory, "%s.%d" % (kind, life))

    def start(self):
        self.lives += 1
        config = os.path.join(self.directory, "config.yaml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG % ("127.0.0.1:" + self.port, self.file("metrics", self.lives),
                                      self.file("traces", self.lives)))
        self.process = subprocess.Popen(
            [self.program, "--config", config], stdin=subprocess.DEVNULL,
            stdout=open(self.file("log", self.lives), "w", encoding="utf-8"),
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

    def greetings(self):
        """The ids of the spans of greetings, with those that came twice."""
        return [span["spanId"] for line in self.lines("traces")
                for resource in line["resourceSpans"] for scope in resource["scopeSpans"]
                for span in scope["spans"] if "SayHello" in span["name"]]

    def points(self, name):
        """The points of the metric NAME, in the order in which they came."""
        return [point for line in self.lines("metrics") for resource in line["resourceMetrics"]
                for scope in resource["scopeMetrics"] for metric in scope["metrics"]
                if metric["name"] == name
                for point in (metric.get("sum") or metric.get("histogram")
                              or metric["gauge"])["dataPoints"]]

    def counted(self):
        """How many greetings the metric grpc.server.call.started has counted at last."""
        mine = [int(point["asInt"]) for point in self.points("grpc.server.call.started")
                if any(attribute["value"].get("stringValue") == "helloworld.Greeter/SayHello"
                       for attribute in point["attributes"])]
        return mine[-1] if mine else 0


def eventually(function, wanted, seconds=30):
    """What FUNCTION returns once it is WANTED, or after SECONDS."""
    end = time.monotonic() + seconds
    while True:
        value = function()
        if value == wanted or time.monotonic() > end:
            return value
        time.sleep(0.1)


def run_cases(outcome, ghz):
    """Metrics and spans of a server of ours with a collector of OpenTelemetry, which is killed and
    restarted: nothing is lost but what the bound says, and that is counted."""
    bound = 2048  # max-queued-spans; as many again may be on their way

    def check(name, wanted, function):
        value = eventually(function, wanted)
        if value == wanted:
            outcome.passed += 1
        else:
            outcome.fail(name, "%r, not %r" % (value, wanted))

    environment = {"OTEL_METRIC_EXPORT_INTERVAL": "300", "OTEL_BSP_SCHEDULE_DELAY": "300",
                   "OTEL_SERVICE_NAME": "greeter",
                   "OTEL_EXPORTER_OTLP_TIMEOUT": "1000"}
    with tempfile.TemporaryDirectory() as directory:
        collector = Collector(directory)
        collector.start()
        command = ["bin/clgrpc", "serve", "greeter", "--listen", "127.0.0.1:0", "--otlp",
                   "127.0.0.1:" + collector.port]
        try:
            with support.Server(command, environment) as server:
                def greet(count):
                    support.run([ghz, "--insecure", "-n", str(count), "-c", "10", "--call",
                                 "helloworld.Greeter.SayHello", "-d", '{"name": "x"}',
                                 "%s:%s" % (server.host, server.port)])

                greet(500)
                check("spans", 500, lambda: len(collector.greetings()))
                check("metrics", 500, collector.counted)
                resource = next(collector.lines("traces"))["resourceSpans"][0]["resource"]
                check("resource", ["greeter"],
                      lambda: [attribute["value"]["stringValue"]
                               for attribute in resource["attributes"]
                               if attribute["key"] == "service.name"])
                collector.kill()
                greet(bound // 2)
                collector.start()
                check("spans of before the restart", 500 + bound // 2,
                      lambda: len(set(collector.greetings())))
                check("metrics after the restart", 500 + bound // 2, collector.counted)
                collector.kill()
                # ghz asks for reflection, too: one span more, or two
                greet(3 * bound)
                collector.start()
                total = 500 + bound // 2 + 3 * bound
                check("metrics after much", total, collector.counted)

                def lost():
                    fates = {}
                    for point in collector.points("clgrpc.otlp.items"):
                        attributes = {a["key"]: a["value"]["stringValue"]
                                      for a in point["attributes"]}
                        fates[attributes["signal"], attributes["outcome"]] = int(point["asInt"])
                    return fates.get(("traces", "overflowed"), 0)

                check("something was lost", True, lambda: lost() > 0)
                # reflection has no greeting, but may have lost its place
                check("what was lost was counted", True,
                      lambda: 0 <= lost() - (total - len(set(collector.greetings()))) <= 4)
        finally:
            collector.kill()
