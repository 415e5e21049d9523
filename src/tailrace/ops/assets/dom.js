// Elements and texts. Data only ever becomes text: nothing here, or anywhere, parses HTML.

/** Create an element. `props` are properties; names with a dash, and `role`, are attributes. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.includes("-") || name === "role" || name === "for" || name === "list") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** Set a text only if it differs, so that a selection and the focus survive a refresh. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A text with a full stop, so that another sentence can follow; nothing if there is no text. */
export const sentence = (text) => (text ? text.replace(/[.:]?$/, (end) => (/[?!]$/.test(text) ? end : ".")) : "");

export const UNKNOWN = "–";

export const count = (n) => (n === null || n === undefined ? UNKNOWN : Math.round(n).toLocaleString("en"));

export function rate(n) {
  if (n === null || n === undefined) return UNKNOWN;
  return (n > 0 && n < 10 ? n.toFixed(1) : Math.round(n).toLocaleString("en")) + "/s";
}

export function size(n) {
  if (n === null || n === undefined) return UNKNOWN;
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (n < 1000) return (unit === "B" || n >= 100 ? n.toFixed(0) : n.toFixed(1)) + " " + unit;
    n /= 1000;
  }
  return n.toFixed(1) + " TB";
}

export function duration(s) {
  if (s === null || s === undefined) return UNKNOWN;
  s = Math.max(s, 0);
  if (s < 1) return Math.round(s * 1000) + " ms";
  if (s < 60) return s.toFixed(1) + " s";
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return minutes + " min";
  if (minutes < 2880) return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
  return Math.floor(minutes / 1440) + " days";
}

export const ago = (iso) => (iso ? duration((Date.now() - Date.parse(iso)) / 1000) + " ago" : UNKNOWN);

const TIME = new Intl.DateTimeFormat("sv-SE", {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
});

/** A time in the reader's zone, to the second; its title has the exact UTC. */
export function time(iso) {
  return iso ? h("time", { dateTime: iso, title: iso }, TIME.format(new Date(iso))) : document.createTextNode(UNKNOWN);
}

export const timeText = (iso) => (iso ? TIME.format(new Date(iso)) : UNKNOWN);

/** Cells of a table that becomes a list on narrow screens: each knows its heading. */
export const cell = (label, props, ...children) => h("td", { ...props, "data-label": label }, ...children);

/** A table's headings: texts, or [text, class, explanation]. */
export function head(...labels) {
  return h("thead", {}, h("tr", {}, labels.map((label) => {
    const [text, kind, title] = Array.isArray(label) ? label : [label];
    return h("th", { class: kind, scope: "col", title }, text);
  })));
}

export function empty(title, text, ...more) {
  return h("div", { class: "empty" }, h("strong", {}, title), h("p", {}, text ?? ""), ...more);
}

/** What went wrong, and what to do about it. */
export function problem(error, ...more) {
  return h("div", { class: "empty bad-box", role: "alert" },
    h("strong", {}, error.message), error.hint ? h("p", {}, error.hint) : null, ...more);
}

export function toast(text, isError = false) {
  const element = h("div", { class: isError ? "toast bad-box" : "toast" }, text);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), isError ? 8000 : 4000);
}

const KIND = {
  ok: "good", streaming: "good", running: "good", captured: "good",
  starting: "busy", loading: "busy", copying: "busy", new: "idle",
  restarting: "bad", retrying: "bad", disconnected: "bad", failed: "bad", wrong: "bad",
  paused: "idle", stopped: "idle", "left out": "idle", "not published": "idle", "not captured": "bad",
  INSERT: "good", UPDATE: "busy", DELETE: "bad", TRUNCATE: "bad", MESSAGE: "idle",
};

export function badge(state, element = h("span")) {
  element.className = "badge " + (KIND[state] ?? "idle");
  setText(element, state);
  return element;
}

/** The value of a column: PostgreSQL's text, NULL, or that nobody knows it. */
export function value(text) {
  if (text === undefined) return h("span", { class: "unknown", title: "PostgreSQL did not send it" }, "not known");
  if (text === null) return h("span", { class: "null" }, "NULL");
  if (text === "") return h("span", { class: "null" }, "empty text");
  return h("span", { class: "value" }, text);
}

/** A row before and after a change, side by side. Either is a Map, or null if there was none. */
export function comparison(before, after, unknown = []) {
  const names = [...new Set([...(after ?? new Map()).keys(), ...(before ?? new Map()).keys(), ...unknown])];
  const rows = names.map((name) => {
    const was = before?.get(name), now = after?.get(name);
    const differs = before && after && before.has(name) && after.has(name) && was !== now;
    return h("tr", { class: differs ? "differs" : "" },
      h("th", { scope: "row" }, name, differs ? h("span", { class: "unseen" }, " (changed)") : null),
      cell("Before", {}, before ? value(was) : h("span", { class: "soft" }, UNKNOWN)),
      cell("After", {}, after ? value(now) : h("span", { class: "soft" }, UNKNOWN)));
  });
  return h("table", { class: "compare", "aria-label": "The row before and after the change" }, head("Column", "Before", "After"), h("tbody", {}, rows));
}
