/** isTyping reports whether a key belongs to a field or to a button, not to a shortcut of the page. */
export function isTyping(event: KeyboardEvent): boolean {
  const { target } = event;
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target.matches('input, select, textarea')) return true;
  return event.key === ' ' && target.matches('button, a, summary') && !target.matches('.row');
}

const key = 'hubrelay-shortcuts';
let on: boolean | undefined;

/** areShortcutsOn reports whether single keys are shortcuts. Speech input and some assistive programs need them off. */
export function areShortcutsOn(): boolean {
  if (on === undefined) {
    try {
      on = localStorage.getItem(key) !== 'off';
    } catch {
      on = true;
    }
  }
  return on;
}

export function setShortcuts(value: boolean) {
  on = value;
  try {
    if (value) localStorage.removeItem(key);
    else localStorage.setItem(key, 'off');
  } catch {
    // Without storage, the choice lasts until the page is closed.
  }
}
