import { useState } from 'preact/hooks';
import { ApiError, get, post, type Schemas } from '../api';
import { Confirm } from '../components/Confirm';
import { Filter } from '../components/Filter';
import { More } from '../components/More';
import { type Column, Table } from '../components/Table';
import { Command, CopyButton, Empty, Facts, Loaded, State, Time, Title } from '../components/ui';
import { bytes, command, isSet, sentence } from '../format';
import { usePages } from '../pages';
import { type Polled, usePolling } from '../poll';
import { href, useRoute } from '../router';
import { useRole } from '../session';

type Job = Schemas['Job'];
type Inventory = Schemas['Inventory'];

const states = ['new', 'queued', 'scheduled', 'running', 'completed', 'error', 'expired'] as const;
const ended = ['completed', 'error', 'expired'];

/** isDisabled reports whether the relay has no driver of migrations. */
const isDisabled = (of: Polled<unknown>) => of.error instanceof ApiError && of.error.code === '503.not-enabled';

function Disabled() {
  return (
    <Empty>
      Migrations are disabled, so there are no jobs. Set <code>migration.driver</code> and{' '}
      <code>migration.inventory_file</code> in the configuration, then restart the daemon.
    </Empty>
  );
}

export function JobLink({ id }: { id: string }) {
  return (
    <a class="mono" href={href(['jobs', id])}>
      {id}
    </a>
  );
}

const isEnded = (j: Job) => ended.includes(j.state.current);
const canCancel = (j: Job) => !isEnded(j) && !j.canceled;

/** JobState shows the state of a job, and whether it is being rolled back. */
function JobState({ job: j }: { job: Job }) {
  return (
    <>
      <State state={j.state.current} />
      {j.canceled && !isEnded(j) ? (
        <>
          {' '}
          <span class="badge warn">being rolled back</span>
        </>
      ) : null}
    </>
  );
}

/** Cancel asks before it cancels a job. */
function Cancel({ job: j, onClose, onDone }: { job: Job; onClose: () => void; onDone: () => void }) {
  return (
    <Confirm
      title={`Cancel the migration of ${j.instance_id}?`}
      confirm="Cancel the migration"
      danger
      dismiss="Keep the migration"
      command={command('jobs', 'cancel', j.id)}
      onClose={onClose}
      action={async () => {
        try {
          await post('/api/jobs/{id}/cancel', { params: { id: j.id } });
        } finally {
          onDone();
        }
        return null;
      }}
    >
      <p>
        A job that waits ends now, and {j.instance_id} stays on {j.source_server_id}.
      </p>
      <p>
        A job that runs is rolled back: the relay stops the driver and moves {j.instance_id} back to{' '}
        {j.source_server_id}. If it already runs on {j.destination_server_id}, the driver may have to complete the
        migration instead.
      </p>
    </Confirm>
  );
}

const columns: Column<Job>[] = [
  { id: 'id', label: 'Job', cell: (j) => <JobLink id={j.id} /> },
  {
    id: 'state',
    label: 'State',
    cell: (j) => (
      <>
        <JobState job={j} />
        <div class="muted sub">
          <Time time={j.state.changed} ago />
        </div>
      </>
    ),
  },
  { id: 'container', label: 'Container', cell: (j) => <span class="mono">{j.container_id}</span> },
  { id: 'instance', label: 'Instance', cell: (j) => <span class="mono">{j.instance_id}</span> },
  { id: 'route', label: 'Route', cell: (j) => <Route job={j} /> },
  { id: 'hub', label: 'Hub', cell: (j) => <span class="mono">{j.hub_id}</span> },
  { id: 'requested_by', label: 'Requested by', cell: (j) => j.requested_by },
  { id: 'queued', label: 'Queued', cell: (j) => <Time time={j.events.queued} /> },
  {
    id: 'error',
    label: 'Error',
    breaks: 'wide',
    cell: (j) => (j.state.error ? <span class="clip">{sentence(j.state.error.message)}</span> : null),
  },
];

function Route({ job }: { job: Job }) {
  return (
    <span class="mono">
      {job.source_server_id} <span aria-hidden="true">→</span>
      <span class="hidden">to</span> {job.destination_server_id}
    </span>
  );
}

const useInventory = () =>
  usePolling(async (signal) => (await get('/api/inventory', { signal })).data, 5000, 'inventory');

export function Jobs() {
  const { query } = useRoute();
  const operator = useRole('operator');
  const inventory = useInventory();
  const [canceling, setCanceling] = useState<Job | null>(null);
  const search = {
    hub_id: query.get('hub_id') ?? '',
    container_id: query.get('container_id') ?? '',
    instance_id: query.get('instance_id') ?? '',
    states: query.getAll('states'),
  };
  const jobs = usePages(
    (page, signal) => get('/api/jobs', { query: { ...search, ...page }, signal }),
    (j) => j.id,
    5000,
    JSON.stringify(search),
  );
  // Only operators have the column, and only while a job can be canceled.
  const actions: Column<Job>[] =
    operator && jobs.data?.data.some(canCancel)
      ? [
          {
            id: 'actions',
            label: 'Actions',
            cell: (j) =>
              canCancel(j) ? (
                <button
                  type="button"
                  class="small"
                  aria-label={`Cancel the job ${j.id}`}
                  onClick={() => setCanceling(j)}
                >
                  Cancel
                </button>
              ) : null,
          },
        ]
      : [];
  const filtered = search.states.length > 0 || search.hub_id || search.container_id || search.instance_id;
  if (isDisabled(jobs))
    return (
      <>
        <Title text="Jobs" />
        <Disabled />
      </>
    );
  return (
    <>
      <Title text="Jobs">
        {operator ? (
          <div class="buttons">
            <a class="button" href="#/jobs/new">
              Migrate an instance
            </a>
          </div>
        ) : null}
      </Title>
      <Filter
        submit="Filter"
        fields={[
          { name: 'container_id', label: 'Container' },
          { name: 'instance_id', label: 'Instance' },
          { name: 'hub_id', label: 'Hub' },
          { name: 'states', label: 'States', checks: states },
        ]}
      />
      <Loaded of={jobs}>
        {(page) => (
          <>
            {page.data.length ? (
              <Table
                boxed
                stack
                caption="Jobs, the newest first"
                columns={[...columns.slice(0, 2), ...actions, ...columns.slice(2)]}
                rows={page.data}
                rowKey={(j) => j.id}
                paged={jobs}
              />
            ) : (
              <Empty>
                {page.next
                  ? 'Nothing on this page matches the filter.'
                  : filtered
                    ? 'No job matches the filter.'
                    : 'There are no jobs. A job runs one migration, and is kept for 30 days.'}
              </Empty>
            )}
            <More of={jobs} />
          </>
        )}
      </Loaded>
      <section>
        <h2>Inventory</h2>
        <Loaded of={inventory}>{(i) => <InventoryTables inventory={i} />}</Loaded>
      </section>
      {canceling ? <Cancel job={canceling} onClose={() => setCanceling(null)} onDone={jobs.refresh} /> : null}
    </>
  );
}

type Placed = Schemas['Instance'] & { container: Schemas['Container'] };

const placedColumns: Column<Placed>[] = [
  { id: 'instance', label: 'Instance', cell: (i) => <span class="mono">{i.id}</span> },
  {
    id: 'container',
    label: 'Container',
    cell: (i) => (
      <>
        <span class="mono">{i.container.id}</span>
        <div class="muted sub">{i.container.stateful ? 'stateful' : 'stateless'}</div>
      </>
    ),
  },
  {
    id: 'server',
    label: 'Server',
    cell: (i) => (
      <>
        <span class="mono">{i.server_id}</span>
        {i.moved_from ? <div class="muted sub">moved from {i.moved_from}</div> : null}
      </>
    ),
  },
  { id: 'hub', label: 'Hub', cell: (i) => <span class="mono">{i.container.hub_id}</span> },
  { id: 'job', label: 'Job', cell: (i) => (i.job_id ? <JobLink id={i.job_id} /> : <span class="muted">–</span>) },
];

const serverColumns: Column<Schemas['Server']>[] = [
  { id: 'server', label: 'Server', cell: (s) => <span class="mono">{s.id}</span> },
  { id: 'cluster', label: 'Cluster', cell: (s) => s.cluster },
  {
    id: 'instances',
    label: 'Instances',
    breaks: 'wide',
    cell: (s) => (s.instances.length ? <span class="mono">{s.instances.join(', ')}</span> : 'none'),
  },
];

function DriverError({ error }: { error: string | undefined }) {
  return error ? (
    <p class="notice bad">The driver of this node cannot work, so jobs wait for it. {sentence(error)}</p>
  ) : null;
}

function InventoryTables({ inventory: i }: { inventory: Inventory }) {
  const placed = i.containers.flatMap((container) => container.instances.map((x) => ({ ...x, container })));
  return (
    <>
      <DriverError error={i.driver_error} />
      {placed.length ? (
        <Table caption="Instances" columns={placedColumns} rows={placed} rowKey={(x) => x.id} />
      ) : (
        <Empty>The inventory has no instances.</Empty>
      )}
      {i.servers.length ? (
        <Table caption="Servers" columns={serverColumns} rows={i.servers} rowKey={(s) => s.id} />
      ) : (
        <Empty>The inventory has no servers. Define them in migration.inventory_file.</Empty>
      )}
      <details>
        <summary>Show the inventory in a terminal</summary>
        <Command text={command('inventory', 'list')} />
      </details>
    </>
  );
}

export function JobPage({ id }: { id: string }) {
  const operator = useRole('operator');
  const [over, setOver] = useState(false);
  const [canceling, setCanceling] = useState<Job | null>(null);
  const job = usePolling(
    async (signal) => {
      const { data } = await get('/api/jobs/{id}', { params: { id }, signal });
      setOver(isEnded(data));
      return data;
    },
    over ? 30_000 : 1000,
    id,
  );
  return (
    <>
      <p class="crumbs">
        <a href="#/jobs">Jobs</a>
      </p>
      <Title text={id} mono>
        {job.data ? <JobState job={job.data} /> : null}
        {job.data && operator && canCancel(job.data) ? (
          <div class="buttons">
            <CopyButton label="Copy the command" text={command('jobs', 'cancel', id)} />
            <button type="button" onClick={() => setCanceling(job.data ?? null)}>
              Cancel the job
            </button>
          </div>
        ) : null}
      </Title>
      {canceling ? <Cancel job={canceling} onClose={() => setCanceling(null)} onDone={job.refresh} /> : null}
      {isDisabled(job) ? (
        <Disabled />
      ) : (
        <Loaded of={job}>
          {(j) => (
            <>
              <p>{sentence(j.caption)}</p>
              {j.state.error ? <p class="notice bad">{sentence(j.state.error.message)}</p> : null}
              <Facts
                facts={[
                  { label: 'Container', value: <span class="mono">{j.container_id}</span> },
                  { label: 'Instance', value: <span class="mono">{j.instance_id}</span> },
                  { label: `Route in cluster ${j.cluster}`, value: <Route job={j} /> },
                  { label: 'Volumes', value: j.copy_volumes ? 'copied' : 'not copied' },
                  { label: 'Hub', value: <span class="mono">{j.hub_id}</span> },
                  { label: 'Account', value: <span class="mono">{j.account_id || '–'}</span> },
                  { label: 'Requested by', value: j.requested_by },
                  { label: 'Queued', value: <Time time={j.events.queued} /> },
                  { label: 'Started', value: <Time time={j.events.started} /> },
                  { label: 'Ended', value: <Time time={j.events.completed} /> },
                ]}
              />
              <section>
                <h2>Steps</h2>
                {j.tasks.length ? <Steps tasks={j.tasks} /> : <Empty>No step has started.</Empty>}
              </section>
            </>
          )}
        </Loaded>
      )}
      <details>
        <summary>Show this job in a terminal</summary>
        <Command text={command('jobs', 'show', id, ...(job.data ? ['--hub', job.data.hub_id] : []))} />
      </details>
    </>
  );
}

const tones: Record<string, string> = { completed: 'good', running: 'warn', error: 'bad' };

function Steps({ tasks }: { tasks: Schemas['JobTask'][] }) {
  return (
    <ol class="timeline">
      {tasks.map((t) => (
        <li key={t.id} class={tones[t.state.current] ?? ''}>
          <div class="line">
            <strong>{t.caption}</strong>
            <State state={t.state.current} />
            <span>{t.progress}%</span>
            {t.total ? (
              <span class="muted">
                {bytes(t.bytes ?? 0)} of {bytes(t.total)}
              </span>
            ) : null}
            {isSet(t.state.changed) ? <Time time={t.state.changed} /> : null}
          </div>
          {t.state.current === 'running' ? (
            <progress aria-label={`Progress of ${t.caption}`} max={100} value={t.progress} />
          ) : null}
          {t.error ? <p class="bad">{sentence(t.error.message)}</p> : null}
        </li>
      ))}
    </ol>
  );
}

export { Disabled, DriverError, isDisabled, useInventory };
