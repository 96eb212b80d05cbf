"""The suite sts of tests/conformance/run: call credentials that ask a security token service in Go
(tests/peers/sts) for tokens, by OAuth 2.0 (RFC 6749) and token exchange (RFC 8693), and the same
program's endpoints that misbehave. The cases are in sts.lisp."""

import os
import shutil
import subprocess
import tempfile

import support

CASES = 99


def make_keys(folder):
    """The keys that sign subjects' tokens, those that the service knows and another."""
    for name, kind in (("ec", ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"]),
                       ("rsa", ["RSA", "-pkeyopt", "rsa_keygen_bits:2048"]),
                       ("other", ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"])):
        support.run(["openssl", "genpkey", "-algorithm", *kind, "-out",
                     os.path.join(folder, name + ".key")])
    with open(os.path.join(folder, "issuer.pem"), "w", encoding="ascii") as file:
        for name in ("ec", "rsa"):
            file.write(support.run(["openssl", "pkey", "-pubout", "-in",
                                    os.path.join(folder, name + ".key")]))


def run_cases(outcome):
    program = support.go_build("sts", ".", os.path.join(support.PEERS, "sts"))
    with tempfile.TemporaryDirectory() as folder:
        make_keys(folder)
        for name in ("ca.pem", "stranger.pem"):
            shutil.copy(support.certificate(name), folder)
        with Service([program, "-cert", support.certificate("server.pem"), "-key",
                      support.certificate("server.key"), "-subjects",
                      os.path.join(folder, "issuer.pem"), "-folder", folder]) as service:
            environment = dict(os.environ, CLGRPC_STS=service.address, CLGRPC_STS_TLS=service.tls,
                               CLGRPC_STS_GREETER=service.greeter, CLGRPC_STS_FOLDER=folder)
            try:
                done = subprocess.run(
                    support.lisp_command("scripts/load.lisp", "tests/conformance/sts.lisp"),
                    cwd=support.ROOT, env=environment, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, text=True, errors="replace", timeout=600)
            except subprocess.TimeoutExpired:
                outcome.fail("sts", "not over after 600 seconds")
                return
            if not service.alive():
                outcome.fail("sts", "the service did not survive")
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word == "ok":
            outcome.passed += 1
        elif word == "FAIL":
            name, _, why = rest.partition(" -- ")
            outcome.fail(name, why)


class Service(support.Server):
    """The Go program, which prints its other addresses first."""

    def line_with(self, prefix, seconds):
        if prefix == "listening on ":
            self.tls = super().line_with("https on ", seconds)
            self.greeter = super().line_with("greeter on ", seconds)
        return super().line_with(prefix, seconds)
