// A click anywhere on a row does what its main link or button does. The row has `data-row`, the link or button
// `data-open`. Text that a person selects in the row, its checkboxes, other links and buttons work as they do elsewhere.

const OWN = "a, button, input, select, textarea, label, summary, pre, [role=button]";

export function openRow(event: MouseEvent): void {
  const middle = event.type === "auxclick" && event.button === 1;
  if (event.defaultPrevented || (event.button !== 0 && !middle)) return;
  const target = event.target as Element | null;
  const row = target?.closest?.("[data-row]");
  if (!row || target?.closest(OWN) || !getSelection()?.isCollapsed) return;
  const opener = row.querySelector<HTMLElement>("[data-open]");
  if (opener instanceof HTMLAnchorElement && (middle || event.metaKey || event.ctrlKey || event.shiftKey)) {
    open(opener.href, "_blank", "noopener");
  } else if (!middle) opener?.click();
}
