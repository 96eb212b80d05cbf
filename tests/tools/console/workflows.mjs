// Chromium without a window looks at the console's page of workflows. Prints what it saw as JSON.
// Arguments: Chromium, the console's address, and a directory for pictures or "".
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { faintTexts, inPage, pause, startBrowser } from "../../support/programs/browser.mjs";

const [chromium, address, pictures] = process.argv.slice(2);
const { tell, listen, end } = startBrowser(chromium);
const seen = { errors: [], faint: [], wide: {} };

async function look() {
  const { targetInfos } = await tell("Target.getTargets");
  const { sessionId } = await tell("Target.attachToTarget",
    { targetId: targetInfos.find((target) => target.type === "page").targetId, flatten: true });
  const { page, value, until } = inPage(tell, sessionId);
  listen(({ method, params }) => {
    if (method === "Runtime.exceptionThrown") seen.errors.push(JSON.stringify(params.exceptionDetails));
    if (method === "Log.entryAdded") seen.errors.push(params.entry.text);
  });
  for (const domain of ["Runtime", "Log", "Page"]) await page(`${domain}.enable`);
  const text = (id) => value(`document.getElementById("${id}").textContent`);
  const listed = () => value("[...document.querySelectorAll('#list tbody tr')].map((row) => row.dataset.key)");

  // by the link of the console
  await page("Page.navigate", { url: address });
  await until("document.querySelector('#pages a')?.textContent === 'Workflows'");
  await value("document.querySelector('#pages a').click()");
  await until("document.querySelectorAll('#list tbody tr').length === 4");
  seen.listed = await listed();
  await value("document.querySelector('#search [name=status]').value = 'CANCELLED';"
    + "document.querySelector('#search').requestSubmit()");
  await until("document.querySelectorAll('#list tbody tr').length === 1");
  seen.cancelled = await listed();
  await value("document.querySelector('#search').reset()");
  await value("[...document.querySelectorAll('#list a')].find((link) => link.textContent === 'w2')?.click()");
  await until("document.getElementById('one-title').textContent === 'w2'");
  seen.reason = await text("reason");
  await value("location.hash = 'w1'");
  await until("document.getElementById('one-title').textContent === 'w1'");
  seen.steps = await text("steps");
  seen.history = await text("history");
  seen.schedules = await text("schedules");
  seen.foreign = await value("document.querySelectorAll('img, svg, iframe, object, [onerror], [onload]').length"
    + " + document.scripts.length - 1");
  seen.hacked = await value("'hacked' in window");

  for (const width of [1280, 400])
    for (const kind of ["light", "dark"]) {
      await page("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: false });
      await page("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: kind }] });
      await pause(500);
      seen.faint.push(...(await value(faintTexts)).map((faint) => `${kind}: ${faint}`));
      seen.wide[`${width} ${kind}`] = await value("document.documentElement.scrollWidth - innerWidth");
      if (!pictures) continue;
      const { data } = await page("Page.captureScreenshot", { format: "png", captureBeyondViewport: true });
      writeFileSync(join(pictures, `workflows-${kind}-${width}.png`), Buffer.from(data, "base64"));
    }
}

try {
  await look();
} catch (error) {
  seen.errors.push(`the driver: ${error.stack}`);
}
console.log(JSON.stringify(seen));
await end();
