// Puts what the server sends onto the page. All text from the run is set as text, never as markup.

import { make, Plot, said } from "./curves.js";
import { badge, clock, LETTERS, since, Table, VERDICTS, worstFirst } from "./nodes.js";

const SUSPECTS = 5; // on the first screen
const ALARMS = 100;
const CURVES = 7; // nodes with a curve at a time, as many as there are colours
const LEVELS = { waiting: "waiting", good: "healthy", warn: "look at it", bad: "in trouble" };

const $ = (id) => document.getElementById(id);
const set = (id, text) => {
  if ($(id).textContent !== text) $(id).textContent = text;
};

let top = {};
let rounds = [];
let nodes = new Map();
let order = [];
let heardAt = 0; // when the server last said how old the newest record is
let age = null;
let announced = null; // alarms that were there already, null before the first
let chosen = new Set();
let choseItself = true;
const history = new Map(); // id -> {trust, share}, a value a round
let curve = "trust";

const table = new Table(chosen, choose);
const errors = new Plot($("plot-error"), "Test error", { missing: "no test error is recorded" });
const trust = new Plot($("plot-nodes"), "Trust of the chosen nodes", { missing: "tick 'curve' beside a node" });
const replies = new Plot($("plot-replies"), "Replies by verdict", { whole: true });

// ---------------------------------------------------------------- what the server sends

function apply(change) {
  if (change.whole) {
    top = {};
    rounds = [];
    nodes = new Map();
    history.clear();
  }
  Object.assign(top, change.top);
  if (change.rounds) {
    if (change.from < rounds.length) history.clear();
    rounds.length = change.from;
    rounds.push(...change.rounds);
  }
  for (const id of change.gone || []) nodes.delete(id);
  for (const [id, { add, ...parts }] of Object.entries(change.nodes || {})) {
    const node = nodes.get(id) || { strip: "", evidence: [] };
    nodes.set(id, { ...node, ...parts, strip: (parts.strip ?? node.strip) + (add || "") });
  }
  age = change.age;
}

function show() {
  const began = performance.now();
  order = worstFirst(nodes);
  showState();
  showSuspects();
  showAlarms();
  if (choseItself) chooseSome();
  table.show(nodes, order, rounds.map((line) => line.round));
  showCurves();
  document.documentElement.classList.add("drawn");
  performance.measure("update", { start: began });
}

// ---------------------------------------------------------------- the first screen

function showState() {
  const last = rounds.at(-1);
  set("run", [top.path, top.kind, top.rule].filter(Boolean).join(" · ") || "fltrust watch");
  const level = rounds.length ? top.level : "waiting";
  $("health").className = level;
  set("level", LEVELS[level]);
  set("health-text", rounds.length ? top.health : "No round is finished yet");
  set("headline", rounds.length ? top.headline : "");
  $("problem").hidden = !top.problem;
  set("problem", top.problem ? `${top.problem}.${rounds.length ? " What follows was read before." : ""} The page goes on by itself as soon as it can.` : "");
  $("facts").hidden = document.querySelector("main").hidden = !last;
  const bad = [...nodes.values()].filter((node) => node.verdict === "hostile" || node.verdict === "suspicious").length;
  document.title = `${bad ? `(${bad}) ` : ""}${LEVELS[level]}: ${top.path || "fltrust watch"}`;
  if (!last) return;
  set("round", `Round ${last.round.toLocaleString("en")}`);
  set("round-note", [top.of ? `of ${top.of.toLocaleString("en")}` : "", rounds.length === last.round ? "" : `${rounds.length.toLocaleString("en")} recorded`].filter(Boolean).join(", ") || "is the newest");
  const known = rounds.filter((line) => line.error !== null);
  const best = known.reduce((a, b) => (b.error < a.error ? b : a), known[0]);
  set("error", known.length ? `Error ${said(known.at(-1).error)}` : "No error");
  set("error-note", known.length ? `on the test set; best ${said(best.error)} in round ${best.round.toLocaleString("en")}` : "no test error is recorded");
  const asked = Object.values(last.counts).reduce((sum, count) => sum + count, 0);
  set("used", `${last.counts.used || 0} of ${asked} used`);
  const others = Object.entries(last.counts).filter(([verdict]) => verdict !== "used");
  set("used-note", others.map(([verdict, count]) => `${count} ${verdict}`).join(", ") || "all replies of the last round");
}

function showClock() {
  if (age === null || !rounds.length) return;
  const seconds = age + (performance.now() - heardAt) / 1000;
  const taken = rounds.slice(-20).map((line) => line.seconds).filter((one) => one !== null).sort((a, b) => a - b);
  const usual = taken.length ? taken[Math.floor(taken.length / 2)] : null;
  const ended = top.of && rounds.at(-1).round >= top.of;
  set("ago", `${spell(seconds)} ago`);
  set("ago-note", ["the newest record", ended ? "the run is finished" : usual === null ? "" : `a round usually takes ${spell(usual)}`].filter(Boolean).join("; "));
}

function spell(seconds) {
  if (seconds < 1.5) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

function showSuspects() {
  const bad = order.filter((id) => ["hostile", "suspicious"].includes(nodes.get(id).verdict));
  $("suspects").replaceChildren(
    ...bad.slice(0, SUSPECTS).map((id) => {
      const node = nodes.get(id);
      const name = make("button", { type: "button", class: "link" }, node.name);
      name.addEventListener("click", () => table.visit(id));
      const when = node.since === null ? "" : `since ${since(node)}${node.time ? `, ${clock(node.time)}` : ""}`;
      return make("li", {}, make("p", {}, badge(node.verdict), " ", name, " ", make("small", {}, when)), make("p", { class: "why" }, node.evidence.join("; ")));
    }),
  );
  if (!bad.length) $("suspects").replaceChildren(make("li", { class: "nobody" }, "Nobody so far."));
  set("more-suspects", bad.length > SUSPECTS ? `And ${(bad.length - SUSPECTS).toLocaleString("en")} more: see the nodes below.` : "");
}

// ---------------------------------------------------------------- alarms

const nameOf = (id) => nodes.get(id)?.name ?? id;

function listed(ids) {
  return ids.slice(0, 8).map(nameOf).join(", ") + (ids.length > 8 ? ` and ${ids.length - 8} more` : "");
}

// The server's alarms, and those nodes that look bad since a round.
function alarmsNow() {
  const alarms = rounds.flatMap((line) => line.alarms.map((alarm) => ({ ...alarm, round: line.round, time: line.time, who: alarm.nodes })));
  const groups = new Map();
  for (const id of order) {
    const node = nodes.get(id);
    if (node.since === null || !["hostile", "suspicious"].includes(node.verdict)) continue;
    const key = `${node.since} ${node.verdict}`;
    if (!groups.has(key)) groups.set(key, { kind: node.verdict, round: node.since, time: node.time, who: [] });
    groups.get(key).who.push(id);
  }
  for (const group of groups.values()) group.text = `${listed(group.who)} ${group.who.length === 1 ? "looks" : "look"} ${group.kind} since this round`;
  return [...alarms, ...groups.values()].sort((a, b) => b.round - a.round);
}

function showAlarms() {
  const alarms = alarmsNow();
  const shown = alarms.slice(0, ALARMS).map((alarm) => {
    const who = alarm.nodes?.length ? ` (${listed(alarm.nodes)})` : "";
    const when = make("small", {}, `round ${alarm.round.toLocaleString("en")}${alarm.time ? `, ${clock(alarm.time)}` : ""}`);
    return make("li", {}, make("p", {}, make("span", { class: `badge ${VERDICTS.includes(alarm.kind) ? alarm.kind : "alarm"}` }, alarm.kind), " ", when), make("p", { class: "why" }, alarm.text + who));
  });
  if (alarms.length > ALARMS) shown.push(make("li", { class: "nobody" }, `${alarms.length - ALARMS} earlier ones are not shown.`));
  $("alarm-list").replaceChildren(...(shown.length ? shown : [make("li", { class: "nobody" }, "None so far.")]));
  const keys = alarms.flatMap((alarm) => (alarm.nodes ? [[`${alarm.round} ${alarm.kind}`, alarm.text]] : alarm.who.map((id) => [`${id} ${alarm.kind}`, `${nameOf(id)} looks ${alarm.kind}`])));
  const fresh = announced ? keys.filter(([key]) => !announced.has(key)).map(([, text]) => text) : [];
  announced = new Set(keys.map(([key]) => key));
  if (fresh.length) set("announce", `Round ${rounds.at(-1)?.round}: ${fresh.slice(0, 5).join(". ")}${fresh.length > 5 ? `, and ${fresh.length - 5} more` : ""}`);
}

// ---------------------------------------------------------------- curves

// Until the visitor chooses: the worst three, and one that is in order to compare with.
function chooseSome() {
  const bad = order.filter((id) => nodes.get(id).verdict !== "ok").slice(0, 3);
  const good = order.filter((id) => nodes.get(id).verdict === "ok").slice(0, 4 - bad.length);
  chosen.clear();
  for (const id of [...bad, ...good]) chosen.add(id);
}

function choose(id, on) {
  choseItself = false;
  if (!on) chosen.delete(id);
  else {
    if (chosen.size >= CURVES) chosen.delete(chosen.values().next().value);
    chosen.add(id);
  }
  table.draw();
  showCurves();
}

function showCurves() {
  const numbers = rounds.map((line) => line.round);
  errors.show(numbers, [{ name: "test error", look: "blue", values: rounds.map((line) => line.error) }]);
  const present = Object.values(LETTERS).map(([verdict]) => verdict).filter((verdict) => rounds.some((line) => line.counts[verdict]));
  replies.show(numbers, present.map((verdict) => ({ name: verdict, look: verdict, values: rounds.map((line) => line.counts[verdict] || 0) })));
  if (!fetchHistory()) showChosen();
}

function showChosen() {
  const looks = ["red", "blue", "orange", "green", "pink", "sky", "grey"];
  const lines = [...chosen].filter((id) => nodes.has(id)).map((id, i) => {
    const values = history.get(id)?.[curve] || [];
    return { name: nameOf(id), look: looks[i], values: rounds.map((_, place) => values[place] ?? null) };
  });
  trust.show(rounds.map((line) => line.round), lines);
}

let fetching = false;

// Fetches the rounds that are not here yet, if there are any, and draws them.
function fetchHistory() {
  const wanted = [...chosen].filter((id) => nodes.has(id) && (history.get(id)?.trust.length ?? 0) < rounds.length);
  if (wanted.length && !fetching) {
    fetching = true;
    fetchThese(wanted, Math.min(...wanted.map((id) => history.get(id)?.trust.length ?? 0)))
      .then((came) => (came && fetchHistory()) || showChosen())
      .catch(() => showChosen()); // the stream says when the server is back, and then this is asked again
  }
  return wanted.length > 0;
}

// Whether anything came.
async function fetchThese(wanted, after) {
  let came = false;
  try {
    const answer = await fetch(`history?after=${after}&${wanted.map((id) => `node=${encodeURIComponent(id)}`).join("&")}`);
    for (const [id, parts] of Object.entries(await answer.json())) {
      const known = history.get(id) || { trust: [], share: [] };
      if (known.trust.length < after) continue; // the run began anew meanwhile
      came ||= parts.trust.length > 0;
      for (const name of ["trust", "share"]) known[name] = [...known[name].slice(0, after), ...parts[name]];
      history.set(id, known);
    }
  } finally {
    fetching = false;
  }
  return came;
}

for (const button of document.querySelectorAll("[data-curve]")) {
  button.addEventListener("click", () => {
    curve = button.dataset.curve;
    for (const one of document.querySelectorAll("[data-curve]")) one.setAttribute("aria-pressed", String(one === button));
    trust.rename(curve === "trust" ? "Trust of the chosen nodes" : "Share of the chosen nodes");
    showChosen();
  });
}

// ---------------------------------------------------------------- the stream

const linked = (state) => {
  set("link", state);
  $("link").className = `link-state ${state === "live" ? "live" : ""}`;
};

function connect() {
  const stream = new EventSource("events");
  stream.onopen = () => linked("live");
  stream.onerror = () => {
    linked("not connected");
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 3000); // else the browser tries again by itself
  };
  stream.onmessage = (event) => {
    for (const change of JSON.parse(event.data)) apply(change);
    heardAt = performance.now();
    show();
    showClock();
  };
}

connect();
setInterval(showClock, 1000);
