import { expect, go, loaded, test } from './console';
import { control } from './relays';

test('new events appear, and not while paused', async ({ open }) => {
  const page = await open('busy', 'operator', '/live');
  await loaded(page, 'Live');
  const rows = page.getByRole('list', { name: 'Events, the newest first' }).getByRole('button');
  await expect(rows.first()).toBeVisible();
  const before = await rows.first().textContent();
  await control('/publish?n=5');
  await expect(rows.first()).not.toHaveText(before ?? '');

  await page.getByRole('button', { name: 'Pause' }).click();
  const paused = page.getByRole('status').filter({ hasText: 'paused' });
  await expect(paused).toContainText('paused, 0 events');
  const kept = await rows.first().textContent();
  await control('/publish?n=7');
  // The count is of the status of the relay. Other tests can publish, too.
  await expect(paused).not.toContainText('paused, 0 events');
  await expect(rows.first()).toHaveText(kept ?? '');
  await page.getByRole('button', { name: 'Resume' }).click();
  await expect(rows.first()).not.toHaveText(kept ?? '');
});

test('the filter is in the address', async ({ open }) => {
  const page = await open('busy', 'operator', '/live');
  await loaded(page, 'Live');
  await page.getByLabel('Topics').fill('*.error');
  await page.getByRole('button', { name: 'Filter' }).click();
  await expect(page).toHaveURL(/topics=/);
  await page.reload();
  await loaded(page, 'Live');
  await expect(page.getByLabel('Topics')).toHaveValue('*.error');
  const rows = page.getByRole('list', { name: 'Events, the newest first' }).getByRole('button');
  await expect(rows.first()).toContainText('.error');
  for (const text of await rows.allTextContents()) expect(text).toContain('.error');
});

test('an event shows its payload at the side', async ({ open }) => {
  const page = await open('busy', 'operator', '/live?topics=job.created');
  await loaded(page, 'Live');
  await page.getByRole('list', { name: 'Events, the newest first' }).getByRole('button').first().click();
  const side = page.getByRole('complementary');
  await expect(side.getByText('"topic": "job.created"')).toBeVisible();
  await expect(page).toHaveURL(/event=/);
  await side.getByRole('button', { name: 'Close' }).click();
  await expect(side).toHaveCount(0);
});

test('large integers of a payload are not rounded', async ({ open }) => {
  const page = await open('busy', 'operator', '/live?topics=job.created');
  await page.route(/\/api\/events\/[0-9a-f]+$/, async (route) => {
    const response = await route.fetch();
    const body = (await response.text()).replace('"payload":{', '"payload":{"amount":12345678901234567891,');
    await route.fulfill({ response, body });
  });
  await loaded(page, 'Live');
  await page.getByRole('list', { name: 'Events, the newest first' }).getByRole('button').first().click();
  await expect(page.getByRole('complementary').getByText('"amount": 12345678901234567891')).toBeVisible();
});

test('a notice appears only if more events arrive than one poll reads', async ({ open }) => {
  const page = await open('busy', 'operator', '/nodes');
  await loaded(page, 'Nodes');
  // This is a log with one event in each millisecond. Each poll finds 500 new events, and 5,000 in its overlap.
  const start = Date.now() - 3_600_000;
  let newest = 20_000;
  let polls = 0;
  await page.route(/\/api\/events\?/, (route) => {
    const query = new URL(route.request().url()).searchParams;
    const since = query.get('since') ? Date.parse(query.get('since') ?? '') - start : 0;
    if (!query.get('after')) {
      newest += 500;
      polls++;
    }
    const first = query.get('after') ? Number(query.get('after')) - 1 : newest;
    const last = Math.max(first - Number(query.get('limit')) + 1, since);
    const data = Array.from({ length: first - last + 1 }, (_, i) => ({
      ...{ id: `event-${first - i}`, time: new Date(start + first - i).toISOString(), topic: 'job.created' },
      ...{ hub_id: 'hub-1', account_id: 'acme', object_id: 'object', publisher: { kind: 'key', name: 'ops' } },
    }));
    return route.fulfill({ json: { data, next: last > since ? `${last}` : '' } });
  });
  await go(page, '/live');
  await loaded(page, 'Live');
  await expect.poll(() => polls).toBeGreaterThan(8);
  const notice = page.getByText('Some are missing');
  await expect(notice).toHaveCount(0);
  newest += 2000;
  await expect(notice).toBeVisible();
});
