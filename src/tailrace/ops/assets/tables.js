// Tables: whether each is captured, how many rows its snapshot had, and when it last changed.

import { get } from "./api.js";
import { ago, badge, cell, count, empty, h, head, problem, setText, time, timeText } from "./dom.js";

export const title = "Tables";
const REFRESH_MS = 5000;

export function open(root) {
  const filter = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter tables by name" });
  const note = h("span", { class: "soft" });
  const box = h("div", {}, empty("Loading", ""));
  root.append(h("section", { class: "card", "aria-label": "Tables" },
    h("div", { class: "section-head" }, h("h2", {}, "Tables"), note, filter), box));
  let found = null, timer, isClosed = false;

  function draw() {
    const text = filter.value.trim().toLowerCase();
    const rows = found.tables.filter((table) => `${table.schema}.${table.table}`.toLowerCase().includes(text));
    const states = Map.groupBy(found.tables, (table) => table.state);
    setText(note, [...states].map(([state, tables]) => `${count(tables.length)} ${state}`).join(" · "));
    if (!rows.length) {
      box.replaceChildren(found.tables.length ? empty("No table has this name", "Clear the filter to see all.")
        : empty("No tables yet", "Capture lists them once it is connected, and copies them."));
      return;
    }
    const focused = box.contains(document.activeElement) ? document.activeElement.href : null;
    box.replaceChildren(h("table", { class: "list", "aria-label": "Tables" },
      head("Table", "State", ["Rows", "number"], "Counted", "Last change", "Key"), h("tbody", {}, rows.map((table) => tableRow(table, found.searched_to)))));
    if (focused) [...box.querySelectorAll("a")].find((link) => link.href === focused)?.focus({ preventScroll: true });
  }

  async function load() {
    try {
      const answer = await get("tables");
      if (isClosed) return;
      if (answer.tables) {
        found = answer;
        draw();
      }
    } catch (error) {
      if (!isClosed && !found) box.replaceChildren(problem(error));
    }
    if (!isClosed) timer = setTimeout(load, REFRESH_MS);
  }

  filter.addEventListener("input", () => found && draw());
  load();
  return {
    close() {
      isClosed = true;
      clearTimeout(timer);
    },
  };
}

function tableRow(table, searchedTo) {
  const changes = `#/changes?${new URLSearchParams({ table: table.name })}`;
  const last = table.last_change_at ? h("span", { title: table.last_change_at }, ago(table.last_change_at))
    : h("span", { class: "soft" }, table.state !== "captured" ? "–" : searchedTo ? `none since ${timeText(searchedTo)}` : "none");
  return h("tr", {},
    h("th", { scope: "row" }, h("a", { href: changes, title: "Show its changes" }, table.name)),
    cell("State", {}, badge(table.state), table.reason ? h("small", { class: "reason" }, table.reason) : null),
    cell("Rows", { class: "number" }, count(table.rows)),
    cell("Counted", {}, table.rows_at ? time(table.rows_at) : "–"),
    cell("Last change", {}, last),
    cell("Key", { class: "mono" }, table.key === null ? "–" : table.key.join(", ") || h("span", { class: "soft" }, "none")));
}
