// A chat over Connect, by fetch alone: Say is a unary call in JSON, Join a stream of envelopes.
// What others say becomes text of nodes (textContent), never HTML.

const $ = (id) => document.getElementById(id);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const SERVICE = "/chat.Chat/";
const LONGEST_MESSAGE = 1 << 20;
const MOST_LINES = 500;

// What a call ends with that fails
class CallError extends Error {
  constructor({code, message}) {
    super(message || code || "unknown");
    this.code = code ?? "unknown";
  }
}

// Unary calls: JSON there and back; of an error the HTTP status is that of its code
async function call(method, request) {
  const response = await fetch(SERVICE + method, {
    method: "POST",
    headers: {"content-type": "application/json", "connect-protocol-version": "1", "connect-timeout-ms": "10000"},
    body: JSON.stringify(request),
  });
  const answer = await response.json().catch(() => ({code: "unknown", message: `HTTP ${response.status}`}));
  if (!response.ok) throw new CallError(answer);
  return answer;
}

// An envelope is an octet of flags, four with the length, and a message
function envelope(message) {
  const text = new TextEncoder().encode(JSON.stringify(message));
  const octets = new Uint8Array(5 + text.length);
  new DataView(octets.buffer).setUint32(1, text.length);
  octets.set(text, 5);
  return octets;
}

// The envelopes in the body of a response, which come in pieces of any length
async function* envelopes(reader) {
  let held = new Uint8Array(0);
  for (;;) {
    const {value, done} = await reader.read();
    if (done) {
      if (held.length) throw new CallError({code: "unavailable", message: "the stream was cut off"});
      return;
    }
    const joined = new Uint8Array(held.length + value.length);
    joined.set(held);
    joined.set(value, held.length);
    held = joined;
    while (held.length >= 5) {
      const length = new DataView(held.buffer, held.byteOffset).getUint32(1);
      if (length > LONGEST_MESSAGE) throw new CallError({code: "resource_exhausted", message: "a message is too long"});
      if (held.length < 5 + length) break;
      yield {flags: held[0], text: new TextDecoder().decode(held.subarray(5, 5 + length))};
      held = held.subarray(5 + length);
    }
  }
}

// The messages of a stream. The last envelope, with the flag 2, says how it has ended.
async function* stream(method, request, begun) {
  const response = await fetch(SERVICE + method, {
    method: "POST",
    headers: {"content-type": "application/connect+json", "connect-protocol-version": "1"},
    body: envelope(request),
  });
  if (!response.ok) throw new CallError({code: "unknown", message: `HTTP ${response.status}`});
  begun();
  for await (const {flags, text} of envelopes(response.body.getReader())) {
    const message = JSON.parse(text);
    if (flags & 2) {
      if (message.error) throw new CallError(message.error);
      return;
    }
    yield message;
  }
  throw new CallError({code: "unavailable", message: "the stream has no end"});
}

function show({name = "", text = "", number = 0}) {
  const id = `line-${number}`;
  if ($(id)) return; // it came before the page joined again
  const row = document.createElement("li"), who = document.createElement("b"), what = document.createElement("span");
  row.id = id;
  who.textContent = name;
  what.textContent = text;
  row.append(who, what);
  $("lines").append(row);
  while ($("lines").children.length > MOST_LINES) $("lines").firstChild.remove();
  row.scrollIntoView({block: "nearest"});
}

function tell(state, text) {
  $("state").dataset.state = state;
  $("state").textContent = text;
}

// Listens for as long as the page is there, at longer and longer intervals while nobody answers
async function listen() {
  for (let wait = 500; ; wait = Math.min(2 * wait, 10000)) {
    try {
      for await (const line of stream("Join", {}, () => { wait = 500; tell("live", "connected"); })) show(line);
      tell("gone", "the server has ended the stream");
    } catch (error) {
      tell("gone", `not connected: ${error.message}`);
    }
    await pause(wait * (0.5 + Math.random() / 2));
  }
}

$("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("text").value;
  try {
    await call("Say", {name: $("name").value, text});
    if ($("text").value === text) $("text").value = "";
  } catch (error) {
    tell("refused", `not said: ${error.message}`);
  }
});

listen();
