import { useState } from 'preact/hooks';
import { post, type Schemas } from '../api';
import { Confirm } from '../components/Confirm';
import { Command, Empty, Loaded, Title } from '../components/ui';
import { command } from '../format';
import { href, navigate, setQuery, useRoute } from '../router';
import { useRole } from '../session';
import { Disabled, DriverError, isDisabled, useInventory } from './Jobs';

/** Migrate is a form for a job. The choice is in the address. */
export function Migrate() {
  const operator = useRole('operator');
  const inventory = useInventory();
  return (
    <>
      <p class="crumbs">
        <a href="#/jobs">Jobs</a>
      </p>
      <Title text="Migrate an instance" />
      {!operator ? (
        <Empty>Your role is viewer. Only operators can migrate instances.</Empty>
      ) : isDisabled(inventory) ? (
        <Disabled />
      ) : (
        <Loaded of={inventory}>{(i) => <Form inventory={i} />}</Loaded>
      )}
    </>
  );
}

interface Confirmation {
  body: Schemas['CreateJobRequest'];
  source: string;
  losesVolumes: boolean;
  line: string;
}

function Form({ inventory }: { inventory: Schemas['Inventory'] }) {
  const { query } = useRoute();
  // The inventory can change while the confirmation is open, so it keeps what it asks about.
  const [confirming, setConfirming] = useState<Confirmation | null>(null);
  const [copy, setCopy] = useState(true);
  const containers = inventory.containers.filter((c) => c.instances.length > 0);
  const container = containers.find((c) => c.id === query.get('container')) ?? containers[0];
  const instance = container?.instances.find((i) => i.id === query.get('instance')) ?? container?.instances[0];
  const source = inventory.servers.find((s) => s.id === instance?.server_id);
  const others = inventory.servers.filter((s) => s.cluster === source?.cluster && s.id !== source?.id);
  const destination = others.find((s) => s.id === query.get('destination')) ?? others[0];
  if (!container || !instance) return <Empty>The inventory has no instances.</Empty>;
  const copyVolumes = container.stateful && copy;
  const select = (name: string, label: string, ids: string[], value: string, reset: string[], help?: string) => (
    <label class="field">
      <span class="label">{label}</span>
      <select
        value={value}
        onChange={(e) => setQuery({ ...Object.fromEntries(reset.map((r) => [r, ''])), [name]: e.currentTarget.value })}
      >
        {ids.map((id) => (
          <option key={id} value={id}>
            {id}
          </option>
        ))}
      </select>
      {help ? <span class="help">{help}</span> : null}
    </label>
  );
  const line = command(
    ...['migrate', container.id, instance.id, '--hub', container.hub_id],
    ...['--to', destination?.id ?? 'SERVER'],
    copyVolumes && '--copy-volumes',
  );
  return (
    <>
      <DriverError error={inventory.driver_error} />
      {instance.job_id ? (
        <p class="notice warn">
          A job moves this instance now.
          <a href={href(['jobs', instance.job_id])}>Show the job</a>
        </p>
      ) : null}
      <form
        class="card"
        onSubmit={(e) => {
          e.preventDefault();
          if (!destination) return;
          setConfirming({
            body: {
              hub_id: container.hub_id,
              container_id: container.id,
              instance_id: instance.id,
              destination_server_id: destination.id,
              copy_volumes: copyVolumes,
            },
            source: instance.server_id,
            losesVolumes: container.stateful && !copyVolumes,
            line,
          });
        }}
      >
        <div class="grid">
          {select(
            'container',
            'Container',
            containers.map((c) => c.id),
            container.id,
            ['instance', 'destination'],
            `Hub ${container.hub_id}`,
          )}
          {select(
            'instance',
            'Instance',
            container.instances.map((i) => i.id),
            instance.id,
            ['destination'],
            `It is on server ${instance.server_id}.`,
          )}
          {select(
            'destination',
            'Destination',
            others.map((s) => s.id),
            destination?.id ?? '',
            [],
            source ? `Servers of cluster ${source.cluster}` : 'The server of the instance is not in the inventory.',
          )}
        </div>
        {container.stateful ? (
          <label class="choice">
            <input type="checkbox" checked={copy} onChange={(e) => setCopy(e.currentTarget.checked)} />
            Copy the volumes
          </label>
        ) : null}
        {others.length === 0 ? <p class="muted">The cluster has no other server, so it cannot move.</p> : null}
        <div class="buttons">
          <button type="submit" class="primary" disabled={!destination}>
            Migrate {instance.id}
          </button>
        </div>
        <Command text={line} />
      </form>
      {confirming ? (
        <Confirm
          title={`Migrate ${confirming.body.instance_id} to ${confirming.body.destination_server_id}?`}
          confirm="Start the migration"
          command={confirming.line}
          onClose={() => setConfirming(null)}
          action={async () => {
            const { data } = await post('/api/jobs', { body: confirming.body });
            navigate(href(['jobs', data.id]));
            return null;
          }}
        >
          <p>
            The instance stops on {confirming.source}, and starts on {confirming.body.destination_server_id}. It is not
            available during that time. If a step fails, the relay undoes the migration.
          </p>
          {confirming.losesVolumes ? (
            <p class="notice warn">
              The volumes are not copied. The instance starts with new, empty volumes, and the old ones are kept.
            </p>
          ) : null}
        </Confirm>
      ) : null}
    </>
  );
}
