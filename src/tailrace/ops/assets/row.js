// A row's life: all its versions in the log, a slider through time, and what each change did.

import { get } from "./api.js";
import { contextFacts, signInBox } from "./changes.js";
import { badge, comparison, count, empty, h, time, timeText } from "./dom.js";
import { LogSearch, searchedBack } from "./log_search.js";
import { TableAndKey, address } from "./search_form.js";

export const title = "Row";
const SLIDER = 10000;
const VERSIONS = 100;

export function open(root, parameters) {
  const which = new TableAndKey(parameters);
  const form = h("form", { class: "filter", "aria-label": "Row" }, which.element,
    h("div", { class: "actions" }, h("button", { class: "primary", type: "submit" }, "Show")));
  const box = h("div");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { table, key } = which.values;
    if (table && key.length) location.hash = address("row", { table, key });
    else box.replaceChildren(empty("Name a table and a key", "Give a value for each column of the key."));
  });
  root.append(h("section", { class: "card" }, form), box);
  const table = parameters.get("table"), key = parameters.getAll("key");
  if (!table || !key.length) {
    box.append(h("section", { class: "card" }, empty("A row's life", "Give a table and the key of a row to see each of its versions.")));
    return {};
  }
  const life = new RowLife(table, key);
  box.append(life.element);
  life.search.run();
  return { needsToken: () => life.needsToken, close: () => life.search.close() };
}

class RowLife {
  constructor(table, key) {
    this.table = table;
    this.key = key;
    this.versions = []; // oldest first
    this.search = new LogSearch({
      ask: (last, signal) => get("row", { table, key: last?.key ?? key, limit: VERSIONS, cursor: last?.cursor }, signal),
      take: (found) => this.take(found),
      enough: VERSIONS,
      describe: (found) => this.describe(found),
      end: () => this.end(),
      refuse: (error) => {
        this.needsToken = error.status === 401;
        return this.needsToken ? signInBox() : null;
      },
    });
    this.places = []; // of the versions, on the slider
    this.slider = h("input", { type: "range", min: 0, max: SLIDER, step: 1, value: 0, "aria-label": "Time" });
    this.marks = h("div", { class: "marks", "aria-hidden": "true" });
    this.ends = h("div", { class: "ends soft" });
    const step = (by, text) => h("button", { type: "button", class: "quiet", onclick: () => this.show(this.shown + by) }, text);
    this.earlier = step(-1, "‹ Earlier");
    this.later = step(1, "Later ›");
    this.now = h("span");
    this.caption = h("div", { class: "caption" }, this.earlier, this.now, this.later);
    this.detail = h("div");
    this.main = h("section", { class: "card", hidden: true, "aria-label": "Row" },
      h("div", { class: "timeline" }, this.marks, this.slider, this.ends), this.caption, this.detail);
    this.element = h("div", {}, this.main, h("section", { class: "card" }, this.search.element));
    this.slider.addEventListener("input", () => this.show(this.versionAt(Number(this.slider.value)), { isDragged: true }));
    this.slider.addEventListener("keydown", (event) => {
      const index = this.afterKey(event.key);
      if (index === undefined) return;
      event.preventDefault();
      this.show(index);
    });
  }

  take({ versions }) {
    const older = versions.reverse();
    const shown = this.versions.length ? this.shown + older.length : older.length - 1;
    this.versions = [...older, ...this.versions];
    if (older.length) {
      this.complete();
      this.main.hidden = false;
      this.drawMarks();
      this.show(shown);
    }
    return older.length;
  }

  /** Values that PostgreSQL did not send come from the version before, once that is loaded. */
  complete() {
    this.versions.forEach((version, index) => {
      const before = this.versions[index - 1];
      if (!version.row || !before?.row) return;
      const rows = new Map(version.row), known = new Map(before.row);
      for (const name of version.unknown) if (known.has(name)) rows.set(name, known.get(name));
      version.unknown = version.unknown.filter((name) => !rows.has(name));
      version.row = [...rows];
    });
  }

  get total() {
    const { length } = this.versions;
    return length === 1 ? "1 version" : `${count(length)} versions`;
  }

  describe(found) {
    const was = found.key.join(", ") !== this.key.join(", ") ? ` Before, its key was ${found.key.join(", ")}.` : "";
    return `${this.versions.length ? this.total : "Nothing found so far"}; ${searchedBack(found)}${was}`;
  }

  end() {
    return this.versions.length ? h("span", { class: "soft" }, `${this.total}: all that the log has.`)
      : empty("The log has no change of this row", "It may not have changed since the log began. A key is written as PostgreSQL prints it.");
  }

  drawMarks() {
    const times = this.versions.map((version) => Date.parse(version.committed_at));
    const [first, last] = [times[0], times[times.length - 1]];
    // Versions of one time, such as those of one transaction, have one place; if all are, they are spread evenly.
    this.places = times.map((at, index) => last > first ? ((at - first) / (last - first)) * SLIDER
      : (index / Math.max(times.length - 1, 1)) * SLIDER);
    this.marks.replaceChildren(...this.versions.map((version, index) => {
      const mark = h("i", { title: version.committed_at, onclick: () => this.show(index) });
      mark.style.left = `${(this.places[index] / SLIDER) * 100}%`;
      return mark;
    }));
    this.ends.replaceChildren(h("span", {}, timeText(this.versions[0].committed_at)), h("span", {}, timeText(this.versions.at(-1).committed_at)));
  }

  /** The version that the row had at a place of the slider: the newest until then. */
  versionAt(place) {
    return Math.max(this.places.findLastIndex((each) => each <= place), 0);
  }

  /** The version that a key leads to: the arrows lead from one to the next, however close they are. */
  afterKey(key) {
    const last = this.versions.length - 1;
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -last, End: last };
    return key in steps ? Math.min(Math.max(this.shown + steps[key], 0), last) : undefined;
  }

  show(index, { isDragged = false } = {}) {
    this.shown = index;
    if (!isDragged) this.slider.value = this.places[index];
    const version = this.versions[index], before = this.versions[index - 1];
    [...this.marks.children].forEach((mark, each) => mark.classList.toggle("current", each === index));
    this.slider.setAttribute("aria-valuetext", `${version.operation} at ${timeText(version.committed_at)}`);
    this.earlier.disabled = index === 0;
    this.later.disabled = index === this.versions.length - 1;
    this.now.replaceChildren(badge(version.operation), " ", time(version.committed_at),
      h("span", { class: "soft" }, ` version ${index + 1} of ${this.versions.length}`));
    const row = version.row && new Map(version.row);
    const previous = before ? before.row && new Map(before.row) : version.operation === "INSERT" ? null : new Map(version.before ?? version.key ?? []);
    this.detail.replaceChildren(
      row || previous?.size ? comparison(previous, row, version.unknown) : h("p", { class: "soft" }, "The table was emptied."),
      h("dl", { class: "facts" },
        h("dt", {}, "Position"), h("dd", { class: "mono" }, version.position),
        h("dt", {}, "Transaction"), h("dd", { class: "mono" }, h("a", { href: address("changes", { transaction: version.commit_lsn }) }, String(version.xid))),
        ...contextFacts(version)));
  }
}

