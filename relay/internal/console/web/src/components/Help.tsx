import { useEffect, useRef, useState } from 'preact/hooks';
import { areShortcutsOn, isTyping, setShortcuts } from '../keyboard';
import { navigate } from '../router';
import { Command } from './ui';

const pageKeys: Record<string, [id: string, label: string]> = {
  o: ['', 'Overview'],
  l: ['live', 'Live'],
  e: ['events', 'Events'],
  d: ['deliveries', 'Deliveries'],
  s: ['sinks', 'Sinks'],
  t: ['streams', 'Streams'],
  u: ['sources', 'Sources'],
  q: ['quarantine', 'Quarantine'],
  j: ['jobs', 'Jobs'],
  k: ['keys', 'Keys'],
  n: ['nodes', 'Nodes'],
  c: ['config', 'Configuration'],
  a: ['audit', 'Audit'],
};
const others: [key: string, label: string][] = [
  ['/', 'Go to the search field of the page'],
  ['Space', 'Pause or resume the live events'],
  ['Esc', 'Close a dialog or the event at the side'],
  ['?', 'Show this help'],
];
const sequenceTimeout = 1500;

function focusSearch() {
  const field =
    document.querySelector<HTMLElement>('main search input') ?? document.querySelector<HTMLElement>('main form input');
  field?.focus();
  return field !== null;
}

/** Help handles the keyboard shortcuts of all pages, and lists them. */
export function Help() {
  const [open, setOpen] = useState(false);
  useEffect(() => {
    let started = 0;
    const onKey = (e: KeyboardEvent) => {
      if (
        e.ctrlKey ||
        e.metaKey ||
        e.altKey ||
        isTyping(e) ||
        !areShortcutsOn() ||
        document.querySelector('dialog[open]')
      )
        return;
      const page = Date.now() - started < sequenceTimeout ? pageKeys[e.key] : undefined;
      started = e.key === 'g' ? Date.now() : 0;
      if (page) navigate(`#/${page[0]}`);
      else if (e.key === '?') setOpen(true);
      else if (e.key !== '/' || !focusSearch()) return;
      e.preventDefault();
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
  return (
    <>
      <button type="button" class="small keyboard" onClick={() => setOpen(true)}>
        Keyboard
      </button>
      {open ? <HelpDialog onClose={() => setOpen(false)} /> : null}
    </>
  );
}

function HelpDialog({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [on, setOn] = useState(areShortcutsOn);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog ref={dialog} aria-labelledby="help-title" onClose={onClose}>
      <form method="dialog">
        <h2 id="help-title">Keyboard</h2>
        <ul class="keys">
          {others.map(([key, label]) => (
            <li key={key}>
              <kbd>{key}</kbd> {label}
            </li>
          ))}
          {Object.entries(pageKeys).map(([key, [, label]]) => (
            <li key={key}>
              <span>
                <kbd>g</kbd> <kbd>{key}</kbd>
              </span>{' '}
              {label}
            </li>
          ))}
        </ul>
        <label class="choice">
          <input
            type="checkbox"
            checked={on}
            onChange={(e) => {
              setShortcuts(e.currentTarget.checked);
              setOn(e.currentTarget.checked);
            }}
          />
          Use these shortcuts in this browser
        </label>
        <p>All actions of the console are also commands:</p>
        <Command text="hubrelay --help" />
        <div class="buttons end">
          <button type="submit">Close</button>
        </div>
      </form>
    </dialog>
  );
}
