// Two pages of the chat in Chromium without a window talk to each other. Prints what they show as
// JSON. Arguments: Chromium, the address of the page, a text that would be harmful as HTML.
import { openPage, startBrowser } from "../support/programs/browser.mjs";

const [chromium, address, evil] = process.argv.slice(2);
const browser = startBrowser(chromium);
const seen = { errors: [] };
const lines = "[...document.querySelectorAll('#lines li')]"
  + ".map((row) => `${row.firstChild.textContent}: ${row.lastChild.textContent}`)";

async function say({ value, until }, name, text) {
  await value(`document.getElementById("name").removeAttribute("maxlength");
    document.getElementById("name").value = ${JSON.stringify(name)};
    document.getElementById("text").value = ${JSON.stringify(text)};
    document.getElementById("form").requestSubmit()`);
}

try {
  const pages = [await openPage(browser, address, seen.errors), await openPage(browser, address, seen.errors)];
  const [first, second] = pages;
  const shown = async (count) => {
    for (const { until } of pages) await until(`${lines}.length === ${count}`);
  };
  for (const { until } of pages) await until("document.getElementById('state')?.dataset.state === 'live'");
  await say(first, "Ada", "Hello, Grace!");
  await shown(1);
  await say(second, evil, evil);
  await shown(2);
  await say(second, evil.repeat(2), "too long a name");
  await second.until("document.getElementById('state').dataset.state === 'refused'");
  seen.refused = await second.value("document.getElementById('state').textContent");
  await say(second, "Grace", "Hello, Ada!");
  await shown(3);
  seen.first = await first.value(lines);
  seen.second = await second.value(lines);
  seen.hacked = await first.value("'hacked' in window") || await second.value("'hacked' in window");
  seen.foreign = await second.value("document.querySelectorAll('img, svg, iframe, [onerror]').length"
    + " + document.scripts.length - 1");
} catch (error) {
  seen.errors.push(`the driver: ${error.stack}`);
}
console.log(JSON.stringify(seen));
await browser.end();
