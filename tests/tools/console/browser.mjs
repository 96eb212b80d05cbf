// Chromium without a window looks at the console. Prints what it saw as JSON. Arguments: Chromium,
// the console's address, how many calls the page is to show in all, and a directory for pictures
// or "".
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { faintTexts, inPage, pause, startBrowser } from "../../support/programs/browser.mjs";

const [chromium, address, wanted, pictures] = process.argv.slice(2);
const { tell, listen, end } = startBrowser(chromium);
const seen = { errors: [], requests: [] };

async function look() {
  const { targetInfos } = await tell("Target.getTargets");
  const { sessionId } = await tell("Target.attachToTarget",
    { targetId: targetInfos.find((target) => target.type === "page").targetId, flatten: true });
  const { page, value, until } = inPage(tell, sessionId);
  listen(({ method, params }) => {
    if (method === "Runtime.exceptionThrown") seen.errors.push(JSON.stringify(params.exceptionDetails));
    if (method === "Runtime.consoleAPICalled" && ["error", "warning", "assert"].includes(params.type))
      seen.errors.push(params.args.map((argument) => argument.value ?? argument.description).join(" "));
    if (method === "Log.entryAdded" && ["error", "warning"].includes(params.entry.level))
      seen.errors.push(`${params.entry.text} ${params.entry.url ?? ""}`);
    if (method === "Network.requestWillBeSent") seen.requests.push(params.request.url);
  });
  for (const domain of ["Runtime", "Log", "Network", "Page", "Accessibility"]) await page(`${domain}.enable`);
  const size = async (width, height) => {
    await page("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
    await pause(300);
  };
  const theme = async (name) => {
    await page("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: name }] });
    await pause(300);
  };
  // of the element ID, or of the whole page
  const picture = async (name, id) => {
    if (!pictures) return;
    const clip = await value(id
      ? `(({ x, y, width, height }) => ({ x: x + scrollX, y: y + scrollY, width, height, scale: 1 }))
         (document.getElementById("${id}").getBoundingClientRect())`
      : "({ x: 0, y: 0, width: innerWidth, height: document.documentElement.scrollHeight, scale: 1 })");
    const { data } = await page("Page.captureScreenshot", { format: "png", captureBeyondViewport: true, clip });
    writeFileSync(join(pictures, `${name}.png`), Buffer.from(data, "base64"));
  };

  await size(1280, 900);
  await theme("light");
  await page("Page.navigate", { url: address });
  seen.live = await until("document.getElementById('link')?.dataset.state === 'live'"
    + " && Number(document.documentElement.dataset.frames) >= 2");
  seen.address = await value("location.href");
  const total = "[...document.querySelectorAll('#statuses tbody tr')].reduce((sum, row) => sum + Number(row.dataset.total), 0)";
  seen.agreed = await until(`${total} === ${wanted}`);
  seen.statuses = await value("Object.fromEntries([...document.querySelectorAll('#statuses tbody tr')]"
    + ".map((row) => [row.dataset.key, Number(row.dataset.total)]))");
  seen.methods = await value("Object.fromEntries([...document.querySelectorAll('#methods tbody tr')]"
    + ".map((row) => [row.dataset.key, Number(row.dataset.total)]))");

  // a call's life, by the keyboard alone
  seen.calls = await value("document.querySelectorAll('#calls tbody button').length");
  await value("document.querySelector('#calls tbody button').focus()");
  for (const type of ["keyDown", "keyUp"])
    await page("Input.dispatchKeyEvent", { type, key: "Enter", code: "Enter", windowsVirtualKeyCode: 13, text: "\r" });
  seen.life = await until("document.getElementById('life').open", 5);
  seen.lifeText = await value("document.getElementById('life').innerText");
  await picture("console-life", "life");
  for (const type of ["keyDown", "keyUp"])
    await page("Input.dispatchKeyEvent", { type, key: "Escape", code: "Escape", windowsVirtualKeyCode: 27 });
  seen.closed = await until("!document.getElementById('life').open", 5);

  // a call that hangs: how many are under way, of which method, and on which connection
  await until("document.getElementById('tile-open').textContent === '1'", 5);
  seen.open = await value("document.getElementById('tile-open').textContent");
  seen.openOf = await value("Object.fromEntries([...document.querySelectorAll('#methods tbody tr')]"
    + ".map((row) => [row.dataset.key, row.querySelector('.open').textContent]))");
  seen.busy = await value("[...document.querySelectorAll('#connections tbody tr')]"
    + ".map((row) => row.children[1].textContent).filter((streams) => streams !== '0')");

  // a call that has failed, and what a peer has said
  await value("document.querySelector('input[name=which][value=failed]').click()");
  const denied = `[...document.querySelectorAll('#calls tbody tr')]
    .find((row) => row.children[1]?.textContent === 'PERMISSION_DENIED')`;
  await until(`Boolean(${denied})`, 5);
  await value(`${denied}?.querySelector('button').click()`);
  await until("document.getElementById('life').open", 5);
  seen.failedText = await value("document.getElementById('life').innerText");
  await value("document.getElementById('close').click()");
  await value("document.querySelector('input[name=which][value=slow]').click()");
  seen.logText = await value("document.getElementById('log').textContent");
  seen.foreign = await value("document.querySelectorAll('img, svg, iframe, object, [onerror], [onload]').length"
    + " + document.scripts.length - 1");
  seen.hacked = await value("'hacked' in window");

  // a status leads to its calls, and back
  const button = (id, text) => `[...document.querySelectorAll('#${id} tbody button')].find((one) => one.textContent === '${text}')`;
  await value(`${button("statuses", "PERMISSION_DENIED")}.click()`);
  await until("!document.getElementById('only').hidden", 5);
  seen.onlyText = await value("document.getElementById('only-text').textContent");
  seen.onlyStatuses = await value("[...new Set([...document.querySelectorAll('#calls tbody tr')].map((row) => row.children[1]?.textContent))]");
  seen.fragment = await value("location.hash");
  await value("document.getElementById('all-calls').click()");

  // the log is searched, and a view has a link, which another page shows
  await value("const find = document.getElementById('log-find'); find.value = 'example not'; find.dispatchEvent(new Event('input'))");
  await until("location.hash.includes('words=example')", 5);
  seen.found = await value("[...new Set([...document.querySelectorAll('#log tbody b')].map((one) => one.textContent))]");
  await value("location.hash = '#level=error&span=60'");
  await until("document.getElementById('level').value === 'error'", 5);
  seen.recalled = await value("[document.querySelector('input[name=span]:checked').value, document.getElementById('log-find').value]");
  await value("location.hash = ''");

  // the charts say in words what they show where the arrow keys point
  await value("document.getElementById('chart-rate').focus()");
  await page("Input.dispatchKeyEvent", { type: "keyDown", key: "ArrowLeft", code: "ArrowLeft", windowsVirtualKeyCode: 37 });
  await pause(200);
  seen.reading = await value("document.getElementById('read-rate').textContent");
  for (const type of ["keyDown", "keyUp"])
    await page("Input.dispatchKeyEvent", { type, key: "Enter", code: "Enter", windowsVirtualKeyCode: 13 });
  await until("document.getElementById('only-text').textContent.includes('that ended from')", 5);
  seen.moment = await value("document.getElementById('only-text').textContent");
  await value("document.getElementById('all-calls').click()");
  await value("document.activeElement.blur()");

  // the last hour
  await value("document.querySelector('input[name=span][value=\"3600\"]').click()");
  await until("document.getElementById('failed-of').textContent === 'Failed in an hour'", 5);
  seen.hourTile = await value("document.getElementById('failed-of').textContent");
  seen.hour = await value("Number(document.documentElement.dataset.hour)");
  seen.hourReading = await value("document.getElementById('read-rate').textContent");
  seen.hourStatuses = await value("Object.fromEntries([...document.querySelectorAll('#statuses tbody tr')]"
    + ".map((row) => [row.dataset.key, Number(row.dataset.total)]))");
  await value("document.querySelector('input[name=span][value=\"300\"]').click()");

  await value("document.querySelector('#options summary').click()");
  seen.options = await until("document.querySelectorAll('#option-table tbody tr').length > 20", 10);
  await value("document.querySelector('#options summary').click()");

  // everything that can be used has a name
  const { nodes } = await page("Accessibility.getFullAXTree");
  const usable = ["button", "combobox", "checkbox", "radio", "searchbox", "textbox", "link", "image", "table", "region", "log"];
  seen.nameless = nodes.filter((node) => !node.ignored && usable.includes(node.role?.value) && !node.name?.value
    ).map((node) => node.role.value);

  // what is written can be read
  seen.faint = [];
  seen.wide = {};
  for (const [name, width, height] of [["1280", 1280, 900], ["400", 400, 900]])
    for (const kind of ["light", "dark"]) {
      await size(width, height);
      await theme(kind);
      await pause(1200);
      seen.faint.push(...(await value(faintTexts)).map((text) => `${kind}: ${text}`));
      seen.wide[`${name} ${kind}`] = await value("document.documentElement.scrollWidth - innerWidth");
      await picture(`console-${kind}-${name}`);
    }

  // who does not look is sent nothing
  await value("document.getElementById('pause').click()");
  seen.paused = await value("document.getElementById('link').textContent");
}

try {
  await look();
} catch (error) {
  seen.errors.push(`the driver: ${error.stack}`);
}
console.log(JSON.stringify(seen));
await end();
