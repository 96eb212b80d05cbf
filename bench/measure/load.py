"""One run of h2load with a unary gRPC call, and its report."""

import json
import os
import re
import struct
import subprocess
import sys

import machine
import support

METHOD = "/routeguide.RouteGuide/GetFeature"
UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def _varint(value):
    value &= (1 << 64) - 1
    octets = b""
    while value > 127:
        octets += bytes([value & 127 | 128])
        value >>= 7
    return octets + bytes([value])


def _point(location):
    return (b"\x08" + _varint(location["latitude"]) + b"\x10" + _varint(location["longitude"]))


def _field(number, octets):
    return bytes([number << 3 | 2]) + _varint(len(octets)) + octets


def _frame(message):
    return b"\0" + struct.pack(">I", len(message)) + message


def first_feature():
    """The feature that unary calls ask for, as in the JSON file."""
    path = os.path.join(support.ROOT, "examples", "features.json")
    with open(path, encoding="utf-8") as file:
        return json.load(file)[0]


def rate_of(text):
    """Requests a second in TEXT, the output of h2load."""
    return float(re.search(r"finished in [^,]*, ([\d.]+) req/s", text)[1])


class GetFeature:
    """The request for the first feature, and its answer; SCHEME is http or https."""

    def __init__(self, directory, scheme="http"):
        self.scheme = scheme
        feature = first_feature()
        point = _point(feature["location"])
        self.answer = _frame(_field(1, feature["name"].encode()) + _field(2, point))
        self.body = os.path.join(directory, "get-feature")
        with open(self.body, "wb") as file:
            file.write(_frame(point))

    def command(self, address, connections, streams, requests):
        return ["h2load", "-n", str(requests), "-c", str(connections), "-m", str(streams),
                "-d", self.body, "-H", "content-type: application/grpc", "-H", "te: trailers",
                "%s://%s%s" % (self.scheme, address, METHOD)]

    def run(self, address, connections, streams, requests, core):
        """Make REQUESTS calls from CORE; return req/s and mean latency in microseconds. Ends the
        program if a call went wrong, since figures of wrong answers mean nothing."""
        command = machine.pinned(core, self.command(address, connections, streams, requests))
        text = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120).stdout
        done = re.search(r"(\d+) succeeded, (\d+) failed", text)
        data = re.search(r"\((\d+)\) data", text)
        if (not done or int(done[1]) != requests or not data
                or int(data[1]) != requests * len(self.answer)):
            sys.exit("calls went wrong: %s\n%s" % (" ".join(command), text))
        latency = re.search(r"time for request: +\S+ +\S+ +([\d.]+)(us|ms|s)", text)
        return {"requests_per_second": rate_of(text),
                "mean_latency_us": float(latency[1]) * UNITS[latency[2]]}
