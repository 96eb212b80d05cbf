// Chromium without a window opens every page of the manual. Prints what it saw as JSON. Arguments:
// Chromium, the address of the site's folder, a directory for pictures or "", and the pages.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { faintTexts, openPage, startBrowser } from "../../support/programs/browser.mjs";

const [chromium, root, pictures, ...pages] = process.argv.slice(2);
const browser = startBrowser(chromium);
const seen = { errors: [], wide: [], faint: [], requests: [], found: "", foundSection: "" };
const PICTURED = ["index.html", "reference/servers.html", "chapters/calls.html"];

async function look() {
  const { page, value, until } = await openPage(browser, root + pages[0], seen.errors);
  await page("Network.enable");
  browser.listen(({ method, params }) => {
    if (method === "Network.requestWillBeSent" && !params.request.url.startsWith("file:")
        && !params.request.url.startsWith("data:")) seen.requests.push(params.request.url);
  });
  for (const name of pages)
    for (const [width, kind] of [[1280, "light"], [400, "dark"]]) {
      await page("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: false });
      await page("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: kind }] });
      await page("Page.navigate", { url: root + name });
      await until(`location.href === ${JSON.stringify(root + name)} && document.readyState === "complete"`);
      const how = `${name} ${width} ${kind}`;
      if (await value("document.documentElement.scrollWidth - innerWidth") > 0) seen.wide.push(how);
      seen.faint.push(...(await value(faintTexts)).map((text) => `${how}: ${text}`));
      if (pictures && PICTURED.includes(name)) {
        const { data } = await page("Page.captureScreenshot", { format: "png" });
        writeFileSync(join(pictures, `manual-${name.replaceAll("/", "-")}-${kind}-${width}.png`), Buffer.from(data, "base64"));
      }
    }
  const search = async (words) => {
    await value(`(() => { const input = document.getElementById("search"); input.value = ${JSON.stringify(words)};
      input.dispatchEvent(new Event("input")); })()`);
    return value(`document.querySelector("#found a")?.href ?? ""`);
  };
  seen.found = await search("start-server");
  seen.foundSection = await search("inheritance of deadlines nested");
  if (seen.foundSection === "") seen.foundSection = await search("deadlines");
}

try {
  await look();
} catch (error) {
  seen.errors.push(`the driver: ${error.stack}`);
}
console.log(JSON.stringify(seen));
await browser.end();
