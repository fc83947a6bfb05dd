// The page's behaviour: tabs, sorting, the panel of a cell, and the figures.

(async () => {
  const packed = JSON.parse(document.getElementById("data").textContent);
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const unzipped = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = await new Response(unzipped).json();

  // ---------------------------------------------------------------- tabs

  for (const tabbed of document.querySelectorAll(".tabbed")) {
    const tabs = [...tabbed.querySelectorAll("[role=tab]")];
    const show = (chosen) => {
      for (const tab of tabs) {
        tab.setAttribute("aria-selected", tab === chosen);
        tab.tabIndex = tab === chosen ? 0 : -1;
        document.getElementById(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
      }
    };
    tabs.forEach((tab, i) => {
      tab.addEventListener("click", () => show(tab));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = tabs[(i + step + tabs.length) % tabs.length];
        show(next);
        next.focus();
      });
    });
    tabbed.classList.add("ready");
    const first = tabs.find((tab) => document.getElementById(tab.getAttribute("aria-controls")).querySelector("td.cell:not(.not-run)"));
    show(first || tabs[0]);
  }

  // ---------------------------------------------------------------- sorting

  for (const table of document.querySelectorAll("table")) {
    const heads = [...[...table.tHead.rows].at(-1).cells]; // above them may stand groups of columns
    heads.forEach((head, column) => {
      head.querySelector("button")?.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => row.cells[column].dataset.sort;
        for (const body of table.tBodies) {
          const rows = [...body.rows].filter((row) => row.cells.length === heads.length); // each group below its heading
          rows.sort((a, b) => {
            const [left, right] = [value(a), value(b)];
            if (left === undefined || right === undefined) return (left === undefined) - (right === undefined); // empty ones last
            return down ? right - left : left - right;
          });
          body.append(...rows);
        }
      });
    });
  }

  // ---------------------------------------------------------------- the league's filters

  for (const league of document.querySelectorAll("[data-league]")) {
    const [rules, attacks] = league.querySelectorAll("input");
    const wanted = (input, names) => {
      const asked = input.value.toLowerCase().split(",").map((one) => one.trim()).filter(Boolean);
      return !asked.length || asked.some((one) => names.includes(one));
    };
    const filter = () => {
      let found = true;
      for (const table of league.querySelectorAll("table")) {
        const [groups, heads] = table.tHead.rows;
        const shown = [...heads.cells].map((head) => !head.dataset.names || wanted(attacks, head.dataset.names));
        const rows = [...table.tBodies[0].rows];
        for (const row of [heads, ...rows]) [...row.cells].forEach((cell, i) => (cell.hidden = !shown[i]));
        for (const row of rows) row.hidden = !wanted(rules, row.dataset.names);
        let first = 0;
        for (const group of groups.cells) {
          const span = Number(group.dataset.span);
          const left = shown.slice(first, first + span).filter(Boolean).length;
          group.hidden = !left;
          group.colSpan = left || 1;
          first += span;
        }
        if (!table.closest("[hidden]")) found = rows.some((row) => !row.hidden) && [...heads.cells].some((head) => head.dataset.names && !head.hidden);
      }
      league.querySelector(".nothing").hidden = found;
    };
    for (const input of [rules, attacks]) input.addEventListener("input", filter);
    for (const tab of league.querySelectorAll("[role=tab]")) tab.addEventListener("click", filter);
  }

  // ---------------------------------------------------------------- the runs of a cell

  const SEEDS = ["blue", "orange", "green", "pink", "sky", "red", "grey"];
  const seedLook = (i) => ({ colour: SEEDS[i % SEEDS.length] });
  const curve = (run, values) => values.map((y, i) => ({ x: run.rounds[i], y }));
  const label = (run, runs) => run.names ? "this run" : (runs.some((one) => one.arithmetic !== run.arithmetic) ? `seed ${run.seed}, ${run.arithmetic}` : `seed ${run.seed}`);

  function legend(lines) {
    return make("div", { class: "keys" }, ...lines.map((line) => make("span", {}, sample(line), " " + line.name)));
  }

  function facts(runs) {
    const backdoor = runs.some((run) => run.success);
    const head = ["seed", "error", ...(backdoor ? ["backdoor"] : []), "rounds", "seconds", "arithmetic", "hardware"];
    const rows = runs.map((run) => [
      run.seed === null ? "none" : run.seed,
      run.test.at(-1).toFixed(4),
      ...(backdoor ? [run.success ? run.success.at(-1).toFixed(4) : ""] : []),
      run.rounds.at(-1) === run.of ? run.of : `${run.rounds.at(-1)} of ${run.of}`,
      run.seconds === null ? "not measured" : run.seconds.toFixed(1),
      run.arithmetic,
      run.hardware,
    ]);
    const table = make(
      "table",
      { class: "plain" },
      make("thead", {}, make("tr", {}, ...head.map((one) => make("th", {}, one)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((one) => make("td", {}, String(one)))))),
    );
    return make("div", { class: "scroll" }, table);
  }

  function command(words, lines) {
    const code = make("pre", { tabindex: 0 }, make("code", {}, lines));
    const copy = make("button", { type: "button", class: "copy" }, "copy");
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(lines);
        copy.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code); // no clipboard for a page opened from a file in some browsers
      }
    });
    return make("div", { class: "command" }, make("p", {}, words), make("div", {}, code, copy));
  }

  function small(words, value) {
    return value ? make("p", { class: "small" }, make("b", {}, words + " "), value) : null;
  }

  function chosen(runs, draw) {
    if (runs.length === 1) return draw(runs[0]), null;
    const buttons = runs.map((run) => make("button", { type: "button" }, label(run, runs)));
    const choose = (i) => {
      buttons.forEach((button, j) => button.setAttribute("aria-pressed", i === j));
      draw(runs[i]);
    };
    buttons.forEach((button, i) => button.addEventListener("click", () => choose(i)));
    choose(0);
    return make("div", { class: "choice" }, ...buttons);
  }

  function showRuns(host, cell) {
    const runs = cell.runs.map((place) => data.runs[place]);
    host.append(...cell.says.map((sentence) => make("p", { class: "says" }, sentence)));
    if (!runs.length) {
      if (cell.again) host.append(command("To run it:", cell.again));
      return;
    }
    host.append(facts(runs));
    const pictures = make("div", { class: "pictures" });
    host.append(pictures);

    const error = make("div");
    const tests = runs.map((run, i) => ({ name: label(run, runs), ...seedLook(i), points: curve(run, run.test) }));
    const trains = runs.filter((run) => run.train.length).map((run, i) => ({ name: `${label(run, runs)}, training`, ...seedLook(i), dashed: true, faint: true, points: curve(run, run.train) }));
    plot(error, { title: "Error over the rounds", lines: [...trains, ...tests], x: { label: "round" }, y: { label: "error" } });
    error.append(legend(trains.length ? [...tests, { name: "training error", colour: "grey", dashed: true }] : tests));
    pictures.append(error);

    if (runs.some((run) => run.success)) {
      const success = make("div");
      const lines = runs.map((run, i) => ({ name: label(run, runs), ...seedLook(i), points: run.success ? curve(run, run.success) : [] }));
      plot(success, { title: "Success of the backdoor", lines, x: { label: "round" }, y: { label: "share of triggered examples", max: 1 } });
      success.append(legend(lines));
      pictures.append(success);
    }

    const trusting = runs.filter((run) => run.trustRounds.length);
    if (trusting.length) {
      const [picture, means, details] = [make("div"), make("div"), make("div", { class: "pictures" })];
      const choice = chosen(trusting, (run) => {
        trustPicture(picture, run);
        const lines = trustLines(run);
        plot(means, { title: "Mean trust", lines, x: { label: "round" }, y: { label: "trust" } });
        means.append(legend(lines));
      });
      host.append(make("h3", {}, "Whom the server trusts"));
      if (choice) host.append(choice);
      details.append(picture, means);
      host.append(details);
      host.append(
        make("p", { class: "small" }, "Trust is the cosine between a client's update and the server's own, cut off at 0. A client with trust 0 has no say in that round."),
      );
    }

    host.append(make("h3", {}, "To repeat it"));
    if (cell.again) host.append(command("All seeds; runs that are done are not run again:", cell.again));
    const repeat = make("div");
    const choice = chosen(runs, (run) => run.command && repeat.replaceChildren(command(run.names ? "The same settings; the nodes' data and chance are their own:" : `Exactly the run of ${label(run, runs)}:`, run.command)));
    if (choice) host.append(choice);
    host.append(repeat);
    const versions = [...new Set(runs.map((run) => run.versions))];
    const files = [...new Set(runs.map((run) => run.files))];
    const warnings = [...new Set(runs.map((run) => run.warnings))];
    const keys = runs.map((run) => run.key).join(", ");
    host.append(...[small("Versions", versions.join(" | ")), small("Data", files.join(" | ")), small("Notes", warnings.join(" | ")), small("Keys", keys)].filter(Boolean));
  }

  const panel = document.getElementById("panel");
  const content = panel.querySelector(".content");

  function open(number) {
    const cell = data.cells[number];
    content.replaceChildren(make("h2", {}, cell.title));
    showRuns(content, cell);
    if (!panel.open) panel.showModal();
    panel.scrollTop = 0;
  }

  panel.querySelector(".close").addEventListener("click", () => panel.close());
  panel.addEventListener("click", (event) => {
    if (event.target === panel) panel.close(); // beside the content
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-cell]");
    if (button) open(Number(button.dataset.cell));
  });

  // ---------------------------------------------------------------- figures

  // The mean over runs at each round that all of them were evaluated in, and the spread.
  function meanCurve(runs) {
    const shared = runs[0].rounds.filter((round) => runs.every((run) => run.rounds.includes(round)));
    return shared.map((round) => {
      const values = runs.map((run) => run.train[run.rounds.indexOf(round)]);
      const mean = values.reduce((a, b) => a + b, 0) / values.length;
      const variance = values.reduce((sum, one) => sum + (one - mean) ** 2, 0) / Math.max(1, values.length - 1);
      return { x: round, y: mean, spread: Math.sqrt(variance), n: runs.length };
    });
  }

  function panels(figure) {
    if (figure.kind === "curves") {
      return figure.panels.map((panel) => ({
        title: panel.title,
        missing: panel.missing,
        lines: panel.points.map((one) => ({ ...figure.curves[one.curve], marker: null, points: meanCurve(data.cells[one.cell].runs.map((run) => data.runs[run])) })),
        x: { label: "round" },
        y: { label: "training error" },
        height: 340,
        band: true,
      }));
    }
    const most = Math.max(0, ...figure.panels.flatMap((panel) => panel.points.map((one) => one.error[0] + one.error[1])));
    const values = [...new Set(figure.panels.flatMap((panel) => panel.points.map((one) => Number(one.at))))].sort((a, b) => a - b);
    return figure.panels.flatMap((panel) => {
      const lines = (what) =>
        figure.curves
          .map((curve, i) => ({
            ...curve,
            points: panel.points
              .filter((one) => one.curve === i && one[what])
              .map((one) => ({ x: Number(one.at), y: one[what][0], spread: one[what][1], n: data.cells[one.cell].runs.length, open: () => open(one.cell) }))
              .sort((a, b) => a.x - b.x),
          }))
          .filter((line) => line.points.length);
      const shared = { x: { label: figure.x, values }, missing: panel.missing };
      const reference = panel.reference === null ? null : { y: panel.reference, name: figure.reference || "FedAvg, no attack" };
      const drawn = [{ ...shared, title: panel.title, lines: lines("error"), y: { label: "error", max: ceiling(most) }, reference }];
      const success = lines("success");
      const backdoor = figure.panels.length > 1 ? `${panel.title}: backdoor` : figure.backdoor || "Scaling attack: backdoor";
      if (success.length) drawn.push({ ...shared, title: backdoor, lines: success, y: { label: "success of the backdoor", max: 1 } });
      return drawn;
    });
  }

  function drawFigure(host) {
    const figure = data.figures[Number(host.dataset.figure)];
    if (!figure.panels.some((panel) => panel.points.length)) {
      host.replaceChildren(make("p", { class: "missing" }, "Not run."));
      return;
    }
    const hidden = new Set();
    const pictures = make("div", { class: "pictures" });
    const draw = () => {
      pictures.replaceChildren(
        ...panels(figure).map((one) => {
          const place = make("div");
          plot(place, { ...one, lines: one.lines.filter((line) => !hidden.has(line.name)) });
          return place;
        }),
      );
    };
    const used = new Set(figure.panels.flatMap((panel) => panel.points.map((one) => one.curve)));
    const keys = figure.curves
      .filter((_, i) => used.has(i))
      .map((line) => {
        const key = make("button", { type: "button", "aria-pressed": "true" }, sample({ ...line, marker: figure.kind === "curves" ? null : line.marker }), " " + line.name);
        key.addEventListener("click", () => {
          if (!hidden.delete(line.name)) hidden.add(line.name);
          key.setAttribute("aria-pressed", !hidden.has(line.name));
          draw();
        });
        return key;
      });
    if (figure.panels.some((panel) => panel.reference !== null)) {
      keys.push(make("span", { class: "reference-key" }, sample({ colour: "faint", dashed: true }), ` ${figure.reference || "FedAvg, no attack"}`));
    }
    host.replaceChildren(make("div", { class: "keys toggles" }, ...keys), pictures);
    draw();
  }

  const runOf = (host) => data.runs[Number(host.dataset.trust)];

  function drawTrust(host) {
    const beside = [...document.querySelectorAll("[data-trust]")].map(runOf);
    trustPicture(host, runOf(host), { title: host.dataset.title, most: mostTrust(beside) });
  }

  marked(document); // at once: figures take a while

  // One after the other, so that the page can be read and scrolled meanwhile.
  for (const host of document.querySelectorAll("[data-trust], [data-figure]")) {
    (host.dataset.trust ? drawTrust : drawFigure)(host);
    await new Promise((next) => setTimeout(next));
  }
  for (const host of document.querySelectorAll("[data-sweep]")) showSweep(host, data.sweep, open);
  for (const host of document.querySelectorAll("[data-shown]")) showRuns(host, data.cells[Number(host.dataset.shown)]);

  marked(document); // the tables that were drawn

  // ---------------------------------------------------------------- where one is

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const place = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) links.get(entry.target.id)?.classList.toggle("here", entry.isIntersecting);
    },
    { rootMargin: "-20% 0px -70% 0px" },
  );
  document.querySelectorAll("main > section").forEach((section) => place.observe(section));
  document.documentElement.classList.add("drawn");
})();
