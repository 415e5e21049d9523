// Charts of throughput, lag and latency. The server remembers a day, so they have a past when the page opens.

import { get } from "./api.js";
import { duration, empty, h, rate, size } from "./dom.js";

const REFRESH_MS = 5000;
const RANGES = [["15 min", 900], ["1 h", 3600], ["24 h", 86400]];
const COLORS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6", "--line-7", "--line-8"];
const DASHES = [[], [7, 4], [2, 3]]; // for more sinks than there are colors
const HEIGHT = 190;

const CHARTS = [
  { title: "Throughput", metric: "changes_per_second", format: rate, least: 1, hasCapture: true, note: "changes per second" },
  { title: "Lag", metric: "lag_seconds", format: duration, least: 1, note: "age of the oldest undelivered change" },
  { title: "Lag in WAL", metric: "lag_bytes", format: size, least: 1000, note: "bytes between a sink's cursor and the log's end" },
  { title: "Commit to delivery", metric: "latency_seconds", format: duration, least: 0.1, note: "from the commit at the source" },
  { title: "Seal to delivery", metric: "seal_latency_seconds", format: duration, least: 0.1, note: "from the sealed segment in the store" },
];

export class Charts {
  constructor() {
    this.seconds = 900;
    this.history = null;
    this.sinks = [];
    this.charts = CHARTS.map((options) => new Chart(options));
    this.buttons = RANGES.map(([text, seconds]) => h("button", {
      type: "button", "aria-pressed": String(seconds === this.seconds), onclick: () => this.choose(seconds),
    }, text));
    this.element = h("section", { class: "charts-section", "aria-label": "Charts" },
      h("div", { class: "section-head" }, h("h2", {}, "Over time"),
        h("div", { class: "segmented", role: "group", "aria-label": "Range" }, this.buttons)),
      h("div", { class: "charts" }, this.charts.map((chart) => chart.element)));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.draw(true);
    this.dark.addEventListener("change", this.redraw);
    this.load();
  }

  choose(seconds) {
    this.seconds = seconds;
    this.buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(RANGES[index][1] === seconds)));
    this.load();
  }

  show(status) {
    this.sinks = status.sinks.map((sink) => sink.name);
  }

  async load() {
    clearTimeout(this.timer);
    const { seconds } = this;
    try {
      const history = await get("metrics/history", { seconds });
      if (this.isClosed || seconds !== this.seconds) return;
      this.history = history;
      this.draw();
    } catch (error) {
      for (const chart of this.charts) chart.fail(error.message);
    }
    this.timer = setTimeout(() => this.load(), REFRESH_MS);
  }

  draw(isAnew = false) {
    if (!this.history || this.isClosed) return;
    for (const chart of this.charts) chart.draw(this.history, this.sinks, this.seconds, isAnew);
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.observer.disconnect();
    this.dark.removeEventListener("change", this.redraw);
    for (const chart of this.charts) chart.close();
  }
}

class Chart {
  constructor(options) {
    this.options = options;
    this.plot = null;
    this.names = "";
    this.box = h("div", { class: "plot" }, empty("Loading", ""));
    this.element = h("figure", { class: "card chart", "aria-label": options.title },
      h("figcaption", {}, h("strong", {}, options.title), h("span", { class: "soft" }, options.note)), this.box);
  }

  fail(text) {
    if (!this.plot) this.box.replaceChildren(empty("No history", text));
  }

  draw(history, sinks, seconds, isAnew) {
    const { metric, hasCapture } = this.options;
    const found = [...(hasCapture ? ["capture"] : []), ...sinks.map((name) => `sinks/${name}`)]
      .filter((name) => history.series[`${name}/${metric}`]);
    if (!history.at.length || !found.length) {
      this.close();
      this.box.replaceChildren(empty("No samples yet", "One is taken every five seconds."));
      return;
    }
    const data = [history.at, ...found.map((name) => history.series[`${name}/${metric}`])];
    const width = this.box.clientWidth;
    const names = found.join("\n");
    const end = Date.now() / 1000;
    this.range = [end - seconds, end];
    this.sinks = sinks.map((name) => `sinks/${name}`); // a sink has the same color in all charts
    if (!this.plot || isAnew || this.names !== names) {
      this.close();
      this.names = names;
      this.box.replaceChildren();
      this.plot = new uPlot(this.settings(found, width), data, this.box);
      this.plot.root.querySelector(".u-legend").setAttribute("aria-label", `${this.options.title}: values`);
    } else {
      if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
      this.plot.setData(data);
    }
  }

  settings(found, width) {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const { format, least } = this.options;
    const axis = {
      stroke: color("--soft"), font: "12px system-ui, sans-serif",
      grid: { stroke: color("--line"), width: 1 }, ticks: { show: false },
    };
    return {
      width, height: HEIGHT, padding: [12, 22, 0, 0],
      cursor: { points: { size: 6 }, drag: { x: false, y: false }, sync: { key: "tailrace" }, focus: { prox: 16 } },
      focus: { alpha: 0.25 }, // of the other lines, while the pointer is near one
      legend: { live: true },
      scales: {
        x: { range: () => this.range },
        y: { range: (_, __, most) => [0, Math.max(most ?? 0, least) * 1.1] },
      },
      axes: [
        { ...axis, space: 70, size: 30, values: (_, splits) => splits.map((at) => new Date(at * 1000).toLocaleTimeString("sv-SE", { hour: "2-digit", minute: "2-digit" })) },
        { ...axis, size: 74, space: 36, values: (_, splits) => splits.map((each) => format(each)) },
      ],
      series: [
        { label: "Time", value: (_, at) => (at ? new Date(at * 1000).toLocaleTimeString("sv-SE") : "now") },
        ...found.map((name) => ({
          label: name === "capture" ? "capture" : name.slice("sinks/".length),
          ...this.line(name, color), width: 1.5,
          // A gap of one sample is drawn as one: nobody knew the value.
          spanGaps: false,
          points: { show: (plot, series) => isSparse(plot.data[series]), size: 4 },
          value: (plot, value, series, point) => format(point === null ? lastKnown(plot.data[series]) : value),
        })),
      ],
    };
  }

  /** The color and the dashes of a sink's line, or of capture's. */
  line(name, color) {
    const index = this.sinks.indexOf(name);
    if (index < 0) return { stroke: color("--soft") };
    return { stroke: color(COLORS[index % COLORS.length]), dash: DASHES[Math.floor(index / COLORS.length) % DASHES.length] };
  }

  close() {
    this.plot?.destroy();
    this.plot = null;
  }
}

/** Whether single values stand alone, which a line would not show. */
function isSparse(values) {
  return values.some((value, index) => value !== null && (values[index - 1] ?? null) === null && (values[index + 1] ?? null) === null);
}

/** The newest value; unknown if the last sample has none. */
const lastKnown = (values) => values[values.length - 1] ?? null;

