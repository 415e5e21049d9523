// The page: the views and their addresses, the status every two seconds, faults, and keys.

import { forgetToken, get, hasToken } from "./api.js";
import * as changes from "./changes.js";
import * as deadLetters from "./dead_letters.js";
import { duration, empty, h, setText } from "./dom.js";
import * as overview from "./overview.js";
import * as row from "./row.js";
import { onAction, onSession, showSession, signIn } from "./session.js";
import * as tables from "./tables.js";

const REFRESH_MS = 2000;
const VIEWS = { overview, tables, changes, row, "dead-letters": deadLetters };
const view = document.getElementById("view");
const state = { status: null, updatedAt: null, isAsking: false, wasRefused: false, shown: null };

const tabs = Object.entries(VIEWS).map(([name, module], index) => {
  const tab = h("a", { href: `#/${name}`, title: `Key ${index + 1}` }, module.title);
  tab.dataset.view = name;
  return tab;
});
document.getElementById("tabs").append(...tabs);
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
document.getElementById("footer").textContent = `Times are in ${zone}${zone === "UTC" ? "" : "; hover over one for UTC"}. Keys 1 to ${tabs.length} switch views, / goes to the filter.`;

function route() {
  const [, name = "", query = ""] = /^#\/([^?]*)\??(.*)$/.exec(location.hash) ?? [];
  return { name: VIEWS[name] ? name : "overview", parameters: new URLSearchParams(query) };
}

function show() {
  const { name, parameters } = route();
  state.shown?.close?.();
  for (const tab of tabs) {
    if (tab.dataset.view === name) {
      tab.setAttribute("aria-current", "page");
      tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else tab.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[name].title} · Tailrace`;
  view.replaceChildren();
  state.shown = VIEWS[name].open(view, parameters) ?? {};
  if (state.status) state.shown.refresh?.(state.status);
}

function showHealth(text, kind, faults, warnings = []) {
  const health = document.getElementById("health");
  setText(health, text);
  health.className = "pill " + kind;
  showLines(document.getElementById("faults"), faults);
  showLines(document.getElementById("warnings"), warnings);
}

function showLines(list, lines) {
  const before = [...list.children].map((each) => each.textContent).join("\n");
  if (before !== lines.join("\n")) list.replaceChildren(...lines.map((line) => h("p", {}, line)));
  list.hidden = !lines.length;
}

let timer;

async function refresh() {
  clearTimeout(timer);
  try {
    const status = await get("status");
    state.status = status;
    state.updatedAt = Date.now();
    state.wasRefused = false;
    setText(document.getElementById("age"), "");
    showHealth(status.status === "ok" ? "healthy" : "needs attention", status.status === "ok" ? "good" : "bad", status.faults, status.warnings);
    showSession(state.shown?.needsToken?.());
    state.shown?.refresh?.(status);
  } catch (error) {
    if (error.status === 401) {
      askForToken();
    } else if (error.status === 0) {
      const age = state.updatedAt ? "last update " + duration((Date.now() - state.updatedAt) / 1000) + " ago" : "";
      setText(document.getElementById("age"), age);
      showHealth("not responding", "bad", []);
    } else {
      showHealth("no status", "bad", [error.message]);
    }
  }
  clearTimeout(timer);
  timer = setTimeout(refresh, REFRESH_MS);
}

async function askForToken() {
  showHealth("signed out", "idle", []);
  showSession(true);
  if (state.wasRefused) return;
  state.wasRefused = true;
  const isRepeated = hasToken();
  forgetToken();
  state.shown?.close?.();
  state.shown = {};
  view.replaceChildren(empty("Signed out", "Sign in with the token to see the status."));
  await signIn(isRepeated ? "The token is no longer accepted." : "Reading from this server needs its token.");
}

onSession(() => {
  state.wasRefused = false;
  showSession();
  show();
});

onAction(refresh);
addEventListener("hashchange", show);
addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const tab = tabs[Number(event.key) - 1];
  if (tab) {
    tab.click();
    tab.focus();
  } else if (event.key === "/") {
    const filter = view.querySelector("input");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  }
});

show();
refresh();
