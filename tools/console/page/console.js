// The console's page: what the events say becomes STATE, and RENDER shows STATE. Frames and their
// members are described in update.lisp. What all pages have is in common.js; nothing else is needed.

const STAGES = ["resolve", "connect", "handshake", "back-off", "retry", "queue", "wait", "receive",
                "answer", "send"];
const LEVELS = ["trace", "debug", "info", "warning", "error"];
const STARTED = "grpc.server.call.started/";
const MOST_CALLS = 600, MOST_EVENTS = 500, MOST_FRAMES = 300, MOST_ROWS = 30;
const MINUTES = 300; // the longest span, in seconds, whose frames are those of viewers

const state = {
  series: new Map(),      // by number: {role, method, status, target, calls, seconds}
  bounds: [],             // of buckets, in seconds
  values: {},             // by name
  frames: [],             // {time, seconds, counts, values}, the oldest first
  hour: [],               // the same, of the last hour, further apart; its series have numbers below 0
  calls: new Map(),       // by number
  log: [],                // the newest first
  servers: [], threads: [],
  turns: new Map(),       // by loop: [{time, turns}, …] of the last seconds
  role: "server", method: "", span: 300, which: "slow", level: "info", words: "",
  // which calls are listed, beside role, method and span: of a status, a peer, a moment's
  // {from, to} in ms, with durations {above, below} in s; all or nothing of each
  only: {},
  collections: {},        // as the last frame, or the last of the hour, that told them has them
  cursor: null,           // the time that the charts show the numbers of, or null
  paused: false,
};

// NAME of a method in parts between which a line may end
function breakable(name) {
  return name.split(/(?<=[./])/).flatMap((part) => [document.createElement("wbr"), part]).slice(1);
}

// Numbers as people read them

const three = (value) => value < 999.5 ? value.toPrecision(3) : String(Math.round(value));

function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value < 0.0001) return `${Math.round(value * 1e6)} µs`;
  if (value < 0.0009995) return `${three(value * 1e6)} µs`;
  if (value < 0.9995) return `${three(value * 1e3)} ms`;
  return `${three(value)} s`;
}

// SECONDS without zeros at its end, for round numbers
const mark = (value) => seconds(value).replace(/\.0+ /, " ").replace(/(\.\d*[1-9])0+ /, "$1 ");

function count(value) {
  if (value < 10 && value % 1) return value.toFixed(1);
  return Math.round(value).toLocaleString("en");
}

function octets(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (value >= 1000 && i < units.length - 1) { value /= 1000; i += 1; }
  return `${value < 10 && i ? value.toFixed(1) : Math.round(value)} ${units[i]}`;
}

function percent(part, whole) {
  if (!whole) return "0 %";
  const value = 100 * part / whole;
  if (value && value < 0.01) return "< 0.01 %";
  return `${value && value < 10 ? value.toFixed(value < 0.1 ? 2 : 1) : Math.round(value)} %`;
}

function ago(time) {
  const gone = Math.max(0, (newestTime() - time) / 1000);
  if (gone < 90) return `${Math.round(gone)} s ago`;
  if (gone < 5400) return `${Math.round(gone / 60)} min ago`;
  return `${Math.round(gone / 3600)} h ago`;
}

function duration(value) {
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

const clock = (time) => new Date(time).toTimeString().slice(0, 8);
const newestTime = () => state.frames.length ? state.frames.at(-1).time : Date.now();
const failedStatus = (status) => status !== "OK";

// What the events say

function takeSeries(rows) {
  for (const [number, role, method, status, target] of rows ?? [])
    state.series.set(number, {role, method, status, target, seconds: 0, calls: 0});
}

function takeCounts(rows) {
  for (const [number, sum, ...pairs] of rows ?? []) {
    const series = state.series.get(number);
    if (!series) continue;
    series.seconds += sum;
    for (let i = 0; i < pairs.length; i += 2) series.calls += pairs[i + 1];
  }
}

function takeRest(frame) {
  Object.assign(state.values, frame.values);
  for (const call of frame.calls ?? []) state.calls.set(call.number, call);
  while (state.calls.size > MOST_CALLS) dropCall();
  if (frame.log) state.log = [...frame.log.reverse(), ...state.log].slice(0, MOST_EVENTS);
  if (frame.servers) state.servers = frame.servers;
  if (frame.threads) state.threads = frame.threads;
}

// Of the calls that went well the fastest goes, of the failed ones the oldest.
function dropCall() {
  const calls = [...state.calls.values()];
  const fine = calls.filter((call) => !failedStatus(call.status));
  const victim = fine.length > MOST_CALLS / 2
    ? fine.reduce((a, b) => (a.seconds <= b.seconds ? a : b))
    : calls.find((call) => failedStatus(call.status)) ?? calls[0];
  state.calls.delete(victim.number);
}

// Add FRAME to WHICH of the state's lists, frames or hour
function addFrame(frame, which = "frames") {
  const collections = frame.values?.["clgrpc.gc.collections"], list = state[which];
  if (collections !== undefined) {
    frame.collected = state.collections[which] !== undefined && collections > state.collections[which];
    state.collections[which] = collections;
  }
  list.push({time: frame.time, seconds: frame.seconds || 1, counts: frame.counts ?? [],
             values: frame.values ?? {}, collected: frame.collected});
  if (list.length > MOST_FRAMES) list.shift();
}

// Its series are told as others are; their numbers here must not be those of others
const hourNumber = (number) => -1 - number;

function takeHour(hour) {
  if (!hour) return;
  takeSeries(hour.series.map(([number, ...rest]) => [hourNumber(number), ...rest]));
  for (const frame of hour.frames) {
    // the first look has all that was before it, which is no rate; one that is known may be told again
    if (!frame.seconds || frame.time <= (state.hour.at(-1)?.time ?? 0)) continue;
    frame.counts = (frame.counts ?? []).map(([number, ...rest]) => [hourNumber(number), ...rest]);
    addFrame(frame, "hour");
  }
}

function hello(data) {
  state.series.clear(); state.calls.clear();
  Object.assign(state, {frames: [], hour: [], log: [], values: {}, servers: [], threads: [],
                        collections: {}, bounds: data.bounds, process: data.process, started: data.started});
  takeSeries(data.series);
  takeCounts(data.counts);
  // the first frame has all that was before anybody looked, which is no rate
  for (const frame of data.frames ?? []) if (frame.seconds) addFrame(frame);
  state.collections.frames = data.values?.["clgrpc.gc.collections"] ?? state.collections.frames;
  takeHour(data.hour);
  takeRest(data);
  loadOptions();
  $("pages").replaceChildren(...data.pages.map(([name, title]) => element("a", {href: `${name}/`}, title)));
  setText($("where"), `${data.process.version} on ${data.process.host}`);
  document.title = `clgrpc on ${data.process.host}`;
  if (![...state.series.values()].some((series) => series.role === state.role)) {
    const other = [...state.series.values()][0];
    if (other) chooseRole(other.role);
  }
  render();
}

function nextFrame(data) {
  if (data.bounds) state.bounds = data.bounds;
  takeSeries(data.series);
  takeCounts(data.counts);
  addFrame(data);
  takeHour(data.hour);
  takeRest(data);
  render();
}

// The stream of events: open only while somebody can see the page

let source = null;

function tell(text, mark) {
  setText($("link"), text);
  $("link").dataset.state = mark;
}

function openStream() {
  if (source || state.paused || document.hidden) return;
  tell("connecting", "");
  source = new EventSource("events");
  source.addEventListener("hello", (event) => { tell("live", "live"); hello(JSON.parse(event.data)); });
  source.addEventListener("frame", (event) => { tell("live", "live"); nextFrame(JSON.parse(event.data)); });
  source.addEventListener("error", () => {
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      tell("no answer; trying again", "lost");
      setTimeout(openStream, 5000);
    } else {
      tell("no answer; trying again", "lost");
    }
  });
}

function closeStream(text) {
  source?.close();
  source = null;
  tell(text, "");
}

// What is shown of frames, with the role and the method chosen

const chosen = (series) => series && series.role === state.role
  && (!state.method || series.method === state.method);

function shownFrames() {
  const from = newestTime() - state.span * 1000;
  return (state.span > MINUTES ? state.hour : state.frames).filter((frame) => frame.time > from);
}

// {calls, failed, buckets} of FRAME; remembered in it until another choice is made
function digest(frame) {
  const key = `${state.role}/${state.method}`;
  if (frame.digest?.key === key) return frame.digest;
  const result = {key, calls: 0, failed: 0, seconds: frame.seconds, time: frame.time, buckets: new Map()};
  for (const [number, , ...pairs] of frame.counts) {
    const series = state.series.get(number);
    if (!chosen(series)) continue;
    for (let i = 0; i < pairs.length; i += 2) {
      result.buckets.set(pairs[i], (result.buckets.get(pairs[i]) ?? 0) + pairs[i + 1]);
      result.calls += pairs[i + 1];
      if (failedStatus(series.status)) result.failed += pairs[i + 1];
    }
  }
  frame.digest = result;
  return result;
}

// The value that SHARE of the calls in BUCKETS, a map, do not exceed, as if they lay evenly in them
function percentile(buckets, share) {
  let whole = 0;
  for (const calls of buckets.values()) whole += calls;
  if (!whole) return null;
  let left = share * whole;
  for (const bucket of [...buckets.keys()].sort((a, b) => a - b)) {
    const calls = buckets.get(bucket);
    if (left <= calls) {
      const low = state.bounds[bucket - 1] ?? 0, high = state.bounds[bucket] ?? low;
      return low + (high - low) * left / calls;
    }
    left -= calls;
  }
  return state.bounds.at(-1);
}

function together(digests) {
  const all = {calls: 0, failed: 0, seconds: 0, buckets: new Map()};
  for (const one of digests) {
    all.calls += one.calls; all.failed += one.failed; all.seconds += one.seconds;
    for (const [bucket, calls] of one.buckets) all.buckets.set(bucket, (all.buckets.get(bucket) ?? 0) + calls);
  }
  return all;
}

// Charts

const probe = element("i", {hidden: ""});

function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

let palette = {};

function readPalette() {
  palette = {};
  for (const name of ["card", "line", "text", "dim", "ok", "bad", "p50", "p90", "p99",
                      "heat-0", "heat-1", "heat-2"]) palette[name] = colour(`--${name}`);
}

const MARGIN = {left: 52, right: 8, top: 8, bottom: 20};

// Get CANVAS ready; call DRAW with a context, the size, and a function from time to place
function draw(canvas, paint) {
  const width = canvas.clientWidth, height = canvas.clientHeight, scale = devicePixelRatio || 1;
  if (!width) return;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const end = newestTime(), start = end - state.span * 1000;
  const area = {left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top,
                bottom: height - MARGIN.bottom};
  const x = (time) => area.left + (area.right - area.left) * (time - start) / (end - start);
  paint(context, area, x);
  context.fillStyle = palette.dim;
  context.textBaseline = "alphabetic";
  const steps = state.span > MINUTES ? [60, 45, 30, 15, 0].map((m) => [m * 60, m ? `−${m} min` : "now"])
    : state.span > 60 ? [4, 3, 2, 1, 0].map((m) => [m * 60, m ? `−${m} min` : "now"])
                                : [45, 30, 15, 0].map((s) => [s, s ? `−${s} s` : "now"]);
  for (const [before, text] of steps) {
    context.textAlign = before ? "center" : "right";
    context.fillText(text, x(end - before * 1000), height - 5);
  }
  if (state.cursor !== null) {
    context.strokeStyle = palette.text;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x(state.cursor), area.top);
    context.lineTo(x(state.cursor), area.bottom);
    context.stroke();
  }
}

function grid(context, area, marks, y, text) {
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const mark of marks) {
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(area.left, Math.round(y(mark)) + 0.5);
    context.lineTo(area.right, Math.round(y(mark)) + 0.5);
    context.stroke();
    context.fillStyle = palette.dim;
    context.fillText(text(mark), area.left - 6, y(mark));
  }
}

// POINTS are [time, value or null]; a null, and a gap of some frames, interrupt the line.
// With AREA what is below it is coloured
function line(context, points, x, y, ink, area) {
  const parts = [], gap = state.span > MINUTES ? 60000 : 5000;
  let before = null;
  for (const [time, value] of points) {
    if (value !== null) {
      if (before === null || time - before > gap) parts.push([]);
      parts.at(-1).push([x(time), y(value)]);
      before = time;
    } else { before = null; }
  }
  context.strokeStyle = context.fillStyle = ink;
  context.lineWidth = 1.6;
  context.lineJoin = "round";
  for (const part of parts) {
    context.beginPath();
    for (const [left, top] of part) context.lineTo(left, top);
    context.stroke();
    if (!area) continue;
    context.lineTo(part.at(-1)[0], area.bottom);
    context.lineTo(part[0][0], area.bottom);
    context.globalAlpha = 0.13;
    context.fill();
    context.globalAlpha = 1;
  }
}

function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}

const cursorDigest = (digests) => state.cursor === null ? digests.at(-1)
  : digests.reduce((a, b) => Math.abs(a.time - state.cursor) <= Math.abs(b.time - state.cursor) ? a : b);

function chartRate(digests) {
  const most = roundUp(Math.max(1, ...digests.map((one) => one.calls / one.seconds)));
  draw($("chart-rate"), (context, area, x) => {
    const y = (value) => area.bottom - (area.bottom - area.top) * value / most;
    grid(context, area, [0, most / 2, most], y, count);
    line(context, digests.map((one) => [one.time, one.calls / one.seconds]), x, y, palette.ok, area);
    if (digests.some((one) => one.failed))
      line(context, digests.map((one) => [one.time, one.failed / one.seconds]), x, y, palette.bad);
  });
  const one = digests.length ? cursorDigest(digests) : null;
  setText($("read-rate"), one ? `${clock(one.time)}: ${count(one.calls / one.seconds)} a second, ${
    count(one.failed / one.seconds)} failed` : "");
}

function chartLatency(digests) {
  const lines = [["p50", 0.5], ["p90", 0.9], ["p99", 0.99]].map(([name, share]) =>
    [name, digests.map((one) => [one.time, percentile(one.buckets, share)])]);
  const values = lines.flatMap(([, points]) => points.map(([, value]) => value)).filter((value) => value > 0);
  const low = values.length ? Math.floor(Math.log10(Math.min(...values))) : -4;
  const high = values.length ? Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values)))) : -2;
  draw($("chart-latency"), (context, area, x) => {
    const y = (value) => area.bottom - (area.bottom - area.top)
      * (Math.log10(Math.max(value, 10 ** low)) - low) / (high - low);
    const marks = Array.from({length: high - low + 1}, (_, i) => 10 ** (low + i));
    grid(context, area, marks, y, mark);
    for (const [name, points] of lines) line(context, points, x, y, palette[name]);
  });
  const one = digests.length ? cursorDigest(digests) : null;
  setText($("read-latency"), one?.calls ? `${clock(one.time)}: median ${seconds(percentile(one.buckets, 0.5))}, 90th ${
    seconds(percentile(one.buckets, 0.9))}, 99th ${seconds(percentile(one.buckets, 0.99))}` : "");
}

function mix(a, b, share) {
  const numbers = (text) => text.match(/[\d.]+/g).slice(0, 3).map(Number);
  const [from, to] = [numbers(a), numbers(b)];
  return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * share)).join(" ")})`;
}

function heatColours() {
  return Array.from({length: 33}, (_, i) => i < 16 ? mix(palette["heat-0"], palette["heat-1"], i / 16)
    : mix(palette["heat-1"], palette["heat-2"], (i - 16) / 16));
}

function chartHeat(digests) {
  const used = digests.flatMap((one) => [...one.buckets.keys()]);
  const first = Math.max(0, Math.min(...used, state.bounds.length) - 1);
  const last = Math.min(state.bounds.length, Math.max(...used, first + 9) + 1);
  const most = Math.max(1, ...digests.flatMap((one) => [...one.buckets.values()].map((calls) => calls / one.seconds)));
  draw($("chart-heat"), (context, area, x) => {
    const step = (area.bottom - area.top) / (last - first + 1);
    $("chart-heat").bucketAt = (top) => first + Math.floor((area.bottom - top) / step);
    const top = (bucket) => area.bottom - (bucket - first + 1) * step;
    const ramp = heatColours();
    for (const one of digests) {
      const right = Math.min(area.right, x(one.time)), left = Math.max(area.left, x(one.time - one.seconds * 1000));
      for (const [bucket, calls] of one.buckets) {
        context.fillStyle = ramp[Math.min(32, Math.round(32 * Math.log1p(calls / one.seconds) / Math.log1p(most)))];
        context.fillRect(left, top(bucket), Math.max(1, right - left + 0.4), Math.max(1, step - 0.6));
      }
    }
    const every = Math.max(1, Math.ceil(14 / step));
    const marks = [];
    for (let bucket = first; bucket < last; bucket += every) marks.push(bucket);
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = palette.dim;
    for (const bucket of marks) context.fillText(mark(state.bounds[bucket]), area.left - 6, top(bucket));
    context.strokeStyle = palette.line;
    context.strokeRect(area.left + 0.5, area.top + 0.5, area.right - area.left - 1, area.bottom - area.top - 1);
  });
  const one = digests.length ? cursorDigest(digests) : null;
  const peak = one && [...one.buckets].sort((a, b) => b[1] - a[1])[0];
  setText($("read-heat"), peak ? `${clock(one.time)}: ${count(one.calls / one.seconds)} calls a second, most of them from ${
    mark(state.bounds[peak[0] - 1] ?? 0)} to ${peak[0] < state.bounds.length ? mark(state.bounds[peak[0]]) : "…"}` : "");
}

// Values of NAME at each frame, as far as they are known: frames have what has changed
function valuesOf(frames, name) {
  let value = null;
  const points = [];
  for (const frame of frames) {
    value = frame.values[name] ?? value;
    if (value !== null) points.push({time: frame.time, seconds: frame.seconds, value});
  }
  return points;
}

function chartHeap(frames) {
  const points = valuesOf(frames, "clgrpc.heap.used");
  const limit = roundUp(Math.max(1e6, ...points.map((point) => point.value)));
  draw($("chart-heap"), (context, area, x) => {
    const y = (value) => area.bottom - (area.bottom - area.top) * value / limit;
    grid(context, area, [0, limit / 2, limit], y, octets);
    line(context, points.map((point) => [point.time, point.value]), x, y, palette.ok, area);
    context.fillStyle = palette.bad;
    for (const frame of frames) if (frame.collected) context.fillRect(x(frame.time) - 1, area.top, 2, 10);
  });
  const at = points.length && (state.cursor === null ? points.at(-1)
    : points.reduce((a, b) => Math.abs(a.time - state.cursor) <= Math.abs(b.time - state.cursor) ? a : b));
  setText($("read-heap"), at ? `${clock(at.time)}: ${octets(at.value)} of ${
    octets(state.values["clgrpc.heap.limit"] ?? 0)}` : "");
}

// How fast the value NAME grows, by the last frames
function speed(name) {
  const points = valuesOf(state.frames, name).slice(-6);
  if (points.length < 2) return null;
  const gone = points.slice(1).reduce((sum, point) => sum + point.seconds, 0);
  return (points.at(-1).value - points[0].value) / gone;
}

function groups(name, frames) {
  const found = new Map();
  const group = (series) => {
    if (!found.has(series[name]))
      found.set(series[name], {name: series[name], calls: 0, failed: 0, total: 0, seconds: 0, buckets: new Map()});
    return found.get(series[name]);
  };
  for (const series of state.series.values()) if (chosen(series)) group(series).total += series.calls;
  for (const frame of frames)
    for (const [number, , ...pairs] of frame.counts) {
      const series = state.series.get(number);
      if (!chosen(series)) continue;
      const one = group(series);
      for (let i = 0; i < pairs.length; i += 2) {
        one.calls += pairs[i + 1];
        if (failedStatus(series.status)) one.failed += pairs[i + 1];
        one.buckets.set(pairs[i], (one.buckets.get(pairs[i]) ?? 0) + pairs[i + 1]);
      }
    }
  return [...found.values()];
}

// How many calls of METHOD, or of all that are served, have begun and not ended
function underWay(method) {
  let open = 0;
  for (const [name, begun] of Object.entries(state.values))
    if (name.startsWith(STARTED) && (!method || name === STARTED + method)) open += begun;
  for (const series of state.series.values())
    if (series.role === "server" && (!method || series.method === method)) open -= series.calls;
  return Math.max(0, open);
}

function showMethods(frames) {
  const gone = frames.reduce((sum, frame) => sum + frame.seconds, 0) || 1;
  const found = groups("method", frames);
  if (state.role === "server") // those whose calls have all yet to end
    for (const name of Object.keys(state.values)
      .filter((name) => name.startsWith(STARTED)).map((name) => name.slice(STARTED.length)))
      if (!found.some((one) => one.name === name) && (!state.method || state.method === name))
        found.push({name, calls: 0, failed: 0, total: 0, buckets: new Map()});
  const list = found.sort((a, b) => b.calls - a.calls || b.total - a.total).slice(0, MOST_ROWS);
  rows($("methods").tBodies[0], list, (one) => one.name, (row, one) => {
    row.dataset.total = one.total;
    if (!row.children.length) {
      row.append(element("td", {}, element("button", {type: "button", title: "Show this method only",
                                                      onclick: () => chooseMethod(one.name)}, ...breakable(one.name))));
    }
    [[count(one.calls / gone), "n"], [seconds(percentile(one.buckets, 0.5)), "n wide"],
     [seconds(percentile(one.buckets, 0.99)), "n"],
     [percent(one.failed, one.calls), one.failed ? "n bad" : "n"],
     [state.role === "server" ? count(underWay(one.name)) : "–", "n open"], [count(one.total), "n wide"]]
      .forEach(([text, kind], i) => {
        const cell = row.children[i + 1] ?? row.appendChild(element("td"));
        cell.className = kind;
        setText(cell, text);
      });
  });
}

function showStatuses(frames) {
  const list = groups("status", frames).sort((a, b) => b.total - a.total);
  const whole = list.reduce((sum, one) => sum + one.calls, 0);
  rows($("statuses").tBodies[0], list, (one) => one.name, (row, one) => {
    row.dataset.total = one.total;
    const bad = failedStatus(one.name);
    if (!row.children.length)
      row.append(element("td", {}, element("button", {type: "button", title: "List calls of this status only",
                                                      class: bad ? "status-bad" : "",
                                                      onclick: () => listOnly({status: one.name})}, one.name)));
    cells(row, [row.children[0].firstChild],
          [element("span", {class: bad ? "bar bad" : "bar", hidden: one.calls ? null : "",
                            style: {width: `${whole ? 100 * one.calls / whole : 0}%`}}), ""],
          [count(one.calls), "n"], [count(one.total), "n"]);
  });
}

// Calls and their lives

// The stages of calls at this end, one behind the other
const stagesOf = (role) => role === "server" ? ["receive", "queue", "answer", "send"]
  : STAGES.filter((name) => name !== "answer");

function showStageKeys() {
  if ($("stage-keys").dataset.role === state.role) return;
  $("stage-keys").dataset.role = state.role;
  $("stage-keys").replaceChildren(...stagesOf(state.role)
    .flatMap((name) => [element("i", {class: "key", style: {"--key": `var(--s-${name})`}}), name]));
}

const stageList = (call) => STAGES.filter((name) => typeof call.stages?.[name] === "number")
  .map((name) => [name, call.stages[name]]);

function stageBar(call) {
  const parts = stageList(call), sum = Math.max(call.seconds, parts.reduce((all, [, value]) => all + value, 0));
  const text = parts.map(([name, value]) => `${name} ${seconds(value)}`).join(", ") || "no stages";
  return element("span", {class: "stages", role: "img", "aria-label": text, title: text},
                 ...parts.map(([name, value]) => element("i", {style: {width: `${100 * value / (sum || 1)}%`,
                                                                       "--key": `var(--s-${name})`}})));
}

const shortMethod = (method) => (method ?? "unknown").replace(/^\//, "");

// True if CALL is one of those that were asked for by a click
function listed(call) {
  const {status, peer, from, to, above, below} = state.only;
  return (!status || call.status === status) && (!peer || call.peer === peer)
    && (from === undefined || (call.time > from && call.time <= to))
    && (above === undefined || (call.seconds > above && call.seconds <= below));
}

// List the calls that ONLY says, and go to the list
function listOnly(only) {
  state.only = only;
  if (only.status) state.which = failedStatus(only.status) ? "failed" : "slow";
  else if (only.from !== undefined) state.which = "slow";
  showChoice();
  render();
  $("h-calls").scrollIntoView({block: "start", behavior: "smooth"});
}

function onlyText() {
  const {status, peer, from, to, above, below} = state.only, parts = [];
  if (status) parts.push(`with ${status}`);
  if (peer) parts.push(`of ${peer}`);
  if (from !== undefined) parts.push(`that ended from ${clock(from)} to ${clock(to)}`);
  if (above !== undefined) parts.push(`that took ${mark(above)} to ${below === Infinity ? "…" : mark(below)}`);
  return parts.length ? `Only calls ${parts.join(", ")}` : "";
}

function showCalls() {
  const failed = state.which === "failed", from = newestTime() - state.span * 1000;
  $("only").hidden = !onlyText();
  setText($("only-text"), onlyText());
  const list = [...state.calls.values()]
    .filter((call) => call.role === state.role && call.time > from && (!failed || failedStatus(call.status))
            && (!state.method || shortMethod(call.method) === state.method) && listed(call))
    .sort((a, b) => failed ? b.number - a.number : b.seconds - a.seconds).slice(0, MOST_ROWS);
  rows($("calls").tBodies[0], list, (call) => call.number, (row, call) => {
    if (!row.children.length) {
      row.append(element("td", {}, element("button", {type: "button", onclick: () => showLife(call)},
                                            ...breakable(shortMethod(call.method)))),
                 element("td", {class: failedStatus(call.status) ? "status-bad" : ""}, call.status),
                 element("td", {class: "n"}, seconds(call.seconds)),
                 element("td", {class: "wide"}, stageBar(call)),
                 element("td", {class: "wide"}, call.protocol ?? ""),
                 element("td", {class: "wide"}, call.peer ?? ""),
                 element("td", {class: "n wide"}));
    }
    setText(row.lastChild, ago(call.time));
  });
  if (!list.length)
    $("calls").tBodies[0].replaceChildren(element("tr", {}, element("td", {colspan: 7},
      onlyText() ? "None of them is kept: those are the slowest of each minute, and the last that failed."
        : failed ? "No call has failed." : "None yet.")));
}

// A trace's id leads to what the log says of the trace
const traceButton = (id) => element("button", {type: "button", title: "Find it in the log", onclick: () => {
  $("life").close();
  searchLog(id);
}}, id);

// A call's stages one behind the other, as they followed each other
function showLife(call) {
  const order = stagesOf(call.role);
  const parts = stageList(call).sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]));
  const sum = Math.max(call.seconds, parts.reduce((all, [, value]) => all + value, 0)) || 1;
  let at = 0;
  const life = parts.flatMap(([name, value]) => {
    const bar = element("i", {style: {left: `${100 * at / sum}%`, width: `${100 * value / sum}%`,
                                      "--key": `var(--s-${name})`}});
    at += value;
    return [element("span", {}, name), element("span", {class: "n"}, seconds(value)),
            element("span", {class: "track", "aria-hidden": "true"}, bar)];
  });
  const skip = new Set(["number", "time", "role", "method", "stages", "seconds"]);
  const pairs = [["took", seconds(call.seconds)], ["ended", `${clock(call.time)}, ${ago(call.time)}`],
                 ["this end", call.role === "server" ? "served it" : "made it"]];
  if (typeof call.stages?.stage === "string") pairs.push(["it was at", call.stages.stage]);
  for (const [name, value] of Object.entries(call))
    if (!skip.has(name) && value !== null)
      pairs.push([name.replaceAll("-", " "), name === "trace-id" ? traceButton(String(value)) : String(value)]);
  $("life-title").replaceChildren(...breakable(shortMethod(call.method)));
  $("life-body").replaceChildren(
    life.length ? element("div", {class: "life"}, ...life) : element("p", {class: "note"}, "Its stages were too short to be measured."),
    element("dl", {class: "pairs"}, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])));
  $("life").showModal();
}

// Loops, connections, threads

// How many turns a second LOOP makes, by what it had made a few seconds ago
function turnSpeed(loop) {
  const past = state.turns.get(loop.key) ?? [];
  if (past.at(-1)?.time !== newestTime()) past.push({time: newestTime(), turns: loop.turns});
  if (past.length > 6) past.shift();
  state.turns.set(loop.key, past);
  const gone = (past.at(-1).time - past[0].time) / 1000;
  return gone > 0 ? (past.at(-1).turns - past[0].turns) / gone : null;
}

function showLoops() {
  const loops = state.servers.flatMap((server) =>
    (server.loops ?? []).map((loop) => ({...loop, key: `${server.addresses[0]} ${loop.name}`})));
  rows($("loops").tBodies[0], loops, (loop) => loop.key, (row, loop) => {
    const turns = loop.turns === undefined ? null : turnSpeed(loop);
    if (loop.connections === undefined) cells(row, [loop.name], ["does not answer", "n bad"], ["", "n"], ["", "n"]);
    else cells(row, [loop.name], [count(loop.connections), "n"], [count(loop.open), "n"],
               [turns === null ? "–" : count(turns), "n"]);
  });
  const links = loops.flatMap((loop) => (loop.links ?? []).map((link) => ({...link, loop: loop.name, key: loop.key})));
  links.sort((a, b) => b.calls - a.calls);
  const shown = links.slice(0, MOST_ROWS);
  rows($("connections").tBodies[0], shown, (link) => `${link.key} ${link.peer}`, (row, link) => {
    if (!row.children.length)
      row.append(element("td", {}, element("button", {type: "button", title: "List calls of this peer only",
                                                      onclick: () => listOnly({peer: link.peer})}, link.peer ?? "")));
    cells(row, [row.children[0].firstChild], [count(link.calls), "n"], [link.tls === true ? "yes" : "no"],
          [duration(link.seconds), "n"], [link.loop, "wide"]);
  });
  const all = loops.reduce((sum, loop) => sum + (loop.connections ?? 0), 0);
  setText($("more-connections"), all > shown.length ? `and ${count(all - shown.length)} more` : "");
  const names = state.threads.map(([name, number]) => (name || "unnamed") + (number > 1 ? ` × ${number}` : ""));
  if ($("threads").childElementCount !== names.length || $("threads").textContent !== names.join(""))
    $("threads").replaceChildren(...names.map((name) => element("li", {}, name)));
}

// The log

// What ENTRY says, for a search: its event, and names and values as they are shown
function entryText(entry) {
  entry.text ??= `${entry.event} ${entry.values.map(([name, text]) => `${name}=${text}`).join(" ")}`.toLowerCase();
  return entry.text;
}

function searchLog(words) {
  state.words = words;
  showChoice();
  render();
  $("h-log").scrollIntoView({block: "start", behavior: "smooth"});
}

// TEXT, the value NAME of an event; times are in units that people read
const valueText = (name, text) => name === "seconds" && Number.isFinite(Number(text)) ? seconds(Number(text)) : text;

function showLog() {
  const least = LEVELS.indexOf(state.level);
  const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
  const list = state.log.filter((entry) => LEVELS.indexOf(entry.level) >= least
                                && words.every((word) => entryText(entry).includes(word))).slice(0, 200);
  $("no-log").hidden = list.length > 0;
  rows($("log").tBodies[0], list, (entry) => entry.number, (row, entry) => {
    if (row.children.length) return;
    row.append(element("td", {}, clock(entry.time)), element("td", {class: entry.level}, entry.level),
               element("td", {class: "text"}, element("b", {}, entry.event),
                       ...entry.values.flatMap(([name, text]) => [element("span", {}, `${name}=`),
                                                                  `${valueText(name, text)} `])));
  });
}

// Options, which are asked for once

let options = null;

async function loadOptions() {
  try {
    options ??= await (await fetch("options")).json();
  } catch {
    return; // until they are looked at
  }
  showOptions();
}

function showOptions() {
  const wanted = $("find").value.trim().toLowerCase(), changed = $("changed").checked;
  const list = (options ?? []).flatMap((server) => server.options.map((option) => ({...option, server: server.addresses[0]})))
    .filter((option) => (!changed || option.changed)
            && (!wanted || `${option.name} ${option.reason}`.toLowerCase().includes(wanted)));
  const several = (options ?? []).length > 1;
  rows($("option-table").tBodies[0], list, (option) => `${option.server} ${option.name}`, (row, option) => {
    row.className = option.changed ? "changed" : "";
    cells(row, [several ? `${option.name} (${option.server})` : option.name], [typeof option.value === "number" ? option.value.toLocaleString("en") : String(option.value), "n"],
          [option.unit, "wide"], [option.reason, "reason wide"]);
  });
}

// All of it

function showTiles(digests) {
  const last = together(state.frames.slice(-5).map(digest));
  setText($("tile-rate"), count(last.calls / (last.seconds || 1)));
  const failed = together(digests);
  setText($("tile-failed"), percent(failed.failed, failed.calls));
  $("tile-failed").className = failed.failed ? "bad" : "";
  setText($("tile-p50"), seconds(percentile(last.buckets, 0.5)));
  setText($("tile-p99"), seconds(percentile(last.buckets, 0.99)));
  const connections = Object.entries(state.values).filter(([name]) => name.startsWith("clgrpc.loop.connections/"));
  setText($("tile-connections"), count(connections.reduce((sum, [, value]) => sum + value, 0)));
  setText($("tile-open"), state.role === "server" ? count(underWay("")) : "–");
  setText($("failed-of"), state.span > MINUTES ? "Failed in an hour" : `Failed in ${state.span / 60} min`);
  const cpu = speed("process.cpu.time");
  setText($("tile-cpu"), cpu === null ? "–" : percent(cpu, 1));
  setText($("tile-heap"), octets(state.values["clgrpc.heap.used"] ?? 0));
  setText($("gc-count"), count(state.values["clgrpc.gc.collections"] ?? 0));
  setText($("gc-pause"), seconds(state.values["clgrpc.gc.pause"] ?? 0));
  const allocated = speed("clgrpc.heap.allocated");
  setText($("gc-rate"), allocated === null ? "–" : octets(Math.max(0, allocated)));
  setText($("rss"), octets(state.values["process.memory.usage"] ?? 0));
  setText($("thread-count"), count(state.values["process.thread.count"] ?? 0));
}

function showChoices() {
  const methods = [...new Set([...state.series.values()].filter((series) => series.role === state.role)
    .map((series) => series.method))].sort();
  const wanted = ["", ...methods];
  const have = [...$("method").options].map((option) => option.value);
  if (wanted.join("\n") !== have.join("\n")) {
    $("method").replaceChildren(...wanted.map((name) => element("option", {value: name}, name || "all")));
    if (methods.length && !methods.includes(state.method)) state.method = "";
  }
  $("method").value = state.method;
}

let due = false;

function render() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    showChoices();
    const frames = shownFrames(), digests = frames.map(digest);
    showTiles(digests);
    chartRate(digests);
    chartLatency(digests);
    chartHeat(digests);
    chartHeap(frames);
    showMethods(frames);
    showStatuses(frames);
    showStageKeys();
    showCalls();
    showLoops();
    showLog();
    document.documentElement.dataset.frames = state.frames.length;
    document.documentElement.dataset.hour = state.hour.length;
    rememberView();
  });
}

// A view has a link: what was chosen stands in the fragment of the address

const VIEW = {role: "server", method: "", span: 300, which: "slow", level: "info", words: ""};

function rememberView() {
  const view = new URLSearchParams();
  for (const [name, usual] of Object.entries(VIEW)) if (state[name] !== usual) view.set(name, state[name]);
  for (const name of ["status", "peer"]) if (state.only[name]) view.set(name, state.only[name]);
  const fragment = view.toString();
  if (fragment !== location.hash.slice(1))
    history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
}

function recallView() {
  const view = new URLSearchParams(location.hash.slice(1));
  const among = (name, allowed) => allowed.includes(view.get(name)) ? view.get(name) : VIEW[name];
  state.role = among("role", ["server", "client"]);
  state.which = among("which", ["slow", "failed"]);
  state.level = among("level", LEVELS);
  state.span = Number(among("span", ["60", "300", "3600"]));
  state.method = view.get("method") ?? "";
  state.words = view.get("words") ?? "";
  state.only = {};
  for (const name of ["status", "peer"]) if (view.get(name)) state.only[name] = view.get(name);
}

// Have the controls show what is chosen
function showChoice() {
  for (const name of ["role", "span", "which"])
    document.querySelector(`input[name=${name}][value="${state[name]}"]`).checked = true;
  $("level").value = state.level;
  $("log-find").value = state.words;
}

// Choices

function chooseRole(role) {
  state.role = role;
  document.querySelector(`input[name=role][value=${role}]`).checked = true;
}

function chooseMethod(name) {
  state.method = state.method === name ? "" : name;
  render();
}

function begin() {
  document.body.append(probe);
  recallView();
  showChoice();
  addEventListener("hashchange", () => { recallView(); showChoice(); render(); });
  beginTheme(() => { readPalette(); render(); });
  $("pause").addEventListener("click", () => {
    state.paused = !state.paused;
    $("pause").setAttribute("aria-pressed", state.paused);
    if (state.paused) closeStream("paused"); else openStream();
  });
  $("choices").addEventListener("change", (event) => {
    const {name, value, id} = event.target;
    if (id === "method") state.method = value;
    else if (name === "span") state.span = Number(value);
    else if (name === "role") { state.role = value; state.method = ""; state.only = {}; }
    render();
  });
  for (const button of document.querySelectorAll("input[name=which]"))
    button.addEventListener("change", () => { state.which = button.value; render(); });
  $("level").addEventListener("change", () => { state.level = $("level").value; render(); });
  $("log-find").addEventListener("input", () => { state.words = $("log-find").value.trim(); render(); });
  $("all-calls").addEventListener("click", () => { state.only = {}; render(); });
  $("to-failed").addEventListener("click", () => {
    state.which = "failed";
    listOnly({});
  });
  $("close").addEventListener("click", () => $("life").close());
  $("options").addEventListener("toggle", () => { if ($("options").open) loadOptions(); });
  $("find").addEventListener("input", showOptions);
  $("changed").addEventListener("change", showOptions);
  for (const canvas of document.querySelectorAll("canvas")) readable(canvas);
  addEventListener("resize", render);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) closeStream("hidden"); else openStream();
  });
  openStream();
}

function callsAt(canvas, time, top) {
  const around = state.span * 1000 / 60, only = {from: time - around, to: time + around};
  const bucket = top < 0 ? undefined : canvas.bucketAt?.(top);
  if (bucket >= 0 && bucket <= state.bounds.length) {
    only.above = state.bounds[bucket - 1] ?? -1;
    only.below = state.bounds[bucket] ?? Infinity;
  }
  return only;
}

// The pointer, or the arrow keys, move the cursor of all charts
function readable(canvas) {
  const move = (time) => { state.cursor = time; render(); };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), end = newestTime();
    const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    move(share < 0 || share > 1 ? null : end - (1 - share) * state.span * 1000);
  });
  // a click leads to the calls of that moment, and in the heat map to those of that duration
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    if (state.cursor !== null) listOnly(callsAt(canvas, state.cursor, event.clientY - box.top));
  });
  canvas.addEventListener("pointerleave", () => move(null));
  canvas.addEventListener("blur", () => move(null));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && state.cursor !== null) listOnly(callsAt(canvas, state.cursor, -1));
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    const end = newestTime(), at = (state.cursor ?? end) + step * state.span * 1000 / 60;
    move(Math.min(end, Math.max(end - state.span * 1000, at)));
  });
}

begin();
