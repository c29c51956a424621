// Draws every chart from the numbers on the page, and makes it interactive.
"use strict";
(() => {
  const SPACE = "http://www.w3.org/2000/svg"; // a namespace; nothing is fetched
  const INDEXED = /(^|[^\p{L}\p{N}_`])(\p{L}|[‖)*])_(?:\{([^{}]+)\}|([\p{L}\p{N}]{1,3}|∞|\*)(?![\p{L}\p{N}_]))/gu;
  const MARKED_POINTS = 15; // lines with at most this many points mark each of them
  const BAND_DEPTH = 100; // factor by which a band may reach below its line on a logarithmic axis

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  function shape(tag, attributes = {}, ...children) {
    const node = document.createElementNS(SPACE, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  // Split text such as θ_PS into pairs of plain text and index.
  function pieces(text) {
    const found = [];
    let end = 0;
    for (const match of text.matchAll(INDEXED)) {
      found.push([text.slice(end, match.index) + match[1] + match[2], match[3] ?? match[4]]);
      end = match.index + match[0].length;
    }
    return [...found, [text.slice(end), ""]];
  }

  function words(text) {
    const whole = document.createDocumentFragment();
    for (const [plain, index] of pieces(text)) whole.append(plain, ...(index ? [make("sub", {}, index)] : []));
    return whole;
  }

  function label(text, attributes) {
    const node = shape("text", { class: "label", ...attributes });
    let lift = 0;
    for (const [plain, index] of pieces(text)) {
      if (plain) node.append(shape("tspan", { dy: -lift }, plain));
      if (plain) lift = 0;
      if (index) node.append(shape("tspan", { dy: 3, "font-size": "9px" }, index));
      if (index) lift += 3;
    }
    return node;
  }

  // ---- numbers

  const raised = (power) => [...String(power)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");

  function number(value, digits = 4) {
    if (value === null) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
      const [head, power] = value.toExponential(digits - 1).split("e");
      const short = String(Number(head)).replace("-", "−");
      return (short === "1" ? "" : short + " × ") + "10" + raised(Number(power));
    }
    const plain = String(Number(value.toPrecision(digits))).replace("-", "−");
    return size >= 1e4 ? plain.replace(/\B(?=(\d{3})+$)/g, "\u202f") : plain;
  }

  // Label all ticks of an axis in one style: as powers of ten if any is far from one.
  function labels(ticks) {
    const powers = ticks.every((tick) => tick > 0 && /^1e/.test(tick.toExponential()));
    const far = ticks.some((tick) => tick < 1e-2 || tick > 1e4);
    return ticks.map((tick) => (powers && far && ticks.length > 1 ? "10" + raised(Math.round(Math.log10(tick))) : number(tick)));
  }

  function steps(low, high, about) {
    const rough = (high - low) / Math.max(1, about);
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((k) => k * unit >= rough) * unit;
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(Number((k * step).toPrecision(12)));
    return found;
  }

  function decades(low, high, about) {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const stride = Math.max(1, Math.ceil((last - first) / about));
    const inside = (multiples, every) => {
      const found = [];
      for (let k = first; k <= last; k++)
        if (k % every === 0) for (const m of multiples) if (m * 10 ** k >= low * 0.999 && m * 10 ** k <= high * 1.001) found.push(Number(`${m}e${k}`));
      return found;
    };
    const tens = inside([1], stride);
    if (tens.length >= 3) return tens;
    for (const multiples of [[1, 3], [1, 2, 5]]) {
      const found = inside(multiples, 1);
      if (found.length >= 3 && found.length <= about + 2) return found;
    }
    return tens.length >= 2 ? tens : steps(low, high, about).filter((value) => value > 0);
  }

  // One axis: maps numbers to positions on the screen.
  function scale(values, log, from, to, about) {
    let low = Math.min(...values), high = Math.max(...values);
    if (!values.length) [low, high] = log ? [0.1, 10] : [0, 1];
    const into = log ? Math.log10 : (value) => value;
    let [a, b] = [into(low), into(high)];
    const margin = b > a ? 0.04 * (b - a) : log ? 0.5 : Math.abs(a) / 2 || 0.5;
    [a, b] = [a - margin, b + margin];
    if (!log && low >= 0 && a < 0) a = 0;
    const place = (value) => from + ((into(value) - a) / (b - a)) * (to - from);
    const back = (where) => a + ((where - from) / (to - from)) * (b - a);
    const ticks = log ? decades(10 ** a, 10 ** b, about) : steps(a, b, about);
    return { place, back, into, ticks, from, to };
  }

  // ---- a chart

  const usable = (value, log) => value !== null && (!log || value > 0);

  function chart(figure) {
    const data = JSON.parse(document.getElementById(figure.dataset.chart).textContent);
    const some = (key) => data.series.some((s) => s[key].some((value) => value !== null && value > 0));
    const can = { x: some("x"), y: some("y") };
    const state = { x: data.xLog && can.x, y: data.yLog && can.y, hidden: new Set(), at: null };

    const plot = make("div", { class: "plot", tabindex: 0, role: "group", "aria-roledescription": "chart" });
    plot.setAttribute("aria-label", `${data.title ? data.title + ". " : ""}${data.y} against ${data.x}. Left and right arrow keys read the values.`);
    const reading = make("div", { class: "reading", "aria-live": "polite", hidden: "" });
    let svg = shape("svg"), view = null;
    plot.append(svg, reading);
    figure.querySelector("figcaption").after(plot, legend(), controls());

    function legend() {
      const row = make("div", { class: "legend", role: "group", "aria-label": "Series; press to hide or show" });
      data.series.forEach((series, k) => {
        const button = make("button", { type: "button", "aria-pressed": "true" }, swatch(series), make("span", {}, words(series.name)));
        button.addEventListener("click", () => {
          state.hidden.has(k) ? state.hidden.delete(k) : state.hidden.add(k);
          button.setAttribute("aria-pressed", String(!state.hidden.has(k)));
          render();
        });
        row.append(button);
      });
      return row;
    }

    function controls() {
      const bar = make("div", { class: "bar" });
      const axes = make("span", { role: "group", "aria-label": "Axes" });
      for (const axis of ["x", "y"]) {
        const button = make("button", { type: "button", class: `axis-${axis}` });
        button.disabled = !can[axis];
        const update = () => {
          button.textContent = `${axis === "x" ? "↔" : "↕"} ${state[axis] ? "log" : "linear"}`;
          const name = axis === "x" ? "Horizontal" : "Vertical";
          button.setAttribute("aria-label", `${name} axis is ${state[axis] ? "logarithmic" : "linear"}; press to change`);
          button.title = button.getAttribute("aria-label");
        };
        button.addEventListener("click", () => { state[axis] = !state[axis]; update(); render(); });
        update();
        axes.append(button);
      }
      bar.append(axes, figure.querySelector(".links") ?? "");
      return bar;
    }

    function swatch(series) {
      const icon = shape("svg", { width: 22, height: 10, "aria-hidden": "true" });
      if (series.kind === "points") icon.append(shape("circle", { cx: 11, cy: 5, r: 3.5, fill: series.colour }));
      else icon.append(shape("line", { x1: 1, x2: 21, y1: 5, y2: 5, stroke: series.colour, "stroke-width": 2.5, "stroke-dasharray": series.kind === "dashed" ? "6 4" : "none" }));
      return icon;
    }

    const shown = () => data.series.filter((_, k) => !state.hidden.has(k));
    const isVisible = (series, k) => usable(series.x[k], state.x) && usable(series.y[k], state.y);

    // The band at a point; a lower end near zero must not determine the range of the axis.
    function ends(series, k) {
      const floor = state.y ? Math.min(...series.y.filter((value) => usable(value, true))) / BAND_DEPTH : -Infinity;
      const low = Math.max(series.low[k] ?? series.y[k], floor);
      return [low, usable(series.high[k], state.y) ? series.high[k] : series.y[k]];
    }

    function extent(key) {
      const found = [];
      for (const series of shown())
        series.x.forEach((_, k) => {
          if (!isVisible(series, k)) return;
          found.push(series[key][k]);
          if (key === "y" && series.low) found.push(...ends(series, k));
        });
      return found;
    }

    function render() {
      const width = Math.max(240, plot.clientWidth), height = Math.round(Math.min(400, Math.max(240, width * 0.6)));
      const top = 26, bottom = height - 44;
      const y = scale(extent("y"), state.y, bottom, top, (bottom - top) / 48);
      const left = 14 + 6.6 * Math.max(2, ...labels(y.ticks).map((text) => text.length));
      const x = scale(extent("x"), state.x, left, width - 12, (width - left) / 80);
      view = { x, y, width, height, top, bottom, left };
      const fresh = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
      fresh.append(...axes(), ...shown().flatMap(marks), shape("g", { class: "pointer" }));
      if (!extent("x").length) fresh.append(shape("text", { x: (left + width) / 2, y: height / 2, "text-anchor": "middle" }, "nothing to draw"));
      svg.replaceWith(fresh);
      svg = fresh;
      point(state.at);
    }

    function axes() {
      const { x, y, width, height, top, bottom, left } = view, found = [];
      const [across, upwards] = [labels(x.ticks), labels(y.ticks)];
      for (const [k, tick] of y.ticks.entries())
        found.push(shape("line", { class: "grid", x1: left, x2: width - 12, y1: y.place(tick), y2: y.place(tick) }),
          shape("text", { x: left - 8, y: y.place(tick) + 4, "text-anchor": "end" }, upwards[k]));
      for (const [k, tick] of x.ticks.entries())
        found.push(shape("line", { class: "grid", x1: x.place(tick), x2: x.place(tick), y1: top, y2: bottom }),
          shape("text", { x: x.place(tick), y: bottom + 18, "text-anchor": "middle" }, across[k]));
      found.push(shape("line", { class: "axis", x1: left, x2: width - 12, y1: bottom, y2: bottom }));
      found.push(label(data.y, { x: 0, y: 13 }), label(data.x, { x: width - 12, y: height - 6, "text-anchor": "end" }));
      return found;
    }

    function marks(series) {
      const { x, y } = view, found = [];
      const place = (k, value) => `${x.place(series.x[k]).toFixed(1)} ${y.place(value).toFixed(1)}`;
      for (const part of runs(series)) {
        if (series.low) {
          const [low, high] = [0, 1].map((end) => (k) => place(k, ends(series, k)[end]));
          found.push(shape("path", { class: "band", fill: series.colour, d: `M${part.map(high).join("L")}L${[...part].reverse().map(low).join("L")}Z` }));
        }
        if (series.kind !== "points")
          found.push(shape("path", { class: `line ${series.kind}`, stroke: series.colour, d: `M${part.map((k) => place(k, series.y[k])).join("L")}` }));
        if (series.kind === "points" || part.length === 1 || (series.kind === "line" && series.x.length <= MARKED_POINTS))
          for (const k of part) found.push(dot(series, k, series.kind === "points" ? 4 : 3.2));
      }
      return found;
    }

    // Stretches without a gap.
    function runs(series) {
      const found = [[]];
      series.x.forEach((_, k) => { isVisible(series, k) ? found.at(-1).push(k) : found.push([]); });
      return found.filter((part) => part.length);
    }

    function dot(series, k, r) {
      return shape("circle", { class: "dot", fill: series.colour, cx: view.x.place(series.x[k]), cy: view.y.place(series.y[k]), r });
    }

    // ---- reading values

    function stops() {
      return [...new Set(extent("x"))].sort((a, b) => a - b);
    }

    function point(value) {
      state.at = value;
      const layer = svg.querySelector(".pointer");
      layer.replaceChildren();
      reading.hidden = value === null || !stops().length;
      if (reading.hidden) return;
      const here = view.x.place(value), near = [];
      for (const series of shown()) {
        let best = -1, distance = 12;
        series.x.forEach((_, k) => {
          if (!isVisible(series, k)) return;
          const away = Math.abs(view.x.place(series.x[k]) - here);
          if (away < distance) [best, distance] = [k, away];
        });
        if (best >= 0) near.push([series, best]);
      }
      layer.append(shape("line", { class: "cursor", x1: here, x2: here, y1: view.top, y2: view.bottom }));
      for (const [series, k] of near) layer.append(dot(series, k, 4.5));
      reading.replaceChildren(make("div", {}, make("b", {}, words(data.x)), make("b", {}, number(value))));
      for (const [series, k] of near) {
        const range = series.low && series.low[k] !== null ? ` (${number(series.low[k], 3)} – ${number(series.high[k], 3)})` : "";
        const name = make("span", {}, words(series.name));
        name.style.color = series.colour;
        reading.append(make("div", {}, name, make("span", {}, number(series.y[k]) + range)));
      }
      const space = view.width - reading.offsetWidth;
      reading.style.left = `${Math.max(0, Math.min(space, here < view.width / 2 ? here + 14 : here - 14 - reading.offsetWidth))}px`;
      reading.style.top = `${view.top}px`;
    }

    function nearest(event) {
      const where = event.clientX - plot.getBoundingClientRect().left;
      const away = (value) => Math.abs(view.x.place(value) - where);
      return stops().reduce((best, value) => (best === null || away(value) < away(best) ? value : best), null);
    }

    plot.addEventListener("pointermove", (event) => point(nearest(event)));
    plot.addEventListener("pointerdown", (event) => point(nearest(event)));
    plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") point(null); }); // a tap stays
    plot.addEventListener("blur", () => point(null));
    plot.addEventListener("keydown", (event) => {
      const all = stops(), last = all.length - 1, k = all.indexOf(state.at);
      const moves = { ArrowRight: Math.min(last, k + 1), ArrowLeft: k < 0 ? last : Math.max(0, k - 1), Home: 0, End: last };
      if (event.key === "Escape") point(null);
      else if (event.key in moves && last >= 0) point(all[moves[event.key]]);
      else return;
      event.preventDefault();
    });
    let seen = 0;
    new ResizeObserver(() => { if (plot.clientWidth !== seen) { seen = plot.clientWidth; render(); } }).observe(plot);
    seen = plot.clientWidth;
    render();
    return data;
  }

  // ---- files

  const quoted = (cell) => (/[",\n\r]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const csv = (rows) => rows.map((row) => row.map((cell) => quoted(cell === null || cell === undefined ? "" : String(cell))).join(",")).join("\n") + "\n";

  function chartRows(data) {
    const rows = [["series", data.x, data.y, "low", "high"]];
    for (const s of data.series) s.x.forEach((x, k) => rows.push([s.name, x, s.y[k], s.low?.[k], s.high?.[k]]));
    return rows;
  }

  const tableRows = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.dataset.exact ?? cell.textContent));

  // Without scripts the link leads to the file beside the page; with scripts the numbers come from the page itself.
  function offer(link, rows) {
    link.addEventListener("click", () => {
      const address = URL.createObjectURL(new Blob([csv(rows())], { type: "text/csv" }));
      link.href = address;
      setTimeout(() => URL.revokeObjectURL(address), 60000);
    });
  }

  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const data = chart(figure);
    for (const link of figure.querySelectorAll("a.csv")) offer(link, () => chartRows(data));
  }
  for (const sheet of document.querySelectorAll(".sheet"))
    for (const link of sheet.querySelectorAll("a.csv")) offer(link, () => tableRows(sheet.querySelector("table")));

  for (const command of document.querySelectorAll(".command")) {
    if (!navigator.clipboard) continue;
    const button = make("button", { type: "button" }, "Copy");
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(command.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    command.append(button);
  }
})();
