"""The servers that are compared, each held to one core with one loop: ours, grpc-go, tonic on its
current-thread flavour, nghttpd, which knows no gRPC but sends the same octets and a trailer, and
bench/peers/canned.c, which shows how much of the cost is the kernel's."""

import contextlib
import os
import shlex
import shutil
import socket
import time

import machine
import series
import support

FEATURES = os.path.join(support.ROOT, "examples", "features.json")
TONIC = os.path.join(support.PEERS, "tonic")


def peer():
    """The Go program of tests/peers."""
    return support.go_build("peer", ".")


def tonic():
    """The Rust program of tests/peers/tonic, built in the cache, or None without cargo."""
    if not support.have("cargo"):
        return None
    target = os.path.join(support.CACHE, "cargo")
    support.run(["cargo", "build", "--release", "--quiet"], cwd=TONIC,
                env=dict(os.environ, CARGO_TARGET_DIR=target))
    return os.path.join(target, "release", "tonic-peer")


class FileServer(support.Server):
    """nghttpd, which does not say when it listens and cannot pick a port; BEHIND is the part of its
    command line after the port."""

    def __init__(self, command, environment=None, behind=()):
        super().__init__(command, environment)
        self.behind = behind

    def __enter__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.port_asked = port
        self.command = [*self.command, str(port), *self.behind]
        return super().__enter__()

    def line_with(self, prefix, seconds):
        del prefix
        port = self.port_asked
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.alive():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return "127.0.0.1:%d" % port
            time.sleep(0.01)
        raise SystemExit("%s does not listen" % shlex.join(self.command))


class Contender:
    """A server that takes part: NAME, and RUNNING, the process."""

    def __init__(self, name, command, running):
        self.name, self.command, self.running = name, command, running
        self.running, self.address, self.pid = running, running.address, running.pid


class Contenders:
    """The servers of one part, alive inside the `with` block; they may use all cores if they are
    not PINNED."""

    def __init__(self, options, pinned=True):
        self.core = machine.cores()[1] if pinned else None
        self.options = options
        self.members = []
        self.absent = []
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *details):
        return self.stack.__exit__(*details)

    def add(self, name, command, environment=None, kind=support.Server, **options):
        server = kind(machine.pinned(self.core, command), environment, **options)
        running = self.stack.enter_context(server)
        shown = " ".join("%s=%s" % item for item in (environment or {}).items())
        words = machine.pinned(self.core, [os.path.basename(command[0]), *command[1:]])
        self.members.append(Contender(name, (shown + " " + shlex.join(words)).strip(), running))

    def add_ours(self, *arguments):
        self.add("clgrpc", [*self.options.ours.split(), *arguments])

    def add_grpc_go(self, *arguments):
        self.add("grpc-go", [peer(), "bench-server", "-listen", "127.0.0.1:0", *arguments],
                  {"GOMAXPROCS": "1"})

    def add_tonic(self):
        program = tonic()
        if program:
            self.add("tonic", [program])
        else:
            self.absent.append("tonic (there is no cargo)")

    def add_nghttpd(self, path, answer, directory, tls=False):
        """Serve the octets ANSWER at PATH from DIRECTORY."""
        if not support.have("nghttpd"):
            self.absent.append("nghttpd (it is not installed)")
            return
        root = os.path.join(directory, "root")
        shutil.rmtree(root, ignore_errors=True)
        os.makedirs(os.path.join(root, os.path.dirname(path).lstrip("/")))
        with open(root + path, "wb") as file:
            file.write(answer)
        options = ["--address=127.0.0.1", "--trailer=grpc-status: 0", "--htdocs", root]
        if tls:
            self.add("nghttpd", ["nghttpd", *options], kind=FileServer,
                      behind=[support.certificate("server.key"), support.certificate("server.pem")])
        else:
            self.add("nghttpd", ["nghttpd", "--no-tls", *options], kind=FileServer)
        self.members[-1].command = self.members[-1].command.replace(root, "ROOT")

    def add_floor(self):
        self.add(series.FLOOR, [support.c_build("canned")])

    def commands(self):
        return {member.name: member.command for member in self.members}
