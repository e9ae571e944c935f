import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Session } from '../api';
import { applyTheme, currentTheme, type Theme } from '../theme';
import { Help } from './Help';

const pages: [id: string, label: string][] = [
  ['', 'Overview'],
  ['live', 'Live'],
  ['events', 'Events'],
  ['deliveries', 'Deliveries'],
  ['sinks', 'Sinks'],
  ['streams', 'Streams'],
  ['sources', 'Sources'],
  ['quarantine', 'Quarantine'],
  ['jobs', 'Jobs'],
  ['keys', 'Keys'],
  ['nodes', 'Nodes'],
  ['config', 'Configuration'],
  ['audit', 'Audit'],
];

interface Props {
  session: Session;
  page: string;
  onSignOut: () => void;
  children: ComponentChildren;
}

export function Layout({ session, page, onSignOut, children }: Props) {
  const nav = useRef<HTMLElement>(null);
  // On phones, the pages are a row that scrolls.
  useEffect(() => {
    const link = nav.current?.querySelector<HTMLElement>('[aria-current]');
    if (nav.current && link) nav.current.scrollLeft = link.offsetLeft - nav.current.clientWidth / 2;
  }, [page]);
  return (
    <div class="layout">
      <button type="button" class="skip" onClick={() => document.getElementById('main')?.focus()}>
        Skip to the content
      </button>
      <header class="side">
        <div class="brand">
          <a href="#/">hubrelay</a>
          <span class="muted" title={`Node ${session.node}, version ${session.version}`}>
            {session.relay}
          </span>
        </div>
        <nav ref={nav} aria-label="Pages">
          <ul>
            {pages.map(([id, label]) => (
              <li key={id}>
                <a href={`#/${id}`} aria-current={page === id ? 'page' : undefined}>
                  {label}
                </a>
              </li>
            ))}
          </ul>
        </nav>
        <div class="account">
          <span>
            {session.name} <span class="badge plain">{session.role}</span>
          </span>
          <ThemeChoice />
          <Help />
          {session.can_sign_out ? (
            <button type="button" class="small" onClick={onSignOut}>
              Sign out
            </button>
          ) : null}
          <span class="muted version">
            {session.node} · {session.version}
          </span>
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {children}
      </main>
    </div>
  );
}

export function ThemeChoice() {
  const [theme, setTheme] = useState(currentTheme);
  return (
    <label class="theme">
      <span class="hidden">Colors</span>
      <select
        value={theme}
        onChange={(e) => {
          const value = e.currentTarget.value as Theme;
          applyTheme(value);
          setTheme(value);
        }}
      >
        <option value="system">System colors</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}
