import { request } from '@playwright/test';
import { type Relay, type Role, relays, sessionFile, tokens } from './relays';

/** The tests reuse one session of each role, because the relay limits attempts to sign in. */
export default async function setup() {
  for (const relay of Object.keys(relays) as Relay[]) {
    for (const role of Object.keys(tokens) as Role[]) {
      const context = await request.newContext({
        baseURL: relays[relay],
        extraHTTPHeaders: { Origin: relays[relay] },
      });
      const response = await context.post('/api/session', { data: { token: tokens[role] } });
      if (!response.ok()) throw new Error(`sign in to ${relay} as ${role}: ${response.status()}`);
      await context.storageState({ path: sessionFile(relay, role) });
      await context.dispose();
    }
  }
}
