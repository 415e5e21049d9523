// Changes: the log, newest first, by table, key, time and transaction; each change with the row before and after it.

import { get } from "./api.js";
import { badge, comparison, count, empty, h, time, timeText } from "./dom.js";
import { LogSearch, searchedBack } from "./log_search.js";
import { TableAndKey, address, field } from "./search_form.js";
import { signIn } from "./session.js";

export const title = "Changes";
const PAGE = 50;

export function open(root, parameters) {
  const which = new TableAndKey(parameters);
  const since = h("input", { type: "datetime-local", step: 1, value: toLocal(parameters.get("since")) });
  const until = h("input", { type: "datetime-local", step: 1, value: toLocal(parameters.get("until")) });
  const transaction = h("input", { placeholder: "xid or LSN", autocomplete: "off", spellcheck: false, value: parameters.get("transaction") ?? "" });
  const form = h("form", { class: "filter", "aria-label": "Filter" }, which.element,
    field("From", since), field("To", until), field("Transaction", transaction),
    h("div", { class: "actions" }, h("a", { class: "button quiet", href: "#/changes" }, "Reset"),
      h("button", { class: "primary", type: "submit" }, "Search")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const target = address("changes", {
      ...which.values, since: toUtc(since.value), until: toUtc(until.value), transaction: transaction.value.trim(),
    });
    if (target === location.hash) results.start();
    else location.hash = target;
  });
  const results = new Results(parameters);
  root.append(h("section", { class: "card" }, form), results.element);
  results.start();
  return { needsToken: () => results.needsToken, close: () => results.close() };
}

class Results {
  constructor(parameters) {
    const given = Object.fromEntries([...new Set(parameters.keys())].map((name) => [name, parameters.getAll(name)]));
    this.list = h("ol", { class: "changes" });
    this.search = new LogSearch({
      ask: (last, signal) => get("changes", { ...given, cursor: last?.cursor }, signal),
      take: ({ changes }) => {
        this.list.append(...changes.map((change) => changeItem(change)));
        return changes.length;
      },
      enough: PAGE,
      describe: (found) => `${this.total ?? "Nothing found so far"}; ${searchedBack(found)}`,
      end: (found) => this.end(found),
      refuse: (error) => {
        this.needsToken = error.status === 401;
        return this.needsToken ? signInBox() : null;
      },
      focus: (taken) => {
        this.list.children[this.list.children.length - taken].querySelector("button").focus();
        return true;
      },
    });
    this.element = h("section", { class: "card", "aria-label": "Changes" }, this.list, this.search.element);
  }

  start() {
    this.list.replaceChildren();
    this.search.run();
  }

  close() {
    this.search.close();
  }

  get total() {
    const shown = this.list.children.length;
    return shown ? (shown === 1 ? "1 change" : `${count(shown)} changes`) : null;
  }

  end({ searched_to: searchedTo }) {
    if (this.total) return h("span", { class: "soft" }, `${this.total}. That is all that the log has.`);
    return searchedTo ? empty("Nothing found", `The log was searched back to ${timeText(searchedTo)}, its beginning or that of the filter.`)
      : empty("The log has no changes for this", "Change the filter, or wait for changes at the source.");
  }
}

export function signInBox() {
  return empty("Rows need the token", "Changes contain data of the database, so they are shown to those who have the token.",
    h("button", { class: "primary", type: "button", onclick: () => signIn("Rows need the token.") }, "Sign in"));
}

function changeItem(change) {
  const detail = h("div", { class: "detail", hidden: true });
  const button = h("button", { type: "button", class: "summary", "aria-expanded": "false" },
    time(change.committed_at), badge(change.operation),
    h("span", { class: "what" }, h("strong", {}, change.table ?? change.message_prefix ?? ""), " ", keyText(change.key)),
    h("span", { class: "gist" }, gist(change)));
  button.addEventListener("click", () => {
    const isOpen = detail.hidden;
    detail.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen && !detail.children.length) showDetail(detail, change);
  });
  return h("li", {}, button, detail);
}

const keyText = (key) => (key ?? []).map(([name, text]) => `${name}=${text ?? "NULL"}`).join(" ");

/** One line about a change: its new values, without the key. */
function gist(change) {
  if (change.operation === "MESSAGE") return change.message ?? "";
  const keys = new Set((change.key ?? []).map(([name]) => name));
  const texts = (change.after ?? []).filter(([name]) => !keys.has(name)).map(([name, text]) => `${name}=${text ?? "NULL"}`);
  return texts.join("  ").slice(0, 300);
}

async function showDetail(root, change) {
  const links = [];
  if (change.key) links.push(h("a", { href: address("row", { table: change.name, key: change.key.map(([, text]) => text ?? "") }) }, "This row's life"));
  links.push(h("a", { href: address("changes", { transaction: change.commit_lsn }) }, "The whole transaction"));
  const facts = h("dl", { class: "facts" },
    h("dt", {}, "Position"), h("dd", { class: "mono" }, change.position),
    h("dt", {}, "Transaction"), h("dd", { class: "mono" }, String(change.xid)),
    h("dt", {}, "Committed"), h("dd", { class: "mono" }, change.committed_at),
    ...contextFacts(change));
  const box = h("div", {}, h("p", { class: "soft" }, "Loading…"));
  root.append(facts, box, h("p", { class: "links" }, links));
  if (change.operation === "MESSAGE") {
    box.replaceChildren(h("pre", {}, change.message ?? ""));
  } else if (change.operation === "TRUNCATE") {
    box.replaceChildren(h("p", {}, `All rows of ${change.table} were removed.`, change.message ? ` Options: ${change.message}.` : ""));
  } else {
    box.replaceChildren(...(await rowsOf(change)));
  }
}

export function contextFacts({ context, is_split: isSplit }) {
  if (context) return [h("dt", {}, "Context"), h("dd", {}, h("pre", {}, pretty(context)))];
  if (isSplit) return [h("dt", {}, "Context"), h("dd", { class: "soft" }, "not known: the transaction spans several segments")];
  return [];
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** The row before and after a change. PostgreSQL sends the row before only with REPLICA IDENTITY FULL. */
async function rowsOf(change) {
  const after = change.after && new Map(change.after);
  let before = change.before && !change.before_is_key ? new Map(change.before) : null;
  let note = null;
  if (change.operation !== "INSERT" && !before && change.key) {
    const key = change.key.map(([, text]) => text ?? "");
    const found = await get("row", { table: change.name, key, before: change.position, limit: 1 }).catch((error) => ({ error }));
    const version = found.versions?.[0];
    if (version?.row) before = new Map(version.row);
    else {
      before = new Map(change.before ?? change.key);
      note = found.error ? `The row before is not known: ${found.error.message}`
        : found.cursor ? `The row before is not known: its last change was before ${timeText(found.searched_to)}. "This row's life" searches further.`
          : "The row before is not known: the log has no earlier change of it.";
    }
  }
  if (after && before) for (const name of change.unchanged) if (before.has(name)) after.set(name, before.get(name));
  return [comparison(change.operation === "INSERT" ? null : before, after, change.unchanged), note ? h("p", { class: "soft" }, note) : ""];
}

/** The text of a `datetime-local` field for a UTC time, and back. */
function toLocal(iso) {
  if (!iso || Number.isNaN(Date.parse(iso))) return "";
  const at = new Date(iso);
  return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

const toUtc = (text) => (text ? new Date(text).toISOString() : "");
