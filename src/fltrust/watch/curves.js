// Curves over rounds that are drawn again in place. Colours are classes, so light and dark need no script.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 220;

export function make(name, attributes = {}, ...children) {
  const element = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

const svg = (name, attributes, ...children) => make("svg:" + name, attributes, ...children);

// About `count` round numbers from `least` to `most`.
function ticks(least, most, count) {
  const rough = (most - least) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  const found = [];
  const first = Math.ceil(least / step);
  for (let i = 0; i <= count + 1; i++) { // no more, however large the numbers are
    if ((first + i) * step <= most + step / 1000) found.push(Number(((first + i) * step).toPrecision(15)));
  }
  return found;
}

// The places to draw: all of them, or where there are more than pixels, the lowest and the highest of each pixel.
function places(values, width) {
  if (values.length <= 2 * width) return values.keys();
  const kept = [];
  const per = Math.ceil(values.length / width);
  for (let first = 0; first < values.length; first += per) {
    let low = -1;
    let high = -1;
    for (let i = first; i < Math.min(first + per, values.length); i++) {
      if (values[i] === null) continue;
      if (low < 0 || values[i] < values[low]) low = i;
      if (high < 0 || values[i] > values[high]) high = i;
    }
    if (low >= 0) kept.push(Math.min(low, high), Math.max(low, high));
    else kept.push(first);
  }
  return kept;
}

export class Plot {
  // `whole`: values are counts that stand on each other; else each is a line of its own, between 0 and `top` or what there is.
  constructor(host, title, { whole = false, top = null, missing = "nothing recorded" } = {}) {
    Object.assign(this, { whole, top, missing, rounds: [], lines: [], width: 0, at: null });
    this.heading = make("h3", {}, title);
    this.keys = make("div", { class: "keys" });
    this.tip = make("div", { class: "tip", hidden: "" });
    this.root = svg("svg", { height: HEIGHT, role: "img", tabindex: 0 });
    this.frame = make("div", { class: "frame" }, this.root, this.tip);
    host.classList.add("plot");
    host.append(this.heading, this.frame, this.keys);
    this.title = title;
    new ResizeObserver(() => {
      const now = Math.floor(this.frame.clientWidth);
      if (now && now !== this.width) this.draw((this.width = now));
    }).observe(this.frame);
    this.root.addEventListener("pointermove", (event) => this.point(this.nearest(event.clientX)));
    this.root.addEventListener("pointerleave", () => this.point(null));
    this.root.addEventListener("blur", () => this.point(null));
    this.root.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.rounds.length) return;
      event.preventDefault();
      const from = this.at === null ? this.rounds.length - (step < 0 ? 0 : 1) : this.at;
      this.point(Math.max(0, Math.min(this.rounds.length - 1, from + step)));
    });
  }

  rename(title) {
    this.title = title;
    this.heading.textContent = title;
  }

  // lines: [{name, look, values}], a value for each round or null.
  show(rounds, lines) {
    const named = (some) => some.map((line) => `${line.look}/${line.name}`).join("\n");
    if (named(lines) !== named(this.lines)) {
      this.keys.replaceChildren(...lines.map((line) => make("span", {}, make("i", { class: `patch ${line.look}` }), " " + line.name)));
    }
    Object.assign(this, { rounds, lines });
    const last = lines.map((line) => `${line.name} ${said(line.values.at(-1))}`).join(", ");
    this.root.setAttribute("aria-label", rounds.length ? `${this.title}. Round ${rounds.at(-1)}: ${last}` : `${this.title}: ${this.missing}`);
    if (this.width) this.draw();
  }

  draw() {
    const { rounds, lines, width, root } = this;
    const box = { left: 44, right: width - 10, top: 8, bottom: HEIGHT - 36 };
    const [first, last] = [rounds[0] ?? 0, rounds.at(-1) ?? 1];
    const sums = this.whole ? rounds.map((_, i) => lines.reduce((sum, line) => sum + (line.values[i] || 0), 0)) : null;
    let highest = 0;
    for (const values of sums ? [sums] : lines.map((line) => line.values)) for (const value of values) if (value > highest) highest = value;
    const top = this.top ?? (highest * 1.05 || 1);
    this.toX = (round) => box.left + ((round - first) / (last - first || 1)) * (box.right - box.left);
    const toY = (value) => box.bottom - (Math.min(value, top) / top) * (box.bottom - box.top);
    const drawn = [];
    for (const tick of ticks(0, top, 4)) {
      drawn.push(svg("path", { d: `M${box.left},${toY(tick)}H${box.right}`, class: "gridline" }));
      drawn.push(svg("text", { x: box.left - 7, y: toY(tick) + 4, class: "tick", "text-anchor": "end" }, String(tick)));
    }
    for (const tick of ticks(first, last, width < 360 ? 3 : 5)) {
      if (Number.isInteger(tick)) drawn.push(svg("text", { x: this.toX(tick), y: box.bottom + 16, class: "tick", "text-anchor": "middle" }, tick.toLocaleString("en")));
    }
    drawn.push(svg("text", { x: (box.left + box.right) / 2, y: HEIGHT - 4, class: "axis", "text-anchor": "middle" }, "round"));
    if (sums) drawn.push(...this.areas(toY));
    else for (const line of lines) drawn.push(...this.line(line, toY));
    if (!lines.some((line) => line.values.some((value) => value !== null))) {
      drawn.push(svg("text", { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, class: "missing", "text-anchor": "middle" }, this.missing));
    }
    drawn.push(svg("path", { d: `M${box.left},${box.bottom}H${box.right}`, class: "base" }));
    this.cursor = svg("path", { class: "cursor", d: "" });
    root.setAttribute("width", width);
    root.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    root.replaceChildren(...drawn, this.cursor);
    this.box = box;
    this.point(this.at);
  }

  line({ values, look }, toY) {
    let path = "";
    let pen = "M";
    let points = 0;
    let dot = null;
    for (const i of places(values, this.width)) {
      if (values[i] === null || values[i] === undefined) {
        pen = "M";
        continue;
      }
      const where = `${this.toX(this.rounds[i]).toFixed(1)},${toY(values[i]).toFixed(1)}`;
      path += pen + where;
      pen = "L";
      points++;
      dot = where;
    }
    const drawn = [svg("path", { d: path, class: `curve ${look}` })];
    if (points && points <= 60) drawn.push(svg("path", { d: path.replace(/[ML]([^ML]+)/g, "M$1h0"), class: `dots ${look}` }));
    else if (dot) drawn.push(svg("path", { d: `M${dot}h0`, class: `dots ${look}` }));
    return drawn;
  }

  areas(toY) {
    const { rounds, lines } = this;
    const stride = Math.max(1, Math.ceil(rounds.length / this.width));
    const shown = [...rounds.keys()].filter((i) => i % stride === 0 || i === rounds.length - 1);
    const floor = new Float64Array(rounds.length);
    return lines.map((line) => {
      const below = shown.map((i) => `${this.toX(rounds[i]).toFixed(1)},${toY(floor[i]).toFixed(1)}`).reverse();
      const above = shown.map((i) => `${this.toX(rounds[i]).toFixed(1)},${toY((floor[i] += line.values[i] || 0)).toFixed(1)}`);
      return svg("path", { d: above.length ? `M${above.join("L")}L${below.join("L")}Z` : "", class: `area ${line.look}` });
    });
  }

  nearest(clientX) {
    const x = clientX - this.root.getBoundingClientRect().left;
    let found = null;
    this.rounds.forEach((round, i) => {
      if (found === null || Math.abs(this.toX(round) - x) < Math.abs(this.toX(this.rounds[found]) - x)) found = i;
    });
    return found;
  }

  point(at) {
    this.at = at !== null && at < this.rounds.length ? at : null;
    this.tip.hidden = this.at === null;
    if (this.at === null) {
      this.cursor?.setAttribute("d", "");
      return;
    }
    const x = this.toX(this.rounds[this.at]);
    this.cursor.setAttribute("d", `M${x},${this.box.top}V${this.box.bottom}`);
    const there = this.lines.filter((line) => line.values[this.at] !== null && !(this.whole && !line.values[this.at]));
    this.tip.replaceChildren(
      make("b", {}, `round ${this.rounds[this.at].toLocaleString("en")}`),
      ...there.map((line) => make("div", {}, make("i", { class: `patch ${line.look}` }), ` ${line.name} `, make("b", {}, said(line.values[this.at])))),
    );
    const left = x + 14 + this.tip.offsetWidth > this.width ? x - this.tip.offsetWidth - 14 : x + 14;
    this.tip.style.left = `${Math.max(0, Math.min(left, this.width - this.tip.offsetWidth))}px`;
    this.tip.style.top = "12px";
  }
}

export function said(value) {
  if (value === null || value === undefined) return "not known";
  return Number.isInteger(value) ? String(value) : value.toFixed(3);
}
