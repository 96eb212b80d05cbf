"""The machine a measurement ran on, which cores are whose, and how much CPU a process has used."""

import datetime
import os
import platform
import re
import resource
import subprocess
import time

import support


def _output(*command):
    try:
        return subprocess.run(command, cwd=support.ROOT, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    except OSError:
        return ""


def _processor():
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def _go_module(path):
    """The version of the Go module PATH that the peers use."""
    return _output("go", "list", "-C", support.PEERS, "-m", "-f", "{{.Version}}", path)


def _tonic():
    """The version of tonic, and of the compiler if there is one."""
    with open(os.path.join(support.PEERS, "tonic", "Cargo.toml"), encoding="utf-8") as file:
        found = re.search(r'^tonic = .*"=([^"]+)"', file.read(), re.MULTILINE)
    return ", ".join(filter(None, ["tonic " + found[1], _output("rustc", "--version")]))


def description():
    """The facts that a reader needs to judge figures: machine, versions, time."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
        "sbcl": _output(support.SBCL, "--version"),
        "go": _output("go", "env", "GOVERSION"),
        "grpc_go": "grpc-go " + _go_module("google.golang.org/grpc"),
        "grpchan": "grpchan " + _go_module("github.com/fullstorydev/grpchan"),
        "tonic": _tonic(),
        "h2load": _output("h2load", "--version"),
        "nghttpd": _output("nghttpd", "--version"),
    }


class Others:
    """How much of the machine others use from now on, while we wait for our children."""

    def __init__(self):
        self.begin = self._seconds()

    @staticmethod
    def _seconds():
        with open("/proc/stat", encoding="ascii") as file:
            times = [int(field) for field in file.readline().split()[1:9]]
        used = os.times()
        busy = (sum(times) - times[3] - times[4]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy, sum(used[:4])

    def percent(self):
        elapsed, busy, ours = (after - before for after, before
                               in zip(self._seconds(), self.begin))
        return max(0.0, 100 * (busy - ours) / (elapsed * os.cpu_count()))


def cores():
    """The core of the load and the core of the servers; the same one if there is no second."""
    available = sorted(os.sched_getaffinity(0))
    return available[0], available[-1]


def pinned(core, command):
    """COMMAND held to CORE, or as it is if that is None."""
    return list(command) if core is None else ["taskset", "-c", str(core), *command]


def _thread_times(pid):
    """Nanoseconds on a core of each thread of the process PID."""
    times = {}
    for thread in os.listdir("/proc/%d/task" % pid):
        try:
            with open("/proc/%d/task/%s/schedstat" % (pid, thread), encoding="ascii") as file:
                times[thread] = int(file.read().split()[0])
        except OSError:
            pass  # it has just ended
    return times


def _process_time(pid):
    """Seconds of CPU of the process PID, ended threads included, to 10 ms."""
    with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    """The CPU seconds, user and kernel, of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class CpuMeter:
    """Measures the CPU seconds, user and kernel, that a process uses from now on."""

    def __init__(self, pid):
        self.pid = pid
        self.threads, self.total = _thread_times(pid), _process_time(pid)

    def seconds(self):
        threads = _thread_times(self.pid)
        if set(self.threads) <= set(threads):
            return (sum(threads.values()) - sum(self.threads.values())) / 1e9
        return _process_time(self.pid) - self.total  # a thread ended and took its figure along
