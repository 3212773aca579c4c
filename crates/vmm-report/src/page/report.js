"use strict";
// Draws the figures of a report. All data is in the page; nothing is loaded.
(() => {
const MIB = 1 << 20;
const root = document.documentElement;
const bytesOf = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const f64 = text => new Float64Array(bytesOf(text).buffer);
const f32 = text => new Float32Array(bytesOf(text).buffer);
const color = name => getComputedStyle(root).getPropertyValue("--" + name).trim();

function bytes(n) {
  const units = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  for (const [unit, name] of units) {
    if (n >= unit) { const v = n / unit; return `${v < 10 ? v.toFixed(2) : v < 100 ? v.toFixed(1) : v.toFixed(0)} ${name}`; }
  }
  return `${n} bytes`;
}
function time(us) {
  return us < 1e3 ? `${us.toFixed(0)} µs` : us < 1e6 ? `${(us / 1e3).toFixed(2)} ms` : `${(us / 1e6).toFixed(3)} s`;
}
// Marks: powers of two for bytes, 1, 2 or 5 times a power of ten for times.
function byteStep(most) { let step = 1; while (most / step > 6) step *= 2; return step; }
function timeStep(span, marks) {
  for (let step = 1; ; step *= 10) for (const f of [1, 2, 5]) if (span / (step * f) <= marks) return step * f;
}
function markText(us, step) {
  if (us === 0) return "0";
  if (us < 1e3) return `${us} µs`;
  if (step >= 1e6) return `${us / 1e6} s`;
  if (us >= 1e6) return `${(us / 1e6).toFixed(Math.max(0, 6 - Math.floor(Math.log10(step))))} s`;
  return step >= 1e3 ? `${us / 1e3} ms` : `${(us / 1e3).toFixed(step >= 100 ? 1 : 3)} ms`;
}

// A mark of bytes, with as many digits as it takes to be exact, four at most.
function markBytes(n) {
  if (n === 0) return "0";
  const [unit, name] = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]].find(([unit]) => n >= unit);
  return `${+(n / unit).toFixed(4)} ${name}`;
}
// Rounding never moves a share to another level: there it has one digit more, or is rounded down.
function percent(share) {
  const stays = p => level(p / 100) === level(share), p = share * 100;
  if (stays(Math.round(p))) return `${Math.round(p)} %`;
  const tenths = Math.round(p * 10) / 10;
  return `${(stays(tenths) ? tenths : Math.floor(p * 10) / 10).toFixed(1)} %`;
}
function level(share) { return share < 0.1 ? "low" : share < 0.3 ? "medium" : share < 0.6 ? "high" : "severe"; }

// The first index with t[index] > value.
function after(t, value) {
  let low = 0, high = t.length;
  while (low < high) { const mid = (low + high) >> 1; if (t[mid] <= value) low = mid + 1; else high = mid; }
  return low;
}

// Least and most of ever more stretches, each level half as long as the one below, so that those of
// any range are found in a few steps. A stretch has three numbers for each quantity: least, most, last.
const LANES = 9;
class Pyramid {
  constructor(t, v) {
    this.t = t; this.v = v; this.levels = [v];
    for (let count = t.length; count > 1; count = (count + 1) >> 1) {
      const below = this.levels[this.levels.length - 1], up = new Float32Array(((count + 1) >> 1) * LANES);
      for (let i = 0; i < count; i++) {
        for (let lane = 0; lane < LANES; lane += 3) {
          const from = i * LANES + lane, to = (i >> 1) * LANES + lane, first = !(i & 1);
          up[to] = first ? below[from] : Math.min(up[to], below[from]);
          up[to + 1] = first ? below[from + 1] : Math.max(up[to + 1], below[from + 1]);
        }
      }
      this.levels.push(up);
    }
    this.reads = 0;
  }
  // Least and most of the stretches from a to before b.
  range(a, b, lane) {
    let low = Infinity, high = -Infinity;
    const take = (level, i) => {
      const at = i * LANES + lane, v = this.levels[level];
      low = Math.min(low, v[at]); high = Math.max(high, v[at + 1]); this.reads++;
    };
    for (let level = 0; a < b; level++, a >>= 1, b >>= 1) {
      if (a & 1) take(level, a++);
      if (b & 1) take(level, --b);
    }
    return [low, high];
  }
}

// On paper figures have a size of their own, whatever the window has: pixels would be stretched to it.
const PAPER = { memory: [700, 230], causes: [700, 230], map: [700, 300], peak: [700, 300], small: [330, 130] };
let isPrinting = false;
const dots = () => isPrinting ? 3 : window.devicePixelRatio || 1;

const LEFT = 68, RIGHT = 10, TOP = 8, BOTTOM = 24;
const CAUSES = [["in-use", "in use"], ["rounding", "rounding"], ["fenced", "still in use by a stream"], ["other-pool", "other pool or class"],
  ["other-stream", "other stream"], ["too-small", "holes too small"], ["cached", "cached beyond need"]];

// Lines of the recorded program, and their places among the numbers of a stretch.
const LINES = [["reserved", 6], ["live", 3], ["requested", 0]];

class Device {
  constructor(data) {
    this.data = data;
    this.end = Math.max(data.duration, 1);
    this.t0 = 0; this.t1 = this.end;
    this.curve = new Pyramid(f64(data.s.t), f32(data.s.v));
    this.samples = { t: f64(data.c.t), v: f32(data.c.v) };
    if (data.m) this.map = { ...data.m, t: f64(data.m.t), cells: bytesOf(data.m.cells) };
    this.samples.judged = f64(data.c.judged); this.samples.servable = f64(data.c.servable); this.samples.next = f64(data.c.next);
    // Lines of what policies reserved, and of all lines those that are shown.
    this.lines = data.lines.map((line, i) => ({ name: line.name, key: `p${i}`, color: `p${i % 6}`, t: f64(line.t), v: f32(line.v) }));
    this.hidden = new Set(data.lines.flatMap((line, i) => line.on ? [] : [`p${i}`]));
    // The part of the map's addresses that is shown.
    this.a1 = this.a0 = 0;
    if (this.map) { this.a1 = this.map.len; this.map.starts = f64(data.m.starts); this.map.offsets = f64(data.m.offsets); }
    // What lay where at the peak, and where there is a button for it, when an allocation failed.
    this.states = [data.p, data.f].filter(state => state).map(state => ({ ...state, offset: f64(state.offset), address: f64(state.address), size: f64(state.size), len: f64(state.len), owner: f64(state.owner) }));
    this.state = this.states[0];
    this.charts = [];
    this.pointer = null;
  }
  show(t0, t1) {
    const span = Math.min(Math.max(t1 - t0, Math.min(10, this.end)), this.end);
    this.t0 = Math.min(Math.max(t0, 0), this.end - span);
    this.t1 = this.t0 + span;
    this.redraw();
  }
  showAddresses(a0, a1) {
    // A few rows of the map at least: there is nothing to see in a part of one.
    const all = this.map.len, span = Math.min(Math.max(a1 - a0, all / this.map.rows * 8), all);
    this.a0 = Math.min(Math.max(a0, 0), all - span);
    this.a1 = this.a0 + span;
    this.redraw();
  }
  zoomAddresses(factor, at = (this.a0 + this.a1) / 2) { this.showAddresses(at - (at - this.a0) * factor, at + (this.a1 - at) * factor); }
  panAddresses(share) { const by = (this.a1 - this.a0) * share; this.showAddresses(this.a0 + by, this.a1 + by); }
  showAll() { if (this.map) this.showAddresses(0, this.map.len); this.show(0, this.end); }
  shown(line) { return !this.hidden.has(line); }
  zoom(factor, at = (this.t0 + this.t1) / 2) { this.show(at - (at - this.t0) * factor, at + (this.t1 - at) * factor); }
  pan(share) { const by = (this.t1 - this.t0) * share; this.show(this.t0 + by, this.t1 + by); }
  redraw() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => { this.waits = false; this.charts.forEach(chart => chart.draw()); });
  }
}

class Chart {
  constructor(canvas, device) {
    this.canvas = canvas; this.device = device; this.kind = canvas.dataset.kind; this.small = "small" in canvas.dataset;
    device.charts.push(this);
    new ResizeObserver(() => this.draw()).observe(canvas);
    if (this.small) return;
    canvas.addEventListener("pointermove", e => this.move(e));
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; device.pointer = null; this.hovered = undefined; device.redraw(); });
    if (this.kind === "peak") return;
    canvas.tabIndex = 0;
    canvas.addEventListener("wheel", e => {
      // Without a key the wheel belongs to the page, which must not be trapped.
      if (!(e.ctrlKey || e.metaKey || e.shiftKey)) return;
      e.preventDefault();
      const factor = Math.exp((e.deltaY || e.deltaX) * 0.002);
      if (e.shiftKey && this.kind === "map") device.zoomAddresses(factor, this.bytesAt(e.offsetY));
      else device.zoom(factor, this.timeAt(e.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", e => { this.drag = { x: e.clientX, y: e.clientY, t0: device.t0, t1: device.t1, a0: device.a0, a1: device.a1 }; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointerup", () => { this.drag = null; });
    canvas.addEventListener("pointercancel", () => { this.drag = null; });
    canvas.addEventListener("dblclick", () => device.showAll());
    canvas.addEventListener("keydown", e => {
      const upright = this.kind !== "map" ? {} : { ArrowUp: () => device.panAddresses(0.2), ArrowDown: () => device.panAddresses(-0.2),
        PageUp: () => device.zoomAddresses(0.5), PageDown: () => device.zoomAddresses(2) };
      const act = { "+": () => device.zoom(0.5), "=": () => device.zoom(0.5), "-": () => device.zoom(2), "0": () => device.showAll(),
        ArrowLeft: () => device.pan(-0.2), ArrowRight: () => device.pan(0.2), ...upright }[e.key];
      if (act) { e.preventDefault(); act(); }
    });
  }
  get inner() { return this.width - LEFT - RIGHT; }
  timeAt(x) { return this.device.t0 + (x - LEFT) / this.inner * (this.device.t1 - this.device.t0); }
  x(t) { return LEFT + (t - this.device.t0) / (this.device.t1 - this.device.t0) * this.inner; }
  // From this.least at the bottom to this.most at the top.
  y(bytes) { return TOP + (this.height - TOP - BOTTOM) * (1 - (bytes - this.least) / (this.most - this.least)); }
  bytesAt(y) { return this.least + (1 - (y - TOP) / (this.height - TOP - BOTTOM)) * (this.most - this.least); }
  move(e) {
    const device = this.device;
    if (this.drag) {
      const by = (this.drag.x - e.clientX) / this.inner * (this.drag.t1 - this.drag.t0);
      device.show(this.drag.t0 + by, this.drag.t1 + by);
      if (this.kind === "map") {
        const up = (e.clientY - this.drag.y) / (this.height - TOP - BOTTOM) * (this.drag.a1 - this.drag.a0);
        device.showAddresses(this.drag.a0 + up, this.drag.a1 + up);
      }
      return;
    }
    const text = this.kind === "peak" ? this.pieceAt(e.offsetX, e.offsetY) : this.textAt(this.timeAt(e.offsetX), e.offsetY);
    if (this.kind !== "peak") { device.pointer = this.timeAt(e.offsetX); device.redraw(); }
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const right = e.clientX + 14 + tip.offsetWidth < innerWidth;
    tip.style.left = `${right ? e.clientX + 14 : Math.max(4, e.clientX - 14 - tip.offsetWidth)}px`;
    tip.style.top = `${Math.max(4, Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 4))}px`;
  }
  textAt(t, y) {
    const { device } = this, s = device.curve;
    if (t < device.t0 || t > device.t1 || !s.t.length) return "";
    if (this.kind === "causes") {
      const i = Math.max(0, after(device.samples.t, t) - 1), v = device.samples.v;
      const parts = CAUSES.map(([, name], k) => [name, v[i * 7 + k] * MIB]), all = parts.reduce((sum, [, n]) => sum + n, 0);
      // All but what is in use and what is cached beyond need.
      const share = all ? parts.slice(1, 6).reduce((sum, [, n]) => sum + n, 0) / all : 0, { judged, servable, next } = device.samples;
      return [`at ${time(device.samples.t[i])}: ${level(share)}, ${percent(share)}`,
        ...parts.filter(([, n]) => n > 0).reverse().map(([name, n]) => `${name}: ${bytes(Math.round(n))}`),
        `judged by a request of ${bytes(judged[i])}`, `largest block that could be served: ${bytes(servable[i])}`,
        next[i] ? `next to fail: ${bytes(next[i])}` : "next to fail: nothing"].join("\n");
    }
    if (this.kind === "map") return this.cellAt(t, y);
    // A step holds until the next.
    const of = line => line.v[Math.max(0, after(line.t, t) - 1)] * MIB;
    const i = Math.max(0, after(s.t, t) - 1), at = k => bytes(Math.round(s.v[i * LANES + k] * MIB));
    const lines = [`at ${time(s.t[i])}`, `asked for: ${at(1)}`, `in blocks: ${at(4)}`];
    if (device.data.reserved) lines.push(`reserved: ${at(7)}`);
    lines.push(...device.lines.filter(line => device.shown(line.key)).map(line => `reserved by ${line.name}: ${bytes(Math.round(of(line)))}`));
    return lines.join("\n");
  }
  // The cell of the map at a place.
  cellAt(t, y) {
    const { map } = this.device, at = this.bytesAt(y), column = after(map.t, t) - 1;
    if (column < 0 || at < 0 || at >= map.len || y < TOP || y > this.height - BOTTOM) return "";
    const range = Math.max(0, after(map.offsets, at) - 1), address = map.starts[range] + Math.floor(at - map.offsets[range]);
    const level = map.cells[column * map.rows + Math.min(map.rows - 1, Math.floor(at / Math.max(1, Math.ceil(map.len / map.rows))))];
    const use = level === 0 ? "not reserved" : level === 1 ? "free" : level === 10 ? "in use" : `about ${Math.round((level - 1) / 9 * 100)} % in use`;
    return `at ${time(map.t[column])}\n0x${address.toString(16)}: ${use}`;
  }
  draw() {
    const { canvas } = this, dense = dots();
    if (!canvas.clientWidth || !canvas.clientHeight) return;
    const [width, height] = isPrinting ? PAPER[this.small ? "small" : this.kind] : [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * dense) || canvas.height !== Math.round(height * dense)) {
      canvas.width = Math.round(width * dense); canvas.height = Math.round(height * dense);
    }
    Object.assign(this, { width, height });
    const g = this.g = canvas.getContext("2d");
    g.setTransform(dense, 0, 0, dense, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = "12px system-ui, 'DejaVu Sans', Arial, sans-serif";
    ({ memory: () => this.memory(), causes: () => this.causes(), map: () => this.mapped(), peak: () => this.state() })[this.kind]();
    const at = this.device.pointer;
    if (this.kind !== "peak" && !this.small && at !== null && at >= this.device.t0 && at <= this.device.t1) {
      g.strokeStyle = color("axis"); g.lineWidth = 1;
      g.beginPath(); g.moveTo(this.x(at), TOP); g.lineTo(this.x(at), height - BOTTOM); g.stroke();
    }
  }
  axes(most, least = 0) {
    const { g, device } = this;
    this.least = least;
    this.most = Math.max(most, least + 1);
    g.lineWidth = 1; g.fillStyle = color("soft"); g.strokeStyle = color("grid"); g.textAlign = "right"; g.textBaseline = "middle";
    const unit = byteStep(this.most - least);
    for (let mark = Math.ceil(least / unit) * unit; mark <= this.most; mark += unit) {
      const y = Math.round(this.y(mark)) + 0.5;
      g.beginPath(); g.moveTo(LEFT, y); g.lineTo(this.width - RIGHT, y); g.stroke();
      g.fillText(markBytes(mark), LEFT - 6, y);
    }
    const step = timeStep(device.t1 - device.t0, Math.max(3, Math.floor(this.inner / 90)));
    g.textAlign = "center"; g.textBaseline = "top";
    for (let mark = Math.ceil(device.t0 / step) * step; mark <= device.t1; mark += step) {
      const x = this.x(mark);
      g.beginPath(); g.moveTo(x, this.height - BOTTOM); g.lineTo(x, this.height - BOTTOM + 4); g.stroke();
      if (x < this.width - 20) g.fillText(markText(mark, step), x, this.height - BOTTOM + 7);
    }
    g.save(); g.beginPath(); g.rect(LEFT, TOP - 2, this.inner, this.height - TOP - BOTTOM + 4); g.clip();
  }
  memory() {
    const { g, device } = this, s = device.curve;
    const from = Math.max(0, after(s.t, device.t0) - 1), to = after(s.t, device.t1);
    let most = this.small ? ranksMost / MIB : Math.max(0, ...LINES.filter(([line]) => device.shown(line)).map(([, lane]) => s.range(from, to, lane)[1]));
    const policies = this.small ? [] : device.lines.filter(line => device.shown(line.key));
    for (const { t, v } of policies) {
      for (let i = Math.max(0, after(t, device.t0) - 1); i < t.length && t[i] <= device.t1; i++) most = Math.max(most, v[i]);
    }
    const limit = device.data.limit && device.shown("limit") && device.data.limit <= most * MIB * 3 ? device.data.limit : 0;
    this.axes(Math.max(most * MIB, limit) * 1.04);
    const curve = (name, lane, width) => {
      g.strokeStyle = color(name); g.lineWidth = width; g.beginPath();
      for (let i = from; i < to;) {
        const x = Math.max(this.x(s.t[i]), LEFT);
        // All stretches that begin in this pixel at once, but at least one.
        const next = Math.max(i + 1, Math.min(to, after(s.t, this.timeAt(Math.floor(x) + 1))));
        const [low, high] = s.range(i, next, lane);
        // As steps: between two events nothing changes.
        if (i > from) g.lineTo(x, this.y(s.v[(i - 1) * LANES + lane + 2] * MIB));
        g.lineTo(x, this.y(low * MIB)); g.lineTo(x, this.y(high * MIB)); g.lineTo(x, this.y(s.v[(next - 1) * LANES + lane + 2] * MIB));
        i = next;
      }
      if (to > from) g.lineTo(this.x(device.t1), this.y(s.v[(to - 1) * LANES + lane + 2] * MIB));
      g.stroke();
    };
    if (device.data.reserved && device.shown("reserved")) curve("reserved", 6, 1.6);
    for (const { color: name, t, v } of policies) {
      g.strokeStyle = color(name); g.lineWidth = 1.3; g.beginPath();
      for (let i = Math.max(0, after(t, device.t0) - 1); i < t.length; i++) {
        g.lineTo(this.x(t[i]), this.y(v[i] * MIB));
        g.lineTo(this.x(i + 1 < t.length ? t[i + 1] : device.end), this.y(v[i] * MIB));
        if (t[i] > device.t1) break;
      }
      g.stroke();
    }
    if (device.shown("live")) curve("live", 3, 1.2);
    if (device.shown("requested")) curve("requested", 0, 1.5);
    if (limit) { g.strokeStyle = color("limit"); g.setLineDash([6, 4]); g.beginPath(); g.moveTo(LEFT, this.y(limit)); g.lineTo(this.width - RIGHT, this.y(limit)); g.stroke(); g.setLineDash([]); }
    g.restore();
  }
  causes() {
    const { g, device } = this, { t, v } = device.samples;
    const from = Math.max(0, after(t, device.t0) - 1), to = Math.min(t.length, after(t, device.t1) + 1);
    const sums = new Float64Array(to - from);
    let most = 0;
    for (let i = from; i < to; i++) { let sum = 0; for (let k = 0; k < 7; k++) sum += v[i * 7 + k]; most = Math.max(most, sum); }
    this.axes(most * MIB * 1.04);
    CAUSES.forEach(([name], k) => {
      // As steps: between two moments nothing is known to change.
      g.fillStyle = color(name); g.beginPath();
      const edge = i => this.y(sums[i - from] * MIB), end = i => this.x(i + 1 < to ? t[i + 1] : device.t1);
      for (let i = from; i < to; i++) { g.lineTo(this.x(t[i]), edge(i)); g.lineTo(end(i), edge(i)); }
      for (let i = from; i < to; i++) sums[i - from] += v[i * 7 + k];
      for (let i = to - 1; i >= from; i--) { g.lineTo(end(i), edge(i)); g.lineTo(this.x(t[i]), edge(i)); }
      g.fill();
    });
    g.restore();
  }
  // The cells as a picture in the colours of the theme, a dot for each, or for so many rows together: drawing
  // it is quick.
  cells(together) {
    const { map } = this.device, theme = color("free") + color("full");
    if (map.theme !== theme) { map.theme = theme; map.pictures = {}; }
    return map.pictures[together] ??= this.picture(map, together);
  }
  picture({ t, cells, rows }, together) {
    const free = rgb(color("free")), full = rgb(color("full")), height = Math.ceil(rows / together), image = new ImageData(t.length, height);
    for (let column = 0; column < t.length; column++) {
      for (let row = 0; row < height; row++) {
        // What is not reserved has no colour to mix.
        let sum = 0, count = 0;
        for (let i = row * together; i < Math.min(rows, (row + 1) * together); i++) if (cells[column * rows + i]) { sum += cells[column * rows + i]; count++; }
        const at = ((height - 1 - row) * t.length + column) * 4;
        if (!count) continue;
        for (let k = 0; k < 3; k++) image.data[at + k] = Math.round(free[k] + (full[k] - free[k]) * (sum / count - 1) / 9);
        image.data[at + 3] = 255;
      }
    }
    const picture = Object.assign(document.createElement("canvas"), { width: t.length, height });
    picture.getContext("2d").putImageData(image, 0, 0);
    return picture;
  }
  mapped() {
    const { g, device } = this, { t, rows, len } = device.map;
    this.axes(device.a1 === len ? len * 1.02 : device.a1, device.a0);
    const rowLen = Math.max(1, Math.ceil(len / rows)), dense = dots();
    // Whole dots, or seams would be seen between columns. On paper dots are finer than that, so columns
    // reach a little into those that are drawn after them.
    const dot = place => Math.round(place * dense) / dense, over = isPrinting ? 0.4 : 0;
    // Rows that are finer than dots are drawn together, or some would not be seen.
    const shown = (device.a1 - device.a0) / rowLen, together = (this.height - TOP - BOTTOM) * dense < shown ? 2 : 1;
    const step = rowLen * together, all = Math.ceil(rows / together);
    const low = Math.floor(device.a0 / step), high = Math.min(all, Math.ceil(device.a1 / step));
    const top = this.y(high * step), height = this.y(low * step) - top, picture = t.length ? this.cells(together) : null;
    g.imageSmoothingEnabled = false;
    for (let column = Math.max(0, after(t, device.t0) - 1); column < t.length && t[column] <= device.t1; column++) {
      const from = dot(this.x(t[column])), to = dot(this.x(column + 1 < t.length ? t[column + 1] : device.end));
      g.drawImage(picture, column, all - high, 1, high - low, from, top, Math.max(to - from, 1 / dense) + over, height);
    }
    g.restore();
  }
  state() {
    const { g, device } = this, p = device.state, rows = this.rows = Math.max(8, Math.floor(this.height / 16));
    const unit = this.height / rows, rowLen = this.rowLen = p.len_total / rows;
    const free = color("free"), fenced = color("fenced"), owners = Array.from({ length: 9 }, (_, i) => color(`o${i}`));
    for (let i = 0; i < p.offset.length; i++) {
      const owner = p.owner[i];
      g.fillStyle = owner === -1 ? free : owner < -1 ? fenced : owners[Math.min(owner, 8)];
      this.parts(p.offset[i], p.size[i], (x, y, w) => g.fillRect(x, y * unit + 1, Math.max(w - (w > 2 ? 0.6 : 0), 0.3), unit - 2));
    }
    if (this.hovered !== undefined) {
      g.strokeStyle = color("mark"); g.lineWidth = 2;
      this.parts(p.offset[this.hovered], p.size[this.hovered], (x, y, w) => g.strokeRect(x, y * unit + 1, Math.max(w, 2), unit - 2));
    }
  }
  parts(offset, size, put) {
    for (let at = offset, end = offset + size; at < end;) {
      const row = Math.min(Math.floor(at / this.rowLen + 1e-9), this.rows - 1), next = Math.min(end, (row + 1) * this.rowLen);
      if (next <= at) break;
      put((at - row * this.rowLen) / this.rowLen * this.width, row, (next - at) / this.rowLen * this.width);
      at = next;
    }
  }
  pieceAt(x, y) {
    const p = this.device.state, at = (Math.floor(y / this.height * this.rows) + x / this.width) * this.rowLen;
    const i = after(p.offset, at) - 1;
    const found = i >= 0 && at < p.offset[i] + p.size[i] ? i : undefined;
    if (found !== this.hovered) { this.hovered = found; this.draw(); }
    if (found === undefined) return "";
    const address = `0x${p.address[i].toString(16)}`, owner = p.owner[i];
    if (owner === -1) return `free\n${bytes(p.size[i])} at ${address}`;
    const name = p.owners[owner < -1 ? -2 - owner : owner], state = owner < -1 ? "\nreleased, still in use by a stream" : "";
    return `${name}\n${bytes(p.len[i])} in a block of ${bytes(p.size[i])}\nat ${address}${state}`;
  }
}

function rgb(hex) { return [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)); }

const tip = document.getElementById("tip");
const devices = JSON.parse(document.getElementById("data").textContent).map(data => new Device(data));
const ranksMost = MIB * Math.max(1, ...devices.map(({ curve }) => Math.max(0, curve.range(0, curve.t.length, 3)[1], curve.range(0, curve.t.length, 6)[1])));
for (const canvas of document.querySelectorAll("canvas")) new Chart(canvas, devices[Number(canvas.dataset.device)]);
const redraw = () => devices.forEach(device => device.charts.forEach(chart => chart.draw()));

for (const button of document.querySelectorAll("[data-act]")) {
  const device = devices[Number(button.dataset.device)];
  const act = { in: () => device.zoom(0.5), out: () => device.zoom(2), left: () => device.pan(-0.25), right: () => device.pan(0.25), all: () => device.showAll(),
    up: () => device.panAddresses(0.25), down: () => device.panAddresses(-0.25), taller: () => device.zoomAddresses(0.5), flatter: () => device.zoomAddresses(2) }[button.dataset.act];
  button.addEventListener("click", act);
}
for (const button of document.querySelectorAll("[data-line]")) {
  const device = devices[Number(button.dataset.device)], { line } = button.dataset;
  button.addEventListener("click", () => {
    if (!device.hidden.delete(line)) device.hidden.add(line);
    button.setAttribute("aria-pressed", String(device.shown(line)));
    device.redraw();
  });
}
for (const button of document.querySelectorAll("[data-state]")) {
  const device = devices[Number(button.dataset.device)], same = document.querySelectorAll(`[data-state][data-device='${button.dataset.device}']`);
  button.addEventListener("click", () => {
    device.state = device.states[Number(button.dataset.state)];
    device.charts.forEach(chart => { chart.hovered = undefined; });
    same.forEach(other => other.setAttribute("aria-pressed", String(other === button)));
    device.redraw();
  });
}
const tabs = [...document.querySelectorAll("[role=tab]")];
const select = tab => tabs.forEach(other => {
  other.setAttribute("aria-selected", String(other === tab));
  other.tabIndex = other === tab ? 0 : -1;
  document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
});
tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => { select(tab); redraw(); });
  tab.addEventListener("keydown", e => {
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: tabs.length - 1 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    const other = tabs[(to + tabs.length) % tabs.length];
    other.click(); other.focus();
  });
});
if (tabs.length) select(tabs[0]);

const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; redraw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
// On paper the page is light and shows all devices.
let before;
addEventListener("beforeprint", () => {
  before = { theme: root.dataset.theme, hidden: [...document.querySelectorAll(".device[hidden]")] };
  root.dataset.theme = "light";
  before.hidden.forEach(section => { section.hidden = false; });
  isPrinting = true;
  redraw();
});
addEventListener("afterprint", () => {
  isPrinting = false;
  if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
  before.hidden.forEach(section => { section.hidden = true; });
  redraw();
});
redraw();
window.vmmReport = { devices };
root.dataset.ready = "yes";
})();
