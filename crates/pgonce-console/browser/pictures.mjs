// Takes the pictures of the README and the book.
//
//   node pictures.mjs BROWSER ADDRESS FOLDER NAME=PAGE...
import { chromium } from 'playwright-core';

const [, , executablePath, address, folder, ...pictures] = process.argv;
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, colorScheme: 'light' });
for (const picture of pictures) {
  const [name, ...path] = picture.split('=');
  await page.goto(address + path.join('='), { waitUntil: 'load' });
  await page.screenshot({ path: `${folder}/console-${name}.png`, fullPage: true });
}
await browser.close();
