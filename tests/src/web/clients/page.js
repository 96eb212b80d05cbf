// Calls the servers whose addresses are in the query by the clients of npm, in each of their forms.
// The global OUTCOMES is a promise of what became of the calls: by client and scenario, a text.
import { create, createFileRegistry, fromBinary, fromJson, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";

// tests/src/server/bench.proto, as far as it is called, and google.rpc.Status with its Any
const field = (number, name, type, more) => ({number, name, jsonName: name, type, label: "LABEL_OPTIONAL", ...more});
const registry = createFileRegistry(fromJson(FileDescriptorSetSchema, {file: [
  {name: "lab.proto", package: "lab", syntax: "proto3",
   messageType: [{name: "Note", field: [field(1, "number", "TYPE_INT64"), field(2, "text", "TYPE_STRING"),
                                        field(3, "body", "TYPE_BYTES")]}],
   service: [{name: "Bench", method: [
     {name: "Ask", inputType: ".lab.Note", outputType: ".lab.Note"},
     {name: "Watch", inputType: ".lab.Note", outputType: ".lab.Note", serverStreaming: true},
     {name: "Peek", inputType: ".lab.Note", outputType: ".lab.Note", options: {idempotencyLevel: "NO_SIDE_EFFECTS"}}]}]},
  {name: "status.proto", package: "status", syntax: "proto3",
   messageType: [{name: "Any", field: [field(1, "url", "TYPE_STRING"), field(2, "value", "TYPE_BYTES")]},
                 {name: "Status", field: [field(3, "details", "TYPE_MESSAGE", {label: "LABEL_REPEATED", typeName: ".status.Any"})]}]},
]}));
const service = registry.getService("lab.Bench"), Note = registry.getMessage("lab.Note");
const Status = registry.getMessage("status.Status");

const octets = (base64) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));

// A client has ask and peek, of fields and perhaps a timeout; watch, of a number and perhaps a
// signal; and failure, which says in words what an error of its own is.

function connectClient(transport) {
  const client = createClient(service, transport);
  return {
    ask: (fields, timeoutMs) => client.ask(fields, {timeoutMs}),
    peek: (fields) => client.peek(fields),
    watch: (number, signal) => client.watch({number: BigInt(number)}, {signal}),
    failure: (error) => [error.code, error.rawMessage, ...error.findDetails(Note).map((note) => note.number)],
  };
}

function grpcWebClient(grpc, base, format) {
  const client = new grpc.GrpcWebClientBase({format});
  const descriptor = (path, type) => new grpc.MethodDescriptor(
    path, type, Object, Object, (note) => toBinary(Note, note), (content) => fromBinary(Note, content));
  const unary = (name) => (fields, timeoutMs) => new Promise((resolve, reject) => {
    const path = `/lab.Bench/${name}`;
    client.rpcCall(base + path, create(Note, fields), timeoutMs ? {deadline: String(Date.now() + timeoutMs)} : {},
                   descriptor(path, grpc.MethodType.UNARY), (error, reply) => error ? reject(error) : resolve(reply));
  });
  async function* watch(number, signal) {
    const events = [], path = "/lab.Bench/Watch";
    let wake = () => {};
    const note = (event) => { events.push(event); wake(); };
    const stream = client.serverStreaming(base + path, create(Note, {number: BigInt(number)}), {},
                                          descriptor(path, grpc.MethodType.SERVER_STREAMING));
    stream.on("data", (message) => note({message}));
    stream.on("error", (error) => note({error}));
    stream.on("end", () => note({end: true}));
    signal?.addEventListener("abort", () => { stream.cancel(); note({error: {code: 1, message: "canceled"}}); });
    for (;;) {
      while (events.length) {
        const {message, error, end} = events.shift();
        if (error) throw error;
        if (end) return;
        yield message;
      }
      await new Promise((resolve) => { wake = resolve; });
    }
  }
  return {
    ask: unary("Ask"), peek: unary("Peek"), watch,
    failure({code, message, metadata}) {
      const details = metadata?.["grpc-status-details-bin"];
      const notes = details ? fromBinary(Status, octets(details)).details.map((any) => fromBinary(Note, any.value)) : [];
      return [code, message, ...notes.map((note) => note.number)];
    },
  };
}

const HANG = 99n, REFUSED = 13n, CANCELLED = 77n; // as the handlers of clients.lisp have them
const MEGABYTE = 1000000;

const scenarios = {
  ask: async ({ask}) => (await ask({number: 21n})).number,
  peek: async ({peek}) => (await peek({number: 4n})).number,
  error: async ({ask}) => (await ask({number: REFUSED})).number,
  async megabyte({ask}) {
    const body = Uint8Array.from({length: MEGABYTE}, (_, i) => i % 251);
    const answer = (await ask({number: 1n, body})).body;
    return answer.length === MEGABYTE && answer.every((octet, i) => octet === body[i]) ? "the same" : "another";
  },
  async deadline({ask, failure}) {
    try {
      return (await ask({number: HANG}, 200)).number;
    } catch (error) {
      return failure(error)[0];
    }
  },
  async thousand({watch}) {
    let count = 0, sum = 0n;
    for await (const note of watch(1000)) { count += 1; sum += note.number; }
    return `${count} ${sum}`;
  },
  async broken({watch, failure}) {
    let count = 0;
    try {
      for await (const note of watch(-1)) count += 1;
    } catch (error) {
      return `${count}, then ${failure(error).join(" ")}`;
    }
    return count;
  },
  // the server hears of it while the page goes on
  async cancellation({ask, watch, failure}) {
    const known = async () => (await ask({number: CANCELLED})).number;
    const before = await known(), abort = new AbortController();
    let count = 0, code = 0;
    try {
      for await (const note of watch(0, abort.signal)) { count += 1; abort.abort(); }
    } catch (error) {
      code = failure(error)[0];
    }
    for (let i = 0; i < 2000; i += 1) {
      if (await known() > before) return `${count}, then ${code}; the server knows`;
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    return "the server does not know";
  },
};

async function run(client, names) {
  const found = {};
  for (const name of names) {
    try {
      found[name] = String(await scenarios[name](client));
    } catch (error) {
      found[name] = client.failure(error).join(" ");
    }
  }
  return found;
}

// grpc-web is a module of CommonJS
async function loadGrpcWeb() {
  const module = {exports: {}};
  new Function("module", "exports", await (await fetch("/npm/grpc-web/index.js")).text())(module, module.exports);
  return module.exports;
}

async function outcomes() {
  const grpc = await loadGrpcWeb(), found = {};
  const all = Object.keys(scenarios), unary = ["ask", "peek", "error", "megabyte", "deadline"];
  for (const base of new URLSearchParams(location.search).getAll("server")) {
    const scheme = new URL(base).protocol;
    const clients = {
      "connect-web, Connect in JSON": [connectClient(createConnectTransport({baseUrl: base})), all],
      "connect-web, Connect in binary": [connectClient(createConnectTransport({baseUrl: base, useBinaryFormat: true, useHttpGet: true})), all],
      "connect-web, gRPC-Web": [connectClient(createGrpcWebTransport({baseUrl: base})), all],
      "grpc-web, text": [grpcWebClient(grpc, base, "text"), all],
      "grpc-web, binary": [grpcWebClient(grpc, base, "binary"), unary], // which has no streams
    };
    for (const [name, [client, names]] of Object.entries(clients))
      found[`${scheme} ${name}`] = await run(client, names);
  }
  return found;
}

window.outcomes = outcomes();
