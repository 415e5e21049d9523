// Overview: source, capture, log and archive as cards, the charts, and the sinks with pause and resume.

import { Charts } from "./charts.js";
import { ago, badge, cell, count, duration, empty, h, head, rate, sentence, setText, size, UNKNOWN } from "./dom.js";
import { act } from "./session.js";

export const title = "Overview";

export function open(root) {
  const cards = new Cards();
  const sinks = new SinkTable();
  const charts = new Charts();
  root.append(cards.element, sinks.element, charts.element);
  return {
    refresh(status) {
      cards.show(cardsOf(status));
      sinks.show(status);
      charts.show(status);
    },
    close: () => charts.close(),
  };
}

function cardsOf({ source, capture, log, archive, recovery }) {
  const cards = [];
  if (source) {
    cards.push({ title: "Source", error: source.error, rows: source.error ? [["Slot", source.slot]] : [
      ["Slot", source.slot],
      ["In use", source.is_active ? "yes" : "no", source.is_active ? "" : "bad"],
      ["WAL held back", size(source.wal_held_bytes)],
      ["Acknowledged", source.confirmed_lsn ?? UNKNOWN],
    ] });
  }
  if (capture) {
    const rows = [
      ["Durable to", capture.durable_lsn],
      ["Behind", size(capture.lag_bytes)],
      ["Changes", count(capture.changes)],
      ["Last change", ago(capture.last_committed_at)],
    ];
    if (capture.tables_captured !== null) rows.push(["Tables", count(capture.tables_captured)]);
    if (capture.tables_copying) {
      rows.push(["Copying", count(capture.tables_copying) + " tables", "busy"]);
      rows.push(["Copied", progress(capture.rows_copied, capture.rows_to_copy, capture.copy_seconds_left), "busy"]);
    }
    if (capture.reconnections) rows.push(["Reconnections", count(capture.reconnections)]);
    if (capture.restarts) rows.push(["Restarts", count(capture.restarts), "bad"]);
    cards.push({ title: "Capture", state: capture.state, rows });
  }
  if (log) {
    cards.push({ title: "Log", error: log.error, rows: log.error ? [] : [
      ["Ends at", log.end_lsn],
      ["Last change", ago(log.last_committed_at)],
      ["Segments", `${count(log.segments)} in ${count(log.objects)} objects`],
      ["Size", size(log.bytes)],
    ] });
  }
  if (archive) {
    cards.push({ title: "Archive", state: archive.state, rows: [
      ["Durable to", archive.durable_lsn],
      ["Behind", size(archive.lag_bytes)],
      ["Stored", size(archive.stored_bytes)],
    ] });
  }
  if (recovery) {
    cards.push({ title: "Recovery", error: recovery.error, rows: recovery.error ? [] : [
      ["Archived to", recovery.archived_lsn ?? UNKNOWN],
      ["Behind the server", size(recovery.lag_bytes)],
      ["Backups", count(recovery.backups)],
      ["Last backup", ago(recovery.last_backup_at)],
      ["Last drill", recovery.last_drill_verdict ? `${recovery.last_drill_verdict}, ${ago(recovery.last_drill_at)}` : UNKNOWN],
    ] });
  }
  return cards;
}

/** The cards. They stay as they are and only their texts change, so that a selection survives a refresh. */
class Cards {
  constructor() {
    this.element = h("div", { class: "cards" });
    this.shape = "";
    this.cards = [];
  }

  show(cards) {
    const shape = JSON.stringify(cards.map(({ title, state, rows, error }) => [title, !state, !error, rows.map(([term]) => term)]));
    if (shape !== this.shape) {
      this.shape = shape;
      this.cards = cards.map((card) => new Card(card));
      this.element.replaceChildren(...this.cards.map((card) => card.element));
    }
    cards.forEach((card, index) => this.cards[index].show(card));
  }
}

class Card {
  constructor({ title, state, rows, error }) {
    this.state = state ? h("span") : null;
    this.values = rows.map(() => h("dd"));
    this.error = error ? h("p", { class: "bad" }) : null;
    this.element = h("section", { class: "card", "aria-label": title }, h("h2", {}, title, this.state),
      h("dl", {}, rows.map(([term], index) => [h("dt", {}, term), this.values[index]])), this.error);
  }

  show({ state, rows, error }) {
    if (state) badge(state, this.state);
    rows.forEach(([, text, kind], index) => {
      setText(this.values[index], text);
      this.values[index].className = kind ?? "";
    });
    if (error) setText(this.error, error);
  }
}

/** The sinks. Rows stay as they are and only their texts change, so that a button keeps the focus. */
class SinkTable {
  constructor() {
    this.rows = new Map();
    this.body = h("tbody");
    this.element = h("section", { class: "card", "aria-label": "Sinks" }, h("h2", {}, "Sinks"),
      h("table", { class: "list", "aria-label": "Sinks" }, head("Name", "State", ["Delivered to", "", "Everything that commits before this position is at the destination"],
        ["Behind", "number", "Bytes of WAL between the sink's position and the end of the log"],
        ["Oldest pending", "number", "Age of the oldest change that is not delivered"],
        ["Commit to delivery", "number", "Of the oldest change in the last step"],
        ["Rate", "number", "Changes delivered per second"], ["Changes", "number", "Delivered since the process started"],
        ["Dead letters", "number", "Changes that the destination rejected"], ""), this.body));
  }

  show({ sinks, verified = [] }) {
    const names = sinks.map((sink) => sink.name);
    if (names.join("\n") !== [...this.rows.keys()].join("\n")) {
      this.rows = new Map(sinks.map((sink) => [sink.name, new SinkRow(sink)]));
      this.body.replaceChildren(...[...this.rows.values()].flatMap((row) => [row.main, row.note]));
      if (!sinks.length) {
        this.body.append(h("tr", {}, h("td", { colSpan: 10 }, empty("No sinks", "This process does not deliver."))));
      }
    }
    for (const sink of sinks) this.rows.get(sink.name).show(sink, verified.find((record) => record.sink === sink.name));
  }
}

class SinkRow {
  constructor(sink) {
    this.sink = sink;
    this.state = h("span");
    this.cells = ["Delivered to", "Behind", "Oldest pending", "Commit to delivery", "Rate", "Changes", "Dead letters"].map((label, index) =>
      cell(label, { class: index ? "number" : "mono" }));
    this.letters = h("a", { href: `#/dead-letters?${new URLSearchParams({ sink: sink.name })}` });
    this.cells[6].append(this.letters);
    this.button = h("button", { type: "button", onclick: () => this.toggle() });
    this.main = h("tr", {}, h("th", { scope: "row" }, sink.name, h("small", {}, sink.type)), cell("State", {}, this.state),
      this.cells, h("td", { class: "number" }, this.button));
    this.text = h("td", { colSpan: 10 });
    this.note = h("tr", { class: "note", hidden: true }, this.text);
  }

  show(sink, record) {
    this.sink = sink;
    badge(sink.is_silent ? "no status" : sink.state, this.state);
    if (sink.is_silent) this.state.className = "badge bad";
    const texts = [sink.cursor ?? UNKNOWN, size(sink.lag_bytes), duration(sink.lag_seconds), duration(sink.latency_seconds),
      sink.is_silent ? UNKNOWN : rate(sink.changes_per_second), count(sink.changes)];
    texts.forEach((text, index) => setText(this.cells[index], text));
    setText(this.letters, count(sink.dead_letters));
    this.letters.className = sink.dead_letters ? "bad" : "soft";
    setText(this.button, this.canResume ? "Resume" : "Pause");
    this.button.setAttribute("aria-label", `${this.button.textContent} sink ${sink.name}`);
    const hint = sink.last_error_hint ? `Hint: ${sink.last_error_hint}` : "";
    const note = [loadText(sink), sentence(sink.last_error), sentence(hint), verifiedText(record)].filter(Boolean).join(" ");
    setText(this.text, note);
    this.note.hidden = !note;
    this.text.className = sink.last_error || record?.differences ? "bad" : "soft";
  }

  get canResume() {
    return this.sink.state === "paused" || this.sink.state === "failed";
  }

  async toggle() {
    const verb = this.canResume ? "resume" : "pause";
    const { name } = this.sink;
    this.button.disabled = true;
    await act(`sinks/${encodeURIComponent(name)}/${verb}`, {}, () => verb === "pause"
      ? `${name} finishes its step and stays paused until it is resumed.` : `${name} is resumed.`);
    this.button.disabled = false;
    this.button.focus();
  }
}

function loadText({ load_rows: rows, load_total_rows: total, load_seconds_left: left }) {
  return rows === null || rows === undefined ? "" : `Loading ${progress(rows, total, left)}.`;
}

/** What the last comparison with the source found. */
function verifiedText(record) {
  if (!record) return "";
  const found = record.differences ? `${count(record.differences)} of ${count(record.rows)} rows differ`
    : `no difference in ${count(record.rows)} rows`;
  const rest = record.tables_not_compared ? `; ${count(record.tables_not_compared)} of ${count(record.tables)} tables not compared entirely` : "";
  return `Compared with the source ${ago(record.verified_at)}: ${found}${rest}.`;
}

function progress(rows, total, secondsLeft) {
  const text = `${count(rows)}${total === null ? "" : ` of ${count(total)}`} rows`;
  return secondsLeft === null ? text : `${text}, about ${duration(secondsLeft)} left`;
}
