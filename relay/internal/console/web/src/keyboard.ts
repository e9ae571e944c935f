/** isTyping reports whether a key belongs to a field or to a button, not to a shortcut of the page. */
export function isTyping(event: KeyboardEvent): boolean {
  const { target } = event;
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target.matches('input, select, textarea')) return true;
  return event.key === ' ' && target.matches('button, a, summary') && !target.matches('.row');
}
