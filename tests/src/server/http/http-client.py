"""A client of http-client.lisp: python3 http-client.py ADDRESS plaintext
or python3 http-client.py ADDRESS requests|agree ROOTS PROTOCOLS [CERTIFICATE KEY], over TLS.
Prints what the handshake has agreed on, and a line for each answer."""

import http.client
import ssl
import sys


def context_of(roots, protocols, *certificate):
    context = ssl.create_default_context(cafile=roots)
    if protocols:
        context.set_alpn_protocols(protocols.split(","))
    if certificate:
        context.load_cert_chain(*certificate)
    return context


def ask(connection):
    connection.connect()
    socket = connection.sock
    if isinstance(socket, ssl.SSLSocket):
        print("ALPN", socket.selected_alpn_protocol())
    connection.request("GET", "/a")
    answer = connection.getresponse()
    print("GET /a", answer.status, answer.read().decode())
    connection.request("HEAD", "/a")
    answer = connection.getresponse()
    print("HEAD /a", answer.status, "content-length", answer.getheader("content-length"))
    answer.read()
    body = bytes(range(250)) * 1200
    for kind in ("chunked", "length"):
        if kind == "chunked":
            parts = (body[i:i + 997] for i in range(0, len(body), 997))
            connection.request("POST", "/echo", body=parts, encode_chunked=True,
                               headers={"Transfer-Encoding": "chunked"})
        else:
            connection.request("POST", "/echo", body=body)
        answer = connection.getresponse()
        heard = answer.read()
        print("POST", kind, answer.status, len(heard), "alike" if heard == body else "other")
    print("one connection:", connection.sock is socket)
    connection.close()


address, what, *tls = sys.argv[1:]
host, port = address.rsplit(":", 1)
if what == "plaintext":
    ask(http.client.HTTPConnection(host, int(port), timeout=20))
else:
    connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context_of(*tls))
    if what == "requests":
        ask(connection)
    else:
        try:
            connection.connect()
            print("ALPN", connection.sock.selected_alpn_protocol())
            connection.close()
        except ssl.SSLError as error:
            print(error)
