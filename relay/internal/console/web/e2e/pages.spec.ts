import type { Page } from '@playwright/test';
import { expect, expectAccessible, expectNoSidewaysScroll, go, loaded, test } from './console';
import { call, type Relay, screenshotFile } from './relays';

interface Shown {
  path: string;
  heading: string;
  /** text appears when the data is there. */
  text?: string | RegExp;
}

const lists: Shown[] = [
  { path: '/', heading: 'Overview' },
  { path: '/live', heading: 'Live' },
  { path: '/events', heading: 'Events' },
  { path: '/deliveries', heading: 'Deliveries' },
  { path: '/sinks', heading: 'Sinks' },
  { path: '/streams', heading: 'Streams' },
  { path: '/streams/explain', heading: 'Explain a stream' },
  { path: '/sources', heading: 'Sources' },
  { path: '/jobs', heading: 'Jobs' },
  { path: '/quarantine', heading: 'Quarantine' },
  { path: '/keys', heading: 'Keys' },
  { path: '/nodes', heading: 'Nodes', text: 'node-0' },
  { path: '/config', heading: 'Configuration' },
  { path: '/audit', heading: 'Audit' },
  { path: '/no-such-page', heading: 'Not found', text: 'There is no page at this address.' },
];

const id = async (relay: Relay, path: string) =>
  (await call<{ data: { id: string }[] }>(relay, 'GET', path)).data[0]?.id ?? '';

/** details returns the pages of single objects. Their IDs differ in each run. */
async function details(relay: Relay): Promise<Shown[]> {
  if (relay === 'empty') return [];
  const sink = relay === 'busy' ? 'dead' : 'billing';
  const event = await id(relay, '/api/events?limit=1');
  const letter = await id(relay, `/api/sinks/${sink}/deadletters?limit=1`);
  const shown: Shown[] = [
    { path: `/events/${event}`, heading: event, text: 'Payload' },
    { path: `/live?event=${event}`, heading: 'Live', text: 'Publisher' },
    { path: `/sinks/${sink}`, heading: sink, text: 'Deliveries by error' },
    { path: `/sinks/${sink}/deadletters`, heading: `Dead letters of ${sink}`, text: 'Replay all' },
    { path: `/sinks/${sink}/deadletters/${letter}`, heading: letter, text: 'Attempts' },
  ];
  if (relay === 'failing') return shown;
  const entry = await id(relay, '/api/quarantine?limit=1');
  const job = await id(relay, '/api/jobs?limit=1');
  return [
    ...shown,
    { path: '/sinks/paused', heading: 'paused', text: 'The sink is paused' },
    { path: '/sinks/gone', heading: 'gone', text: 'not configured' },
    { path: `/quarantine/${entry}`, heading: entry, text: 'Content' },
    { path: `/jobs/${job}`, heading: job, text: 'Steps' },
    { path: '/jobs/new', heading: 'Migrate an instance', text: 'Instance' },
  ];
}

const sizes = { desktop: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };
type Size = keyof typeof sizes;

/** On the failing relay, these look as on the empty one, so axe does not check them again. */
const alike = ['/streams', '/streams/explain', '/sources', '/jobs', '/quarantine', '/keys', '/config', '/no-such-page'];

/**
 * check checks a page in both color schemes with all rules of axe. With pair, axe checks the light scheme on desktops and the
 * dark one on phones, because it needs most of the time of these tests.
 */
async function check(page: Page, name: string, size: Size, axe: 'all' | 'pair' | 'none' = 'all') {
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme });
    await expectNoSidewaysScroll(page, name);
    const isPair = (size === 'desktop') === (colorScheme === 'light');
    if (axe === 'all' || (axe === 'pair' && isPair)) await expectAccessible(page, `${name}, ${colorScheme}`);
    const path = screenshotFile(`${name}-${colorScheme}`);
    if (path) await page.screenshot({ path });
  }
}

for (const relay of ['empty', 'busy', 'failing'] as const) {
  for (const size of Object.keys(sizes) as Size[]) {
    test(`all pages of the ${relay} relay, ${size}`, async ({ open, faults }) => {
      // Migrations are disabled there.
      if (relay !== 'busy') faults.allowed.push(/status of 503/);
      const page = await open(relay, 'admin', '/', { viewport: sizes[size] });
      for (const { path, heading, text } of [...lists, ...(await details(relay))]) {
        await go(page, path);
        await loaded(page, heading);
        if (text) await expect(page.getByRole('main').getByText(text).first()).toBeVisible();
        const file = path
          .replace(/\?.*/, '-open')
          .replace(/[0-9a-f]{20,}|\d+-\d+/, 'one')
          .replaceAll('/', '-');
        const axe = relay === 'failing' && alike.includes(path) ? 'none' : 'pair';
        await check(page, `${relay}-${size}${file}`, size, axe);
      }
    });
  }
}

test('the sign-in page on a phone and on a desktop', async ({ open, faults }) => {
  faults.allowed.push(/401/);
  for (const size of Object.keys(sizes) as Size[]) {
    const page = await open('empty', null, '/', { viewport: sizes[size] });
    await loaded(page, 'Sign in');
    await check(page, `signin-${size}`, size);
  }
});

test('dialogs are accessible and fit on a phone', async ({ open }) => {
  const page = await open('busy', 'admin', '/sinks/good', { viewport: sizes.phone });
  for (const name of ['Pause', 'Retry now', 'Test', 'Replay']) {
    await page.getByRole('button', { name, exact: true }).click();
    await expect(page.getByRole('dialog')).toBeVisible();
    await check(page, `dialog-${name.toLowerCase().replace(' ', '-')}`, 'phone');
    await page.keyboard.press('Escape');
    await expect(page.getByRole('dialog')).toHaveCount(0);
  }
  await go(page, '/keys');
  await page.getByRole('button', { name: 'Create a key' }).click();
  await expect(page.getByRole('dialog')).toBeVisible();
  await check(page, 'dialog-create-key', 'phone');
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Keyboard' }).click();
  await expect(page.getByRole('dialog')).toBeVisible();
  await check(page, 'dialog-keyboard', 'phone');
});

test('hostile texts are shown as text', async ({ open }) => {
  const page = await open('busy', 'operator', '/sinks/dead');
  await expect(page.getByText('<img src=x onerror=').first()).toBeVisible();
  // Nothing in a response changes the direction of the text that follows.
  await expect(page.getByText('\\u202etxt.exe\\u2800').first()).toBeVisible();
  await expect(page.locator('main img, main script')).toHaveCount(0);
  await go(page, '/quarantine');
  await loaded(page, 'Quarantine');
  await page.getByRole('table').getByRole('link').first().click();
  await expect(page.getByRole('textbox')).toBeVisible();
});

test('the page of a sink names the accounts for which it fails', async ({ open }) => {
  const page = await open('busy', 'viewer', '/sinks', { viewport: sizes.phone });
  await loaded(page, 'Sinks');
  const accounts = Array.from({ length: 100 }, (_, i) => `account-${i}`);
  await page.route('**/api/sinks/good', async (route) => {
    const response = await route.fetch();
    const body = await response.json();
    body.data.failing_accounts = accounts;
    await route.fulfill({ response, json: body });
  });
  await go(page, '/sinks/good');
  await expect(page.getByText('The destination fails for 100 accounts')).toBeVisible();
  await expect(page.getByText(accounts.join(', '))).toBeVisible();
  await check(page, 'failing-accounts', 'phone');
});
