"""An etcd of one member for a measurement, with its data in a directory of its own."""

import os
import shutil
import subprocess
import tempfile
import time
import urllib.request

import support


def version():
    words = subprocess.run(["etcd", "--version"], capture_output=True, text=True).stdout.split()
    return "etcd " + words[2]


class Etcd:
    """An etcd, alive inside the `with` block."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="clgrpc-bench-etcd-")
        port, peer_port = support.free_port(), support.free_port()
        self.address = "127.0.0.1:" + port
        url, peer_url = "http://" + self.address, "http://127.0.0.1:" + peer_port
        self.command = ["etcd", "--data-dir", self.folder, "--listen-client-urls", url,
                        "--advertise-client-urls", url, "--listen-peer-urls", peer_url,
                        "--initial-advertise-peer-urls", peer_url, "--initial-cluster",
                        "default=" + peer_url, "--log-level", "error"]

    def page(self, path):
        return urllib.request.urlopen("http://%s/%s" % (self.address, path), timeout=10).read().decode()

    def metrics(self):
        """Its metrics, by name with labels."""
        return {name: float(value) for name, value in
                (line.rsplit(" ", 1) for line in self.page("metrics").splitlines()
                 if line and not line.startswith("#"))}

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                if "true" in self.page("health"):
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        raise SystemExit("bench: etcd does not start")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
