import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Command, Failed } from './ui';

interface Props {
  title: string;
  children: ComponentChildren;
  /** confirm is the label of the button that starts the action: a verb and an object. */
  confirm: string;
  danger?: boolean;
  /** dismiss is the label of the button that does nothing, if Cancel is ambiguous. */
  dismiss?: string;
  disabled?: boolean;
  command?: string;
  /** action returns what to show afterwards, nothing to close the dialog, or false to keep it as it is. */
  action: () => Promise<ComponentChildren>;
  onClose: () => void;
}

/** Confirm says what an action does before it starts, and shows its result. */
export function Confirm({
  title,
  children,
  confirm,
  danger,
  dismiss = 'Cancel',
  disabled,
  command,
  action,
  onClose,
}: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const close = useRef<HTMLButtonElement>(null);
  const [running, setRunning] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const [result, setResult] = useState<ComponentChildren>(null);

  useEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);

  // The button that had the focus is gone when the result is there.
  useEffect(() => {
    if (result) close.current?.focus();
  }, [result]);

  async function start(event: Event) {
    event.preventDefault();
    if (running || disabled) return;
    setRunning(true);
    setError(null);
    try {
      const r = await action();
      if (r) setResult(r);
      else if (r !== false) onClose();
    } catch (e) {
      setError(e instanceof Error ? e : new Error(String(e)));
    }
    setRunning(false);
  }

  return (
    // A running action cannot be cancelled, and its result must be seen. Browsers close a dialog at the second Escape.
    <dialog
      ref={dialog}
      aria-labelledby="dialog-title"
      onCancel={(e) => {
        if (running) e.preventDefault();
      }}
      onClose={() => (running ? dialog.current?.showModal() : onClose())}
    >
      <form onSubmit={start}>
        <h2 id="dialog-title">{title}</h2>
        <div aria-live="polite">{result}</div>
        {result ? null : <fieldset disabled={running}>{children}</fieldset>}
        {error ? <Failed error={error} /> : null}
        {command && !result ? (
          <div class="field">
            <span class="label">The same with a command</span>
            <Command text={command} />
          </div>
        ) : null}
        <div class="buttons end">
          <button ref={close} type="button" onClick={onClose} disabled={running}>
            {result ? 'Close' : dismiss}
          </button>
          {result ? null : (
            <button type="submit" class={danger ? 'danger' : 'primary'} disabled={running || disabled}>
              {running ? 'Please wait…' : confirm}
            </button>
          )}
        </div>
      </form>
    </dialog>
  );
}
