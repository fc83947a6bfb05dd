"use strict";
// Pictures in SVG: lines with error bars, and trust as a heat map. All text is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  const element = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const svg = (name, attributes, ...children) => make("svg:" + name, attributes, ...children);
const text = (x, y, words, attributes = {}) => svg("text", { x, y, ...attributes }, String(words));

// About `count` round numbers from 0 to `max`.
function ticks(max, count) {
  const rough = max / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  const found = [];
  for (let i = 0; i * step <= max * 1.0001; i++) found.push(Number((i * step).toPrecision(10)));
  return found;
}

// The next round number, so that curves do not touch the top.
function ceiling(value) {
  const steps = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1];
  return steps.find((one) => one >= value * 1.04) || Math.max(1, value);
}

const SHAPES = {
  o: "M-3.4,0a3.4,3.4 0 1,0 6.8,0a3.4,3.4 0 1,0 -6.8,0",
  s: "M-3,-3h6v6h-6z",
  "^": "M0,-4.2L3.9,3H-3.9z",
  v: "M0,4.2L3.9,-3H-3.9z",
  D: "M0,-4.2L4.2,0L0,4.2L-4.2,0z",
  X: "M-3.6,-2L-2,-3.6L0,-1.6L2,-3.6L3.6,-2L1.6,0L3.6,2L2,3.6L0,1.6L-2,3.6L-3.6,2L-1.6,0z",
  P: "M-1.2,-3.8h2.4v2.6h2.6v2.4h-2.6v2.6h-2.4v-2.6h-2.6v-2.4h2.6z",
  "*": "M0,-5.2L1.4,-1.7L5.1,-1.6L2.2,0.7L3.2,4.3L0,2.2L-3.2,4.3L-2.2,0.7L-5.1,-1.6L-1.4,-1.7z",
};

const colour = (curve) => `var(--${curve.colour})`;

// A sample of a curve for a legend.
function sample(curve) {
  const dash = curve.dashed ? "5 4" : null;
  return svg(
    "svg",
    { width: 30, height: 12, viewBox: "-15 -6 30 12", "aria-hidden": "true" },
    svg("path", { d: "M-15,0H15", stroke: colour(curve), "stroke-width": 2, "stroke-dasharray": dash }),
    curve.marker ? svg("path", { d: SHAPES[curve.marker], fill: colour(curve) }) : null,
  );
}

// Draws again whenever its box changes its width.
function responsive(host, draw) {
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(host.clientWidth);
    if (now && now !== width) draw((width = now));
  }).observe(host);
}

// Tables that are wider than their place say so, and fade where they go on.
function marked(root) {
  for (const box of root.querySelectorAll(".scroll:not([data-marked])")) {
    box.dataset.marked = "";
    const hint = make("p", { class: "sideways", hidden: "" }, "Scroll the table sideways to see all columns →");
    box.before(hint);
    const look = () => {
      const over = box.scrollWidth - box.clientWidth;
      hint.hidden = over <= 1;
      box.classList.toggle("goes-on", over - box.scrollLeft > 1);
    };
    box.addEventListener("scroll", look, { passive: true });
    new ResizeObserver(look).observe(box);
  }
}

// lines: [{name, colour, marker, dashed, faint, points: [{x, y, spread, n, open}]}]; a band instead of bars where `band`.
function plot(host, { title, lines, x, y, height = 230, reference = null, band = false, missing = "not run" }) {
  host.classList.add("plot");
  const note = make("div", { class: "tip", hidden: "" });
  const frame = make("div", { class: "frame" });
  host.replaceChildren(title ? make("h4", {}, title) : "", frame, note);
  const points = lines.flatMap((line) => line.points);
  const maxX = Math.max(...points.map((one) => one.x), ...(x.values || [1]));
  const minX = x.values ? Math.min(...x.values) : 0;
  const top = y.max || ceiling(Math.max(...points.map((one) => one.y + (one.spread || 0)), reference ? reference.y : 0));
  responsive(frame, (width) => {
    const box = { left: 52, right: width - 12, top: 10, bottom: height - 40 };
    const pad = x.values ? 12 : 0;
    const toX = (value) => box.left + pad + ((value - minX) / (maxX - minX || 1)) * (box.right - box.left - 2 * pad);
    const toY = (value) => box.bottom - (Math.min(value, top * 1.02) / top) * (box.bottom - box.top);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title || ""} ${y.label}` });
    for (const tick of ticks(top, 4)) {
      root.append(svg("path", { d: `M${box.left},${toY(tick)}H${box.right}`, class: "gridline" }));
      root.append(text(box.left - 7, toY(tick) + 4, tick, { class: "tick", "text-anchor": "end" }));
    }
    let taken = -Infinity;
    for (const tick of x.values || ticks(maxX, width < 360 ? 4 : 6)) {
      const room = 7 * String(tick).length + 4;
      if (toX(tick) - room / 2 < taken) continue;
      taken = toX(tick) + room / 2;
      root.append(text(toX(tick), box.bottom + 17, tick.toLocaleString("en"), { class: "tick", "text-anchor": "middle" }));
    }
    root.append(text((box.left + box.right) / 2, height - 5, x.label, { class: "axis", "text-anchor": "middle" }));
    root.append(text(0, 0, y.label, { class: "axis", "text-anchor": "middle", transform: `translate(12 ${(box.top + box.bottom) / 2}) rotate(-90)` }));
    root.append(svg("path", { d: `M${box.left},${box.bottom}H${box.right}`, class: "base" }));
    if (!points.length) root.append(text((box.left + box.right) / 2, (box.top + box.bottom) / 2, missing, { class: "missing", "text-anchor": "middle" }));
    if (reference && points.length) {
      root.append(svg("path", { d: `M${box.left},${toY(reference.y)}H${box.right}`, class: "reference" }));
    }
    for (const line of lines) {
      const path = line.points.map((one, i) => `${i ? "L" : "M"}${toX(one.x).toFixed(1)},${toY(one.y).toFixed(1)}`).join("");
      const group = svg("g", { class: line.faint ? "line faint" : "line", style: `color:${colour(line)}` });
      if (band && line.points.some((one) => one.spread)) {
        const upper = line.points.map((one) => `${toX(one.x).toFixed(1)},${toY(one.y + one.spread).toFixed(1)}`);
        const lower = line.points.map((one) => `${toX(one.x).toFixed(1)},${toY(Math.max(0, one.y - one.spread)).toFixed(1)}`).reverse();
        group.append(svg("path", { d: `M${upper.join("L")}L${lower.join("L")}z`, class: "band" }));
      }
      group.append(svg("path", { d: path, class: "curve", "stroke-dasharray": line.dashed ? "6 4" : null }));
      for (const one of line.points) {
        if (!band && one.spread) {
          const [low, high] = [toY(Math.max(0, one.y - one.spread)), toY(one.y + one.spread)];
          group.append(svg("path", { d: `M${toX(one.x)},${low}V${high}M${toX(one.x) - 3},${low}h6M${toX(one.x) - 3},${high}h6`, class: "bar" }));
        }
        if (line.marker) {
          const dot = svg("path", { d: SHAPES[line.marker], transform: `translate(${toX(one.x)} ${toY(one.y)})`, class: "dot" });
          if (one.open) dot.addEventListener("click", one.open);
          if (one.open) dot.classList.add("opens");
          group.append(dot);
        }
      }
      root.append(group);
    }
    const cursor = svg("path", { class: "cursor", d: "" });
    root.append(cursor);
    const places = [...new Set(points.map((one) => one.x))];
    const leave = () => {
      note.hidden = true;
      cursor.setAttribute("d", "");
    };
    root.addEventListener("pointerleave", leave);
    root.addEventListener("pointermove", (event) => {
      if (!places.length) return;
      const edge = root.getBoundingClientRect();
      const at = places.reduce((a, b) => (Math.abs(toX(b) - event.clientX + edge.left) < Math.abs(toX(a) - event.clientX + edge.left) ? b : a));
      cursor.setAttribute("d", `M${toX(at)},${box.top}V${box.bottom}`);
      const here = lines.flatMap((line) => line.points.filter((one) => one.x === at).map((one) => [line, one]));
      here.sort((a, b) => b[1].y - a[1].y);
      note.replaceChildren(
        make("b", {}, `${x.label}: ${at.toLocaleString("en")}`),
        ...here.map(([line, one]) =>
          make("div", {}, sample(line), ` ${line.name} `, make("b", {}, one.y.toFixed(3)), one.spread ? ` ± ${one.spread.toFixed(3)}` : "", one.n ? `, n = ${one.n}` : ""),
        ),
      );
      if (reference) note.append(make("div", {}, `${reference.name} ${reference.y.toFixed(3)}`));
      note.hidden = false;
      const left = toX(at) + 14 + note.offsetWidth > width ? toX(at) - note.offsetWidth - 14 : toX(at) + 14;
      note.style.left = `${Math.max(0, Math.min(left, width - note.offsetWidth))}px`;
      note.style.top = `${frame.offsetTop + 12}px`;
    });
    frame.replaceChildren(root);
  });
}

const ABSENT = 255;
const STEPS = 250;

// A run's trust as rows of bytes, one per round, the malicious clients first.
function unpackTrust(run) {
  const bytes = Uint8Array.from(atob(run.trust), (letter) => letter.charCodeAt(0));
  return run.trustRounds.map((_, i) => bytes.subarray(i * run.clients, (i + 1) * run.clients));
}

// The end of the colour scale: the highest trust in these runs, rounded up.
function mostTrust(runs) {
  const known = runs.flatMap((run) => unpackTrust(run).flatMap((row) => [...row].filter((byte) => byte !== ABSENT)));
  return Math.max(25, Math.ceil(known.reduce((a, b) => Math.max(a, b), 0) / 25) * 25);
}

// Rejected clients get a colour of their own; from there trust rises from pale to deep.
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const SCALE = { light: [[222, 234, 245], [8, 64, 129]], dark: [[38, 56, 78], [150, 213, 255]] };
const REJECTED = { light: [240, 170, 120], dark: [176, 84, 30] };

function trustColour(byte, most) {
  const side = dark() ? "dark" : "light";
  if (byte === ABSENT) return [0, 0, 0, 0];
  if (byte === 0) return [...REJECTED[side], 255];
  const share = Math.min(1, byte / most);
  const [from, to] = SCALE[side];
  return [...from.map((one, i) => Math.round(one + share * (to[i] - one))), 255];
}

function pixels(rows, first, last, most) {
  const canvas = make("canvas", { width: rows.length, height: last - first });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  rows.forEach((row, column) => {
    for (let client = first; client < last; client++) {
      image.data.set(trustColour(row[client], most), 4 * ((client - first) * rows.length + column));
    }
  });
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

// Clients x rounds, malicious above and honest below.
function trustPicture(host, run, { title = "Trust in each client", most = mostTrust([run]) } = {}) {
  host.classList.add("plot", "trust");
  const note = make("div", { class: "tip", hidden: "" });
  const frame = make("div", { class: "frame" });
  const rows = unpackTrust(run);
  const scale = make("div", { class: "scale" });
  host.replaceChildren(make("h4", {}, title), frame, scale, note);
  const css = (byte) => `rgb(${trustColour(byte, most).slice(0, 3).join(",")})`;
  scale.append(
    make("i", { class: "patch", style: `background:${css(0)}` }),
    run.names ? "0: points away" : "0: rejected",
    make("i", { class: "ramp", style: `background:linear-gradient(90deg, ${css(1)}, ${css(most)})` }),
    `up to ${(most / STEPS).toFixed(1)}`,
  );
  if (rows.some((row) => row.includes(ABSENT))) scale.append(make("i", { class: "patch empty" }), run.names ? "no trust: no update" : "not in this round");
  const groups = [
    { name: run.idle ? "would-be malicious" : "malicious", first: 0, last: run.malicious },
    { name: run.others, first: run.malicious, last: run.clients },
  ].filter((group) => group.last > group.first);
  responsive(frame, (width) => {
    const gap = 10;
    const whole = 300;
    const box = { left: 46, right: width - 12, top: 6 };
    const height = box.top + whole + gap + 44;
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Trust of each client in each round" });
    let y = box.top;
    for (const group of groups) {
      const share = (group.last - group.first) / run.clients;
      const tall = groups.length === 1 ? whole : Math.round(whole * Math.min(0.7, Math.max(0.3, share)));
      Object.assign(group, { y, tall });
      root.append(
        svg("image", {
          href: pixels(rows, group.first, group.last, most),
          x: box.left,
          y,
          width: box.right - box.left,
          height: tall,
          preserveAspectRatio: "none",
          class: "pixels",
        }),
        svg("rect", { x: box.left, y, width: box.right - box.left, height: tall, class: "outline" }),
        text(0, 0, `${group.last - group.first} ${group.name}`, {
          class: group.name === "malicious" ? "axis malicious" : "axis",
          "text-anchor": "middle",
          transform: `translate(${box.left - 12} ${y + tall / 2}) rotate(-90)`,
        }),
      );
      y += tall;
      if (group !== groups.at(-1)) {
        root.append(svg("path", { d: `M${box.left - 30},${y + gap / 2}H${box.right}`, class: "divider" }));
        y += gap;
      }
    }
    const step = (box.right - box.left) / rows.length;
    let taken = -Infinity;
    run.trustRounds.forEach((round, i) => {
      const at = box.left + (i + 0.5) * step;
      const room = 8 * String(round).length + 10;
      if (at - room / 2 < taken) return;
      taken = at + room / 2;
      root.append(text(at, y + 17, round.toLocaleString("en"), { class: "tick", "text-anchor": "middle" }));
    });
    root.append(text((box.left + box.right) / 2, y + 36, "round", { class: "axis", "text-anchor": "middle" }));
    root.addEventListener("pointerleave", () => (note.hidden = true));
    root.addEventListener("pointermove", (event) => {
      const edge = root.getBoundingClientRect();
      const [atX, atY] = [event.clientX - edge.left, event.clientY - edge.top];
      const column = Math.floor((atX - box.left) / step);
      const group = groups.find((one) => atY >= one.y && atY < one.y + one.tall);
      note.hidden = !group || column < 0 || column >= rows.length;
      if (note.hidden) return;
      const client = group.first + Math.floor(((atY - group.y) / group.tall) * (group.last - group.first));
      const byte = rows[column][client];
      const without = run.names ? "no trust: not asked, no reply, or rejected" : "not in this round";
      const none = run.names ? "trust 0: points away from the server's update" : "trust 0: rejected";
      const said = byte === ABSENT ? without : byte === 0 ? none : `trust ${(byte / STEPS).toFixed(2)}`;
      note.replaceChildren(make("b", {}, said), make("div", {}, `${run.names ? run.names[client] : `${group.name} client ${client + 1}`}, round ${run.trustRounds[column]}`));
      note.style.left = `${Math.max(0, Math.min(atX + 12, width - note.offsetWidth))}px`;
      note.style.top = `${frame.offsetTop + atY + 14}px`;
    });
    frame.replaceChildren(root);
  });
}

// The mean trust of honest and of malicious clients.
function trustLines(run) {
  const rows = unpackTrust(run);
  const mean = (row, first, last) => {
    const there = [...row.subarray(first, last)].filter((byte) => byte !== ABSENT);
    return there.length ? there.reduce((sum, byte) => sum + byte, 0) / there.length / STEPS : null;
  };
  const line = (name, first, last, look) => ({
    name,
    ...look,
    points: rows
      .map((row, i) => ({ x: run.trustRounds[i], y: mean(row, first, last) }))
      .filter((one) => one.y !== null),
  });
  return [
    line(`${run.others}, mean`, run.malicious, run.clients, { colour: "blue", marker: "o" }),
    line(run.idle ? "would-be malicious, mean" : "malicious, mean", 0, run.malicious, { colour: "red", marker: "s", dashed: true }),
  ].filter((one) => one.points.length);
}
