import { defineConfig } from '@playwright/test';

// No browser is downloaded: the tests use the Chromium of the system.
export default defineConfig({
  testDir: '.',
  outputDir: process.env.CONSOLE_RESULTS ?? '../node_modules/.e2e',
  globalSetup: './setup.ts',
  workers: 2,
  fullyParallel: true,
  retries: 0,
  forbidOnly: true,
  reporter: 'list',
  timeout: 120_000,
  expect: { timeout: 30_000 },
  use: {
    viewport: { width: 1280, height: 800 },
    actionTimeout: 30_000,
    trace: 'off',
    launchOptions: {
      executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
      args: ['--no-sandbox', '--disable-dev-shm-usage'],
    },
  },
  projects: [
    // These change nothing, so they can run at the same time.
    {
      name: 'pages',
      testMatch: [
        'pages.spec.ts',
        'signin.spec.ts',
        'keyboard.spec.ts',
        'live.spec.ts',
        'nodes.spec.ts',
        'long.spec.ts',
        'images.spec.ts',
      ],
    },
    // These change the relays, so they run after the others.
    { name: 'actions', testMatch: ['actions.spec.ts', 'newcomer.spec.ts'], dependencies: ['pages'] },
  ],
});
