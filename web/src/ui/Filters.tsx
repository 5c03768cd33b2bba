// Filters of a list. Their values are in the address, so that a filtered list can be sent to another person.

import { useEffect, useRef } from "preact/hooks";
import { place, withQuery } from "../router";

export function Choice(props: { name: string; label: string; options: readonly string[] }) {
  const value = place.value.query.get(props.name) ?? "";
  const options = value && !props.options.includes(value) ? [value, ...props.options] : props.options;
  return (
    <select
      class="field"
      aria-label={props.label}
      value={value}
      onChange={(event) => withQuery({ [props.name]: event.currentTarget.value })}
    >
      <option value="">{props.label}: all</option>
      {options.map((one) => (
        <option value={one} key={one}>
          {one.replaceAll("_", " ")}
        </option>
      ))}
    </select>
  );
}

/** A field that changes the address a moment after the last key. */
export function Search(props: { name: string; label: string; wide?: boolean }) {
  const timer = useRef(0);
  const field = useRef<HTMLInputElement>(null);
  const value = place.value.query.get(props.name) ?? "";
  useEffect(() => {
    if (field.current && document.activeElement !== field.current) field.current.value = value;
  }, [value]);
  return (
    <input
      ref={field}
      class={props.wide ? "field grow" : "field"}
      type="search"
      placeholder={props.label}
      aria-label={props.label}
      data-search={props.wide ? "" : undefined}
      defaultValue={value}
      onInput={(event) => {
        const typed = event.currentTarget.value;
        clearTimeout(timer.current);
        timer.current = setTimeout(() => withQuery({ [props.name]: typed }, { replace: true }), 200) as unknown as number;
      }}
    />
  );
}
