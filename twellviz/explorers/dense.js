// The dense views: a grid of cells, lines on axes, a strip of tokens. One plain module, no imports, no network.
//
// A view reads a source: get(name), set(name, value), save_changes(), on(event, call), off(event, call), send(message).
// In a notebook the source is a widget's model; in a saved page it is the Source below. What it holds:
//   spec    bytes, JSON in UTF-8: what is drawn (kind, title, labels, scale, ...)
//   values  bytes, float32, little endian: grid [rows, columns]; lines, for each its x, then its y; strip [rows, tokens]
//   row, col  what is chosen; col counts from spec.first
// Text of tokens enters the page as text nodes and canvas text, never as markup.

// cividis: its lightness alone orders it, for readers with and without colour vision. Then purple, white, orange.
const SEQUENTIAL = ["#00224e", "#1a386f", "#434e6c", "#61656f", "#7d7c78", "#9b9476", "#bcae6c", "#dec958", "#fee838"];
const DIVERGING = ["#2d004b", "#5f3a91", "#9990bf", "#cfcfe5", "#f7f7f6", "#fed59f", "#ee9b39", "#bd6109", "#7f3b08"];
// Okabe and Ito's colours, in an order that contrasts with a light and with a dark ground; dashes tell them apart too.
const ON_LIGHT = ["#0072b2", "#d55e00", "#00805d", "#a8558a", "#7a5c00", "#1b1b1b"];
const ON_DARK = ["#56b4e9", "#e69f00", "#2fc79a", "#e2a3c7", "#f0e442", "#eeeeee"];
const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [12, 4]];

export class Source {
  constructor(values) { this.values = values; this.calls = {}; }
  get(name) { return this.values[name]; }
  set(name, value) {
    if (this.values[name] === value) return;
    this.values[name] = value;
    for (const call of [...(this.calls["change:" + name] ?? [])]) call();
  }
  save_changes() {}
  send() {}
  on(event, call) { (this.calls[event] ??= new Set()).add(call); }
  off(event, call) { this.calls[event]?.delete(call); }
}

export function pack(spec, numbers) {
  const bytes = new TextEncoder().encode(JSON.stringify(spec));
  return { spec: new DataView(bytes.buffer), values: new DataView(Float32Array.from(numbers).buffer) };
}

// A source from a saved page's JSON: the numbers in base64.
export function unpacked({ spec, values, row = 0, col = 0 }) {
  const text = atob(values), bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
  return new Source({ ...pack(spec, []), values: new DataView(bytes.buffer), row, col });
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function bytesOf(view) {
  return view && view.byteLength ? new Uint8Array(view.buffer, view.byteOffset, view.byteLength) : new Uint8Array(0);
}

function rgb(hex) { return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)); }

function ramp(stops, share) {
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  const [from, to] = [rgb(stops[low]), rgb(stops[low + 1])];
  return from.map((level, i) => Math.round(level + (to[i] - level) * (at - low)));
}

// One hue, light to dark, for text grounds; and black or white, whichever contrasts with it more (WCAG 2.1).
function ground(share) {
  const levels = [[247, 8], [251, 48], [255, 107]].map(([light, dark]) => Math.round(light + (dark - light) * share));
  const [r, g, b] = levels.map((level) => level / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return [`rgb(${levels})`, 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff"];
}

function short(text, longest) {
  const parts = [...text];
  return parts.length <= longest ? text : parts.slice(0, longest - 1).join("") + "…";
}

function plain(value) {
  if (!Number.isFinite(value)) return "none";
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

export function mount(el, source) {
  const root = element("div", "tv");
  const head = element("div", "tv-head"), title = element("span", "tv-title"), tools = element("span", "tv-tools");
  const body = element("div"), key = element("div", "tv-key"), notice = element("div", "tv-notice");
  const tip = element("div", "tv-tip"), live = element("div", "tv-hidden"), heard = element("div", "tv-hidden");
  tip.hidden = true;
  tip.setAttribute("role", "tooltip");
  live.setAttribute("aria-live", "polite");
  head.append(title, tools);
  root.append(head, body, key, notice, tip, live, heard);
  el.append(root);
  const view = { root, body, tools, key, tip, live, heard, source, spec: {}, values: new Float32Array(0) };
  view.chosen = () => [source.get("row"), source.get("col")];
  view.choose = (row, col) => {
    source.set("row", row);
    source.set("col", col);
    source.save_changes();
  };
  view.say = (x, y, text) => {
    tip.textContent = text;
    tip.hidden = false;
    const room = root.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(0, Math.min(x + 12, room))}px`;
    tip.style.top = `${y + 16}px`;
  };
  view.colours = () => {
    const style = getComputedStyle(root);
    const dark = style.backgroundColor.match(/[\d.]+/g).slice(0, 3).reduce((sum, c) => sum + Number(c), 0) < 384;
    return { ink: style.color, ground: style.backgroundColor, line: style.getPropertyValue("--tv-line").trim() || "#888",
      accent: "#d55e00", series: dark ? ON_DARK : ON_LIGHT };
  };
  let kind = null, part = null, waiting = 0;
  const paint = () => {
    waiting = 0;
    // Off the page, or in a cell that is not laid out, there is no width to draw to; it is drawn when it is seen again.
    if (!body.clientWidth) return;
    part?.draw();
    root.dataset.painted = String(Number(root.dataset.painted ?? 0) + 1);
  };
  // The table for screen readers follows when there is time: it must not hold up what is seen.
  let telling = 0;
  view.tell = (make) => {
    clearTimeout(telling);
    telling = setTimeout(() => view.heard.replaceChildren(...make()), 150);
  };
  view.redraw = () => { waiting ||= requestAnimationFrame(paint); };
  const read = () => {
    const json = bytesOf(source.get("spec")), raw = bytesOf(source.get("values"));
    view.spec = json.length ? JSON.parse(new TextDecoder().decode(json)) : { kind: "grid", rows: [], cols: [] };
    view.values = new Float32Array(raw.slice(0, raw.length & ~3).buffer);
    title.textContent = view.spec.title ?? "";
    notice.textContent = view.spec.notice ?? "";
    root.dataset.kind = view.spec.kind;
    tip.hidden = true;
    if (view.spec.kind !== kind) {
      part?.close();
      body.replaceChildren();
      tools.replaceChildren();
      key.replaceChildren();
      kind = view.spec.kind;
      part = { grid: gridView, lines: linesView, strip: stripView }[kind](view);
    }
    part.update();
    view.redraw();
  };
  // spec and values come together: read them once both are set.
  let reading = 0;
  const later = () => { reading ||= queueMicrotask(() => { reading = 0; read(); }) ?? 1; };
  const moved = () => { part?.moved?.(); view.redraw(); };
  const events = [["change:spec", later], ["change:values", later], ["change:row", moved], ["change:col", moved]];
  for (const [event, call] of events) source.on(event, call);
  const sizes = new ResizeObserver(view.redraw);
  sizes.observe(root);
  const seen = new IntersectionObserver(view.redraw);
  seen.observe(root);
  // JupyterLab names its theme on the body, before or after its styles have come; elsewhere the system's preference
  // changes.
  let styling = 0;
  const themes = new MutationObserver(() => {
    view.redraw();
    clearTimeout(styling);
    styling = setTimeout(view.redraw, 400);
  });
  themes.observe(document.body, { childList: true, attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
  themes.observe(document.head, { childList: true });
  const styled = (event) => { if (event.target.nodeName === "LINK") view.redraw(); };
  document.addEventListener("load", styled, true);
  const preference = matchMedia("(prefers-color-scheme: dark)");
  preference.addEventListener("change", view.redraw);
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
  read();
  return () => {
    for (const [event, call] of events) source.off(event, call);
    sizes.disconnect();
    seen.disconnect();
    clearTimeout(telling);
    clearTimeout(styling);
    themes.disconnect();
    document.removeEventListener("load", styled, true);
    preference.removeEventListener("change", view.redraw);
    cancelAnimationFrame(waiting);
    part?.close();
    view.values = new Float32Array(0);
    root.remove();
  };
}

function prepared(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = Math.max(120, canvas.parentNode.clientWidth);
  canvas.style.height = `${height}px`;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  return [pen, width];
}

function canvasFor(view, help) {
  const canvas = element("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", help);
  view.body.append(canvas);
  canvas.addEventListener("pointerleave", () => { view.tip.hidden = true; });
  canvas.addEventListener("blur", () => { view.tip.hidden = true; });
  return canvas;
}

function tool(view, text, label, act) {
  const button = element("button", "", text);
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.title = label;
  button.addEventListener("click", act);
  view.tools.append(button);
}

function gridView(view) {
  const canvas = canvasFor(view, "grid of cells: arrow keys move, Home and End go to the ends, plus and minus zoom, 0 shows all");
  const LEFT = 64, TOP = 4;
  let from = 0, to = 1, picture = null, shape = "", drag = null, place = null;
  const nRows = () => view.spec.rows.length, nCols = () => view.spec.cols.length;
  const first = () => view.spec.first ?? 0;
  const at = (row, col) => view.values[row * nCols() + col];
  const stops = () => view.spec.scale === "diverging" ? DIVERGING : SEQUENTIAL;

  function shade(value) {
    const { low, high, scale } = view.spec;
    if (scale === "diverging") return 0.5 + value / (2 * Math.max(Math.abs(low), Math.abs(high), 1e-9));
    if (scale === "log") return (Math.log1p(value) - Math.log1p(low)) / Math.max(Math.log1p(high) - Math.log1p(low), 1e-9);
    return (value - low) / Math.max(high - low, 1e-9);
  }

  function update() {
    const now = `${nRows()} ${nCols()} ${first()}`;
    if (now !== shape) { [from, to, shape] = [0, nCols(), now]; }
    const pixels = new ImageData(Math.max(1, nCols()), Math.max(1, nRows()));
    for (let i = 0; i < view.values.length; i++) {
      const value = view.values[i];
      const [r, g, b] = Number.isNaN(value) ? [128, 128, 128] : ramp(stops(), shade(value));
      pixels.data.set([r, g, b, Number.isNaN(value) ? 90 : 255], 4 * i);
    }
    picture = element("canvas");
    picture.width = pixels.width;
    picture.height = pixels.height;
    picture.getContext("2d").putImageData(pixels, 0, 0);
    drawKey();
    tableOf();
  }

  function drawKey() {
    view.key.replaceChildren();
    if (!nCols()) return;
    const { low, high, unit } = view.spec;
    const edge = Math.max(Math.abs(low), Math.abs(high));
    const [least, most] = view.spec.scale === "diverging" ? [-edge, edge] : [low, high];
    const bar = element("span");
    bar.style.cssText = "display:inline-block;width:120px;height:10px;border:1px solid var(--tv-line)";
    bar.style.background = `linear-gradient(90deg, ${stops().join(",")})`;
    const log = view.spec.scale === "log" ? ", logarithmic" : "";
    view.key.append(element("span", "", plain(least)), bar, element("span", "", `${plain(most)} ${unit}${log}`));
  }

  function words(row, col) {
    const spec = view.spec, value = at(row, col);
    return `${spec.row_name} ${spec.rows[row]}, ${spec.col_name} ${first() + col}` +
      (spec.cols[col] ? ` «${spec.cols[col]}»` : "") + `: ${plain(value)} ${spec.unit}`;
  }

  // What a screen reader reads: all rows for the columns about the chosen one.
  function table() {
    const col = view.chosen()[1] - first();
    if (!nCols()) return [];
    const begin = Math.max(0, Math.min(col - 6, nCols() - 12)), end = Math.min(nCols(), begin + 12);
    const made = element("table"), top = element("tr");
    made.append(element("caption", "", `${view.spec.title}; ${view.spec.col_name} ${first() + begin} to ${first() + end - 1}`));
    top.append(element("th", "", view.spec.row_name));
    for (let c = begin; c < end; c++) top.append(element("th", "", `${first() + c} ${view.spec.cols[c]}`));
    made.append(top);
    for (let r = 0; r < nRows(); r++) {
      const line = element("tr");
      line.append(element("th", "", view.spec.rows[r]));
      for (let c = begin; c < end; c++) line.append(element("td", "", plain(at(r, c))));
      made.append(line);
    }
    return [made];
  }

  function tableOf() {
    const [row, chosen] = view.chosen(), col = chosen - first();
    const inside = row >= 0 && row < nRows() && col >= 0 && col < nCols();
    canvas.setAttribute("aria-label", view.spec.title + (inside ? `; ${words(row, col)}` : ""));
    if (inside && document.activeElement === canvas) view.live.textContent = words(row, col);
    view.tell(table);
  }

  function sizes() {
    const width = canvas.parentNode.clientWidth, wide = (width - LEFT - 4) / Math.max(to - from, 1e-9);
    const tall = Math.max(9, Math.min(26, Math.floor(300 / Math.max(1, nRows()))));
    return { width, wide, tall, labels: wide >= 13 && view.spec.cols.some(Boolean) };
  }

  function draw() {
    const { wide, tall, labels } = sizes(), bottom = labels ? 84 : 20;
    const [pen, width] = prepared(canvas, TOP + nRows() * tall + bottom);
    const colours = view.colours(), high = nRows() * tall, inner = width - LEFT - 4;
    if (!nCols()) return;
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, TOP, inner, high);
    pen.clip();
    pen.imageSmoothingEnabled = wide < 1;
    pen.drawImage(picture, 0, 0, nCols(), nRows(), LEFT - from * wide, TOP, nCols() * wide, high);
    pen.strokeStyle = colours.ground;
    pen.lineWidth = 2;
    for (const col of view.spec.breaks ?? []) {
      const x = LEFT + (col - from) * wide;
      pen.strokeRect(x, TOP, 0, high);
    }
    if (view.spec.edit) {
      pen.strokeStyle = colours.line;
      pen.lineWidth = 1;
      for (let c = 0; c <= nCols(); c++) pen.strokeRect(LEFT + (c - from) * wide, TOP, 0, high);
      for (let r = 0; r <= nRows(); r++) pen.strokeRect(LEFT, TOP + r * tall, inner, 0);
    }
    pen.restore();
    pen.fillStyle = colours.ink;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const step = Math.ceil(12 / tall);
    for (let r = 0; r < nRows(); r += step) pen.fillText(short(view.spec.rows[r], 10), LEFT - 6, TOP + (r + 0.5) * tall);
    const [row, chosen] = view.chosen(), col = chosen - first();
    if (labels) {
      for (let c = Math.max(0, Math.floor(from)); c < Math.min(nCols(), to); c++) {
        const x = LEFT + (c + 0.5 - from) * wide;
        if (x < LEFT || x > width) continue;
        pen.save();
        pen.translate(x, TOP + high + 5);
        pen.rotate(-Math.PI / 2);
        pen.font = `${c === col ? "bold " : ""}11px system-ui, sans-serif`;
        pen.fillText(short(view.spec.cols[c], 11), 0, 0);
        pen.restore();
      }
    } else {
      pen.textAlign = "center";
      const round = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((n) => n * wide >= 60) ?? 10000;
      for (let c = Math.ceil((first() + from) / round) * round; c < first() + to; c += round) {
        pen.fillText(String(c), LEFT + (c - first() + 0.5 - from) * wide, TOP + high + 11);
      }
    }
    if (row >= 0 && row < nRows() && col >= from - 1 && col < to) {
      const size = Math.max(wide, 4), x = LEFT + (col + 0.5 - from) * wide - size / 2, y = TOP + row * tall;
      for (const [colour, line] of [[colours.ground, 5], [colours.accent, 2.5]]) {
        pen.strokeStyle = colour;
        pen.lineWidth = line;
        pen.strokeRect(x, y, size, tall);
      }
    }
  }

  function window_(begin, length) {
    const n = nCols(), size = Math.max(Math.min(8, n), Math.min(n, length));
    from = Math.max(0, Math.min(n - size, begin));
    to = from + size;
    view.redraw();
  }

  function zoom(factor, around) {
    const [, chosen] = view.chosen(), col = around ?? (chosen - first() + 0.5);
    const middle = col >= from && col <= to ? col : (from + to) / 2;
    window_(middle - (middle - from) * factor, (to - from) * factor);
  }

  function hit(event) {
    const box = canvas.getBoundingClientRect(), { wide, tall } = sizes();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const col = Math.floor(from + (x - LEFT) / wide), row = Math.floor((y - TOP) / tall);
    const inside = x >= LEFT && row >= 0 && row < nRows() && col >= 0 && col < nCols();
    return { x, y, row, col, wide, share: from + (x - LEFT) / wide, inside };
  }

  function act(row, col) {
    view.choose(row, first() + col);
    if (view.spec.edit) view.source.send({ type: "toggle", row, col });
  }

  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, from, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const found = hit(event);
    if (drag && Math.abs(event.clientX - drag.x) > 4) drag.moved = true;
    if (drag?.moved) {
      window_(drag.from - (event.clientX - drag.x) / found.wide, to - from);
      view.tip.hidden = true;
    } else if (found.inside) {
      const top = canvas.offsetTop;
      view.say(found.x, found.y + top, words(found.row, found.col));
    } else view.tip.hidden = true;
  });
  canvas.addEventListener("pointerup", (event) => {
    const found = hit(event), panned = drag?.moved;
    drag = null;
    if (!panned && found.inside) act(found.row, found.col);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  // The wheel zooms only where it was asked to, so that it still scrolls the page elsewhere.
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    if (event.shiftKey) window_(from + (event.deltaX || event.deltaY) * (to - from) / 1000, to - from);
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, hit(event).share);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const [row, chosen] = view.chosen(), col = chosen - first(), page = Math.max(1, Math.round((to - from) / 2));
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [0, -page],
      PageDown: [0, page], Home: [0, -nCols()], End: [0, nCols()] };
    if (event.key in moves) {
      const [down, right] = moves[event.key];
      view.choose(Math.max(0, Math.min(nRows() - 1, row + down)), first() + Math.max(0, Math.min(nCols() - 1, col + right)));
    } else if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "0") window_(0, nCols());
    else if ((event.key === "Enter" || event.key === " ") && view.spec.edit) act(row, col);
    else return;
    // Before JupyterLab takes the key for itself.
    event.preventDefault();
    event.stopPropagation();
  });
  if (!view.spec.edit) {
    tool(view, "+", "zoom in", () => zoom(0.5));
    tool(view, "−", "zoom out", () => zoom(2));
    tool(view, "◀", "move left", () => window_(from - (to - from) / 2, to - from));
    tool(view, "▶", "move right", () => window_(from + (to - from) / 2, to - from));
    tool(view, "all", "show all", () => window_(0, nCols()));
  }

  return {
    update,
    draw,
    moved() {
      const col = view.chosen()[1] - first();
      if (place !== col && (col < from || col + 1 > to)) window_(col + 0.5 - (to - from) / 2, to - from);
      place = col;
      tableOf();
    },
    close() { picture = null; },
  };
}

function linesView(view) {
  const canvas = canvasFor(view, "lines: left and right arrow keys read the points");
  const LEFT = 62, RIGHT = 14, TOP = 8, BOTTOM = 38, HEIGHT = 240;
  let lines = [], reading = -1;

  function update() {
    let offset = 0;
    lines = view.spec.lines.map(({ name, n }) => {
      const xs = view.values.subarray(offset, offset + n), ys = view.values.subarray(offset + n, offset + 2 * n);
      offset += 2 * n;
      return { name, xs, ys };
    });
    reading = -1;
    const table = element("table"), top = element("tr");
    table.append(element("caption", "", view.spec.title));
    top.append(element("th", "", view.spec.x_name), ...lines.map((line) => element("th", "", line.name)));
    table.append(top);
    for (const x of allX()) {
      const row = element("tr");
      row.append(element("th", "", plain(x)), ...lines.map((line) => element("td", "", plain(valueAt(line, x)))));
      table.append(row);
    }
    view.tell(() => [table]);
    canvas.setAttribute("aria-label", `${view.spec.title}: ${lines.map((line) => line.name).join(", ")} by ${view.spec.x_name}`);
  }

  const allX = () => [...new Set(lines.flatMap((line) => [...line.xs]))].sort((a, b) => a - b);
  function valueAt(line, x) {
    const at = line.xs.indexOf(x);
    return at < 0 ? NaN : line.ys[at];
  }

  function axis(values, log, begin, end) {
    const known = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
    let low = Math.min(...known), high = Math.max(...known);
    if (!known.length) [low, high] = log ? [1, 10] : [0, 1];
    if (!log && low >= 0) low = 0;
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [low, high + 1];
    const to = log ? Math.log : (v) => v, [a, b] = [to(low), to(high)];
    const ticks = [];
    if (log && values === view.xs) {
      // Positions and blocks are read in doublings.
      for (let power = Math.ceil(Math.log2(low) - 1e-9); 2 ** power <= high * 1.001; power++) ticks.push(2 ** power);
      if (ticks.length < 2) ticks.splice(0, ticks.length, low, high);
    } else if (log) {
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
        for (const step of high / low < 50 ? [1, 2, 5] : [1]) {
          const tick = step * 10 ** power;
          if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
        }
      }
      if (ticks.length < 2) ticks.splice(0, ticks.length, low, high);
    } else {
      const rough = (high - low) / 5, size = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= rough);
      const whole = view.spec.whole_x && values === view.xs ? Math.max(1, Math.round(step)) : step;
      for (let tick = Math.ceil(low / whole) * whole; tick <= high + 1e-9; tick += whole) ticks.push(Number(tick.toPrecision(6)));
    }
    const place = (v) => begin + (end - begin) * (to(log ? Math.max(v, low) : v) - a) / (b - a);
    return { place, ticks };
  }

  let scaleX = null;
  function draw() {
    const [pen, width] = prepared(canvas, HEIGHT), colours = view.colours();
    view.xs = lines.flatMap((line) => [...line.xs]);
    const x = axis(view.xs, view.spec.log_x, LEFT + 8, width - RIGHT);
    const y = axis(lines.flatMap((line) => [...line.ys]), view.spec.log_y, HEIGHT - BOTTOM, TOP + 4);
    scaleX = x;
    pen.strokeStyle = colours.line;
    pen.fillStyle = colours.ink;
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const tick of y.ticks) {
      pen.globalAlpha = 0.4;
      pen.strokeRect(LEFT, y.place(tick), width - RIGHT - LEFT, 0);
      pen.globalAlpha = 1;
      pen.fillText(plain(tick), LEFT - 6, y.place(tick));
    }
    pen.textAlign = "center";
    let free = -Infinity;
    for (const tick of x.ticks) {
      const at = x.place(tick);
      if (at < free) continue;
      free = at + 34;
      pen.fillText(plain(tick), at, HEIGHT - BOTTOM + 13);
    }
    pen.fillText(view.spec.x_name, (LEFT + width) / 2, HEIGHT - 8);
    pen.save();
    pen.translate(10, (TOP + HEIGHT - BOTTOM) / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(view.spec.y_name, 0, 0);
    pen.restore();
    lines.forEach((line, i) => {
      pen.strokeStyle = pen.fillStyle = colours.series[i % colours.series.length];
      pen.lineWidth = 2;
      pen.setLineDash(DASHES[i % DASHES.length]);
      pen.beginPath();
      line.xs.forEach((value, k) => {
        if (Number.isFinite(line.ys[k])) pen.lineTo(x.place(value), y.place(line.ys[k]));
      });
      pen.stroke();
      pen.setLineDash([]);
      if (line.xs.length <= 64) {
        line.xs.forEach((value, k) => {
          if (!Number.isFinite(line.ys[k])) return;
          pen.beginPath();
          pen.arc(x.place(value), y.place(line.ys[k]), 3, 0, 7);
          pen.fill();
        });
      }
    });
    if (reading >= 0) {
      pen.strokeStyle = colours.accent;
      pen.lineWidth = 1.5;
      pen.strokeRect(x.place(allX()[reading]), TOP, 0, HEIGHT - BOTTOM - TOP);
    }
    view.key.replaceChildren(...lines.map((line, i) => {
      const item = element("span"), swatch = element("canvas");
      [swatch.width, swatch.height] = [34, 10];
      swatch.setAttribute("aria-hidden", "true");
      swatch.style.cssText = "display:inline-block;width:34px;height:10px;margin-right:4px";
      const pen2 = swatch.getContext("2d");
      pen2.strokeStyle = colours.series[i % colours.series.length];
      pen2.lineWidth = 3;
      pen2.setLineDash(DASHES[i % DASHES.length]);
      pen2.moveTo(0, 5);
      pen2.lineTo(34, 5);
      pen2.stroke();
      item.append(swatch, line.name);
      return item;
    }));
  }

  const words = (x) => `${view.spec.x_name} ${plain(x)}\n` +
    lines.map((line) => `${line.name}: ${plain(valueAt(line, x))}`).join("\n");
  function nearest(event) {
    const at = event.clientX - canvas.getBoundingClientRect().left, xs = allX();
    let best = 0;
    xs.forEach((x, i) => { if (Math.abs(scaleX.place(x) - at) < Math.abs(scaleX.place(xs[best]) - at)) best = i; });
    return best;
  }
  function read(i) {
    const xs = allX();
    if (!xs.length) return;
    reading = Math.max(0, Math.min(xs.length - 1, i));
    view.say(scaleX.place(xs[reading]), canvas.offsetTop + 20, words(xs[reading]));
    view.redraw();
  }
  canvas.addEventListener("pointermove", (event) => { if (scaleX && allX().length) read(nearest(event)); });
  canvas.addEventListener("click", (event) => {
    if (scaleX && view.spec.chooses) view.choose(Math.round(allX()[nearest(event)]), 0);
  });
  canvas.addEventListener("keydown", (event) => {
    const next = { ArrowLeft: reading - 1, ArrowRight: reading + 1, Home: 0, End: Infinity }[event.key];
    if (next === undefined) {
      if (event.key !== "Enter" || !view.spec.chooses || reading < 0) return;
      view.choose(Math.round(allX()[reading]), 0);
    } else {
      read(next);
      view.live.textContent = words(allX()[reading]);
    }
    event.preventDefault();
    event.stopPropagation();
  });
  return { update, draw, close() { lines = []; } };
}

function stripView(view) {
  const strip = element("div", "tv-strip");
  strip.setAttribute("role", "group");
  view.body.append(strip);
  let buttons = [], built = null;
  const words = (i) => {
    const n = view.spec.labels.length;
    const counts = Array.from({ length: view.values.length / n }, (_, row) => `${view.spec.row_name} ${row}: ${view.values[row * n + i]}`);
    return `${view.spec.col_name} ${view.spec.first + i} «${view.spec.labels[i]}», active neurons: ${counts.join(", ")}`;
  };
  function update() {
    const had = strip.contains(document.activeElement), breaks = new Set(view.spec.breaks);
    strip.setAttribute("aria-label", `${view.spec.title}: darker where more neurons are active`);
    // The same buttons with other texts, where the lines break alike: quicker than new ones.
    const shape = `${view.spec.labels.length}:${view.spec.breaks}`;
    if (shape === built) {
      buttons.forEach((button, i) => { if (button.firstChild.data !== view.spec.labels[i]) button.firstChild.data = view.spec.labels[i]; });
    } else {
      built = shape;
      buttons = view.spec.labels.map((label) => {
        const button = element("button");
        button.type = "button";
        button.append(document.createTextNode(label));
        return button;
      });
      strip.replaceChildren(...buttons.flatMap((button, i) => breaks.has(i) ? [button, " ", element("br")] : [button, " "]));
    }
    colour();
    if (had) buttons[view.chosen()[1] - view.spec.first]?.focus({ preventScroll: true });
  }
  function colour() {
    const [row, col] = view.chosen(), n = buttons.length, largest = view.spec.largest[row];
    buttons.forEach((button, i) => {
      const count = view.values[row * n + i];
      const [back, ink] = ground(largest > 0 ? Math.log1p(count) / Math.log1p(largest) : 0);
      button.style.background = back;
      button.style.color = ink;
      button.tabIndex = view.spec.first + i === col ? 0 : -1;
      if (view.spec.first + i === col) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      if (button.childNodes.length > 1) button.lastChild.remove();
      button.removeAttribute("aria-description");
      if (view.spec.numbers) button.append(element("sub", "", String(count)));
    });
  }
  const tell = (event) => {
    const i = buttons.indexOf(event.target.closest("button"));
    if (i < 0) return;
    const [outer, box] = [view.root.getBoundingClientRect(), buttons[i].getBoundingClientRect()];
    view.say(box.left - outer.left, box.bottom - outer.top - 8, words(i));
    buttons[i].setAttribute("aria-description", words(i));
  };
  strip.addEventListener("pointerover", tell);
  strip.addEventListener("focusin", tell);
  strip.addEventListener("pointerout", () => { view.tip.hidden = true; });
  strip.addEventListener("focusout", () => { view.tip.hidden = true; });
  strip.addEventListener("click", (event) => {
    const i = buttons.indexOf(event.target.closest("button"));
    if (i < 0) return;
    view.choose(view.chosen()[0], view.spec.first + i);
    buttons[i]?.focus({ preventScroll: true });
  });
  strip.addEventListener("keydown", (event) => {
    const n = buttons.length, [row, col] = view.chosen(), begin = view.spec.first;
    const next = { ArrowRight: col + 1, ArrowLeft: col - 1, ArrowDown: col + 10, ArrowUp: col - 10, Home: begin, End: begin + n - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    view.choose(row, Math.max(0, Math.min(view.spec.n - 1, next)));
    buttons[view.chosen()[1] - view.spec.first]?.focus({ preventScroll: true });
  });
  return { update, draw() {}, moved: colour, close() { buttons = []; } };
}

export default { render: ({ model, el }) => mount(el, model) };
