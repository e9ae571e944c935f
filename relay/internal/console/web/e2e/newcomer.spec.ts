import type { Locator } from '@playwright/test';
import { expect, loaded, test } from './console';
import { control, screenshotFile, tokens } from './relays';

// Somebody who does not know the console finds the failing sink, reads why it fails, and delivers its events.
test('a newcomer repairs a failing sink', async ({ open, faults }) => {
  faults.allowed.push(/status of 401/);
  const page = await open('failing', null);
  let clicks = 0;
  const click = async (target: Locator) => {
    clicks++;
    await target.click();
  };
  const main = page.getByRole('main');

  await page.getByLabel('Admin token').fill(tokens.operator);
  await click(page.getByRole('button', { name: 'Sign in' }));
  await loaded(page, 'Overview');
  await expect(page.getByText(/There is 1 problem/)).toBeVisible();
  const problems = page.getByRole('table', { name: 'Sinks with problems' });
  await expect(problems).toContainText('billing');
  await click(problems.getByRole('link', { name: 'billing' }));

  await loaded(page, 'billing');
  await expect(main.getByText('invoice service is down: database connection refused').first()).toBeVisible();
  const picture = screenshotFile('newcomer-error');
  if (picture) await page.screenshot({ path: picture });

  await control('/repair');
  await click(main.getByRole('button', { name: 'Test' }));
  await click(page.getByRole('button', { name: 'Send a sample' }));
  await expect(page.getByText('The destination accepted the sample.')).toBeVisible();
  await click(page.getByRole('button', { name: 'Close' }));

  await click(main.getByRole('link', { name: 'Dead letters' }));
  await loaded(page, 'Dead letters of billing');
  await click(main.getByRole('button', { name: 'Replay all' }));
  await click(page.getByRole('dialog').getByRole('button', { name: 'Replay 12 dead letters' }));
  await expect(page.getByText('12 dead letters were replayed.')).toBeVisible();
  await click(page.getByRole('dialog').getByRole('button', { name: 'Close' }));
  await expect(page.getByText('This sink has no dead letters.')).toBeVisible();

  await click(page.getByRole('link', { name: 'Overview' }));
  await expect(page.getByText('All is well')).toBeVisible();
  await click(page.getByRole('link', { name: 'Sinks', exact: true }));
  const row = page.getByRole('row', { name: /billing/ });
  await expect(row.getByText('active')).toHaveClass(/good/);
  expect(clicks).toBeLessThanOrEqual(12);
});
