import { expect, expectAccessible, expectNoSidewaysScroll, loaded, test } from './console';

test('the page of the nodes shows the state of the node', async ({ open }) => {
  const page = await open('busy', 'viewer');
  await loaded(page, 'Overview');
  await page.getByRole('main').getByRole('link', { name: 'node-0' }).click();
  await loaded(page, 'Nodes');
  const row = page.getByRole('table', { name: 'Nodes' }).getByRole('row').nth(1);
  await expect(row).toContainText('node-0');
  await expect(row).toContainText('responds to this console');
  await expect(row.locator('.badge')).toHaveText('ready');
  await expect(row.locator('[data-label="Uptime"]')).toHaveText(/^\d+[smh]$/);
  await expect(row.locator('[data-label="Last seen"]')).toHaveText(/ago|now/);
  await expect(page.getByText('different versions')).toHaveCount(0);
  await page.keyboard.press('g');
  await page.keyboard.press('o');
  await loaded(page, 'Overview');
  await page.keyboard.press('g');
  await page.keyboard.press('n');
  await loaded(page, 'Nodes');
});

test('nodes with problems and different versions', async ({ open }) => {
  const page = await open('empty', 'viewer', '/live');
  await loaded(page, 'Live');
  const now = new Date().toISOString();
  const node = (name: string, more: object) => ({
    ...{ name, host: `host-of-${name}`, version: 'v1.0.0', started_at: now, not_ready: '', config_warning: '' },
    ...{ clients: 1234, queued_bytes: 2048, seen_at: now },
    ...more,
  });
  const nodes = [
    node('node-0', { config_warning: 'the file has changed' }),
    node('node-1', { version: 'v1.1.0', not_ready: 'redis: connection refused' }),
    { name: 'node-2', host: '', version: '', not_ready: '', config_warning: '', clients: 0, queued_bytes: 0 },
  ];
  await page.route('**/api/nodes', (route) => route.fulfill({ json: { data: nodes } }));
  await page.route('**/api/status', async (route) => {
    const response = await route.fetch();
    const body = await response.json();
    body.data.nodes = nodes.map((n) => n.name);
    await route.fulfill({ response, json: body });
  });
  await page.getByRole('link', { name: 'Overview' }).click();
  await loaded(page, 'Overview');
  const list = page.getByRole('listitem');
  await expect(list.filter({ hasText: 'node-0, responds' })).toContainText('configuration');
  await expect(list.filter({ hasText: /^node-1/ })).toContainText('not ready');
  await expect(list.filter({ hasText: /^node-2/ })).toHaveText('node-2');
  await expect(page.getByText('Node node-1 is not ready. Redis: connection refused.')).toBeVisible();
  await expect(page.getByText('The nodes run different versions.')).toBeVisible();
  await expectAccessible(page, 'overview with nodes that have problems');
  await page.getByRole('main').getByRole('link', { name: 'node-1' }).click();
  await loaded(page, 'Nodes');
  const row = (name: string) => page.getByRole('table', { name: 'Nodes' }).getByRole('row', { name });
  await expect(row('node-0')).toContainText('The file has changed.');
  await expect(row('node-0')).toContainText('1,234');
  await expect(row('node-0')).toContainText('2.0 KiB');
  await expect(row('node-1')).toContainText('Redis: connection refused.');
  await expect(row('node-2')).toContainText('unknown');
  await expect(row('node-2')).toContainText('no record');
  await expect(page.getByText('The nodes run different versions.')).toBeVisible();
  await expectAccessible(page, 'nodes with problems');
  await page.setViewportSize({ width: 390, height: 844 });
  await expectNoSidewaysScroll(page, 'nodes with problems');
  await expectAccessible(page, 'nodes with problems on a phone');
});
