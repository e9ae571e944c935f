import type { Page } from '@playwright/test';
import { expect, expectAccessible, expectNoSidewaysScroll, go, loaded, test } from './console';
import { call } from './relays';

/** The number of rows that a list may have in the page. */
const maxRows = 200;

/** count returns the number of events. All of them become dead letters. */
async function count(): Promise<number> {
  const { data } = await call<{ data: { log: { stored: number } } }>('long', 'GET', '/api/status');
  await expect
    .poll(async () => (await call<{ data: { dead: number } }>('long', 'GET', '/api/sinks/dead')).data.dead, {
      timeout: 60_000,
    })
    .toBe(data.log.stored);
  return data.log.stored;
}

/** scrollToEnd scrolls until the list is complete. It returns the greatest number of rows in the page. */
async function scrollToEnd(page: Page): Promise<number> {
  let rows = 0;
  const end = page.getByText(/ loaded, the end of the list$/);
  await expect(async () => {
    rows = Math.max(rows, await page.locator('tbody tr').count());
    await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
    expect(await end.count()).toBe(1);
  }).toPass({ intervals: [20], timeout: 60_000 });
  await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
  return Math.max(rows, await page.locator('tbody tr').count());
}

test('a long list of events loads while it scrolls', async ({ open }) => {
  const events = await count();
  const page = await open('long', 'operator', '/events');
  await loaded(page, 'Events');
  const widths = () =>
    page.locator('thead th').evaluateAll((cells) => cells.map((c) => Math.round(c.getBoundingClientRect().width)));
  const before = await widths();
  expect(await scrollToEnd(page)).toBeLessThanOrEqual(maxRows);
  await expect(page.getByText(`${events.toLocaleString('en-US')} loaded, the end of the list`)).toBeVisible();
  const last = page.getByRole('table').getByRole('row').last();
  // The oldest event is the last one.
  await expect(last.getByRole('cell', { name: 'object-0', exact: true })).toBeInViewport();
  await expect(last).toHaveAttribute('aria-rowindex', String(events + 1));
  await expect(page.getByRole('table')).toHaveAttribute('aria-rowcount', String(events + 1));
  await expectAccessible(page, 'the end of a long list');

  // The IDs of objects are shorter there.
  expect(await widths()).toEqual(before);

  // The address has the position, so the list of before is there after a look at an event.
  await expect(page).toHaveURL(/after=/);
  const id = (await last.getByRole('link').textContent()) ?? '';
  await last.getByRole('link').click();
  await loaded(page, id);
  await page.goBack();
  await loaded(page, 'Events');
  await expect(page.getByRole('link', { name: 'First page' })).toBeVisible();
  await page.getByRole('link', { name: 'First page' }).click();
  await expect(page.getByRole('cell', { name: `object-${events - 1}`, exact: true })).toBeVisible();
});

test('rows in view stay at their place, and a row with the focus stays in the page', async ({ open }) => {
  await count();
  const page = await open('long', 'operator', '/sinks/dead/deadletters');
  await loaded(page, 'Dead letters of dead');
  const boxes = page.locator('tbody').getByRole('checkbox');
  await boxes.nth(5).check();
  // A click of Playwright scrolls, and that loads pages, too.
  await page.getByRole('button', { name: 'Load more' }).evaluate((b: HTMLElement) => b.click());
  await expect(page.getByText('600 loaded')).toBeVisible();
  await boxes.nth(5).focus();
  for (let y = 0; y < 12_000; y += 1000) {
    await page.evaluate((to) => scrollTo(0, to), y);
    await page.evaluate(() => new Promise(requestAnimationFrame));
  }
  expect(await page.locator('tbody tr').count()).toBeLessThanOrEqual(maxRows);
  await expect(page.locator('input:focus')).toBeChecked();
  await expect(page.getByText('1 selected')).toBeVisible();
  // A row in view does not move when the list is scrolled by less than a row and renders again.
  const shown = await page.evaluate(
    () => document.elementFromPoint(innerWidth / 2, innerHeight / 2)?.closest('tr')?.dataset.row,
  );
  const middle = page.locator(`tbody tr[data-row="${shown}"]`);
  const y = async () => (await middle.boundingBox())?.y ?? 0;
  const before = await y();
  await page.evaluate(() => scrollBy(0, 30));
  await expect.poll(y).toBeCloseTo(before - 30, 0);
  await page.keyboard.press('Tab');
  await expect(page.locator('tbody a:focus')).toBeInViewport();
});

test('cards of a long list on a phone', async ({ open }) => {
  const deliveries = await count();
  const page = await open('long', 'operator', '/deliveries?states=dead', { viewport: { width: 390, height: 844 } });
  await loaded(page, 'Deliveries');
  expect(await scrollToEnd(page)).toBeLessThanOrEqual(maxRows);
  await expect(page.getByText(`${deliveries.toLocaleString('en-US')} loaded, the end of the list`)).toBeVisible();
  await expectNoSidewaysScroll(page, 'cards');
  await expectAccessible(page, 'cards');
});

test('the next page loads with the keyboard', async ({ open }) => {
  await count();
  const page = await open('long', 'operator', '/sinks/dead/deadletters');
  await loaded(page, 'Dead letters of dead');
  const more = page.getByRole('button', { name: 'Load more' });
  await more.evaluate((b: HTMLElement) => b.focus({ preventScroll: true }));
  await page.keyboard.press('Enter');
  await expect(page.getByText('600 loaded')).toBeVisible();
  await go(page, '/');
  await loaded(page, 'Overview');
});
