// The table of nodes: the worst first, found by name, filtered by verdict, a page at a time. Names are text, never markup.

import { make } from "./curves.js";

const PAGE = 25;
const RECENT = 32; // letters of a strip in the table
export const VERDICTS = ["hostile", "suspicious", "unreliable", "ok"];
export const LETTERS = {
  U: ["used", "its update moved the model"],
  N: ["not-chosen", "the rule gave it no share"],
  Z: ["zero-trust", "it points away from the server's own update"],
  R: ["rejected", "its reply could not be used"],
  K: ["not-counted", "valid, but the round kept the model"],
  L: ["late", "its reply came after the deadline"],
  M: ["missing", "no reply that is certainly from this node"],
  B: ["banned", "not asked: banned"],
  Q: ["quarantined", "not asked: in quarantine"],
  ".": ["not-asked", "not asked in this round"],
};

const $ = (id) => document.getElementById(id);

// Letters of one kind in a row are one element.
export function strip(letters) {
  const runs = letters.match(/(.)\1*/gs) || [];
  return make("code", { class: "strip" }, ...runs.map((run) => make("span", { class: LETTERS[run[0]]?.[0] || "not-asked" }, run)));
}

export function counted(letters) {
  const counts = {};
  for (const letter of letters) counts[letter] = (counts[letter] || 0) + 1;
  return Object.keys(LETTERS).filter((letter) => counts[letter]).map((letter) => `${LETTERS[letter][0]} ${counts[letter].toLocaleString("en")}`).join(", ");
}

export const since = (node) => (node.since === null ? "" : `round ${node.since.toLocaleString("en")}`);
export const clock = (time) => (time ? time.replace("T", " ").replace(/(:\d\d)(\.\d+)?(\+00:00|Z)$/, "$1 UTC") : "");
export const badge = (verdict) => make("span", { class: `badge ${verdict}` }, verdict);

const byId = (one, other) => one.length - other.length || (one < other ? -1 : 1);
export const worstFirst = (nodes) =>
  [...nodes.entries()].sort(([id, one], [other, two]) => (two.score ?? 0) - (one.score ?? 0) || byId(id, other)).map(([id]) => id);

export class Table {
  // `chosen`: ids whose curve is drawn; `choose(id, on)`: the visitor wants, or no longer wants, the curve of a node.
  constructor(chosen, choose) {
    Object.assign(this, { chosen, choose, nodes: new Map(), order: [], rounds: [], page: 0, verdict: "all", words: "", open: new Set(), rows: new Map() });
    $("find").addEventListener("input", () => this.turn({ words: $("find").value.trim().toLowerCase() }));
    $("before").addEventListener("click", () => this.turn({ page: this.page - 1 }));
    $("after").addEventListener("click", () => this.turn({ page: this.page + 1 }));
    $("letters").replaceChildren(
      ...Object.entries(LETTERS).map(([letter, [name, means]]) => make("li", {}, strip(letter), ` ${name}: ${means}`)),
    );
    this.filters = new Map(
      ["all", ...VERDICTS].map((verdict) => {
        const button = make("button", { type: "button", "aria-pressed": String(verdict === "all") });
        button.addEventListener("click", () => this.turn({ verdict }));
        return [verdict, button];
      }),
    );
    $("filters").append(...this.filters.values());
  }

  turn(to) {
    Object.assign(this, { page: 0 }, to);
    this.draw();
  }

  show(nodes, order, rounds) {
    Object.assign(this, { nodes, order, rounds });
    this.draw();
  }

  // Opens the row of a node, wherever it is, and goes there.
  visit(id) {
    $("find").value = "";
    this.open.add(id);
    this.turn({ verdict: "all", words: "", page: Math.floor(this.order.indexOf(id) / PAGE) });
    const button = this.rows.get(id).querySelector("button");
    button.scrollIntoView({ block: "center" });
    button.focus({ preventScroll: true });
  }

  draw() {
    const counts = { all: this.nodes.size };
    for (const node of this.nodes.values()) counts[node.verdict] = (counts[node.verdict] || 0) + 1;
    for (const [verdict, button] of this.filters) {
      button.textContent = `${verdict} ${(counts[verdict] || 0).toLocaleString("en")}`;
      button.setAttribute("aria-pressed", String(verdict === this.verdict));
    }
    const found = this.order.filter((id) => {
      const node = this.nodes.get(id);
      return (this.verdict === "all" || node.verdict === this.verdict) && (!this.words || `${node.name} ${id}`.toLowerCase().includes(this.words));
    });
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    this.page = Math.max(0, Math.min(this.page, pages - 1));
    const first = this.page * PAGE;
    this.place(found.slice(first, first + PAGE));
    const which = found.length ? `${first + 1} to ${Math.min(first + PAGE, found.length)} of ${found.length.toLocaleString("en")}` : "No such node";
    if ($("which").textContent !== which) $("which").textContent = which;
    $("before").disabled = this.page === 0;
    $("after").disabled = this.page === pages - 1;
  }

  // Rows that did not change stay as they are; a row that moves keeps the focus.
  place(ids) {
    const focus = document.activeElement;
    const within = focus?.closest?.("#rows [data-node]")?.dataset.node;
    const control = focus?.dataset?.control;
    const wanted = [];
    const rows = new Map();
    for (const id of ids) {
      const node = this.nodes.get(id);
      const mark = JSON.stringify([node, this.open.has(id), this.chosen.has(id), this.open.has(id) && this.rounds.length]);
      let row = this.rows.get(id);
      if (row?.mark !== mark) {
        row = this.row(id, node);
        row.mark = mark;
      }
      rows.set(id, row);
      wanted.push(row);
      if (row.detail) wanted.push(row.detail);
    }
    const body = $("rows");
    if (wanted.length !== body.children.length || wanted.some((row, i) => body.children[i] !== row)) body.replaceChildren(...wanted);
    this.rows = rows;
    if (within !== undefined && document.activeElement !== focus) rows.get(within)?.querySelector(`[data-control="${control}"]`)?.focus({ preventScroll: true });
  }

  row(id, node) {
    const cell = (name, ...children) => make("td", { role: "cell", class: name }, ...children);
    const opened = this.open.has(id);
    const name = make("button", { type: "button", "aria-expanded": String(opened), "data-control": "name" }, node.name);
    name.addEventListener("click", () => {
      if (!this.open.delete(id)) this.open.add(id);
      this.draw();
    });
    const curve = make("input", { type: "checkbox", "aria-label": `Curve of ${node.name}`, "data-control": "curve" });
    curve.checked = this.chosen.has(id);
    curve.addEventListener("change", () => this.choose(id, curve.checked));
    const recent = strip(node.strip.slice(-RECENT));
    recent.setAttribute("role", "img");
    recent.setAttribute("aria-label", counted(node.strip));
    const known = node.malicious === null ? [] : [make("small", { class: "truth" }, node.malicious ? "malicious" : "honest")];
    const more = node.evidence.length > 1 ? [make("small", {}, ` and ${node.evidence.length - 1} more`)] : [];
    const row = make(
      "tr",
      { role: "row", "data-node": id, class: node.verdict },
      make("th", { role: "rowheader", scope: "row" }, name, ...known),
      cell("", badge(node.verdict)),
      cell("since", since(node)),
      cell("rounds", recent),
      cell("evidence", node.evidence[0] || "", ...more),
      cell("number trust", node.trust === null ? "" : node.trust.toFixed(3)),
      cell("number share", node.share === null ? "" : node.share.toFixed(4)),
      cell("number curve", curve),
    );
    if (opened) row.detail = this.detail(id, node);
    return row;
  }

  // All evidence, and all rounds, fifty a line.
  detail(id, node) {
    const lines = [];
    for (let i = 0; i < node.strip.length; i += 50) {
      lines.push(make("div", {}, make("small", {}, (this.rounds[i] ?? i + 1).toLocaleString("en")), strip(node.strip.slice(i, i + 50))));
    }
    const began = node.since === null ? "" : `Since ${since(node)}${node.time ? `, ${clock(node.time)}` : ""}.`;
    const content = make(
      "td",
      { role: "cell", colspan: 8 },
      make("p", {}, make("b", {}, "Node "), make("code", {}, id), began ? ` ${began}` : ""),
      make("ul", {}, ...(node.evidence.length ? node.evidence : ["Nothing speaks against it."]).map((line) => make("li", {}, line))),
      make("p", { class: "small" }, `Rounds by what became of its reply: ${counted(node.strip)}.`),
      make("div", { class: "whole-strip" }, ...lines),
    );
    return make("tr", { role: "row", class: "detail" }, content);
  }
}
