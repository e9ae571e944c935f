import { href, navigate, parseRoute } from '../router';

export interface Field {
  name: string;
  label: string;
  placeholder?: string;
  /** options are the values of a field with a list. */
  options?: readonly string[];
  /** none is the entry of the list for no value. */
  none?: string;
  /** checks are values of which several can be chosen. */
  checks?: readonly string[];
}

interface Props {
  fields: Field[];
  more?: Field[];
  submit: string;
}

function Input({ field: f, query }: { field: Field; query: URLSearchParams }) {
  if (f.checks)
    return (
      <fieldset class="checks">
        <legend class="label">{f.label}</legend>
        {f.checks.map((value) => (
          <label key={value} class="choice">
            <input type="checkbox" name={f.name} value={value} defaultChecked={query.getAll(f.name).includes(value)} />
            {value}
          </label>
        ))}
      </fieldset>
    );
  const value = query.get(f.name) ?? '';
  if (f.options)
    return (
      <label class="field">
        <span class="label">{f.label}</span>
        <select name={f.name}>
          <option value="">{f.none ?? 'All'}</option>
          {[...new Set(value ? [...f.options, value] : f.options)].map((o) => (
            <option key={o} value={o} selected={o === value}>
              {o}
            </option>
          ))}
        </select>
      </label>
    );
  return (
    <label class="field">
      <span class="label">{f.label}</span>
      <input name={f.name} defaultValue={value} placeholder={f.placeholder} autoComplete="off" />
    </label>
  );
}

/** Filter is a form whose values are in the address. A new filter starts with the first page. */
export function Filter({ fields, more = [], submit }: Props) {
  const { path, query } = parseRoute();
  const all = [...fields, ...more];
  const inputs = (list: Field[]) => list.map((f) => <Input key={f.name} field={f} query={query} />);
  return (
    <search class="filters">
      <form
        key={all.map((f) => query.getAll(f.name).join(' ')).join('\n')}
        onSubmit={(event) => {
          event.preventDefault();
          const data = new FormData(event.currentTarget);
          const values: Record<string, string[]> = {};
          for (const { name } of all) values[name] = data.getAll(name).map((v) => String(v).trim());
          navigate(href(path, values));
        }}
      >
        {inputs(fields)}
        <div class="buttons">
          <button type="submit" class="primary">
            {submit}
          </button>
          {all.some((f) => query.get(f.name)) ? (
            <a class="small" href={href(path)}>
              Clear
            </a>
          ) : null}
        </div>
        {more.length ? (
          <details open={more.some((f) => query.get(f.name))}>
            <summary>More filters</summary>
            <div class="filters">{inputs(more)}</div>
          </details>
        ) : null}
      </form>
    </search>
  );
}
