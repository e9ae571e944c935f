import { mkdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** required returns a variable that the Go test sets. */
function required(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set. Start the tests with TestConsoleInBrowser of cmd/hubrelay.`);
  return value.replace(/\/$/, '');
}

export const relays = {
  empty: required('CONSOLE_EMPTY_URL'),
  busy: required('CONSOLE_BUSY_URL'),
  failing: required('CONSOLE_FAILING_URL'),
  long: required('CONSOLE_LONG_URL'),
};
export type Relay = keyof typeof relays;

export const tokens = {
  viewer: required('CONSOLE_VIEWER_TOKEN'),
  operator: required('CONSOLE_OPERATOR_TOKEN'),
  admin: required('CONSOLE_ADMIN_TOKEN'),
};
export type Role = keyof typeof tokens;

const directory = join(tmpdir(), `hubrelay-console-e2e-${new URL(relays.busy).port}`);

/** sessionFile is the file with the cookie of a session. */
export function sessionFile(relay: Relay, role: Role): string {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  return join(directory, `${relay}-${role}.json`);
}

/** screenshotFile returns undefined if no screenshots are kept. */
export function screenshotFile(name: string): string | undefined {
  const screenshots = process.env.CONSOLE_SCREENSHOTS;
  return screenshots ? join(screenshots, `${name}.png`) : undefined;
}

/** control asks the Go test to change a relay or its receiver. */
export async function control(path: string): Promise<void> {
  const response = await fetch(`${required('CONSOLE_CONTROL_URL')}${path}`, { method: 'POST' });
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
}

/** call calls the admin API as an admin, to prepare a test or to check its effect. */
export async function call<T>(relay: Relay, method: string, path: string, body?: unknown): Promise<T> {
  const response = await fetch(`${relays[relay]}${path}`, {
    method,
    headers: { Authorization: `Bearer ${tokens.admin}`, 'Content-Type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return (text ? JSON.parse(text) : null) as T;
}
