import type { Page } from '@playwright/test';
import { expect, go, loaded, test } from './console';
import { relays, tokens } from './relays';

test.beforeEach(({ faults }) => {
  // Chromium reports each response with 401 on the console.
  faults.allowed.push(/status of 401/);
});

async function signIn(page: Page, token: string) {
  await page.getByLabel('Admin token').fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
}

test('a wrong token is rejected, a right one opens the page of the address', async ({ open }) => {
  const page = await open('busy', null, '/sinks/dead');
  await loaded(page, 'Sign in');
  await expect(page.getByRole('button', { name: 'Sign in' })).toBeDisabled();
  await signIn(page, 'not-a-token-of-this-relay');
  await expect(page.getByRole('alert')).toHaveText('The relay does not accept this token.');
  await signIn(page, tokens.operator);
  await loaded(page, 'dead');
  await page.reload();
  await loaded(page, 'dead');
});

test('after the end of a session, signing in again returns to the page', async ({ open }) => {
  const page = await open('busy', null, '/deliveries?states=dead');
  await signIn(page, tokens.viewer);
  await loaded(page, 'Deliveries');
  await expect(page.getByRole('checkbox', { name: 'dead', exact: true })).toBeChecked();
  // The same session ends in another program.
  const response = await page.context().request.delete(`${relays.busy}/api/session`, {
    headers: { Origin: relays.busy },
  });
  expect(response.ok()).toBe(true);
  await expect(page.getByText('Your session has ended. Sign in again.')).toBeVisible();
  await signIn(page, tokens.viewer);
  await loaded(page, 'Deliveries');
  expect(page.url()).toContain('#/deliveries?states=dead');
  await expect(page.getByRole('checkbox', { name: 'dead', exact: true })).toBeChecked();
});

test('a session without its cookie has ended', async ({ open }) => {
  const page = await open('busy', 'viewer', '/sinks/good');
  await loaded(page, 'good');
  await page.context().clearCookies();
  await expect(page.getByText('Your session has ended. Sign in again.')).toBeVisible();
});

test('signing out ends the session', async ({ open }) => {
  const page = await open('failing', null, '/');
  await signIn(page, tokens.operator);
  await loaded(page, 'Overview');
  const cookies = await page.context().cookies();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await loaded(page, 'Sign in');
  await page.reload();
  await loaded(page, 'Sign in');
  // The relay does not accept the cookie of before.
  await page.context().addCookies(cookies);
  await page.reload();
  await loaded(page, 'Sign in');
});

test('viewers see no actions and no payloads', async ({ open }) => {
  const page = await open('busy', 'viewer', '/sinks/dead');
  const actions = page
    .getByRole('main')
    .getByRole('button', { name: /Pause|Resume|Retry|Test|Replay|Drop|Forget|Create|Rotate|Revoke|Migrate/ });
  for (const [path, heading] of [
    ['/sinks/dead', 'dead'],
    ['/sinks/paused', 'paused'],
    ['/sinks/gone', 'gone'],
    ['/sinks/dead/deadletters', 'Dead letters of dead'],
    ['/deliveries', 'Deliveries'],
    ['/quarantine', 'Quarantine'],
    ['/keys', 'Keys'],
    ['/jobs', 'Jobs'],
  ] as const) {
    await go(page, path);
    await loaded(page, heading);
    await expect(actions).toHaveCount(0);
    await expect(page.getByRole('checkbox', { name: /^Select/ })).toHaveCount(0);
  }
  await go(page, '/events');
  await page.getByRole('table').getByRole('link').first().click();
  await expect(page.getByText('Your role is viewer. Payloads contain data of accounts')).toBeVisible();
  await go(page, '/config');
  await expect(page.getByText('Only operators see the configuration.')).toBeVisible();
});

test('operators see no actions on keys', async ({ open }) => {
  const page = await open('busy', 'operator', '/keys');
  await loaded(page, 'Keys');
  await expect(page.getByRole('button', { name: /Create|Rotate|Revoke/ })).toHaveCount(0);
});
