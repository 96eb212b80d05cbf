// The page of workflows: what the service answers, in the JSON of Protocol Buffers, becomes tables.
// The workflow that is shown is the fragment of the address, so links and the browser's history work.

const EVERY_MS = 5000;
const found = {search: {}, workflows: [], next: ""};

// What the service answers to MESSAGE for WHAT
async function ask(what, message) {
  const response = await fetch(`${what}?request=${encodeURIComponent(JSON.stringify(message))}`);
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

function tell(text, mark) {
  setText($("link"), text);
  $("link").dataset.state = mark;
}

// Do what FUNCTION does, and say whether the service has answered
async function trying(work) {
  try {
    await work();
    tell(`as of ${clock(Date.now())}`, "live");
  } catch (error) {
    tell(error.message, "lost");
  }
}

// Times, milliseconds as text, 0 or nothing for none

const clock = (ms) => new Date(ms).toISOString().slice(11, 19);
const moment = (ms) => Number(ms) ? new Date(Number(ms)).toISOString().slice(0, 19).replace("T", " ") : "";

function lasted(begin, end) {
  const ms = Number(end) - Number(begin);
  if (!Number(begin) || !Number(end)) return "";
  if (ms < 1000) return `${ms} ms`;
  if (ms < 100000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 6000000) return `${Math.round(ms / 60000)} min`;
  return `${Math.round(ms / 3600000)} h`;
}

const small = (name) => (name ?? "").toLowerCase().replaceAll("_", " ");
const link = (id) => element("a", {href: `#${encodeURIComponent(id)}`}, id);
const status = (name) => [small(name), `status-${small(name)}`];

// The list

function searched() {
  const form = new FormData($("search")), search = {};
  for (const [name, value] of form) {
    if (!value || name === "id") continue;
    search[name] = name.endsWith("Ms") ? String(Date.parse(`${value}Z`)) : value;
  }
  return search;
}

// Pages may be short, or empty, before the last one
async function fetchPage(after) {
  let page = {workflows: [], next: after};
  do {
    const reply = await ask("list", {...found.search, after: page.next});
    page = {workflows: [...page.workflows, ...reply.workflows ?? []], next: reply.next ?? ""};
  } while (page.next && page.workflows.length < 50);
  return page;
}

function showList() {
  rows($("list").tBodies[0], found.workflows, (workflow) => workflow.id, (row, workflow) => {
    const current = workflow.current ?? 0, steps = workflow.steps ?? 0;
    cells(row, [link(workflow.id)], [workflow.type ?? "", "wide"], status(workflow.status),
          [`${current}/${steps} ${workflow.step ?? ""}`, "free"], [moment(workflow.startedUnixMs)],
          [moment(workflow.endedUnixMs), "wide"], [workflow.reason ?? "", "free wide"]);
  });
  $("none").hidden = found.workflows.length > 0;
  $("more").hidden = !found.next;
}

const list = () => trying(async () => {
  Object.assign(found, await fetchPage(""));
  showList();
});

const more = () => trying(async () => {
  const page = await fetchPage(found.next);
  Object.assign(found, {workflows: [...found.workflows, ...page.workflows], next: page.next});
  showList();
});

// Schedules

const schedules = () => trying(async () => {
  const all = [];
  let next = "";
  do {
    const reply = await ask("schedules", {after: next});
    all.push(...reply.schedules ?? []);
    next = reply.next ?? "";
  } while (next);
  rows($("schedules").tBodies[0], all, (schedule) => schedule.id, (row, schedule) => {
    cells(row, [schedule.id], [schedule.cron || `each ${Number(schedule.intervalMs) / 1000} s`],
          [schedule.type ?? "", "wide"], [schedule.paused ? "paused" : moment(schedule.nextUnixMs)],
          [schedule.lastId ? link(schedule.lastId) : "", "wide"], [schedule.started ?? "0", "n"],
          [schedule.skipped ?? "0", "n"], [schedule.missed ?? "0", "n wide"], [schedule.reason ?? "", "free wide"]);
  });
  $("no-schedules").hidden = all.length > 0;
});

// One workflow

const shownId = () => decodeURIComponent(location.hash.slice(1));

function facts(state) {
  return [["Status", small(state.status)], ["Type", state.type], ["Started", moment(state.startedUnixMs)],
          ["Ended", moment(state.endedUnixMs)], ["Fails unless ended by", moment(state.deadlineUnixMs)],
          ["Run", state.run && String(Number(state.run) + 1)], ["Changes", state.version],
          ["Parent", state.parent && link(state.parent.id)]]
    .filter(([, value]) => value)
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
}

function stepName(step) {
  if (step.name) return step.name;
  return step.task ?? step.signal ?? (step.children ? "children" : "wait");
}

// The children of a step, each with how it is, and its last error
function stepText(state, step) {
  const children = (step.children ?? []).map((child, place) =>
    child.status ? link(`${state.id}.${step.number}.${place}`) : "");
  return element("span", {}, ...children, step.error ?? "");
}

function showOne({state, history}) {
  setText($("one-title"), state.id);
  $("facts").replaceChildren(...facts(state));
  setText($("reason"), state.reason ?? "");
  rows($("steps").tBodies[0], state.steps ?? [], (step) => step.number, (row, step) => {
    cells(row, [String(step.number), "n"], [stepName(step.step ?? {})], status(step.status ?? "WAITING"),
          [String(step.attempts ?? 0), "n"], [String(step.losses ?? 0), "n wide"],
          [moment(step.begunUnixMs), "wide"], [lasted(step.begunUnixMs, step.endedUnixMs), "n"],
          [stepText(state, step), "free"]);
  });
  const events = (history ?? []).flatMap((change) =>
    (change.events ?? []).map((event, place) => ({...event, change, place})));
  rows($("history").tBodies[0], events, (event) => `${event.change.number} ${event.place}`, (row, event) => {
    cells(row, [event.change.number, "n"], [moment(event.change.unixMs)], [small(event.kind)],
          [event.step ? String(event.step) : "", "n"], [event.text ?? "", "free"]);
  });
  $("one").hidden = false;
  document.title = `${state.id} – workflows`;
}

async function one() {
  const id = shownId();
  if (!id) {
    $("one").hidden = true;
    document.title = "Workflows";
    return;
  }
  await trying(async () => {
    const reply = await ask("show", {id});
    if (id === shownId()) showOne(reply);
  });
}

// All of it

function refresh() {
  if (document.hidden) return;
  one();
  // what was asked for beyond the first page stays as it is
  if (found.workflows.length <= 100) list();
  schedules();
}

function begin() {
  beginTheme(() => {});
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = new FormData($("search")).get("id").trim();
    if (id) location.hash = encodeURIComponent(id);
    found.search = searched();
    list();
  });
  $("search").addEventListener("reset", () => { found.search = {}; list(); });
  $("more").addEventListener("click", more);
  addEventListener("hashchange", async () => {
    await one();
    if (shownId()) $("one").scrollIntoView();
  });
  document.addEventListener("visibilitychange", refresh);
  setInterval(refresh, EVERY_MS);
  refresh();
}

begin();
