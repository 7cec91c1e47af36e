// Opens every page of a console in a browser, in light and dark: no error, no request to others, no serious finding of axe.
// Writes pictures for people to look at.
//
//   node check.mjs BROWSER ADDRESS FOLDER PAGE...
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const [, , executablePath, address, folder, ...pages] = process.argv;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
mkdirSync(folder, { recursive: true });

const findings = [];
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
const sizes = { phone: [390, 844], tablet: [820, 1180], desktop: [1440, 900] };

const open = async (colorScheme) => {
  const context = await browser.newContext({ colorScheme, viewport: { width: 1440, height: 900 } });
  context.setDefaultTimeout(120_000);
  const page = await context.newPage();
  page.on('console', (message) => { if (message.type() === 'error') findings.push(`${page.url()}: ${message.text()}`); });
  page.on('pageerror', (error) => findings.push(`${page.url()}: ${error}`));
  page.on('request', (request) => { if (!request.url().startsWith(address)) findings.push(`a request to ${request.url()}`); });
  return page;
};

// What stands beyond the right edge when every time is long ago and every form is open, so that the clock does not decide.
// Says it in one step, before the page is fetched again; leaves the page as it was.
const widest = () => {
  const main = document.querySelector('main');
  const before = main && main.cloneNode(true);
  for (const small of document.querySelectorAll('main time small')) small.textContent = '9999 min ago';
  for (const details of document.querySelectorAll('main details')) details.open = true;
  const isWider = document.documentElement.scrollWidth > innerWidth;
  const beyond = [...document.querySelectorAll('body *')].filter((part) => part.getBoundingClientRect().right > innerWidth && !part.closest('nav, pre, .copy'));
  const found = isWider ? [beyond.map((part) => part.outerHTML.slice(0, 200)).at(-1) || 'something that scrolls'] : [];
  if (before) main.replaceChildren(...before.childNodes);
  return found;
};

for (const colorScheme of ['light', 'dark']) {
  const page = await open(colorScheme);
  for (const path of pages) {
    await page.goto(address + path, { waitUntil: 'load' });
    // Not subject to the page's policy: it is the browser that runs it.
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
    for (const { id, impact, help, nodes } of violations) {
      if (impact === 'serious' || impact === 'critical') findings.push(`${colorScheme} ${path}: ${id}: ${help}: ${nodes[0].html} ${nodes[0].failureSummary}`);
    }
    for (const [size, [width, height]] of Object.entries(sizes)) {
      await page.setViewportSize({ width, height });
      const wider = await page.evaluate(widest);
      for (const part of wider) findings.push(`${path} is wider than a ${size}: ${part}`);
      const name = path.replace(/^\//, '').replace(/[^a-z0-9]+/gi, '-').replace(/-$/, '') || 'overview';
      await page.screenshot({ path: `${folder}/${name}-${size}-${colorScheme}.png` });
    }
    await page.setViewportSize({ width: 1440, height: 900 });
  }
  await page.context().close();
}

// Without a mouse: find, go to a page, move to a row, open it, and see the keys.
const page = await open('light');
const at = async (part) => { if (!page.url().includes(part)) await page.waitForURL((url) => url.href.includes(part)); };
await page.goto(`${address}/`);
await page.keyboard.press('/');
await page.keyboard.type('stuck');
await page.keyboard.press('Enter');
await at('/find?q=stuck');
await page.locator('main').focus();
await page.keyboard.press('g');
await page.keyboard.press('i');
await at('/intents');
await page.keyboard.press('j');
await page.evaluate(() => document.activeElement.blur());
await page.keyboard.press('Enter');
await at('/intent?');
await page.keyboard.press('?');
if (!await page.locator('#help').evaluate((dialog) => dialog.open)) findings.push('? shows no help');

// A double click acts once.
await page.goto(`${address}/queue?queue=q`);
const form = page.locator('details.small', { hasText: 'Retry' }).filter({ has: page.locator('input[name=id][value="1"]') });
await form.locator('summary').click();
await form.locator('input[name=reason]').fill('a double click');
await form.locator('button').dblclick();
await at('done=retry-jobs');

// Live: what changes is shown without a click; a hidden tab has no stream.
const streamed = page.waitForRequest((request) => request.url().endsWith('/events'));
await page.goto(`${address}/audit`);
await streamed;
const hidden = page.waitForEvent('requestfinished', (request) => request.url().endsWith('/events')).catch(() => null);
const failed = page.waitForEvent('requestfailed', (request) => request.url().endsWith('/events')).catch(() => null);
await page.evaluate(() => {
  Object.defineProperty(document, 'hidden', { value: true });
  document.dispatchEvent(new Event('visibilitychange'));
});
await Promise.race([hidden, failed]);

await browser.close();
for (const finding of findings) console.error(finding);
process.exit(findings.length ? 1 : 0);
