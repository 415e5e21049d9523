// Dead letters: changes that a destination rejected, why, and delivering them again.

import { get } from "./api.js";
import { signInBox } from "./changes.js";
import { badge, cell, count, empty, h, head, problem, time } from "./dom.js";
import { address } from "./search_form.js";
import { act } from "./session.js";

export const title = "Dead letters";
const REFRESH_MS = 5000;

export function open(root, parameters) {
  const sink = parameters.get("sink");
  const box = h("div", {}, empty("Loading", ""));
  const all = h("span", { class: "head-actions" });
  root.append(h("section", { class: "card", "aria-label": "Dead letters" },
    h("div", { class: "section-head" }, h("h2", {}, sink ? `Dead letters of ${sink}` : "Dead letters"),
      sink ? h("a", { href: "#/dead-letters" }, "All sinks") : null, all), box));
  let timer, isClosed = false, needsToken = false, shown = "";

  async function load() {
    clearTimeout(timer);
    try {
      const found = await get("dead-letters", { sink });
      needsToken = false;
      if (!isClosed && JSON.stringify(found) !== shown) {
        shown = JSON.stringify(found);
        draw(found);
      }
    } catch (error) {
      if (isClosed) return;
      needsToken = error.status === 401;
      shown = "";
      box.replaceChildren(needsToken ? signInBox() : problem(error));
    }
    if (!isClosed) timer = setTimeout(load, REFRESH_MS);
  }

  function draw({ dead_letters: letters, has_more: hasMore }) {
    if (!letters.length) {
      all.replaceChildren();
      box.replaceChildren(empty("No dead letters", 'Destinations have accepted every change. A sink with on_poison = "dead_letter" stores here what its destination rejects.'));
      return;
    }
    const bySink = Map.groupBy(letters.filter((letter) => letter.can_replay && !letter.is_replay_requested), (letter) => letter.sink);
    all.replaceChildren(...[...bySink].filter(([, some]) => some.length > 1).map(([name, some]) => h("button", { type: "button", onclick: () => replay(name, some) }, `Replay all ${count(some.length)} of ${name}`)));
    box.replaceChildren(h("table", { class: "list", "aria-label": "Dead letters" }, head("Sink", "Change", "Table", "Since", "Reason", ""),
      letters.map((letter) => letterRows(letter))),
    hasMore ? h("p", { class: "soft" }, "The first 200 are shown. `tailrace deadletter list` prints all.") : "");
  }

  function letterRows(letter) {
    const detail = h("tr", { class: "note", hidden: true }, h("td", { colSpan: 6 }, h("pre", {}, JSON.stringify(letter.change, null, 2)),
      letter.table ? h("p", { class: "links" }, h("a", { href: address("changes", { transaction: letter.position.split(":")[0] }) }, "The whole transaction")) : null));
    const more = h("button", { type: "button", class: "quiet", "aria-expanded": "false" }, "Show");
    more.addEventListener("click", () => {
      detail.hidden = !detail.hidden;
      more.setAttribute("aria-expanded", String(!detail.hidden));
    });
    const again = letter.is_replay_requested ? h("span", { class: "badge busy" }, "replay requested")
      : h("button", { type: "button", disabled: !letter.can_replay, title: letter.can_replay ? "" : "This sink is not here, or cannot deliver a single change again.", onclick: () => replay(letter.sink, [letter]) }, "Replay");
    return h("tbody", {}, h("tr", {}, h("th", { scope: "row" }, letter.sink),
      cell("Change", {}, badge(letter.change.operation), " ", h("span", { class: "mono" }, letter.position)),
      cell("Table", {}, letter.table ?? "–"), cell("Since", {}, time(letter.recorded_at)),
      cell("Reason", { class: "reason" }, letter.reason), h("td", { class: "buttons" }, more, again)), detail);
  }

  async function replay(name, letters) {
    const position = letters.map((letter) => letter.position);
    await act(`sinks/${encodeURIComponent(name)}/replay`, { position }, ({ replayed }) => `${name} delivers ${count(replayed)} ${replayed === 1 ? "dead letter" : "dead letters"} again within seconds.`);
    load();
  }

  load();
  return {
    needsToken: () => needsToken,
    close() {
      isClosed = true;
      clearTimeout(timer);
    },
  };
}
