import { join } from 'node:path';
import type { Page } from '@playwright/test';
import { expect, loaded, test } from './console';
import { call } from './relays';

// These are the images of docs/console.md. To renew them: CONSOLE_IMAGES=$PWD/docs/images/console make test-console
const directory = process.env.CONSOLE_IMAGES ?? '';
test.skip(!directory, 'CONSOLE_IMAGES is not set');

async function save(page: Page, name: string) {
  await page.mouse.move(0, 0);
  await page.screenshot({ path: join(directory, `${name}.png`), scale: 'css' });
}

interface Event {
  id: string;
  object_id: string;
}
const events = async (relay: 'busy' | 'failing', query: string) =>
  (await call<{ data: Event[] }>(relay, 'GET', `/api/events?${query}`)).data;

test('overview, sink and event of a relay with a failing sink', async ({ open }) => {
  const size = { width: 1280, height: 760 };
  const page = await open('failing', 'operator', '/', { viewport: size });
  await loaded(page, 'Overview');
  await expect(page.getByRole('table', { name: 'Sinks with problems' })).toContainText('billing');
  await save(page, 'overview');
  const sink = await open('failing', 'operator', '/sinks/billing', { viewport: size });
  await loaded(sink, 'billing');
  await expect(sink.getByText('Deliveries by error')).toBeVisible();
  await save(sink, 'sink');
  const [event] = await events('failing', 'limit=1');
  const detail = await open('failing', 'operator', `/events/${event?.id}`, { viewport: size });
  await loaded(detail, event?.id ?? '');
  await expect(detail.getByText('Payload').first()).toBeVisible();
  await save(detail, 'event');
  const phone = await open('failing', 'operator', '/sinks', {
    viewport: { width: 390, height: 760 },
    hasTouch: true,
    isMobile: true,
  });
  await loaded(phone, 'Sinks');
  await save(phone, 'sinks-phone');
});

test('live, explain and jobs of a busy relay', async ({ open }) => {
  const size = { width: 1280, height: 640 };
  const shown = (await events('busy', 'limit=100&topics=container.state.changed')).find(
    (e) => e.object_id === 'object-0',
  );
  const live = await open('busy', 'operator', `/live?event=${shown?.id}`, {
    viewport: { width: 1280, height: 460 },
    colorScheme: 'dark',
  });
  await loaded(live, 'Live');
  await expect(live.getByText('"topic"')).toBeVisible();
  await save(live, 'live-dark');
  const explain = await open('busy', 'operator', '/streams/explain', { viewport: size });
  await explain.getByRole('textbox', { name: 'Key', exact: true }).fill('reader');
  await explain.getByRole('textbox', { name: 'Hub', exact: true }).fill('hub-1');
  await explain.getByRole('button', { name: 'Explain the stream', exact: true }).click();
  await expect(explain.getByText(/The client sees/)).toBeVisible();
  await save(explain, 'explain');
  const jobs = await open('busy', 'operator', '/jobs', { viewport: size });
  await loaded(jobs, 'Jobs');
  await save(jobs, 'jobs');
});
