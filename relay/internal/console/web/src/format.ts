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

const hex = (n: number, digits: number) => n.toString(16).padStart(digits, '0');

/**
 * hidden are control characters, line and paragraph separators, characters that have no width or set the direction, and
 * blank ones other than a space: the empty Braille pattern, and unusual spaces that are not between visible characters.
 * It excludes what emoji and some scripts need: variation selectors after pictographs, and joiners after pictographs and
 * after letters that are not Latin, Greek or Cyrillic.
 */
const hidden = new RegExp(
  [
    '[\\p{Cc}\\p{Zl}\\p{Zp}\\ufff9-\\ufffb\\u2800]',
    '(?<!\\S)(?! )\\p{Zs}|(?! )\\p{Zs}(?!\\S)',
    '(?![\\ufe0e\\ufe0f\\u200c\\u200d])\\p{Default_Ignorable_Code_Point}',
    '(?<!\\p{Extended_Pictographic})[\\ufe0e\\ufe0f]',
    '(?<![\\p{Extended_Pictographic}\\p{Emoji_Modifier}\\ufe0f]|(?![\\p{Script=Latin}\\p{Script=Greek}\\p{Script=Cyrillic}])[\\p{L}\\p{M}])[\\u200c\\u200d]',
  ].join('|'),
  'gu',
);

/**
 * visible escapes the characters that a reader cannot see, except tabs and line breaks. With them, an ID or a text of a
 * destination could look like another one. A character above U+FFFF becomes two escapes, as in JSON.
 */
export function visible(text: string): string {
  return text.replace(hidden, (c) =>
    /[\t\n\r]/.test(c)
      ? c
      : c
          .split('')
          .map((unit) => `\\u${hex(unit.charCodeAt(0), 4)}`)
          .join(''),
  );
}

function shellEscape(c: string): string {
  const n = c.codePointAt(0) ?? 0;
  return n > 0xffff ? `\\U${hex(n, 8)}` : `\\u${hex(n, 4)}`;
}

/**
 * quote returns a word for a shell. It escapes control characters, because a terminal would execute some of them, and
 * invisible characters, because the user must see what a command contains.
 */
function quote(word: string): string {
  if (/^[\w@%+:,./-][\w@%+=:,./-]*$/.test(word)) return word;
  const escaped = word.replace(/['\\]/g, '\\$&').replace(hidden, shellEscape);
  return word.search(hidden) < 0 ? `'${word.replaceAll("'", "'\\''")}'` : `$'${escaped}'`;
}

/** command returns a command line for bash and zsh. */
export function command(...args: (string | undefined | false)[]): string {
  const words = args.filter((a): a is string => typeof a === 'string' && a !== '');
  return ['hubrelay', ...words.map(quote)].join(' ');
}

/** toFlags returns the flags of a command that has one for each member of a filter: --dns-zone for dns_zone, --hub for hub_id. */
export function toFlags(filter: Record<string, string | string[]>): string[] {
  return Object.entries(filter).flatMap(([name, value]) => {
    const member = Array.isArray(value) ? name.replace(/s$/, '') : name.replace(/_id$/, '');
    return [value].flat().flatMap((v) => (v ? [`--${member.replaceAll('_', '-')}`, v] : []));
  });
}

/** list returns the entries of a text that are separated by commas or spaces. */
export const list = (text: string | null | undefined): string[] => (text ?? '').split(/[\s,]+/).filter(Boolean);

/** sentence returns a text of the API, such as a reason, as a sentence. */
export function sentence(text: string): string {
  const trimmed = text.trim();
  if (!trimmed) return '';
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? '' : '.');
}
