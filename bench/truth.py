#!/usr/bin/env python3
"""The figures of `clgrpc load`, ghz and k6 for a server whose delays are known, at one rate, beside
those of theory: 10 ms each; exponential of mean 20 ms; a stall of one second in every ten. The load
has one core and the server another. Writes bench/results/truth.json and prints a table.

The latency of `clgrpc load` counts from when a call was due, that of the others from when they sent
it; all of them are asked for the same rate, independent of earlier calls."""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, folder) for folder in ("parts", "measure", "../scripts")]
import load  # noqa: E402
import machine  # noqa: E402
import markdown  # noqa: E402
import openloop  # noqa: E402
import support  # noqa: E402

K6 = "go.k6.io/k6@v0.54.0"
RATE = 500
QUANTILES = [0.5, 0.75, 0.9, 0.95, 0.99, 0.999]
CLGRPC = os.path.join("bin", "clgrpc")
RESULTS = os.path.join(HERE, "results", "truth.json")

# name: seconds of a run, and the milliseconds that a share of the calls does not exceed
DELAYS = {
    "constant": (10, lambda share: 10.0),
    "exponential": (10, lambda share: -20 * math.log(1 - share)),
    "stall": (20, lambda share: max(0.0, round(1000 - 10000 * (1 - share), 6))),
}

SCRIPT = """
import grpc from 'k6/net/grpc';
const client = new grpc.Client();
client.load([%(directory)s], %(file)s);
let connected = false;
export const options = {
  summaryTrendStats: [%(stats)s],
  scenarios: { open: { executor: 'constant-arrival-rate', rate: %(rate)d, timeUnit: '1s',
    duration: '%(seconds)ds', preAllocatedVUs: 100, maxVUs: 1000 } },
};
export default function () {
  if (!connected) { client.connect(%(address)s, { plaintext: true }); connected = true; }
  client.invoke(%(method)s, { latitude: 0 });
}
"""


def clgrpc(address, seconds, directory):
    """Milliseconds at QUANTILES, and how many calls were made."""
    output = os.path.join(directory, "clgrpc.json")
    run([CLGRPC, "load", "--proto", openloop.PROTO, "-d", "{}", "--rps", str(RATE), "-n",
         str(RATE * seconds), "--together", "0", "-O", "json", "-o", output, address,
         load.METHOD.strip("/")])
    with open(output, encoding="utf-8") as file:
        report = json.load(file)
    rows = [(low, count) for low, count in report["clgrpc"]["latency"]["buckets"]]
    return [bucket_quantile(rows, share) / 1e6 for share in QUANTILES], report["count"]


def bucket_quantile(rows, share):
    """The nanoseconds that SHARE does not exceed of ROWS, pairs of a bucket's least and count. A
    bucket is one part in 128 of its least wide at most."""
    left = math.ceil(share * sum(count for _, count in rows))
    for low, count in rows:
        left -= count
        if left <= 0:
            return low * (1 + 1 / 256)
    return rows[-1][0]


def ghz(address, seconds, directory):
    output = os.path.join(directory, "ghz.json")
    run([support.go_install("ghz", openloop.GHZ), "--insecure", "--proto", openloop.PROTO, "--call",
         load.METHOD.strip("/"), "-d", "{}", "--rps", str(RATE), "-n", str(RATE * seconds), "-c",
         "50", "-O", "json", "-o", output, address])
    with open(output, encoding="utf-8") as file:
        details = sorted(call["latency"] for call in json.load(file)["details"])
    return [details[math.ceil(share * len(details)) - 1] / 1e6
            for share in QUANTILES], len(details)


def k6(address, seconds, directory):
    script, output = os.path.join(directory, "k6.js"), os.path.join(directory, "k6.json")
    names = ["p(%g)" % (100 * share) for share in QUANTILES]
    with open(script, "w", encoding="utf-8") as file:
        file.write(SCRIPT % {
            "directory": json.dumps(os.path.join(support.ROOT, os.path.dirname(openloop.PROTO))),
            "file": json.dumps(os.path.basename(openloop.PROTO)),
            "stats": ", ".join(json.dumps(name) for name in names), "rate": RATE,
            "seconds": seconds, "address": json.dumps(address),
            "method": json.dumps(load.METHOD.strip("/"))})
    run([support.go_install("k6", K6), "run", "--quiet", "--no-usage-report", "--summary-export",
         output, script])
    with open(output, encoding="utf-8") as file:
        metrics = json.load(file)["metrics"]
    return ([metrics["grpc_req_duration"][name] for name in names],
            int(metrics["iterations"]["count"]))


TOOLS = {"clgrpc load": clgrpc, "ghz": ghz, "k6": k6}


def run(command):
    done = subprocess.run(machine.pinned(machine.cores()[0], command), cwd=support.ROOT, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit("%s failed:\n%s" % (" ".join(command), done.stdout))


class KnownServer(support.Server):
    """bench/ours/truth.lisp, which may have to be compiled first."""

    start_seconds = 300


def measure(delays, tool, directory):
    seconds, _ = DELAYS[delays]
    command = ["sbcl", "--noinform", "--non-interactive", "--no-sysinit", "--no-userinit", "--load",
               "scripts/load.lisp", "--load", os.path.join("bench", "ours", "truth.lisp")]
    with KnownServer(machine.pinned(machine.cores()[1], command),
                     {"CLGRPC_DELAYS": delays}) as server:
        return TOOLS[tool](server.address, seconds, directory)


def shown(milliseconds):
    return "%.3g" % milliseconds if milliseconds < 1000 else "%.0f" % milliseconds


def table(results):
    lines = []
    for delays in results["rows"]:
        _, theory = DELAYS[delays]
        lines.append([delays, "theory", *(shown(theory(share)) for share in QUANTILES), ""])
        for tool, (quantiles, count) in results["rows"][delays].items():
            lines.append(["", tool, *map(shown, quantiles), str(count)])
    return markdown.table(["delays", "ms"] + ["p%g" % (100 * share) for share in QUANTILES]
                          + ["calls"], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("delays", nargs="*", default=list(DELAYS), help=", ".join(DELAYS))
    options = parser.parse_args()
    results = {"rate": RATE, "quantiles": QUANTILES, "rows": {}}
    if os.path.exists(RESULTS):
        with open(RESULTS, encoding="utf-8") as file:
            results["rows"] = json.load(file)["rows"]
    others = machine.Others()
    with tempfile.TemporaryDirectory() as directory:
        for delays in options.delays:
            results["rows"][delays] = {tool: measure(delays, tool, directory) for tool in TOOLS}
    results["machine"] = {**machine.description(), "others": others.percent()}
    with open(RESULTS, "w", encoding="utf-8") as file:
        file.write(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
