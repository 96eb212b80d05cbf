// Drives Chromium without a window over a pipe (DevTools protocol), without another program or
// package: what the tests that look at pages share.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// What can be done with the page that SESSION, of a browser, is attached to: page(method, params) a
// command, value(expression) evaluates, until(expression, seconds) waits for it to be true.
export function inPage(tell, session) {
  const page = (method, params) => tell(method, params, session);
  const value = async (expression) => {
    const answer = await page("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (answer.exceptionDetails) throw new Error(JSON.stringify(answer.exceptionDetails));
    return answer.result.value;
  };
  const until = async (expression, seconds = 40) => {
    for (let i = 0; i < seconds * 10; i += 1) {
      if (await value(expression)) return true;
      await pause(100);
    }
    return false;
  };
  return { page, value, until };
}

// Has the browser open ADDRESS in a page of its own, whose errors go to the list ERRORS.
export async function openPage({ tell, listen }, address, errors) {
  const { targetId } = await tell("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await tell("Target.attachToTarget", { targetId, flatten: true });
  const opened = inPage(tell, sessionId);
  listen(({ method, params, sessionId: from }) => {
    if (from !== sessionId) return;
    if (method === "Runtime.exceptionThrown") errors.push(JSON.stringify(params.exceptionDetails));
    if (method === "Runtime.consoleAPICalled" && ["error", "warning", "assert"].includes(params.type))
      errors.push(params.args.map((argument) => argument.value ?? argument.description).join(" "));
    if (method === "Log.entryAdded" && ["error", "warning"].includes(params.entry.level))
      errors.push(`${params.entry.text} ${params.entry.url ?? ""}`);
  });
  for (const domain of ["Runtime", "Log", "Page"]) await opened.page(`${domain}.enable`);
  await opened.page("Page.navigate", { url: address });
  return opened;
}

// Starts the program, with MORE arguments, and returns what is done with it: tell(method, params, sessionId) a command,
// listen(function) for events, and end() it.
export function startBrowser(chromium, more = []) {
  const profile = mkdtempSync(join(tmpdir(), "clgrpc-browser-"));
  const browser = spawn(chromium, ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe", `--user-data-dir=${profile}`, ...more, "about:blank"],
    { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"], detached: true });
  const waiting = new Map(), listeners = [];
  let last = 0, rest = Buffer.alloc(0);

  browser.stdio[4].on("data", (octets) => {
    rest = Buffer.concat([rest, octets]);
    for (let end; (end = rest.indexOf(0)) >= 0; rest = rest.subarray(end + 1)) {
      const message = JSON.parse(rest.subarray(0, end).toString());
      if (message.id) {
        const { resolve, reject } = waiting.get(message.id);
        waiting.delete(message.id);
        message.error ? reject(new Error(JSON.stringify(message.error))) : resolve(message.result);
      } else for (const listener of listeners) listener(message);
    }
  });

  return {
    listen: (listener) => listeners.push(listener),
    tell(method, params = {}, sessionId) {
      const id = ++last;
      browser.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + "\0");
      return new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
    },
    // its processes are a group, the last of which may write to the profile until it has ended
    async end() {
      process.kill(-browser.pid, "SIGKILL");
      for (let tries = 1; ; tries += 1) {
        try {
          rmSync(profile, { recursive: true, force: true });
          return;
        } catch (error) {
          if (tries === 100) throw error;
          await pause(100);
        }
      }
    },
  };
}

// An expression: texts whose contrast with what is behind them is too low to be read (WCAG: 4.5)
export const faintTexts = `(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (node) => { for (; node; node = node.parentElement) {
    const c = numbers(getComputedStyle(node).backgroundColor); if (c.length < 4 || c[3] > 0.99) return c; } return [255, 255, 255]; };
  const low = [];
  for (const node of document.querySelectorAll("body *")) {
    if (![...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()) || !node.offsetParent) continue;
    const a = light(numbers(getComputedStyle(node).color)), b = light(back(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(node.tagName + " " + node.textContent.slice(0, 30) + " " + ratio.toFixed(2));
  }
  return low; })()`;
