const integers = new Intl.NumberFormat('en-US');
export const number = (n: number) => integers.format(n);

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${number(n)} ${n === 1 ? one : many}`;
}

/** isSet reports whether a time of the API is present and not Go's zero time. */
export function isSet(time: string | null | undefined): time is string {
  return !!time && !time.startsWith('0001-');
}

const units: [number, string][] = [
  [86400, 'd'],
  [3600, 'h'],
  [60, 'm'],
  [1, 's'],
];

export function duration(seconds: number): string {
  for (const [size, unit] of units) if (seconds >= size) return `${Math.floor(seconds / size)}${unit}`;
  return '0s';
}

export function relative(time: string, now = Date.now()): string {
  const seconds = Math.round((now - Date.parse(time)) / 1000);
  if (Math.abs(seconds) < 1) return 'now';
  return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

const two = (n: number) => String(n).padStart(2, '0');

/** local returns a time in the zone of the browser, such as 2026-11-26 22:31:05. */
export function local(time: string): string {
  const d = new Date(time);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

/** rate returns a number per second with at most one decimal below 10. */
export const rate = (n: number): string => (n > 0 && n < 10 ? n.toFixed(1) : number(Math.round(n)));

export function bytes(n: number): string {
  const names = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; n >= 1024 && i < names.length - 1; i++) n /= 1024;
  return `${n < 10 && i > 0 ? n.toFixed(1) : Math.round(n)} ${names[i]}`;
}

export function milliseconds(ms: number): string {
  return ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

const escapeControl = (c: string) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`;

/**
 * visible escapes control characters, except white space, and characters that change the direction of text. Text of a
 * destination could otherwise look like other text.
 */
export function visible(text: string): string {
  return text.replace(/(?![\t\n\r])[\p{Cc}\p{Bidi_Control}]/gu, escapeControl);
}

/** quote returns a word for a shell. Control characters are escaped, because a terminal would execute some of them. */
function quote(word: string): string {
  if (/^[\w@%+:,./-][\w@%+=:,./-]*$/.test(word)) return word;
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters to escape
  const controls = /[\u0000-\u001f\u007f-\u009f]/g;
  if (!controls.test(word)) return `'${word.replaceAll("'", "'\\''")}'`;
  return `$'${word.replace(/['\\]/g, '\\$&').replace(controls, escapeControl)}'`;
}

/** command returns a command line for bash and zsh. */
export function command(...args: (string | undefined | false)[]): string {
  const words = args.filter((a): a is string => typeof a === 'string' && a !== '');
  return ['hubrelay', ...words.map(quote)].join(' ');
}

/** list returns the entries of a text that are separated by commas or spaces. */
export const list = (text: string | null | undefined): string[] => (text ?? '').split(/[\s,]+/).filter(Boolean);

/** sentence returns a text of the API, such as a reason, as a sentence. */
export function sentence(text: string): string {
  const trimmed = text.trim();
  if (!trimmed) return '';
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? '' : '.');
}
