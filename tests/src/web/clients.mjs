// Has Chromium without a window open a page that calls by the clients of npm (clients/page.js), and
// prints what became of the calls as JSON. Arguments: Chromium, the address of the page.
import { openPage, startBrowser } from "../../support/programs/browser.mjs";

const [chromium, address] = process.argv.slice(2);
const browser = startBrowser(chromium, ["--ignore-certificate-errors"]);
const seen = { errors: [] };
try {
  const page = await openPage(browser, address, seen.errors);
  if (await page.until("'outcomes' in window")) seen.outcomes = await page.value("outcomes");
} catch (error) {
  seen.errors.push(`the driver: ${error.stack}`);
}
console.log(JSON.stringify(seen));
await browser.end();
