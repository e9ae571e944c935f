import { get, type Schemas } from '../api';
import { Filter } from '../components/Filter';
import { More } from '../components/More';
import { type Column, Table } from '../components/Table';
import { CopyButton, Empty, Loaded, Time, Title } from '../components/ui';
import { command, isSet, list, toFlags } from '../format';
import { usePages } from '../pages';
import { href, navigate, useRoute } from '../router';
import { EventLink } from './Sink';

type Event = Schemas['Event'];

const more = [
  { name: 'object_id', label: 'Object' },
  { name: 'account_id', label: 'Account' },
  { name: 'publisher', label: 'Publisher', placeholder: 'ops, key ops or inbox' },
  { name: 'container_id', label: 'Container' },
  { name: 'environment_id', label: 'Environment' },
  { name: 'cluster', label: 'Cluster' },
  { name: 'dns_zone', label: 'DNS zone' },
];

const columns: Column<Event>[] = [
  { id: 'time', label: 'Time', cell: (e) => <Time time={e.time} /> },
  { id: 'id', label: 'Event', cell: (e) => <EventLink id={e.id} /> },
  { id: 'topic', label: 'Topic', cell: (e) => <span class="mono">{e.topic}</span> },
  { id: 'hub', label: 'Hub', cell: (e) => <span class="mono">{e.hub_id}</span> },
  { id: 'account', label: 'Account', cell: (e) => <span class="mono">{e.account_id}</span> },
  { id: 'object', label: 'Object', breaks: 'short', cell: (e) => <span class="mono">{e.object_id}</span> },
  { id: 'publisher', label: 'Publisher', cell: (e) => <PublisherName publisher={e.publisher} /> },
];

export function PublisherName({ publisher }: { publisher: Schemas['Publisher'] }) {
  if (!publisher.kind) return <span class="muted">unknown</span>;
  return (
    <>
      <span class="muted">{publisher.kind}</span> {publisher.name}
    </>
  );
}

export function Events() {
  const { query } = useRoute();
  const text = (name: string) => query.get(name) ?? '';
  const search = {
    topics: list(query.get('topics')),
    hub_id: text('hub_id'),
    since: text('since'),
    until: text('until'),
    object_id: text('object_id'),
    account_id: text('account_id'),
    publisher: text('publisher'),
    container_id: text('container_id'),
    environment_id: text('environment_id'),
    cluster: text('cluster'),
    dns_zone: text('dns_zone'),
  };
  const events = usePages(
    (page, signal) => get('/api/events', { query: { ...search, ...page }, signal }),
    (e) => e.id,
    0,
    JSON.stringify(search),
  );
  return (
    <>
      <Title text="Events">
        <div class="buttons">
          <form
            class="buttons"
            onSubmit={(e) => {
              e.preventDefault();
              const id = String(new FormData(e.currentTarget).get('id') ?? '').trim();
              if (id) navigate(href(['events', id]));
            }}
          >
            <input name="id" aria-label="Event ID" placeholder="Event ID" class="mono id" autoComplete="off" />
            <button type="submit">Open</button>
          </form>
          <CopyButton label="Copy the command" text={command('events', 'search', ...toFlags(search))} />
          <button type="button" onClick={events.refresh}>
            Refresh
          </button>
        </div>
      </Title>
      <Filter
        submit="Search"
        fields={[
          { name: 'topics', label: 'Topics', placeholder: 'job.*, *.error' },
          { name: 'hub_id', label: 'Hub' },
          { name: 'since', label: 'Since', placeholder: '2h, 1d or a time' },
          { name: 'until', label: 'Until', placeholder: '1h or a time' },
        ]}
        more={more}
      />
      <Loaded of={events}>
        {(page) => {
          const { searched_to: searched } = page as { searched_to?: string };
          return (
            <>
              {page.data.length ? (
                <Table
                  caption="Events, the newest first"
                  columns={columns}
                  rows={page.data}
                  rowKey={(e) => e.id}
                  paged={events}
                />
              ) : (
                <Empty>
                  {page.next
                    ? 'No event was found yet. The search stops after two seconds; continue with Load more.'
                    : 'No event in the log matches the search.'}
                </Empty>
              )}
              {page.next && isSet(searched) ? (
                <p class="muted count">
                  Searched back to <Time time={searched} />.
                </p>
              ) : null}
              <More of={events} />
            </>
          );
        }}
      </Loaded>
    </>
  );
}
