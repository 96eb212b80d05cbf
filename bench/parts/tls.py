"""Server CPU per unary GetFeature over TLS, as the part unary measures it without. It includes the
cost of TLS per octet and per turn, but no handshakes: connections stay."""

import shlex
import tempfile

import load
import machine
import markdown
import series
import servers
import support
import svg
import unary

TITLE = "Server CPU per unary call over TLS 1.3 (GetFeature)"
ROWS = [{"connections": connections, "streams": streams}
        for connections, streams in [(1, 1), (1, 100), (10, 10), (10, 100)]]
FIGURES = unary.FIGURES[:3]


def measure(options):
    with tempfile.TemporaryDirectory() as directory, servers.Contenders(options) as contenders:
        call = load.GetFeature(directory, "https")
        contenders.add_ours(*support.tls_options())
        contenders.add_grpc_go(*support.tls_options())
        contenders.add_nghttpd(load.METHOD, call.answer, directory, tls=True)
        core = machine.cores()[0]
        runs = unary.Runs(call, options.seconds, core)
        rows = series.interleaved(ROWS, contenders.members, options.rounds, runs.run,
                                  runs.calibrate)
        command = shlex.join(machine.pinned(core, call.command("ADDRESS", "C", "S", "N")))
        return {"commands": {**{name: command.replace(support.certificate(""), "")
                                for name, command in contenders.commands().items()},
                             "load": command.replace(call.body, "BODY")},
                "absent": contenders.absent, "rows": rows}


describe = unary.describe


def comparisons(results):
    return series.comparisons(results["rows"], describe, FIGURES)


def table(results):
    return "\n".join([
        "h2load on one core, the server on the other; connections × calls at once on each. All "
        "have the same certificate; clgrpc and grpc-go choose AES-128-GCM, nghttpd AES-256-GCM.", "",
        markdown.comparison(results["rows"], "connections × streams", describe, FIGURES)])


def plots(results):
    return {"tls": svg.bars(TITLE, "µs of server CPU per call",
                            [(describe(row), markdown.values(row, "cpu_us_per_call"))
                             for row in results["rows"]])}
