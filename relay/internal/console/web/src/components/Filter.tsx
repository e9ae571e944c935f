import { href, navigate, parseRoute } from '../router';

export interface Field {
  name: string;
  label: string;
  placeholder?: string;
}

interface Props {
  fields: Field[];
  more?: Field[];
  submit: string;
}

/** Filter is a form whose values are in the address. A new filter starts with the first page. */
export function Filter({ fields, more = [], submit }: Props) {
  const { path, query } = parseRoute();
  const inputs = (list: Field[]) =>
    list.map((f) => (
      <label key={f.name} class="field">
        <span class="label">{f.label}</span>
        <input name={f.name} defaultValue={query.get(f.name) ?? ''} placeholder={f.placeholder} autoComplete="off" />
      </label>
    ));
  return (
    <search class="filters">
      <form
        key={query.toString()}
        onSubmit={(event) => {
          event.preventDefault();
          const values = Object.fromEntries(new FormData(event.currentTarget)) as Record<string, string>;
          for (const name of Object.keys(values)) values[name] = (values[name] ?? '').trim();
          navigate(href(path, values));
        }}
      >
        {inputs(fields)}
        <div class="buttons">
          <button type="submit" class="primary">
            {submit}
          </button>
          {query.size ? (
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
