#!/usr/bin/env python3
"""Compare our .proto compiler with protoc.

The .proto files of Debian's libprotobuf-dev and grpc-proto and of PyPI's googleapis-common-protos
must give the octets that Debian's protoc writes with --descriptor_set_out, and code. The files of
tests/src/protobuf/editions and of tests/vectors/protobuf/refused.txt are for protoc 33.2; what it says
of them is kept in tests/vectors/protobuf, so that `make test` needs no protoc. This verifies what
is kept, or renews it.

usage: tests/conformance/protoc.py [renew]     (tests/conformance/run protoc does the same and more)
"""

import base64
import os
import platform
import re
import subprocess
import sys
import tempfile
import textwrap
import zipfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "clgrpc")
EDITIONS = os.path.join(ROOT, "tests", "src", "protobuf", "editions")
BUILT_IN = os.path.join(ROOT, "proto")
VECTORS = os.path.join(ROOT, "tests", "vectors", "protobuf")
SYSTEM = "/usr/include"
GRPC = "/usr/share/grpc-proto"
GOOGLEAPIS = "googleapis-common-protos==1.76.0"
PROTOC = "com.google.protobuf:protoc:4.33.2:exe:linux-"
# It imports a file of Envoy that is in none of the packages.
LACKING = ("grpc/tls/provider/meshca/experimental/config.proto",
           "envoy/config/core/v3/config_source.proto")


def protos_below(root, folder=""):
    names = []
    for path, _, files in os.walk(os.path.join(root, folder)):
        names += [os.path.relpath(os.path.join(path, file), root)
                  for file in files if file.endswith(".proto")]
    return sorted(names)


# What is needed

def protoc_33():
    """The path of protoc 33.2, fetched through Maven as it is configured here."""
    machine = {"x86_64": "x86_64", "aarch64": "aarch_64"}[platform.machine()]
    path = os.path.join(CACHE, "protoc-33.2", "protoc-4.33.2-linux-%s.exe" % machine)
    if not os.path.exists(path):
        subprocess.run(["mvn", "-q", "-B", "dependency:copy", "-Dartifact=" + PROTOC + machine,
                        "-DoutputDirectory=" + os.path.dirname(path)],
                       check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=600)
        os.chmod(path, 0o755)
    return path


def googleapis():
    """The directory of googleapis-common-protos, fetched through pip as it is configured here."""
    path = os.path.join(CACHE, GOOGLEAPIS.replace("==", "-"))
    if not os.path.exists(path):
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                            "--dest", directory, GOOGLEAPIS],
                           check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=600)
            wheel = [name for name in os.listdir(directory) if name.endswith(".whl")][0]
            with zipfile.ZipFile(os.path.join(directory, wheel)) as archive:
                archive.extractall(path)
    return path


# What protoc says

def descriptor_set(protoc, roots, name, *options):
    """The octets that PROTOC writes for the file NAME, and what it prints."""
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run([protoc, *["-I" + root for root in roots], *options,
                               "--descriptor_set_out=" + out.name, name], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60)
        return (out.read() if done.returncode == 0 else None), done.stdout


def last_file(octets):
    """The last FileDescriptorProto of the FileDescriptorSet OCTETS: imports come first."""
    at = 0
    while at < len(octets):
        assert octets[at] == 10
        at, shift, length = at + 1, 0, 0
        while True:
            octet = octets[at]
            length |= (octet & 127) << shift
            at, shift = at + 1, shift + 7
            if octet < 128:
                break
        last = octets[at:at + length]
        at += length
    return last


def complaint_line(name, text):
    """The line of the first error in the file NAME that protoc's TEXT tells of, or "-"."""
    for line in text.splitlines():
        match = re.match(r"(?:\S*/)?%s\.proto:(?:(\d+):\d+:)? (?!warning)" % name, line)
        if match:
            return match.group(1) or "-"
    return "-"


# What is kept

def read_refused():
    """The blocks of refused.txt: (name, line, text)."""
    with open(os.path.join(VECTORS, "refused.txt"), encoding="utf-8") as file:
        parts = re.split(r"^=== (\S+) (\S+)\n", file.read(), flags=re.MULTILINE)
    return parts[0], list(zip(parts[1::3], parts[2::3], parts[3::3]))


def judge_refused(protoc):
    """REFUSED.TXT as protoc would have it."""
    head, blocks = read_refused()
    out = [head]
    with tempfile.TemporaryDirectory() as directory:
        for name, _, text in blocks:
            with open(os.path.join(directory, name + ".proto"), "w", encoding="utf-8") as file:
                file.write(text)
        for name, _, text in blocks:
            octets, said = descriptor_set(protoc, [directory, BUILT_IN], name + ".proto")
            line = "0" if octets is not None else complaint_line(name, said)
            out.append("=== %s %s\n%s" % (name, line, text))
    return "".join(out)


def judge_editions(protoc):
    """EDITIONS.TXT as protoc would have it."""
    out = [";; The FileDescriptorProtos that protoc 33.2 makes, in Base64: as it writes them, and"
           " with\n;; --retain_options. tests/conformance/protoc.py renew writes this file.\n"]
    for root, names in ((EDITIONS, protos_below(EDITIONS)),
                        (BUILT_IN, protos_below(BUILT_IN, "google/protobuf"))):
        for name in names:
            for form, options in (("runtime", []), ("source", ["--retain_options"])):
                octets, said = descriptor_set(protoc, [root, BUILT_IN], name, *options)
                if octets is None:
                    sys.exit("protoc refuses %s: %s" % (name, said))
                text = base64.b64encode(last_file(octets)).decode()
                out.append("%s %s\n%s\n" % (name, form, textwrap.fill(text, 96)))
    return "".join(out)


KEPT = {"refused.txt": judge_refused, "editions.txt": judge_editions}


def renew():
    for name, judge in KEPT.items():
        text = judge(protoc_33())
        with open(os.path.join(VECTORS, name), "w", encoding="utf-8") as file:
            file.write(text)


def kept_is_true(name):
    """True if protoc says what the vectors NAME say."""
    with open(os.path.join(VECTORS, name), encoding="utf-8") as file:
        return file.read() == KEPT[name](protoc_33())


# Comparing

def package_jobs(directory):
    """Lines for scripts/lisp/protoc.lisp: every file of the packages, with Debian's protoc's octets."""
    apis = googleapis()
    roots = [apis, GRPC, SYSTEM]
    names = sorted(set(protos_below(apis) + protos_below(GRPC)
                       + protos_below(SYSTEM, "google/protobuf")) - {LACKING[0]})
    for number, name in enumerate(names):
        path = os.path.join(directory, str(number))
        octets, said = descriptor_set("protoc", roots, name)
        with open(path, "wb") as file:
            file.write(last_file(octets) if octets else said.encode())
        yield "\t".join(["octets", name, ":".join(roots), path])
    for name in names:
        yield "\t".join(["code", name, ":".join(roots), ""])
    yield "\t".join(["lacking", LACKING[0], ":".join(roots), LACKING[1]])


def compare():
    """Yield (name, None or what is wrong) of each comparison."""
    for name in KEPT:
        yield name, None if kept_is_true(name) else "protoc 33.2 says something else by now"
    with tempfile.TemporaryDirectory() as directory:
        jobs = list(package_jobs(directory))
        lisp = subprocess.run(
            [os.environ.get("SBCL", "sbcl"), "--noinform", "--dynamic-space-size", "2048",
             "--non-interactive", "--no-sysinit", "--no-userinit",
             "--load", os.path.join(ROOT, "scripts", "lisp", "protoc.lisp")],
            input="\n".join(jobs) + "\n", text=True, stdout=subprocess.PIPE, timeout=1200)
    answers = dict(line.split("\t", 1) for line in lisp.stdout.splitlines() if "\t" in line)
    for job in jobs:
        kind, name = job.split("\t")[:2]
        key = "%s %s" % (kind, name)
        answer = answers.get(key, "there is no answer")
        yield key, None if answer == "passed" else answer


def main():
    if sys.argv[1:] == ["renew"]:
        renew()
        return 0
    bad = 0
    for name, wrong in compare():
        if wrong:
            bad += 1
            print("FAILED %s: %s" % (name, wrong))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
