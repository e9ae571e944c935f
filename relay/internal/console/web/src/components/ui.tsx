import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError } from '../api';
import { isSet, local, number, relative, visible } from '../format';
import type { Polled } from '../poll';

let navigations = 0;

/** Title is the heading of a page. It gets the focus after navigation, so screen readers announce the new page. */
export function Title({ text, mono, children }: { text: string; mono?: boolean; children?: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${visible(text)} · hubrelay`;
    if (navigations++ > 0) heading.current?.focus();
  }, [text]);
  return (
    <header class="title">
      <h1 ref={heading} tabIndex={-1} class={mono ? 'mono' : ''}>
        {text}
      </h1>
      {children}
    </header>
  );
}

const tones: Record<string, string> = {
  active: 'good',
  delivered: 'good',
  connected: 'good',
  waiting: 'info',
  retrying: 'warn',
  retry: 'warn',
  throttled: 'warn',
  connecting: 'warn',
  paused: 'info',
  disabled: 'bad',
  down: 'bad',
  failed: 'bad',
  dead: 'bad',
  permanent: 'bad',
  gone: 'bad',
  rejected: 'bad',
  completed: 'good',
  running: 'info',
  queued: 'info',
  scheduled: 'info',
  error: 'bad',
  expired: 'bad',
  ready: 'good',
  not_ready: 'bad',
};

/** State shows a state as a word with a color. The color never stands alone. */
export function State({ state }: { state: string }) {
  return <span class={`badge ${tones[state] ?? 'plain'}`}>{state.replaceAll('_', ' ')}</span>;
}

/** Time shows the local time, or with ago the time since. The title contains the other notations. */
export function Time({ time, ago }: { time: string | null | undefined; ago?: boolean }) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!ago) return;
    const timer = setInterval(() => tick((n) => n + 1), 10_000);
    return () => clearInterval(timer);
  }, [ago]);
  if (!isSet(time)) return <span class="muted">–</span>;
  const title = `${ago ? local(time) : relative(time)}\n${new Date(time).toISOString()}`;
  return (
    <time dateTime={time} title={title}>
      {ago ? relative(time) : local(time)}
    </time>
  );
}

export function Count({ n, tone }: { n: number; tone?: 'warn' | 'bad' }) {
  return <span class={n === 0 ? 'muted' : (tone ?? '')}>{number(n)}</span>;
}

export function CopyButton({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [copied, setCopied] = useState<boolean | null>(null);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch {
      setCopied(false);
    }
    setTimeout(() => setCopied(null), 2000);
  }
  return (
    <button type="button" class="small quiet" onClick={copy} title={label === 'Copy' ? undefined : text}>
      {copied === null ? label : copied ? 'Copied' : 'Not copied'}
      <span class="hidden" role="status">
        {copied === null ? '' : copied ? 'Copied to the clipboard' : 'The browser did not allow copying'}
      </span>
    </button>
  );
}

/** Command shows the command that has the same effect. */
export function Command({ text }: { text: string }) {
  return (
    <div class="command">
      <code>{text}</code>
      <CopyButton text={text} />
    </div>
  );
}

export function Json({ value }: { value: unknown }) {
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2);
  return (
    <div class="json">
      <CopyButton text={text} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling area must be reachable with the keyboard */}
      <pre tabIndex={0}>{text}</pre>
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Failed({ error, retry }: { error: Error; retry?: () => void }) {
  const title = error instanceof ApiError ? error.title : 'Something went wrong';
  const detail = error instanceof ApiError ? error.detail : error.message;
  return (
    <div class="notice bad" role="alert">
      <p>
        <strong>{title}</strong>
        {detail && detail !== title ? <> {detail}</> : null}
        {error instanceof ApiError && error.code ? <span class="mono muted"> {error.code}</span> : null}
      </p>
      {retry ? (
        <button type="button" class="small" onClick={retry}>
          Try again
        </button>
      ) : null}
    </div>
  );
}

/** Loaded shows the data of a request, or why there is none. */
export function Loaded<T>({ of, children }: { of: Polled<T>; children: (data: T) => ComponentChildren }) {
  return (
    <>
      {of.disconnected ? (
        <div class="notice warn" role="alert">
          <p>
            <strong>Disconnected.</strong> The daemon does not respond. The console tries again by itself.
            {of.data === undefined ? '' : ' The data below is old.'}
          </p>
          <button type="button" class="small" onClick={of.refresh}>
            Try again
          </button>
        </div>
      ) : null}
      {of.error ? <Failed error={of.error} retry={of.refresh} /> : null}
      {of.data !== undefined ? children(of.data) : of.loading ? <Loading /> : null}
    </>
  );
}

export function Loading() {
  return (
    <p class="loading" role="status">
      Loading…
    </p>
  );
}

export interface Fact {
  label: string;
  value: ComponentChildren;
}

export function Facts({ facts, large }: { facts: (Fact | null | false | undefined)[]; large?: boolean }) {
  return (
    <dl class={large ? 'facts numbers' : 'facts'}>
      {facts.map((f) =>
        f ? (
          <div key={f.label}>
            <dt>{f.label}</dt>
            <dd>{f.value}</dd>
          </div>
        ) : null,
      )}
    </dl>
  );
}
