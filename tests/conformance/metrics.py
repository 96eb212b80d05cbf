"""The suite metrics of tests/conformance/run: the same calls through grpc-go with its OpenTelemetry plugin (tests/peers/metered.go) and through
ours (`clgrpc testee metrics`), both scraped by Prometheus: each calls itself and the other, so that
for either end there is a series of ours for each of grpc-go's. Names, labels and numbers must be the
same; durations alike."""

import collections
import json
import os
import queue
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import support

CASES = 252
CONFIG = """global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: metered
    static_configs:
      - {targets: ["%s"], labels: {of: theirs}}
      - {targets: ["%s"], labels: {of: ours}}
"""

RETRY = {"methodConfig": [{
    "name": [{}],
    "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.02s", "maxBackoff": "0.05s",
                    "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}

CODES = [code for code in range(1, 17)]

# Calls by what they are about: fields of an op, and the code they must end with
CALLS = (
    [("unary", {}, 0)] * 5
    + [("unary", {"payloadBytes": 2000, "responseBytes": 5000}, 0)] * 3
    + [("unary", {"metadata": {"fail-code": str(code)}}, code) for code in CODES]
    + [("client-stream", {"payloadBytes": 100, "messages": 10}, 0),
       ("client-stream", {"metadata": {"fail-code": "5"}}, 5),
       ("server-stream", {"responseBytes": 1500, "messages": 7}, 0),
       ("server-stream", {"responseBytes": 10, "messages": 4, "intervalMs": 100}, 0),
       ("server-stream", {"metadata": {"fail-code": "10"}}, 10),
       ("bidi", {"payloadBytes": 50, "responseBytes": 70, "messages": 5}, 0),
       ("bidi", {"metadata": {"fail-code": "13"}}, 13)]
    # deadlines and cancellations: what has gone by then is certain
    + [("server-stream", {"responseBytes": 10, "messages": 2, "intervalMs": 900,
                          "timeoutMs": 300}, 4)] * 2
    + [("server-stream", {"responseBytes": 10, "messages": 2, "intervalMs": 900,
                          "cancelAfterMs": 300}, 1)] * 3
    + [("bidi", {"payloadBytes": 10, "messages": 2, "intervalMs": 900, "cancelAfterMs": 300}, 1)] * 2
    # methods that the server, or nobody, has
    + [("unimplemented", {}, 12), ("unknown", {}, 12)]
    + [("generic", {}, 12)] * 2)

RETRIED = [
    ("unary", {"metadata": {"fail-code": "14"}}, 14),
    ("unary", {"metadata": {"fail-code": "14", "fail-attempts": "1"}}, 0),
    ("unary", {"metadata": {"fail-code": "14", "fail-attempts": "2"}, "payloadBytes": 1200}, 0),
    ("unary", {"metadata": {"fail-code": "9"}}, 9),
    ("server-stream", {"metadata": {"fail-code": "14", "fail-attempts": "1"},
                       "responseBytes": 20, "messages": 3}, 0),
    ("client-stream", {"metadata": {"fail-code": "14", "fail-attempts": "2"}, "payloadBytes": 30},
     0)]

NOBODY = [("unary", {}, 14),
          ("unary", {"waitForReady": True, "timeoutMs": 400}, 4),
          ("server-stream", {"waitForReady": True, "cancelAfterMs": 300}, 1)]


class Metered(support.Server):
    """One of the two, which makes calls that it is told to on its standard input."""

    stdin = subprocess.PIPE

    def __enter__(self):
        super().__enter__()
        self.metrics = urllib.parse.urlparse(self.line_with("metrics at ", 20)).netloc
        self.count, self.waiting, self.lock = 0, {}, threading.Lock()
        threading.Thread(target=self._sort, daemon=True).start()
        return self

    def _sort(self):
        while (line := self.lines.get()) is not None:
            if line.startswith("{"):
                answer = json.loads(line)
                self.waiting[answer["id"]].put(answer)
            else:
                self.last = line

    def ask(self, op, **fields):
        """Write an op and return a queue that gets what came of it."""
        with self.lock:
            self.count += 1
            answer = self.waiting[self.count] = queue.Queue()
            self.process.stdin.write(json.dumps({"op": op, "id": self.count, **fields}) + "\n")
            self.process.stdin.flush()
        return answer


def perform(client, channel, calls, together):
    """Make CALLS on CHANNEL of CLIENT, one after another or TOGETHER; return what went wrong."""
    wrong, asked = [], []

    def check(answer, method, fields, code):
        said = answer.get(timeout=30)
        if said.get("code") != code:
            wrong.append("%s on %s: %s, not %d" % ((method, fields), channel, said, code))

    for method, fields, code in calls:
        asked.append((client.ask("call", channel=channel, method=method, **fields),
                      method, fields, code))
        if not together:
            check(*asked.pop())
    for entry in asked:
        check(*entry)
    return wrong


def drive(client, servers, nobody):
    """Have CLIENT call SERVERS; return what went wrong."""
    wrong = []
    for name, server in servers.items():
        for kind, config in (("plain", None), ("retry", RETRY)):
            client.ask("channel", name=name + kind, target="dns:///" + server.address,
                       **({"serviceConfig": config} if config else {})).get(timeout=30)
        wrong += perform(client, name + "plain", CALLS[:1], False)  # it is connected then
        wrong += perform(client, name + "plain", CALLS[1:], True)
        wrong += perform(client, name + "retry", RETRIED, False)
    client.ask("channel", name="nobody", target="dns:///" + nobody).get(timeout=30)
    wrong += perform(client, "nobody", NOBODY, False)
    for name in ["nobody", *(name + "retry" for name in servers)]:
        client.ask("close", channel=name).get(timeout=30)
    return wrong


class Prometheus:
    """A Prometheus that scrapes both."""

    def __init__(self, theirs, ours):
        self.config = CONFIG % (theirs, ours)

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory()
        file = os.path.join(self.directory.name, "prometheus.yml")
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(self.config)
        self.address = "127.0.0.1:" + support.free_port()
        with open(os.path.join(self.directory.name, "log"), "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", "--config.file", file, "--web.listen-address", self.address,
                 "--storage.tsdb.path", os.path.join(self.directory.name, "data")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def ask(self, path, seconds=30, **parameters):
        """The data that its API has at PATH. Waits until it answers."""
        url = "http://%s/api/v1/%s?%s" % (self.address, path, urllib.parse.urlencode(parameters))
        end = time.monotonic() + seconds
        while True:
            try:
                with urllib.request.urlopen(url, timeout=10) as response:
                    return json.load(response)["data"]
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.2)

    def query(self, expression):
        """What it finds for EXPRESSION: a list of labels and numbers."""
        return [(entry["metric"], float(entry["value"][1]))
                for entry in self.ask("query", query=expression)["result"]]

    def await_scrapes(self, count=2, seconds=30):
        """Wait until both have been scraped COUNT times from now on."""
        def done():
            return min([int(number) for _, number in
                        self.query('count_over_time(up{job="metered"}[1h])')] or [0])
        begin, end = done(), time.monotonic() + seconds
        while done() < begin + count or len(self.query("up == 1")) < 2:
            if time.monotonic() > end:
                raise AssertionError("Prometheus does not scrape: %s" % self.query("up"))
            time.sleep(0.3)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.directory.cleanup()


IGNORED = ("of", "instance", "job", "otel_scope_name", "otel_scope_version",
           "otel_scope_schema_url")


def label(name, label, value):
    """VALUE, or what stands for it: a server whose client's deadline passes may see the deadline
    first, or the client's reset."""
    if (name.startswith("grpc_server_") and label == "grpc_status"
            and value in ("CANCELLED", "DEADLINE_EXCEEDED")):
        return "CANCELLED or DEADLINE_EXCEEDED"
    return value


def series(prometheus, whose):
    """The series of gRPC that WHOSE process tells of: numbers by name and labels."""
    found = collections.Counter()
    for labels, number in prometheus.query('{__name__=~"grpc_.+", of="%s"}' % whose):
        name = labels.pop("__name__")
        found[name, tuple(sorted((key, label(name, key, value)) for key, value in labels.items()
                                 if key not in IGNORED))] += number
    return found


def kinds(prometheus, whose):
    """The kinds of the metrics of gRPC that WHOSE process tells of, by name."""
    return {entry["metric"]: entry["type"]
            for entry in prometheus.ask("targets/metadata", match_target='{of="%s"}' % whose)
            if entry["metric"].startswith("grpc_")}


def seconds_p(name):
    return "_seconds_" in name or name.endswith("_seconds")


# grpc-go counts the beginning of a call of a method that nobody has registered, but not its end.
UNTOLD = (("grpc_method", "other"), ("grpc_status", "UNIMPLEMENTED"))


def compare(theirs, ours):
    """Pairs of the name of a comparison and what is wrong, or None."""
    ours = {(name, labels): number for (name, labels), number in ours.items()
            if not (name.startswith("grpc_server_call_") and set(UNTOLD) <= set(labels)
                    and (name, labels) not in theirs)}
    for name in sorted({name for name, _ in theirs} | {name for name, _ in ours}):
        mine = {labels: number for (other, labels), number in ours.items() if other == name}
        his = {labels: number for (other, labels), number in theirs.items() if other == name}
        missing, more = his.keys() - mine.keys(), mine.keys() - his.keys()
        yield ("series of " + name,
               "missing: %s; more: %s" % (sorted(missing)[:3], sorted(more)[:3])
               if missing or more else None)
        # how often nobody was asked for a connection depends on chance and time
        if name == "grpc_subchannel_connection_attempts_failed_total":
            continue
        if seconds_p(name) and not name.endswith("_count"):
            continue
        different = ["%s: %g, not %g" % (dict(labels), mine[labels], his[labels])
                     for labels in sorted(his.keys() & mine.keys()) if mine[labels] != his[labels]]
        yield ("numbers of " + name, "; ".join(different[:4]) if different else None)


def durations(theirs, ours):
    """Pairs of the name of a series of durations and how the means of the two differ, or None: by
    more than 150 ms, which a busy machine may need, and a tenth."""
    for (name, labels), total in sorted(theirs.items()):
        if name.endswith("_seconds_sum"):
            count = name[:-len("sum")] + "count"
            mine = (ours.get((name, labels), 0)
                    / max(1, ours.get((count, labels), 0)))
            his = total / max(1, theirs[count, labels])
            yield ("mean of %s %s" % (name[:-len("_sum")], dict(labels)),
                   None if abs(mine - his) < 0.15 + his / 10
                   else "%.3f s, not %.3f s" % (mine, his))


DASHBOARD = os.path.join(support.ROOT, "examples", "monitoring", "dashboard.json")
COLLECTOR = os.path.join(support.ROOT, "examples", "monitoring", "collector.yml")

# Of these nothing has been counted here: nobody was refused, and nothing goes to a collector.
QUIET = ("clgrpc_server_refusals_total", "clgrpc_otlp_")


def dashboard(prometheus, instance):
    """Pairs of the name of an expression of the dashboard of examples/monitoring and what is wrong
    if Prometheus finds nothing of INSTANCE for it, or None."""
    with open(DASHBOARD, encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            expression = target["expr"]
            asked = (expression.replace("$__rate_interval", "5m")
                     .replace("$instance", instance).replace("$job", ".+").replace("$method", ".+"))
            found = prometheus.query(asked)
            yield ("dashboard, %s: %s" % (panel["title"], target["legendFormat"]),
                   None if found or any(name in expression for name in QUIET)
                   else "nothing for " + asked)


def collector_complaint():
    """What a collector says against the configuration of examples/monitoring, or None."""
    program = support.go_build("otelcol", ".", os.path.join(support.PEERS, "otelcol"))
    done = subprocess.run([program, "validate", "--config", COLLECTOR], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return None if done.returncode == 0 else done.stdout


def compared():
    """Pairs of the name of a comparison and what is wrong, or None."""
    peer = support.run([os.path.join(support.ROOT, "scripts", "peer")]).strip().splitlines()[-1]
    with socket.socket() as closed, Metered([peer, "metered"]) as theirs, \
            Metered(["bin/clgrpc-testee", "testee", "metrics"]) as ours, \
            Prometheus(theirs.metrics, ours.metrics) as prometheus:
        closed.bind(("127.0.0.1", 0))   # and nobody listens there
        nobody = "127.0.0.1:%d" % closed.getsockname()[1]
        servers = {"theirs": theirs, "ours": ours}
        prometheus.await_scrapes()
        for client in (theirs, ours):
            wrong = drive(client, servers, nobody)
            yield ("calls of " + ("ours" if client is ours else "grpc-go"),
                   "; ".join(wrong[:4]) if wrong else None)
        prometheus.await_scrapes(3)
        told = [series(prometheus, whose) for whose in ("theirs", "ours")]
        yield from compare(*told)
        yield from dashboard(prometheus, ours.metrics)
        yield "the collector's configuration", collector_complaint()
        his, mine = [kinds(prometheus, whose) for whose in ("theirs", "ours")]
        for name, kind in sorted(his.items()):
            yield ("kind of " + name, None if kind == mine.get(name) else
                   "%s, not %s" % (mine.get(name), kind))
        yield from durations(*told)
