import { useContext } from 'preact/hooks';
import { type Column, Table } from '../components/Table';
import { Command, Count, Loaded, State, Time, Title } from '../components/ui';
import { bytes, command, duration, isSet, local, number, sentence } from '../format';
import { hasMixedVersions, hasRecord, type Node, readiness, useNodes } from '../nodes';
import { SessionContext } from '../session';

const unknown = <span class="muted">–</span>;

const columns: Column<Node>[] = [
  { id: 'name', label: 'Node', sort: (n) => n.name, cell: (n) => <Name node={n} /> },
  {
    id: 'state',
    label: 'State',
    breaks: 'short',
    sort: (n) => readiness(n),
    cell: (n) => (
      <>
        <State state={readiness(n)} />
        {n.not_ready ? <div class="sub">{sentence(n.not_ready)}</div> : null}
      </>
    ),
  },
  {
    id: 'host',
    label: 'Host',
    sort: (n) => n.host,
    cell: (n) => (n.host ? <span class="mono">{n.host}</span> : unknown),
  },
  { id: 'version', label: 'Version', sort: (n) => n.version, cell: (n) => n.version || unknown },
  {
    id: 'uptime',
    label: 'Uptime',
    numeric: true,
    sort: (n) => (isSet(n.started_at) ? -Date.parse(n.started_at) : Number.NEGATIVE_INFINITY),
    cell: (n) => <Uptime since={n.started_at} />,
  },
  {
    id: 'clients',
    label: 'Clients',
    numeric: true,
    sort: (n) => n.clients,
    cell: (n) => (!hasRecord(n) ? unknown : n.clients ? number(n.clients) : <Count n={0} />),
  },
  {
    id: 'queued',
    label: 'Queued',
    numeric: true,
    sort: (n) => n.queued_bytes,
    cell: (n) => (!hasRecord(n) ? unknown : n.queued_bytes ? bytes(n.queued_bytes) : <Count n={0} />),
  },
  { id: 'seen', label: 'Last seen', sort: (n) => n.seen_at ?? '', cell: (n) => <Time time={n.seen_at} ago /> },
  {
    id: 'config',
    label: 'Configuration',
    breaks: 'wide',
    cell: (n) =>
      n.config_warning ? (
        <span class="warn">{sentence(n.config_warning)}</span>
      ) : hasRecord(n) ? (
        <span class="muted">like its file</span>
      ) : (
        unknown
      ),
  },
];

function Name({ node: n }: { node: Node }) {
  const session = useContext(SessionContext);
  return (
    <>
      <span class="mono">{n.name}</span>
      {n.name === session?.node ? <div class="muted sub">responds to this console</div> : null}
      {hasRecord(n) ? null : <div class="muted sub">no record of its state</div>}
    </>
  );
}

/** Uptime is as new as the record of the node, so it does not need a timer. */
function Uptime({ since }: { since: string | undefined }) {
  if (!isSet(since)) return unknown;
  const title = `Started ${local(since)}\n${new Date(since).toISOString()}`;
  return (
    <time dateTime={since} title={title}>
      {duration(Math.max(0, Math.round((Date.now() - Date.parse(since)) / 1000)))}
    </time>
  );
}

export function Nodes() {
  const nodes = useNodes();
  return (
    <>
      <Title text="Nodes" />
      <Loaded of={nodes}>
        {(all) => (
          <>
            {hasMixedVersions(all) ? (
              <p class="notice">The nodes run different versions. This is normal during an upgrade.</p>
            ) : null}
            <Table stack caption="Nodes" columns={columns} rows={all} rowKey={(n) => n.name} />
          </>
        )}
      </Loaded>
      <details>
        <summary>Show the nodes in a terminal</summary>
        <Command text={command('nodes', 'list')} />
      </details>
    </>
  );
}
