// The page of a sweep: for each data set a table of rules and attacks and its pictures, then all numbers. Filters draw it again.

function showSweep(host, sweep, open) {
  const DRAWN = { boards: 2, rules: 8, pictures: 6, rows: 50 }; // at first; buttons show more
  const LEVELS = [0.5, 1, 2, 4, 8]; // times the threshold: where the colour changes
  const points = (line) => line.points.map(([malicious, error, spread, success, successSpread, n, harm, cell]) => ({ malicious, error, spread, success, successSpread, n, harm, cell }));
  for (const board of sweep.boards) for (const line of board.lines) line.points = points(line);
  const lines = sweep.boards.flatMap((board) => board.lines);
  const counts = [...new Set(lines.flatMap((line) => line.points.map((one) => one.malicious)))].sort((a, b) => a - b);
  const harmed = (harm) => harm !== null && harm > sweep.threshold + 1e-9;
  const level = (harm) => (harm === null ? "unknown" : LEVELS.filter((step) => harm > step * sweep.threshold + 1e-9).length);
  const percent = (many, of) => `${Math.round((1000 * many) / of) / 10} %`;

  // ---------------------------------------------------------------- what is shown

  const field = (words, example) => make("input", { type: "search", placeholder: example, autocomplete: "off", spellcheck: "false", "aria-label": words });
  const fields = { rule: field("Rules", "krum, nnm"), attack: field("Attacks", "trim, alie"), board: field("Data sets and settings", "mnist") };
  const view = make("select", { "aria-label": "Show" });
  const option = (value, words) => view.append(make("option", { value }, words));
  if (lines.some((line) => line.survives)) option("survives", "malicious clients survived");
  for (const many of counts) option(`error ${many}`, `test error with ${many} malicious`);
  for (const many of counts) {
    if (lines.some((line) => line.points.some((one) => one.malicious === many && one.success !== null))) option(`success ${many}`, `backdoor success with ${many} malicious`);
  }
  const several = counts.filter((many) => many > 0).length > 1;
  view.value = several && lines.some((line) => line.survives) ? "survives" : `error ${counts.at(-1)}`;
  const asked = (input) => input.value.toLowerCase().split(",").map((one) => one.trim()).filter(Boolean);
  const wanted = (input, name) => {
    const words = asked(input);
    return !words.length || words.some((one) => name.toLowerCase().includes(one));
  };
  let shown = { ...DRAWN };
  let sorted = { column: null, down: false }; // of the tables of rules
  let listed = { column: "harm", down: true }; // of the table of all numbers

  // ---------------------------------------------------------------- a table of rules and attacks

  function survived(line) {
    if (!line) return { words: "not run", kind: "not-run" };
    if (!line.survives) return { words: "?", small: line.clean === null ? "no run without attack" : "no attack run", kind: "harm-unknown", cell: line.points.at(-1).cell };
    const [most, breaks] = line.survives;
    const tested = Math.max(...line.points.map((one) => one.malicious));
    const at = line.points.find((one) => one.malicious === (breaks ?? tested));
    const small = breaks === null ? "all tested" : `harmed by ${breaks}`;
    return { words: breaks === null ? `≥ ${most}` : String(most), small, kind: `harm-${breaks === null ? 0 : Math.max(1, Math.round(5 * (1 - most / tested)))}`, cell: at.cell, value: most + (breaks === null ? 0.5 : 0) };
  }

  function measured(line, what, many) {
    const at = line?.points.find((one) => one.malicious === many);
    if (!at || at[what] === null) return { words: at ? "" : "not run", kind: at ? "void" : "not-run" };
    const spread = what === "error" ? at.spread : at.successSpread;
    const harm = what === "error" && line.clean !== null ? at.error - line.clean : what === "success" ? at.success - line.cleanSuccess : null;
    return { words: at[what].toFixed(3) + (harmed(harm) ? " ▲" : ""), small: at.n > 1 ? `± ${spread.toFixed(3)}` : "", kind: `harm-${level(harm)}`, cell: at.cell, value: at[what] };
  }

  function cellOf(line) {
    const [what, many] = view.value.split(" ");
    return what === "survives" ? survived(line) : measured(line, what, Number(many));
  }

  function td({ words, small, kind, cell, value }) {
    const inside = [make("b", {}, words), small ? make("small", {}, small) : null];
    const content = cell === undefined ? make("span", {}, ...inside) : make("button", { type: "button", "data-cell": cell }, ...inside);
    return make("td", { class: `cell ${kind}`, "data-sort": value }, content);
  }

  function heading(words, column, state, draw, extra = {}) {
    const button = make("button", { type: "button", title: "Sort" }, words);
    button.addEventListener("click", () => {
      state.down = state.column === column ? !state.down : true;
      state.column = column;
      draw();
    });
    return make("th", { scope: "col", ...extra, "aria-sort": state.column === column ? (state.down ? "descending" : "ascending") : null }, button);
  }

  const ordered = (rows, value, down) => // what has no number comes last
    rows.map((row) => [row, value(row)]).sort(([, a], [, b]) => (a === undefined || b === undefined ? (a === undefined) - (b === undefined) : down ? b - a : a - b)).map(([row]) => row);

  const columnOf = (attack) => `attack ${attack}`; // an attack may be called "worst"
  const worst = (board, rule) => survived(board.lines[board.rules[rule].worst] || null);
  const attacksOf = (board) => board.attacks.map((name, attack) => ({ name, attack })).filter(({ name, attack }) => wanted(fields.attack, name) && !(view.value === "survives" && board.idle.includes(attack)));
  const rulesOf = (board) => board.rules.map((rule, place) => ({ ...rule, place })).filter((rule) => wanted(fields.rule, rule.name));
  const lineAt = (board) => {
    const at = new Map(board.lines.map((line) => [`${line.rule} ${line.attack}`, line]));
    return (rule, attack) => at.get(`${rule} ${attack}`);
  };

  function table(board, draw) {
    const attacks = attacksOf(board);
    const line = lineAt(board);
    const survival = view.value === "survives";
    const best = Math.min(...board.rules.map((rule) => rule.clean?.[0] ?? Infinity));
    let rules = rulesOf(board);
    const value = { worst: (rule) => worst(board, rule.place).value, clean: (rule) => rule.clean?.[0] };
    if (sorted.column !== null) rules = ordered(rules, value[sorted.column] || ((rule) => cellOf(line(rule.place, board.attacks.findIndex((name) => columnOf(name) === sorted.column))).value), sorted.down);
    const head = make(
      "tr",
      {},
      make("th", { scope: "col", class: "left" }, "rule"),
      survival ? heading("worst attack", "worst", sorted, draw) : null,
      survival ? heading("error without attack", "clean", sorted, draw, { class: "narrow" }) : null,
      ...attacks.map(({ name }) => heading(name, columnOf(name), sorted, draw, { class: "narrow" })),
    );
    const rows = rules.map((rule) => {
      const cells = attacks.map(({ attack }) => td(cellOf(line(rule.place, attack))));
      if (survival) {
        const least = board.lines[rule.worst];
        const number = worst(board, rule.place);
        const clean = rule.clean ? { words: rule.clean[0].toFixed(3) + (harmed(rule.clean[0] - best) ? " ▲" : ""), small: rule.clean[2] > 1 ? `± ${rule.clean[1].toFixed(3)}` : "", kind: `harm-${level(rule.clean[0] - best)}`, cell: rule.clean[3] } : { words: "not run", kind: "not-run" };
        cells.unshift(td(least ? { ...number, small: `of ${board.clients}, ${board.attacks[least.attack]}` } : number), td(clean));
      }
      return make("tr", {}, make("th", { scope: "row" }, rule.name, rule.known ? null : make("small", { class: "baseline" }, "plug-in not loaded")), ...cells);
    });
    const grid = make("table", { class: "heat harm" }, make("thead", {}, head), make("tbody", {}, ...rows));
    return make("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": board.title }, grid);
  }

  // ---------------------------------------------------------------- pictures

  function pictures(board, draw) {
    const line = lineAt(board);
    const rules = rulesOf(board);
    const drawn = rules.slice(0, shown.rules);
    const values = [...new Set(board.lines.flatMap((one) => one.points.map((at) => at.malicious)))].sort((a, b) => a - b);
    if (values.length < 2) return [];
    const attacks = board.attacks.map((name, attack) => ({ name, attack })).filter(({ name, attack }) => wanted(fields.attack, name) && !board.idle.includes(attack));
    const x = { label: `malicious clients, of ${board.clients}`, values };
    const curve = (rule, attack, what) => ({
      ...rule.look,
      name: rule.name,
      points: (line(rule.place, attack)?.points || []).filter((at) => at[what] !== null).map((at) => ({ x: at.malicious, y: at[what], spread: what === "error" ? at.spread : at.successSpread, n: at.n, open: () => open(at.cell) })),
    });
    const most = Math.max(...drawn.flatMap((rule) => attacks.flatMap(({ attack }) => curve(rule, attack, "error").points.map((at) => at.y + at.spread))), 0.05);
    const panels = attacks.flatMap(({ name, attack }) =>
      ["error", "success"]
        .map((what) => ({ title: what === "error" ? name : `${name}: backdoor`, lines: drawn.map((rule) => curve(rule, attack, what)).filter((one) => one.points.length), x, y: what === "error" ? { label: "test error", max: ceiling(most) } : { label: "backdoor success", max: 1 } }))
        .filter((panel) => panel.lines.length),
    );
    if (!panels.length) return [];
    const keys = drawn.map((rule) => make("span", {}, sample(rule.look), " " + rule.name));
    const hosts = panels.slice(0, shown.pictures).map((panel) => {
      const place = make("div");
      plot(place, panel);
      return place;
    });
    return [
      make("div", { class: "keys" }, ...keys),
      make("div", { class: "pictures" }, ...hosts),
      more(rules.length - drawn.length, "rule", () => (shown.rules += 8), draw),
      more(panels.length - hosts.length, "picture", () => (shown.pictures += 12), draw),
    ].filter(Boolean);
  }

  function more(hidden, what, grow, draw) {
    if (hidden <= 0) return null;
    const button = make("button", { type: "button", class: "more" }, `${hidden.toLocaleString("en")} more ${what}${hidden === 1 ? "" : "s"}`);
    button.addEventListener("click", () => (grow(), draw()));
    return button;
  }

  // ---------------------------------------------------------------- all numbers

  const every = sweep.boards.flatMap((board) => board.lines.flatMap((line) => line.points.filter((at) => !line.borrowed || at !== line.points[0]).map((at) => ({ board, line, at, rule: board.rules[line.rule].name, attack: board.attacks[line.attack] }))));
  const COLUMNS = [
    ["rule", (one) => one.line.rule],
    ["attack", (one) => one.line.attack],
    ["malicious", (one) => one.at.malicious],
    ["error", (one) => one.at.error],
    ["harm", (one) => one.at.harm ?? undefined],
    ["success", (one) => one.at.success ?? undefined],
    ["seeds", (one) => one.at.n],
  ];

  function numbers(draw) {
    const found = every.filter((one) => wanted(fields.rule, one.rule) && wanted(fields.attack, one.attack) && wanted(fields.board, one.board.title));
    const rows = ordered(found, COLUMNS.find(([name]) => name === listed.column)[1], listed.down);
    const place = sweep.boards.length > 1;
    const spread = (mean, by, n) => [mean.toFixed(3), n > 1 ? make("small", {}, ` ± ${by.toFixed(3)}`) : null];
    const body = rows.slice(0, shown.rows).map(({ board, line, at, rule, attack }) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, make("button", { type: "button", class: "link", "data-cell": at.cell }, rule)),
        make("td", { class: "words" }, attack),
        make("td", { class: "change" }, `${at.malicious} of ${board.clients}`, make("small", {}, ` ${percent(at.malicious, board.clients)}`)),
        make("td", { class: "change" }, ...spread(at.error, at.spread, at.n)),
        make("td", { class: `change harm-${level(at.harm)}` }, at.harm === null ? "?" : `${at.harm < 0 ? "−" : "+"}${Math.abs(at.harm).toFixed(3)}${harmed(at.harm) ? " ▲" : ""}`),
        make("td", { class: "change" }, ...(at.success === null ? [""] : spread(at.success, at.successSpread, at.n))),
        make("td", { class: "change" }, String(at.n)),
        place ? make("td", { class: "words" }, board.title) : null,
      ),
    );
    const head = COLUMNS.map(([name]) => heading(name, name, listed, draw, { class: ["rule", "attack"].includes(name) ? "left" : null }));
    if (place) head.push(make("th", { scope: "col", class: "left" }, "data set"));
    return [
      make("p", { class: "note" }, `${found.length.toLocaleString("en")} of ${every.length.toLocaleString("en")} numbers. Harm is what the attack adds to the test error, or to the backdoor success if that is more.`),
      make("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "All numbers" }, make("table", { class: "numbers" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body))),
      more(rows.length - body.length, "row", () => (shown.rows += 200), draw),
    ].filter(Boolean);
  }

  // ---------------------------------------------------------------- all of it

  const boards = make("div");
  const [rest, nothing] = [document.getElementById("numbers-host"), make("p", { class: "missing nothing", hidden: "" }, "Nothing has that name.")];
  const label = (words, input) => make("label", {}, words + " ", input);
  const bounds = [...LEVELS.map((step) => `to ${+(step * sweep.threshold).toPrecision(3)}`), "more"];
  const controls = make(
    "div",
    { class: "league-controls" },
    make("div", { class: "filters" }, label("Show", view), label("Rules", fields.rule), label("Attacks", fields.attack), sweep.boards.length > 1 ? label("Data", fields.board) : null),
    make("p", { class: "heat-keys" }, make("span", {}, "Harm: "), ...bounds.map((words, i) => make("span", { class: `heat-key harm-${i}` }, words)), make("span", { class: "heat-key" }, "▲ above the threshold")),
  );

  function drawNumbers() {
    rest.replaceChildren(...numbers(drawNumbers));
    marked(rest);
  }

  function drawBoards() {
    const found = sweep.boards.filter((board) => wanted(fields.board, board.title) && rulesOf(board).length && board.attacks.some((name) => wanted(fields.attack, name)));
    nothing.hidden = found.length > 0;
    boards.replaceChildren(
      ...found.slice(0, shown.boards).flatMap((board) => [
        make("h3", {}, `${board.title}, ${board.clients} clients`),
        table(board, drawBoards),
        ...pictures(board, drawBoards),
      ]),
      more(found.length - shown.boards, "table", () => (shown.boards += 4), drawBoards) || "",
    );
    marked(boards);
  }

  for (const input of [...Object.values(fields), view]) {
    input.addEventListener("input", () => {
      shown = { ...DRAWN };
      sorted.column = null;
      drawBoards();
      if (input !== view) drawNumbers();
    });
  }
  host.replaceChildren(controls, nothing, boards);
  drawBoards();
  drawNumbers();
}
