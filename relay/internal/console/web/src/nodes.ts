import { collect, get, type Schemas } from './api';
import { isSet } from './format';
import { sharePolling } from './poll';

export type Node = Schemas['Node'];

/** useNodes returns all nodes. Each node renews its record every five seconds. */
export const useNodes = sharePolling(
  async (signal) => (await collect((after) => get('/api/nodes', { query: { after }, signal }))).data,
  5000,
);

/** hasRecord reports whether more than the name of a node is known. */
export const hasRecord = (n: Node) => isSet(n.seen_at);

/** readiness returns the state of a node. */
export const readiness = (n: Node) => (!hasRecord(n) ? 'unknown' : n.not_ready ? 'not_ready' : 'ready');

/** hasMixedVersions reports whether nodes run different versions, as during an upgrade. */
export const hasMixedVersions = (nodes: Node[]) => new Set(nodes.filter(hasRecord).map((n) => n.version)).size > 1;
