"""Server CPU of a GET of /healthz over HTTP/1.1 connections that stay open, beside nginx, which
returns the same text from its configuration. One core each."""

import os
import socket
import tempfile

import driven
import machine
import markdown
import series
import servers
import support
import svg

TITLE = "GET /healthz over HTTP/1.1"
ROWS = [{"connections": connections} for connections in (1, 10, 100)]
LISP = support.lisp_command("scripts/load.lisp", "bench/ours/http.lisp")
FIGURES = [("cpu_ns_per_request", "server CPU ns/request", True),
           ("requests_per_second", "requests/s", False)]
CONFIGURATION = """
daemon off; master_process off; worker_processes 1;
pid %(folder)s/pid; error_log stderr crit;
events { worker_connections 1024; }
http {
  access_log off; default_type text/plain; charset utf-8; keepalive_requests 1000000000;
  client_body_temp_path %(folder)s; proxy_temp_path %(folder)s; fastcgi_temp_path %(folder)s;
  uwsgi_temp_path %(folder)s; scgi_temp_path %(folder)s;
  server {
    listen 127.0.0.1:%(port)d;
    location = /healthz { add_header cache-control no-store; return 200 "serving"; }
  }
}
"""


class Nginx(servers.FileServer):
    """nginx with a configuration of ours in FOLDER."""

    def __init__(self, command, environment=None, folder=None):
        super().__init__(command, environment)
        self.folder = folder

    def __enter__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port_asked = probe.getsockname()[1]
        path = os.path.join(self.folder, "nginx.conf")
        with open(path, "w", encoding="ascii") as file:
            file.write(CONFIGURATION % {"folder": self.folder, "port": self.port_asked})
        self.command = [*self.command, "-p", self.folder, "-c", path]
        return support.Server.__enter__(self)


class Http(driven.Load):
    """The load at SERVER over so many CONNECTIONS."""

    def __init__(self, connections, server, core):
        super().__init__([support.c_build("http"), "load", server.running.port, "/healthz",
                          str(connections)], core)

    def exchange(self, requests, pid):
        meter = machine.CpuMeter(pid)
        self.process.stdin.write("%d\n" % requests)
        self.process.stdin.flush()
        figures = driven.json.loads(self._expect("{"))
        return dict(figures, cpu=meter.seconds())


def measure(options):
    core = machine.cores()[0]

    def run(row, server, seconds=options.seconds):
        with Http(row["connections"], server, core) as load:
            trial = load.exchange(3000, server.pid)
            figures = load.exchange(int(seconds * trial["requests"] / trial["seconds"]), server.pid)
        return {"cpu_ns_per_request": 1e9 * figures["cpu"] / figures["requests"],
                "requests_per_second": figures["requests"] / figures["seconds"]}

    with tempfile.TemporaryDirectory() as folder, servers.Contenders(options) as contenders:
        contenders.add("clgrpc", LISP)
        if support.have("nginx"):
            contenders.add("nginx", ["nginx"], kind=Nginx, folder=folder)
        else:
            contenders.absent.append("nginx (it is not installed)")
        rows = series.interleaved(ROWS, contenders.members, options.rounds, run,
                                  lambda row, server: run(row, server, 0.2))
        return {"commands": {**contenders.commands(), "load": "http load PORT /healthz CONNECTIONS"},
                "absent": contenders.absent, "rows": rows}


def describe(row):
    return "%d" % row["connections"]


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "Connections, with one request in flight on each. `clgrpc` asks its health service for each "
        "answer; nginx has it in its configuration, and neither writes a log.", "",
        markdown.comparison(results["rows"], "connections", describe, FIGURES)])


def plots(results):
    return {"http": svg.bars(TITLE, "ns of server CPU per request",
                             [(describe(row), markdown.values(row, "cpu_ns_per_request"))
                              for row in results["rows"]])}
