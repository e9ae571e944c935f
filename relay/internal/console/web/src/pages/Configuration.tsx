import { get, type Schemas } from '../api';
import { Command, CopyButton, Empty, Loaded, Time, Title } from '../components/ui';
import { diff, type Line } from '../diff';
import { command, plural, sentence } from '../format';
import { usePolling } from '../poll';
import { setQuery, useRoute } from '../router';
import { useRole } from '../session';

type Config = Schemas['Config'];

/** context is the number of unchanged lines around a change. */
const context = 3;

export function Configuration() {
  const operator = useRole('operator');
  return (
    <>
      <Title text="Configuration" />
      {operator ? <Effective /> : <Empty>Your role is viewer. Only operators see the configuration.</Empty>}
    </>
  );
}

function Effective() {
  const config = usePolling(async (signal) => (await get('/api/config', { signal })).data, 10_000, 'config');
  return (
    <Loaded of={config}>
      {(c) => (
        <>
          <Reload config={c} />
          {c.problems.length ? (
            <section>
              <h2>{plural(c.problems.length, 'warning')}</h2>
              <ul class="problems">
                {c.problems.map((p) => (
                  <li key={p} class="notice warn">
                    {p}
                  </li>
                ))}
              </ul>
            </section>
          ) : null}
          <Versions versions={c.versions} />
          <section>
            <header>
              <h2>Effective configuration of {c.node}</h2>
              <span class="muted">defaults, file and environment combined, without secrets</span>
              <CopyButton text={c.text} />
            </header>
            <Lines label="Effective configuration" lines={c.text.replace(/\n$/, '').split('\n').map(numbered)} />
          </section>
          <details>
            <summary>Print and check the file in a terminal</summary>
            <div class="stack">
              <Command text={command('config', 'print', '-c', 'hubrelay.yaml')} />
              <Command text={command('config', 'check', '-c', 'hubrelay.yaml')} />
            </div>
          </details>
        </>
      )}
    </Loaded>
  );
}

/** Reload shows the result of the last reload. */
function Reload({ config: c }: { config: Config }) {
  const newest = c.versions[0];
  const accepted = newest ? (
    <>
      {newest.number === 1 ? 'It has used this version since its start, ' : `It accepted version ${newest.number}, `}
      <Time time={newest.accepted_at} ago />.
    </>
  ) : null;
  return c.warning ? (
    <div class="notice bad" role="status">
      <p>
        <strong>Node {c.node} does not use the file as it is now.</strong> {sentence(c.warning)} {accepted}
      </p>
    </div>
  ) : (
    <div class="notice good" role="status">
      <p>
        Node {c.node} uses the configuration file as it is now. {accepted}
      </p>
    </div>
  );
}

interface Row {
  key: string;
  number: string;
  kind: Line['kind'] | 'gap';
  text: string;
}

const numbered = (text: string, i: number): Row => ({ key: String(i), number: String(i + 1), kind: 'same', text });
const signs = { same: ' ', added: '+', removed: '−', gap: ' ' };
const names = { same: '', added: 'added: ', removed: 'removed: ', gap: '' };

function Lines({ label, lines, signed }: { label: string; lines: Row[]; signed?: boolean }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling area must be reachable with the keyboard
    <section class="lines mono" tabIndex={0} aria-label={label}>
      {lines.map((l) => (
        <div key={l.key} class={l.kind}>
          <span class="no" aria-hidden="true">
            {l.number}
          </span>
          {signed ? <span aria-hidden="true">{signs[l.kind]} </span> : null}
          {names[l.kind] ? <span class="hidden">{names[l.kind]}</span> : null}
          <span class="text">{l.text}</span>
        </div>
      ))}
    </section>
  );
}

/** rows returns the changes with some lines around them. Numbers are of the later text. */
function rows(lines: Line[]): Row[] {
  const near = new Set<number>();
  lines.forEach((l, i) => {
    if (l.kind !== 'same') for (let n = i - context; n <= i + context; n++) near.add(n);
  });
  const result: Row[] = [];
  let number = 0;
  let skipped = false;
  lines.forEach((l, i) => {
    if (l.kind !== 'removed') number++;
    if (!near.has(i)) {
      skipped = true;
      return;
    }
    if (skipped) result.push({ key: `gap ${i}`, number: '', kind: 'gap', text: '…' });
    skipped = false;
    result.push({ key: String(i), number: l.kind === 'removed' ? '' : String(number), kind: l.kind, text: l.text });
  });
  return result;
}

function Versions({ versions }: { versions: Config['versions'] }) {
  const { query } = useRoute();
  const known = (value: string | null) => versions.find((v) => String(v.number) === value)?.number;
  const to = known(query.get('to')) ?? versions[0]?.number ?? 0;
  const from = known(query.get('from')) ?? versions.find((v) => v.number < to)?.number ?? to;
  const select = (name: string, label: string, value: number) => (
    <label class="field">
      <span class="label">{label}</span>
      <select value={String(value)} onChange={(e) => setQuery({ [name]: e.currentTarget.value })}>
        {versions.map((v) => (
          <option key={v.number} value={String(v.number)}>
            {v.number === 1 ? 'Version 1, at the start' : `Version ${v.number}`}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <section>
      <h2>Changes</h2>
      {versions.length < 2 ? (
        <Empty>The node has accepted no other configuration since its start.</Empty>
      ) : (
        <>
          <div class="filters">
            {select('from', 'From', from)}
            {select('to', 'To', to)}
            <span class="muted">
              accepted <Time time={versions.find((v) => v.number === to)?.accepted_at} />
            </span>
          </div>
          <Difference from={from} to={to} />
        </>
      )}
    </section>
  );
}

const version = async (number: number, signal: AbortSignal) =>
  (await get('/api/config/versions/{number}', { params: { number: String(number) }, signal })).data.text;

function Difference({ from, to }: { from: number; to: number }) {
  const lines = usePolling(
    async (signal) => {
      const [before, after] = await Promise.all([version(from, signal), version(to, signal)]);
      return rows(diff(before, after));
    },
    0,
    `${from} ${to}`,
  );
  return (
    <Loaded of={lines}>
      {(all) =>
        all.length ? (
          <Lines label={`Changes from version ${from} to version ${to}`} lines={all} signed />
        ) : (
          <Empty>
            {from === to ? 'Choose two different versions.' : 'These versions differ only in secrets or comments.'}
          </Empty>
        )
      }
    </Loaded>
  );
}
