// A document just large enough to run the status page's script in: elements remember what was put into them, and
// anything that would turn text into markup throws. Prints every text shown, one JSON string a line.
"use strict";
const answers = JSON.parse(require("fs").readFileSync(0, "utf8"));
class Node {
  constructor(tag) { this.tag = tag; this.kids = []; this.text = ""; this.hidden = false; this.value = "";
    return new Proxy(this, { set(node, name, value) {
      if (["innerHTML", "outerHTML", "srcdoc"].includes(name)) throw new Error("markup: " + name);
      if (name === "textContent") { node.text = String(value); node.kids = []; } else node[name] = value;
      return true;
    } });
  }
  append(...kids) { this.kids.push(...kids); }
  replaceChildren(...kids) { this.kids = kids; }
  add(tag) { const kid = new Node(tag); this.kids.push(kid); return kid; }
  createTHead() { return this.add("thead"); }
  createTBody() { return this.add("tbody"); }
  insertRow() { return this.add("tr"); }
  insertCell() { return this.add("td"); }
  get children() { return this.kids.filter((kid) => typeof kid !== "string"); }
  addEventListener(_, hear) { this.heard = hear; }
  focus() {}
  texts() { return [this.text, ...this.kids.flatMap((kid) => kid.texts?.() ?? [])].filter(Boolean); }
  find(tag) { return [...(this.tag === tag ? [this] : []), ...this.kids.flatMap((kid) => kid.find?.(tag) ?? [])]; }
}
const byId = {};
globalThis.document = {
  hidden: false, addEventListener() {},
  getElementById: (id) => (byId[id] ??= new Node(id)),
  createElement: (tag) => new Node(tag),
};
const kept = {};
globalThis.sessionStorage = { getItem: (k) => kept[k] ?? null, setItem: (k, v) => { kept[k] = v; },
  removeItem: (k) => { delete kept[k]; } };
globalThis.location = { hash: "#token=abc" };
globalThis.history = { replaceState: (_, __, url) => { globalThis.location.hash = ""; } };
globalThis.setTimeout = () => 0;
const asked = [];
globalThis.fetch = async (path, options) => {
  asked.push([path, options.headers.Authorization, options.body ?? ""]);
  const name = path.split("/").pop().split("?")[0];
  return { status: 200, ok: true, json: async () => answers[name] };
};
require("vm").runInThisContext(require("fs").readFileSync(process.argv[2], "utf8"));
setImmediate(async () => {
  await byId.questions.find("button")[0]?.heard();
  const shown = Object.fromEntries(Object.entries(byId).map(([id, node]) => [id, node.texts()]));
  console.log(JSON.stringify({ shown, asked, hash: location.hash, board: byId.board.hidden, door: byId.door.hidden }));
});
