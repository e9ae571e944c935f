import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { type BrowserContext, type BrowserContextOptions, test as base, expect, type Page } from '@playwright/test';
import { type Relay, type Role, relays, sessionFile } from './relays';

export { expect };

/** Faults are the things that must not happen on any page. */
interface Faults {
  list: string[];
  /** allowed are console errors that a test provokes, such as those of rejected requests. */
  allowed: RegExp[];
}

async function watch(context: BrowserContext, origin: string, faults: Faults) {
  const add = (text: string) => {
    if (!faults.allowed.some((a) => a.test(text))) faults.list.push(text);
  };
  context.on('console', (m) => {
    if (m.type() === 'error' || m.type() === 'warning') add(`console: ${m.text()}`);
  });
  context.on('weberror', (e) => add(`exception: ${e.error().message}`));
  context.on('dialog', (d) => {
    add(`dialog: ${d.message()}`);
    void d.dismiss();
  });
  context.on('request', (r) => {
    const { protocol, origin: target } = new URL(r.url());
    if (protocol !== 'data:' && target !== origin) add(`request to another origin: ${r.url()}`);
  });
  await context.addInitScript(() => {
    addEventListener('securitypolicyviolation', (e) =>
      console.error(`CSP violation: ${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}`),
    );
  });
}

interface Console {
  /** open opens a new browser context with the session of a role, or without a session. */
  open: (relay: Relay, role: Role | null, path?: string, options?: BrowserContextOptions) => Promise<Page>;
  faults: Faults;
}

export const test = base.extend<Console>({
  // biome-ignore lint/correctness/noEmptyPattern: Playwright requires a pattern
  faults: async ({}, use) => {
    const faults: Faults = { list: [], allowed: [] };
    await use(faults);
    expect(faults.list).toEqual([]);
  },
  open: async ({ browser, faults }, use) => {
    const contexts: BrowserContext[] = [];
    await use(async (relay, role, path = '/', options = {}) => {
      const context = await browser.newContext({
        viewport: { width: 1280, height: 800 },
        reducedMotion: 'reduce',
        ...(role ? { storageState: sessionFile(relay, role) } : {}),
        ...options,
      });
      contexts.push(context);
      await watch(context, relays[relay], faults);
      const page = await context.newPage();
      await page.goto(`${relays[relay]}/#${path}`);
      return page;
    });
    for (const context of contexts) {
      for (const page of context.pages()) {
        expect(await page.evaluate(() => 'hacked' in window)).toBe(false);
        // The page stops polling first. The handler of a route may still be in the middle of a request.
        await page.goto('about:blank');
        await page.unrouteAll({ behavior: 'ignoreErrors' });
      }
      await context.close();
    }
  },
});

/** go navigates like a click on a link, without loading the page again. */
export async function go(page: Page, path: string) {
  await page.evaluate((to) => {
    location.hash = to;
  }, `#${path}`);
}

/** loaded waits until a page shows its data. */
export async function loaded(page: Page, heading: string | RegExp) {
  await expect(page.getByRole('heading', { level: 1, name: heading, exact: true })).toBeVisible();
  await expect(page.locator('.loading')).toHaveCount(0);
}

export async function expectNoSidewaysScroll(page: Page, what: string) {
  const widths = () =>
    page.evaluate(() => {
      const root = document.documentElement;
      if (root.scrollWidth <= root.clientWidth) return '';
      const wide = [...document.querySelectorAll('main *')]
        .filter((e) => e.getBoundingClientRect().right > root.clientWidth && !e.closest('.table, .virtual, pre'))
        .map((e) => `${e.tagName}.${e.className}`);
      return `${root.scrollWidth} > ${root.clientWidth}: ${wide.slice(0, 5).join(' ')}`;
    });
  await expect.poll(widths, { message: `${what} scrolls sideways` }).toBe('');
}

const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** expectAccessible checks a page with all rules of axe for WCAG 2.2 AA. */
export async function expectAccessible(page: Page, what: string) {
  if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(axeSource);
  const violations = await page.evaluate(async () => {
    // biome-ignore lint/suspicious/noExplicitAny: the source of axe defines it
    const { axe } = window as any as { axe: typeof import('axe-core') };
    const found = await axe.run(document, {
      runOnly: { type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] },
      resultTypes: ['violations'],
      preload: false,
    });
    return found.violations.map((v) =>
      [v.id, ...v.nodes.slice(0, 3).map((n) => `${n.html.slice(0, 200)} ${n.failureSummary}`)].join('\n'),
    );
  });
  expect(violations, what).toEqual([]);
}
