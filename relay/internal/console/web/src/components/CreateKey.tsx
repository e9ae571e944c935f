import { useState } from 'preact/hooks';
import { post, type Schemas } from '../api';
import { command, isSet, list } from '../format';
import { Confirm } from './Confirm';
import { CopyButton, Time } from './ui';

const capabilities = ['notifications-publish', 'containers-instances-migrate'];
const lifetimes: [days: string, label: string][] = [
  ['', 'never'],
  ['7', 'in 7 days'],
  ['30', 'in 30 days'],
  ['90', 'in 90 days'],
  ['365', 'in 365 days'],
];

/** Secret shows a new secret. The relay stores only a hash of it. */
export function Secret({ created }: { created: Schemas['CreatedKey'] }) {
  return (
    <div class="stack">
      <p>
        This is the secret of <strong class="mono">{created.name}</strong>. Copy it now: it is shown only once.
      </p>
      <div class="secret command">
        <code>{created.key}</code>
        <CopyButton text={created.key} />
      </div>
      {isSet(created.previous_expires_at) ? (
        <p>
          The old secret is valid until <Time time={created.previous_expires_at} />.
        </p>
      ) : null}
    </div>
  );
}

export function CreateKey({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const [form, setForm] = useState({ name: '', account: '', hubs: '', topics: '', networks: '', days: '' });
  const [chosen, setChosen] = useState<string[]>([]);
  const name = form.name.trim();
  const account = form.account.trim();
  const input = (id: keyof typeof form, label: string, help: string, required = false) => (
    <label class="field">
      <span class="label">{label}</span>
      <input
        value={form[id]}
        required={required}
        autoComplete="off"
        onInput={(e) => setForm({ ...form, [id]: e.currentTarget.value })}
      />
      <span class="help">{help}</span>
    </label>
  );
  const flags = (flag: string, values: string[]) => values.flatMap((v) => [flag, v]);
  return (
    <Confirm
      title="Create an API key"
      confirm={name ? `Create ${name}` : 'Create the key'}
      disabled={!name || !account || list(form.hubs).length === 0}
      command={command(
        ...['keys', 'create', name || 'NAME', '--account', account || 'ACCOUNT'],
        ...flags('--hub', list(form.hubs)),
        ...flags('--capability', chosen),
        ...flags('--topic', list(form.topics)),
        ...flags('--network', list(form.networks)),
        ...(form.days ? ['--expires', `${form.days}d`] : []),
      )}
      onClose={onClose}
      action={async () => {
        const body: Schemas['KeySpec'] = {
          account_id: account,
          hubs: list(form.hubs),
          capabilities: chosen,
          topics: list(form.topics),
          networks: list(form.networks),
        };
        if (form.days) body.expires_at = new Date(Date.now() + Number(form.days) * 86_400_000).toISOString();
        const { data } = await post('/api/keys/{name}/create', { params: { name }, body });
        onDone();
        return <Secret created={data} />;
      }}
    >
      <div class="grid">
        {input('name', 'Name', 'It is shown in the audit log.', true)}
        {input('account', 'Account', 'The key sees its events. * means all accounts.', true)}
        {input('hubs', 'Hubs', 'Separated by commas. * means all.', true)}
        {input('topics', 'Topics', 'Patterns that it may publish. Empty means all.')}
        {input('networks', 'Networks', 'Such as 10.0.0.0/8. Empty means all.')}
        <label class="field">
          <span class="label">Expires</span>
          <select value={form.days} onChange={(e) => setForm({ ...form, days: e.currentTarget.value })}>
            {lifetimes.map(([days, label]) => (
              <option key={days} value={days}>
                {label}
              </option>
            ))}
          </select>
        </label>
      </div>
      {capabilities.map((c) => (
        <label key={c} class="choice">
          <input
            type="checkbox"
            checked={chosen.includes(c)}
            onChange={(e) => setChosen(e.currentTarget.checked ? [...chosen, c] : chosen.filter((x) => x !== c))}
          />
          <span class="mono">{c}</span>
        </label>
      ))}
    </Confirm>
  );
}
