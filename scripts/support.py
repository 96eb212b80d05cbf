"""The common parts of the Python drivers (tests/conformance/run, bench/run): programs built with Go
and kept in the cache, and servers that run as long as a `with` block does and no longer than the
driver."""

import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "clgrpc")
PEERS = os.path.join(ROOT, "tests", "peers")
SBCL = os.environ.get("SBCL", "sbcl")


def note(text):
    """Print a message to the user that is not part of the result."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """A line on a terminal that says how far things are; nothing in a pipe."""

    def __init__(self, total):
        self.total, self.done, self.visible = total, 0, sys.stderr.isatty()

    def step(self, text):
        self.done += 1
        if self.visible:
            sys.stderr.write("\r\033[K[%d/%d] %s" % (self.done, self.total, text))
            sys.stderr.flush()

    def clear(self):
        if self.visible:
            sys.stderr.write("\r\033[K")


def lisp_command(*files, heap_mb=2048):
    """The command that loads FILES into a Lisp and ends; a relative one counts from where it runs."""
    return ([SBCL, "--noinform", "--dynamic-space-size", str(heap_mb), "--non-interactive",
             "--no-sysinit", "--no-userinit"]
            + [word for file in files for word in ("--load", file)])


def have(program):
    return shutil.which(program) is not None


def run(command, **options):
    """Run COMMAND, which must succeed; its output is shown only if it does not."""
    options = {"stderr": subprocess.STDOUT, **options}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, errors="replace", **options)
    if done.returncode != 0:
        sys.exit("%s failed:\n%s" % (" ".join(command), done.stdout))
    return done.stdout


def go_build(name, package, module=PEERS):
    """Build PACKAGE, of the MODULE of the peers or one it names, and return the program's path."""
    path = os.path.join(CACHE, "bin", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    run(["go", "build", "-o", path, package], cwd=module)
    return path


def c_build(name):
    """Build the C program bench/peers/NAME.c and return its path."""
    path = os.path.join(CACHE, "bin", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    run(["cc", "-O2", "-Wall", "-pthread", "-o", path, os.path.join(ROOT, "bench", "peers", name + ".c")])
    return path


def go_install(name, package_and_version):
    """Fetch and build a program of another module, once, and return its path."""
    path = os.path.join(CACHE, "bin", name)
    if not os.path.exists(path):
        note("fetching and building %s" % package_and_version)
        run(["go", "install", package_and_version],
            env=dict(os.environ, GOBIN=os.path.dirname(path)))
    return path


def go_fetch(name, module, version):
    """As go_install, for modules whose list of versions cannot be had, which that asks for."""
    path = os.path.join(CACHE, "bin", name)
    if not os.path.exists(path):
        note("fetching and building %s@%s" % (module, version))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with tempfile.TemporaryDirectory() as directory:
            run(["go", "mod", "init", "fetch"], cwd=directory)
            run(["go", "mod", "edit", "-require", "%s@%s" % (module, version)], cwd=directory)
            run(["go", "build", "-mod=mod", "-o", path, module], cwd=directory)
    return path


def certificate(name):
    """The path of the file NAME of scripts/certificates, made if need be."""
    directory = run([os.path.join(ROOT, "scripts", "certificates")]).strip()
    return os.path.join(directory, name)


def tls_options():
    """The options by which our server, and the peer's, speak TLS."""
    return ["--tls-cert", certificate("server.pem"), "--tls-key", certificate("server.key")]


def free_port():
    """A port on which no process listens now, as text."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def await_port(port, process):
    """Wait until PROCESS listens on PORT."""
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", int(port)), 1).close()
            return
        except OSError:
            if process.poll() is not None:
                sys.exit("%s ended with %d" % (process.args[0], process.returncode))
            time.sleep(0.1)
    sys.exit("%s does not listen" % process.args[0])


class Server:
    """A server that prints `listening on HOST:PORT`, alive inside its `with` block."""

    stdin = subprocess.DEVNULL
    start_seconds = 20

    def __init__(self, command, environment=None):
        self.command = command
        self.environment = dict(os.environ, **(environment or {}))

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, stdin=self.stdin, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", env=self.environment)
        self.pid = self.process.pid
        self.lines, self.last = queue.Queue(), ""
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.address = self.line_with("listening on ", self.start_seconds)
        except BaseException:
            self.__exit__()
            raise
        self.host, _, self.port = self.address.rpartition(":")
        return self

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def try_line(self, prefix, seconds):
        """Wait for a line of output that begins with PREFIX; return the rest of it, or None if none
        comes in time or the output ends."""
        while True:
            try:
                line = self.lines.get(timeout=seconds)
            except queue.Empty:
                return None
            if line is None:
                return None
            if line.startswith(prefix):
                return line[len(prefix):].strip()
            self.last = line

    def line_with(self, prefix, seconds):
        """As try_line, but end the program if there is no such line."""
        line = self.try_line(prefix, seconds)
        if line is None:
            sys.exit("%s did not print %r. %s" % (" ".join(self.command), prefix, self.last))
        return line

    def alive(self):
        return self.process.poll() is None

    def __exit__(self, *_):
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
