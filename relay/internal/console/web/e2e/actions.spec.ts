import type { Locator, Page } from '@playwright/test';
import { expect, go, loaded, test } from './console';
import { call, control } from './relays';

// The tests of one sink run in this order, because each changes the state that the next one finds.
test.describe.configure({ mode: 'default' });

const button = (of: Page | Locator, name: string | RegExp) => of.getByRole('button', { name, exact: true });

/** confirm presses the button of the dialog that starts the action. */
async function confirm(page: Page, name: string | RegExp) {
  await button(page.getByRole('dialog'), name).click();
}

async function closed(page: Page) {
  await expect(page.getByRole('dialog')).toHaveCount(0);
}

async function close(page: Page) {
  await button(page.getByRole('dialog'), 'Close').click();
  await closed(page);
}

interface Sink {
  state: string;
  waiting: number;
  retrying: number;
  dead: number;
}
const sink = async (name: string) => (await call<{ data: Sink }>('busy', 'GET', `/api/sinks/${name}`)).data;

test('pause and resume a sink', async ({ open }) => {
  const page = await open('busy', 'operator', '/sinks/written');
  await button(page, 'Pause').click();
  await expect(page.getByRole('dialog')).toContainText('hubrelay sinks pause written');
  await confirm(page, 'Pause the sink');
  await closed(page);
  await expect(page.getByText('The sink is paused')).toBeVisible();
  await expect(page.getByRole('table', { name: /Changes of the state/ })).toContainText('admin');
  await button(page, 'Resume').click();
  await confirm(page, 'Resume the sink');
  await closed(page);
  await expect(button(page, 'Pause')).toBeVisible();
});

test('resume the sink that was paused', async ({ open }) => {
  const page = await open('busy', 'operator', '/sinks/paused');
  await expect(page.getByText('The sink is paused')).toBeVisible();
  await button(page, 'Resume').click();
  await confirm(page, 'Resume the sink');
  await closed(page);
  await expect(button(page, 'Pause')).toBeVisible();
  await expect.poll(async () => (await sink('paused')).waiting).toBe(0);
});

test('test a sink that works and one that fails', async ({ open }) => {
  const page = await open('busy', 'operator', '/sinks/good');
  await button(page, 'Test').click();
  await confirm(page, 'Send a sample');
  await expect(page.getByText('The destination accepted the sample.')).toBeVisible();
  await close(page);
  await go(page, '/sinks/dead');
  await button(page, 'Test').click();
  await confirm(page, 'Send a sample');
  await expect(page.getByText('The attempt failed.')).toBeVisible();
  await expect(page.getByRole('dialog')).toContainText('<img src=x onerror=');
  await close(page);
});

test('replay events with a preview', async ({ open }) => {
  const page = await open('busy', 'operator', '/sinks/good');
  await button(page, 'Replay').click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Topics').fill('job.created');
  await dialog.getByLabel('Only events that the sink has not accepted').uncheck();
  await confirm(page, 'Count the events');
  await expect(dialog.getByText(/would receive \d+ events again/)).toBeVisible();
  // A change of the question needs a new count.
  await dialog.getByLabel('Since').fill('2h');
  await confirm(page, 'Count the events');
  await confirm(page, /^Replay \d+ events$/);
  await expect(dialog.getByText(/\d+ deliveries were scheduled/)).toBeVisible();
  await close(page);
});

test('retry and drop single deliveries, then retry the sink', async ({ open }) => {
  const page = await open('busy', 'operator', '/deliveries?sink=slow&states=retrying');
  await loaded(page, 'Deliveries');
  const boxes = page.getByRole('checkbox', { name: /^Select (?!all)/ });
  await boxes.nth(0).check();
  await expect(page.getByText('1 selected')).toBeVisible();
  await button(page, 'Retry selected').click();
  const refreshed = page.waitForResponse((r) => r.url().includes('/api/deliveries?'));
  await confirm(page, 'Retry the delivery');
  await closed(page);
  await refreshed;
  const { retrying } = await sink('slow');
  await boxes.nth(1).check();
  await boxes.nth(2).check();
  await button(page, 'Drop selected').click();
  await expect(page.getByRole('dialog')).toContainText('slow never receives them.');
  await confirm(page, 'Drop 2 deliveries');
  await closed(page);
  await expect.poll(async () => (await sink('slow')).retrying).toBeLessThan(retrying);
  await go(page, '/sinks/slow');
  await button(page, 'Retry now').click();
  await confirm(page, /^Retry [\d,]+ deliver/);
  await expect(page.getByRole('dialog')).toContainText('due now');
  await close(page);
});

test('replay and drop dead letters: one, some and all that match', async ({ open }) => {
  const { dead } = await sink('dead');
  const page = await open('busy', 'operator', '/sinks/dead/deadletters');
  await loaded(page, 'Dead letters of dead');
  const boxes = page.getByRole('checkbox', { name: /^Select (?!all)/ });
  await boxes.nth(0).check();
  await boxes.nth(1).check();
  await button(page, 'Drop selected').click();
  await confirm(page, 'Drop 2 dead letters');
  await expect(page.getByText('2 dead letters were dropped.')).toBeVisible();
  await close(page);

  await boxes.nth(0).check();
  await button(page, 'Replay selected').click();
  await confirm(page, 'Replay 1 dead letter');
  await expect(page.getByText('1 dead letter was replayed.')).toBeVisible();
  await close(page);

  await page.getByRole('table').getByRole('link').first().click();
  await expect(page.getByRole('heading', { name: 'Attempts' })).toBeVisible();
  await button(page, 'Drop').click();
  await confirm(page, 'Drop 1 dead letter');
  await expect(page.getByText('1 dead letter was dropped.')).toBeVisible();
  await close(page);
  // The dead letter no longer exists, so the list is shown.
  await loaded(page, 'Dead letters of dead');

  // The destination still fails, so the replayed one becomes a dead letter again. The confirmation names those on the page.
  await expect.poll(async () => (await sink('dead')).dead).toBe(dead - 3);
  await page.getByLabel('Topics').fill('job.created');
  await button(page, 'Filter').click();
  await button(page, 'Drop all that match').click();
  await confirm(page, `Drop ${dead - 3} dead letters`);
  await expect(page.getByText(/dead letters were dropped/)).toBeVisible();
  await close(page);
  await expect(page.getByText('No dead letter matches the filter.')).toBeVisible();
});

test('retry, drop and replay from the page of an event', async ({ open }) => {
  const { data } = await call<{ data: { event_id: string }[] }>(
    'busy',
    'GET',
    '/api/deliveries?sink=slow&states=retrying&limit=1',
  );
  const id = data[0]?.event_id ?? '';
  const page = await open('busy', 'operator', `/events/${id}`);
  const card = (name: string) =>
    page.getByRole('article').filter({ has: page.getByRole('link', { name, exact: true }) });
  await button(card('slow'), 'Drop').click();
  await confirm(page, 'Drop the delivery');
  await closed(page);
  await expect(card('slow').getByText('dropped').first()).toBeVisible();
  await button(card('good'), 'Replay').click();
  await expect(page.getByRole('dialog')).toContainText('It has already accepted the event once.');
  await confirm(page, 'Replay the event');
  await closed(page);
});

test('correct, replay and drop entries of the quarantine', async ({ open, faults }) => {
  faults.allowed.push(/status of 4(00|22)/);
  const page = await open('busy', 'operator', '/quarantine');
  await loaded(page, 'Quarantine');
  const links = page.getByRole('table').getByRole('link');
  const first = (await links.first().textContent()) ?? '';
  await links.first().click();
  const content = page.getByRole('textbox', { name: /Content/ });
  await content.fill('{"still": "wrong"}');
  await button(page, 'Replay the corrected entry').click();
  await confirm(page, 'Replay the corrected entry');
  // The relay explains what is wrong, and the entry stays.
  await expect(page.getByRole('dialog').getByRole('alert')).toBeVisible();
  await button(page.getByRole('dialog'), 'Cancel').click();
  await closed(page);
  await content.fill(
    '{"topic":"job.created","object":{"id":"corrected"},"context":{"hub_id":"hub-1","account_id":"acme"}}',
  );
  await button(page, 'Replay the corrected entry').click();
  await confirm(page, 'Replay the corrected entry');
  await expect(page.getByText('The entry is in the inbox again, as job.created of hub hub-1.')).toBeVisible();
  await close(page);
  await loaded(page, 'Quarantine');
  await expect(page.getByRole('link', { name: first })).toHaveCount(0);

  const second = (await links.first().textContent()) ?? '';
  await page.getByRole('checkbox', { name: `Select ${second}` }).check();
  await button(page, 'Drop selected').click();
  await confirm(page, 'Drop 1 entry');
  await closed(page);
  await expect(page.getByRole('link', { name: second })).toHaveCount(0);
});

test.describe('with errors of requests', () => {
  test.beforeEach(({ faults }) => {
    faults.allowed.push(/status of 4\d\d/);
  });

  test('create, check, rotate and revoke a key', async ({ open }) => {
    const page = await open('busy', 'admin', '/keys');
    await loaded(page, 'Keys');
    await button(page, 'Create a key').click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Name').fill('made-in-test');
    await dialog.getByLabel('Account').fill('acme');
    await dialog.getByLabel('Hubs').fill('hub-1');
    await dialog.getByLabel('notifications-publish').check();
    await confirm(page, 'Create made-in-test');
    await expect(dialog.getByText('it is shown only once')).toBeVisible();
    const secret = await dialog.locator('.secret code').textContent();
    expect(secret).toMatch(/^hrk_/);
    await close(page);
    const row = page.getByRole('row', { name: /made-in-test/ });
    await expect(row).toContainText('notifications-publish');
    expect(await page.content()).not.toContain(secret);

    await page.getByRole('combobox', { name: 'Key', exact: true }).selectOption('made-in-test');
    await page.getByRole('textbox', { name: 'Topic', exact: true }).fill('job.created');
    await page.getByRole('textbox', { name: 'Hub', exact: true }).fill('hub-2');
    await button(page, 'Check the key').click();
    await expect(page.getByText('Not allowed.')).toBeVisible();
    await page.getByRole('textbox', { name: 'Hub', exact: true }).fill('hub-1');
    await button(page, 'Check the key').click();
    await expect(page.getByText(/^Allowed\./)).toBeVisible();

    await button(row, 'Rotate').click();
    await confirm(page, 'Rotate made-in-test');
    await expect(dialog.locator('.secret code')).not.toHaveText(secret ?? '');
    await close(page);
    await button(row, 'Revoke').click();
    await confirm(page, 'Revoke made-in-test');
    await closed(page);
    await expect(row).toHaveCount(0);
  });

  test('a key with an invalid name is rejected with a reason', async ({ open }) => {
    const page = await open('busy', 'admin', '/keys');
    await button(page, 'Create a key').click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Name').fill('not a name!');
    await dialog.getByLabel('Account').fill('acme');
    await dialog.getByLabel('Hubs').fill('hub-1');
    await confirm(page, /^Create/);
    await expect(dialog.getByRole('alert')).toBeVisible();
    await expect(dialog.getByLabel('Name')).toHaveValue('not a name!');
  });
});

test('explain a stream by key and by claims', async ({ open }) => {
  const page = await open('busy', 'operator', '/streams/explain');
  await page.getByRole('textbox', { name: 'Key', exact: true }).fill('reader');
  await page.getByRole('textbox', { name: 'Hub', exact: true }).fill('hub-1');
  await button(page, 'Explain the stream').click();
  await expect(page.getByText(/The client sees \d+ of the \d+ newest events/)).toBeVisible();
  await expect(page).toHaveURL(/key=reader/);
  await page.getByLabel('The client has').selectOption('claims');
  await page.getByLabel('Claims as JSON').fill('not JSON');
  await button(page, 'Explain the stream').click();
  await expect(page.getByRole('alert')).toBeVisible();
  expect(page.url()).not.toContain('not');
});

test('forget a sink that is no longer configured', async ({ open }) => {
  const page = await open('busy', 'operator', '/sinks/gone');
  await button(page, 'Forget').click();
  await page
    .getByRole('dialog')
    .getByLabel(/Delete .* dead letters?, too/)
    .check();
  await confirm(page, 'Forget gone');
  await loaded(page, 'Sinks');
  await expect(page.getByRole('link', { name: 'good' })).toBeVisible();
  await expect(page.getByRole('link', { name: 'gone' })).toHaveCount(0);
});

test('migrate an instance and follow the job', async ({ open }) => {
  const page = await open('busy', 'operator', '/jobs');
  await loaded(page, 'Jobs');
  await page.getByRole('link', { name: 'Migrate an instance' }).click();
  await loaded(page, 'Migrate an instance');
  const destination = (await page.getByLabel('Destination').inputValue()) ?? '';
  await button(page, 'Migrate web-1').click();
  await expect(page.getByRole('dialog', { name: `Migrate web-1 to ${destination}?` })).toBeVisible();
  await confirm(page, 'Start the migration');
  await expect(page.getByRole('heading', { name: 'Steps' })).toBeVisible();
  await expect(page.locator('.title').getByText('completed')).toBeVisible({ timeout: 30_000 });
  await expect(page.getByText('Start on the destination')).toBeVisible();
  await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Jobs' }).click();
  const row = page.getByRole('table', { name: 'Instances' }).getByRole('row', { name: /web-1/ });
  await expect(row.getByRole('cell', { name: destination }).first()).toBeVisible();
});

test('cancel a running job', async ({ open }) => {
  const viewer = await open('busy', 'viewer', '/jobs');
  const page = await open('busy', 'operator', '/jobs/new');
  await loaded(page, 'Migrate an instance');
  await control('/drivers/stop'); // so the job is not completed before it is canceled
  await button(page, 'Migrate web-1').click();
  await confirm(page, 'Start the migration');
  await expect(page.locator('.title').getByText('running')).toBeVisible();
  const id = (await page.getByRole('heading', { level: 1 }).textContent()) ?? '';
  await expect(button(page, 'Cancel the job')).toBeVisible();
  await go(viewer, `/jobs/${id}`);
  await loaded(viewer, id);
  await expect(button(viewer, 'Cancel the job')).toHaveCount(0);

  await go(page, '/jobs');
  await loaded(page, 'Jobs');
  const row = page.getByRole('table', { name: /^Jobs/ }).getByRole('row').filter({ hasText: id });
  await button(row, `Cancel the job ${id}`).click();
  const dialog = page.getByRole('dialog', { name: 'Cancel the migration of web-1?' });
  await expect(dialog).toContainText(`hubrelay jobs cancel ${id}`);
  await expect(dialog).toContainText('A job that runs is rolled back');
  await button(dialog, 'Keep the migration').click();
  await closed(page);
  await expect(row).not.toContainText('being rolled back');
  await row.getByRole('link', { name: id }).click();
  await button(page, 'Cancel the job').click();
  await confirm(page, 'Cancel the migration');
  await closed(page);
  await expect(page.locator('.title')).toContainText('being rolled back');
  await expect(button(page, 'Cancel the job')).toHaveCount(0);
  await control('/drivers/continue');
  await expect(page.getByText('The migration was canceled by an operator').first()).toBeVisible();
  await expect(page.locator('.title')).not.toContainText('being rolled back');
});

test('the actions are in the audit log', async ({ open }) => {
  const page = await open('busy', 'operator', '/audit');
  await loaded(page, 'Audit');
  await page.getByLabel('Action').fill('sinks');
  await button(page, 'Search').click();
  await expect(page).toHaveURL(/action=sinks/);
  await expect(
    page
      .getByRole('table')
      .getByText(/^sinks\./)
      .first(),
  ).toBeVisible();
  for (const [label, value] of [
    ['Account', 'no-such-account'],
    ['Address', '192.0.2.1'],
  ] as const) {
    await page.getByRole('link', { name: 'Clear' }).click();
    await expect(page.getByRole('table')).toBeVisible();
    await page.getByLabel(label, { exact: true }).fill(value);
    await button(page, 'Search').click();
    await expect(page.getByText('No entry of the audit log matches the search.')).toBeVisible();
  }
});
