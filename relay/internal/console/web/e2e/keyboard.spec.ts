import type { Page } from '@playwright/test';
import { expect, go, loaded, test } from './console';

const focused = (page: Page) =>
  page.evaluate(() => {
    const e = document.activeElement as HTMLElement | null;
    return e ? `${e.tagName} ${e.textContent?.trim().slice(0, 40) ?? ''}` : '';
  });

test('shortcuts open pages, the search field and the help', async ({ open }) => {
  const page = await open('busy', 'operator');
  await loaded(page, 'Overview');
  await page.keyboard.press('g');
  await page.keyboard.press('s');
  await loaded(page, 'Sinks');
  await expect(page.getByRole('heading', { level: 1 })).toBeFocused();
  await page.keyboard.press('/');
  await expect(page.getByLabel('Name')).toBeFocused();
  // A shortcut is a letter in a field.
  await page.keyboard.type('g?');
  await expect(page.getByLabel('Name')).toHaveValue('g?');
  await page.getByRole('link', { name: 'Sinks' }).focus();
  await page.keyboard.press('?');
  await expect(page.getByRole('dialog', { name: 'Keyboard' })).toBeVisible();
  await page.keyboard.press('Escape');
  await expect(page.getByRole('dialog')).toHaveCount(0);
  await expect(page.getByRole('link', { name: 'Sinks' })).toBeFocused();
});

test('shortcuts can be turned off', async ({ open }) => {
  const page = await open('busy', 'operator');
  await loaded(page, 'Overview');
  await page.keyboard.press('?');
  await page.getByLabel('Use these shortcuts in this browser').uncheck();
  await page.keyboard.press('Escape');
  await page.reload();
  await loaded(page, 'Overview');
  await page.keyboard.press('?');
  await page.keyboard.press('g');
  await page.keyboard.press('s');
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('Overview');
  await expect(page.getByRole('dialog')).toHaveCount(0);
  await page.getByRole('button', { name: 'Keyboard' }).click();
  await page.getByLabel('Use these shortcuts in this browser').check();
  await page.keyboard.press('Escape');
  await page.keyboard.press('g');
  await page.keyboard.press('s');
  await loaded(page, 'Sinks');
});

test('the tab order starts with the skip link and the pages, and the focus is visible', async ({ open }) => {
  const page = await open('busy', 'operator', '/sinks');
  await loaded(page, 'Sinks');
  const order: string[] = [];
  for (let i = 0; i < 24; i++) {
    await page.keyboard.press('Tab');
    order.push(await focused(page));
    const visible = await page.evaluate(() => {
      const e = document.activeElement;
      if (!(e instanceof HTMLElement)) return 'nothing has the focus';
      const { outlineStyle, outlineWidth } = getComputedStyle(e);
      const box = e.getBoundingClientRect();
      if (outlineStyle === 'none' || Number.parseFloat(outlineWidth) < 1) return `no outline: ${e.outerHTML}`;
      return box.width > 0 && box.right > 0 && box.bottom > 0 ? '' : `not visible: ${e.outerHTML}`;
    });
    expect(visible).toBe('');
  }
  expect(order.slice(0, 4)).toEqual(['BUTTON Skip to the content', 'A hubrelay', 'A Overview', 'A Live']);
  // The content follows the navigation.
  expect(order.findIndex((o) => o.startsWith('INPUT'))).toBeGreaterThan(order.indexOf('A Audit'));
});

test('the skip link moves the focus to the content', async ({ open }) => {
  const page = await open('busy', 'operator', '/sinks');
  await loaded(page, 'Sinks');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await expect(page.locator('#main')).toBeFocused();
  await page.keyboard.press('Tab');
  await expect(page.getByLabel('Name')).toBeFocused();
});

test('dialogs keep the focus and return it', async ({ open }) => {
  const page = await open('busy', 'operator', '/sinks/good');
  const pause = page.getByRole('button', { name: 'Pause', exact: true });
  await pause.focus();
  await page.keyboard.press('Enter');
  const dialog = page.getByRole('dialog', { name: 'Pause good?' });
  await expect(dialog).toBeVisible();
  const confirm = dialog.getByRole('button', { name: 'Pause the sink' });
  for (let i = 0; i < 4 && !(await confirm.evaluate((e) => e === document.activeElement)); i++)
    await page.keyboard.press('Tab');
  await expect(confirm).toBeFocused();
  await page.keyboard.press('Escape');
  await expect(dialog).toHaveCount(0);
  await expect(pause).toBeFocused();
});

test('events of the live page open and close with the keyboard', async ({ open }) => {
  const page = await open('busy', 'operator', '/live');
  await loaded(page, 'Live');
  const first = page.getByRole('list', { name: 'Events, the newest first' }).getByRole('button').first();
  await first.focus();
  await page.keyboard.press('Enter');
  await expect(page.getByRole('complementary')).toBeVisible();
  await page.keyboard.press('Escape');
  await expect(page.getByRole('complementary')).toHaveCount(0);
  await page.getByRole('heading', { level: 1 }).focus();
  await page.keyboard.press('Space');
  await expect(page.getByRole('button', { name: 'Resume' })).toBeVisible();
  await page.keyboard.press('Space');
  await expect(page.getByRole('button', { name: 'Pause' })).toBeVisible();
  await go(page, '/');
  await loaded(page, 'Overview');
});
