// Chromium without a window looks at a page in a file. Prints what it saw as JSON. Arguments:
// Chromium, the page's address, a directory for pictures or "", and what their names begin with.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { inPage, pause, startBrowser } from "../../support/programs/browser.mjs";

const [chromium, address, pictures, name] = process.argv.slice(2);
const { tell, listen, end } = startBrowser(chromium);
const seen = { errors: [], requests: [], faint: [], wide: {}, small: {}, overlaps: {} };

// the contrast of each text with what is behind it (WCAG: 4.5)
const faint = `(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (node) => { for (; node; node = node.parentElement) {
    const c = numbers(getComputedStyle(node).backgroundColor); if (c.length < 4 || c[3] > 0.99) return c; } return [255, 255, 255]; };
  const low = [];
  for (const node of document.querySelectorAll("body *")) {
    if (node.tagName === "title" || !node.getClientRects().length
        || ![...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) continue;
    const style = getComputedStyle(node), drawn = node instanceof SVGElement;
    const a = light(numbers(drawn ? style.fill : style.color)), b = light(back(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(node.tagName + " " + node.textContent.slice(0, 30) + " " + ratio.toFixed(2));
  }
  return low; })()`;

// texts of charts that are smaller than one can read, and those that lie over each other
const small = `[...document.querySelectorAll("svg text")].filter((text) => text.getClientRects().length
  && text.getBoundingClientRect().height < 10).map((text) => text.textContent)`;
const overlaps = `[...document.querySelectorAll("svg[role=img]")].flatMap((svg) => {
  const texts = [...svg.querySelectorAll("text")].filter((text) => text.getClientRects().length)
    .map((text) => [text.textContent, text.getBoundingClientRect()]);
  return texts.flatMap(([a, p], i) => texts.slice(i + 1).filter(([, q]) =>
    p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3).map(([b]) => a + " | " + b)); })`;

async function look() {
  const { targetInfos } = await tell("Target.getTargets");
  const { sessionId } = await tell("Target.attachToTarget",
    { targetId: targetInfos.find((target) => target.type === "page").targetId, flatten: true });
  const { page, value } = inPage(tell, sessionId);
  listen(({ method, params }) => {
    if (method === "Runtime.exceptionThrown") seen.errors.push(JSON.stringify(params.exceptionDetails));
    if (method === "Runtime.consoleAPICalled") seen.errors.push(JSON.stringify(params.args));
    if (method === "Log.entryAdded") seen.errors.push(`${params.entry.text} ${params.entry.url ?? ""}`);
    if (method === "Network.requestWillBeSent") seen.requests.push(params.request.url);
  });
  for (const domain of ["Runtime", "Log", "Network", "Page", "Accessibility"]) await page(`${domain}.enable`);
  const loaded = new Promise((resolve) => listen(({ method }) => {
    if (method === "Page.loadEventFired") resolve(); }));
  await page("Page.navigate", { url: address });
  await loaded;

  seen.title = await value("document.title");
  seen.mode = await value("document.compatMode");
  seen.headings = await value("[...document.querySelectorAll('h1, h2')].map((node) => node.textContent)");
  seen.charts = await value("[...document.querySelectorAll('svg[role=img]')].map((svg) => svg.getAttribute('aria-label'))");
  seen.text = await value("document.body.innerText");
  const { nodes } = await page("Accessibility.getFullAXTree");
  seen.nameless = nodes.filter((node) => !node.ignored && ["image", "region"].includes(node.role?.value)
    && !node.name?.value).map((node) => node.role.value);

  for (const width of [1280, 400])
    for (const kind of ["light", "dark"]) {
      await page("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: false });
      await page("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: kind }] });
      await pause(200);
      const how = `${width} ${kind}`;
      seen.faint.push(...(await value(faint)).map((text) => `${how}: ${text}`));
      seen.wide[how] = await value("document.documentElement.scrollWidth - innerWidth");
      seen.small[how] = await value(small);
      seen.overlaps[how] = await value(overlaps);
      if (pictures) {
        const height = Math.ceil(await value("document.documentElement.scrollHeight"));
        const { data } = await page("Page.captureScreenshot", { format: "png", captureBeyondViewport: true,
          clip: { x: 0, y: 0, width, height, scale: 1 } });
        writeFileSync(join(pictures, `${name}-${kind}-${width}.png`), Buffer.from(data, "base64"));
      }
    }
}

try {
  await look();
} catch (error) {
  seen.errors.push(`the driver: ${error.stack}`);
}
console.log(JSON.stringify(seen));
await end();
