// The diagram as a file of its own: every style that the page's sheets give it is written into it, as it is now, so that
// it looks the same in a talk, in a document, or in a browser without the page.

const STYLES = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "paint-order",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
] as const;

export function standalone(drawn: SVGSVGElement, background: string): string {
  const copy = drawn.cloneNode(true) as SVGSVGElement;
  const from = [drawn, ...drawn.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  for (const [index, element] of from.entries()) {
    const target = to[index];
    if (!target || element.tagName === "title" || element.tagName === "defs") continue;
    const computed = getComputedStyle(element);
    const isText = element.tagName === "text" || element.tagName === "tspan";
    for (const name of STYLES) {
      if (name.startsWith("font-") && !isText) continue;
      const value = computed.getPropertyValue(name);
      if (value && value !== "none" && value !== "normal") target.setAttribute(name, value);
      else if (name === "fill" && value === "none") target.setAttribute(name, value);
    }
    for (const name of ["class", "tabindex", "role", "aria-label", "data-testid"]) target.removeAttribute(name);
  }
  for (const hit of copy.querySelectorAll("[data-hit]")) hit.remove();
  const { width, height } = drawn.viewBox.baseVal;
  const sheet = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ width, height, fill: background })) sheet.setAttribute(name, String(value));
  copy.prepend(sheet);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

/** Gives the browser a file to keep. */
export function save(name: string, type: string, text: string): void {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
