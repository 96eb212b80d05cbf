"""The delayed-answer test: every connection sends a request, which the server answers some seconds
later on the same socket, and connections pile up. How many are held and answered, how late the
answers are, and the server's memory for a connection: the slope of resident memory between a
thousand connections and as many as one process may have descriptors for, after a full collection.
The clients are the same for all servers: a thread with an epoll descriptor."""

import contextlib
import json
import resource
import shlex
import subprocess
import time

import driven
import machine
import markdown
import series
import servers
import support
import svg

TITLE = "Thousands of connections that wait"
FEW, MOST, FLEET, PROCESSES = 1000, 19000, 40000, 3
SPARE_DESCRIPTORS = 500
FIGURES = [("waiting_octets", "resident octets each, waiting", True),
           ("answered_octets", "the same, answered", True),
           ("answers_per_second", "answers/s", False), ("late_p99_ms", "p99 late ms", True),
           ("opened_per_second", "opened/s", False),
           ("server_cpu_us_per_answer", "CPU µs/answer", True),
           ("collection_ms", "full collection ms", None), ("lost", "lost", True)]
FLEET_FIGURES = [("held", "held"), ("lost", "lost"), ("opened_per_second", "opened/s"),
                 ("answers_per_second", "answers/s"), ("late_p99_ms", "p99 late ms"),
                 ("slowest_connect_ms", "slowest to connect ms")]


class Server(support.Server):
    """A server that collects its garbage for each line of its standard input."""

    stdin = subprocess.PIPE

    def collect(self):
        """Have it collect; return what is resident then, in octets, and how long it takes, in ms, the
        least of three times."""
        times = []
        for _ in range(3):
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            words = dict(word.split("=") for word in self.line_with("heap=", 60).split()[1:])
            times.append(float(words["milliseconds"]))
        return resident(self.pid), min(times)


class Crowd(driven.Load):
    """The connections of one client process."""

    def __init__(self, kind, delay, sources, address, core):
        super().__init__([servers.peer(), "connections", "-kind", kind, "-delay", "%gs" % delay,
                          "-sources", ",".join(sources), address], core, {"GOMAXPROCS": "1"})

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def asked(self):
        """Return when all connections have asked."""
        self._expect("asked")

    def figures(self):
        """The results, once all requests have been answered or given up."""
        return json.loads(self._expect("{"))


def resident(pid):
    with open("/proc/%d/smaps_rollup" % pid, encoding="ascii") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("Rss:"))


def slab():
    """Octets of the kernel's own objects, sockets among them."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("Slab:"))


def sources(first, count=4):
    return ["127.0.0.%d" % (first + i) for i in range(count)]


def most_connections():
    """As many as a process may have descriptors for, up to MOST."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(MOST, hard - SPARE_DESCRIPTORS)


def run(kind, delay, most, server, core):
    """Let one server hold FEW and then MOST connections; return its memory for each, and its
    answers."""
    memory, collections, kernel, lost = {}, {}, {}, 0
    with Crowd(kind, delay, sources(2), server.address, core) as crowd:
        for count in (FEW, most):
            crowd.tell("open %d" % count)
            crowd.asked()
            opened = crowd.figures()
            answered, _ = server.running.collect()
            kernel[count] = slab()
            crowd.tell("ask")
            crowd.asked()
            time.sleep(0.1 * delay)  # so that all have arrived
            waiting, collections[count] = server.running.collect()
            again = crowd.figures()
            memory[count] = {"answered": answered, "waiting": waiting}
            lost += opened["lost"] + again["lost"]
        meter = machine.CpuMeter(server.pid)
        crowd.tell("ask")
        crowd.asked()
        last = crowd.figures()
        cpu = meter.seconds()

    def slope(values):
        return (values[most] - values[FEW]) / (most - FEW)

    return {"held": last["held"], "lost": lost + last["lost"],
            "waiting_octets": slope({n: at["waiting"] for n, at in memory.items()}),
            "answered_octets": slope({n: at["answered"] for n, at in memory.items()}),
            "kernel_octets_of_a_pair": slope(kernel),
            "opened_per_second": (most - FEW) / opened["asked_seconds"],
            "answers_per_second": last["answers"] / last["answering_seconds"],
            "late_p50_ms": last["late_p50_ms"], "late_p99_ms": last["late_p99_ms"],
            "collection_ms": collections[most],
            "collection_ms_of_a_thousand": 1000 * slope(collections),
            "server_cpu_us_per_answer": 1e6 * cpu / max(1, last["answers"]),
            "complaints": last["complaints"]}


def run_fleet(kind, delay, total, cores):
    """TOTAL connections to PROCESSES servers that share one port, from as many clients."""
    with contextlib.ExitStack() as stack:
        address = "127.0.0.1:0"
        for _ in range(PROCESSES):
            command, environment = kind.ours(address, delay)
            server = Server(machine.pinned(cores[1], command), environment)
            address = stack.enter_context(server).address
        crowds = [stack.enter_context(Crowd(kind.word, delay, sources(10 * (i + 1)), address,
                                            cores[0]))
                  for i in range(PROCESSES)]
        for i, crowd in enumerate(crowds):
            crowd.tell("open %d" % ((total + i) // PROCESSES))
        for crowd in crowds:
            crowd.asked()
        opened = [crowd.figures() for crowd in crowds]
        for crowd in crowds:
            crowd.tell("ask")
        for crowd in crowds:
            crowd.asked()
        last = [crowd.figures() for crowd in crowds]
    return {"held": sum(one["held"] for one in last),
            "lost": sum(one["lost"] for one in opened + last),
            "slowest_connect_ms": max(one["slowest_connect_ms"] for one in opened),
            "opened_per_second": sum(one["answers"] for one in opened)
                                 / max(one["asked_seconds"] for one in opened),
            "answers_per_second": sum(one["answers"] for one in last)
                                  / max(one["answering_seconds"] for one in last),
            "late_p99_ms": max(one["late_p99_ms"] for one in last)}


def greeter(address, delay):
    del delay
    return ["bin/clgrpc", "serve", "greeter", "--loops", "1", "--listen", address, "--collect",
            "--limits", "max-handshakes=20000,reuse-port=true"], None


def delayed(address, delay):
    return support.lisp_command("scripts/load.lisp", "bench/ours/delayed.lisp"), {
        "CLGRPC_LISTEN": address, "CLGRPC_DELAY": str(delay)}


class Kind:
    """gRPC or plain TCP: the client's name for it, our server, a function of its address and the
    delay that returns its command and environment, and Go's, whose name is PEER."""

    def __init__(self, word, ours, peer, go):
        self.word, self.ours, self.peer, self.go = word, ours, peer, go

    def contend(self, contenders, delay):
        command, environment = self.ours("127.0.0.1:0", delay)
        contenders.add("clgrpc", command, environment, kind=Server)
        contenders.add(self.peer, [servers.peer(), *self.go(delay)], {"GOMAXPROCS": "1"},
                       kind=Server)


KINDS = {"plain TCP": Kind("plain", delayed, "Go",
                           lambda delay: ["delayed-server", "-delay", "%ds" % delay]),
         "gRPC": Kind("grpc", greeter, "grpc-go", lambda delay: ["scenario-server", "-collect"])}


def measure(options):
    cores = machine.cores()
    delay = 5 if options.seconds >= 1 else 1
    most = most_connections()
    total = min(FLEET, PROCESSES * most)
    rows, fleet, commands = [], [], {}
    for name, kind in KINDS.items():
        with servers.Contenders(options) as contenders:
            kind.contend(contenders, delay)
            rows += series.interleaved(
                [{"kind": name, "connections": most}], contenders.members, 1,
                lambda row, server, kind=kind: run(kind.word, delay, most, server, cores[0]))
            commands.update(("%s, %s" % (name, side), command)
                            for side, command in contenders.commands().items())
        fleet.append({"kind": name, "connections": total,
                      **run_fleet(kind, delay, total, cores)})
    commands["load"] = shlex.join(machine.pinned(cores[0], [
        "peer", "connections", "-kind", "KIND", "-delay", "%gs" % delay, "-sources", "ADDRESSES",
        "ADDRESS"]))
    return {"rounds": 1, "commands": commands, "absent": [], "delay": delay, "rows": rows,
            "fleet": fleet}


def describe(row):
    return "%s, %s" % (row["kind"], "{:,}".format(row["connections"]))


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def paper(row):
    """The memory of a million of the connections of ROW."""
    ours = row["sides"]["clgrpc"]["median"]
    count, few = 1000000, row["connections"]
    gigabytes = count * ours["waiting_octets"] / 1e9
    rest = ours["collection_ms"] - few / 1000 * ours["collection_ms_of_a_thousand"]
    kernel = count * ours["kernel_octets_of_a_pair"] / 2 / 1e9
    return ("{kind}: {resident:.1f} GB resident while all wait, {kernel:.1f} GB of the kernel's "
            "for the server's sockets; all answered in {seconds:.0f} s of one core; {processes} "
            "processes with {few:,} descriptors each, of which a full collection stops one for "
            "{each:,.0f} ms, or one process with a limit of 1,048,576 (Linux's default for "
            "`fs.nr_open`), in which it takes {all:.1f} s.".format(
                kind=row["kind"], resident=gigabytes, kernel=kernel, few=few,
                seconds=count * ours["server_cpu_us_per_answer"] / 1e6,
                processes=-(-count // few), each=ours["collection_ms"],
                all=(rest + count / 1000 * ours["collection_ms_of_a_thousand"]) / 1000))


def table(results):
    fleet = [[describe(row), *(markdown.figure(row[key]) for key, _ in FLEET_FIGURES)]
             for row in results["fleet"]]
    return "\n".join([
        "Each connection makes a request as soon as it is open, then another, and a last one when "
        "all are open; the answer comes %g s later. Clients on one core, the server on the other; "
        "connections from four addresses, opened all at once. Octets are those resident in the "
        "server's process after a full collection, the slope between %s connections and all; "
        "lateness is that of the answers to the requests that all make at "
        "once." % (results["delay"], "{:,}".format(FEW)), "",
        markdown.comparison(results["rows"], "connections", describe, FIGURES),
        "Three server processes that share a port, and three clients, on the same two cores:", "",
        markdown.table(["connections"] + [name for _, name in FLEET_FIGURES], fleet),
        "Computed from these, a million connections to one machine (a client has 28,232 ports for "
        "each pair of addresses, so at least 36 client addresses are needed):", "",
        *("- " + paper(row) for row in results["rows"]), ""])


def plots(results):
    return {"connections": svg.bars(TITLE, "resident octets each, waiting",
                                    [(describe(row), markdown.values(row, "waiting_octets"))
                                     for row in results["rows"]])}
