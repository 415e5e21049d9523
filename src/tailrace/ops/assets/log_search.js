// A search of the log, with its progress. The server reads a part of the log for each request; the page asks on by itself
// until it has enough, nothing is left, or somebody stops it.

import { count, h, problem, timeText } from "./dom.js";

const UPDATE_MS = 200; // a shorter search shows no bar, which would only flicker

export class LogSearch {
  /**
   * `ask(last, signal)` requests the part after the last answer, or the first one if that is null. `take(found)` shows an
   * answer, and returns how many results it has; the search rests at `enough`. `describe(found)` says what there is so
   * far, and `end(found)` what there is when nothing is left. `refuse(error)` may return what to show instead of an
   * error, and `focus(taken)` may focus on the first of the new results.
   */
  constructor(options) {
    this.options = options;
    this.text = h("span", { class: "soft" });
    this.bar = h("progress", { "aria-label": "Searched part of the log" });
    this.stop = h("button", { type: "button", onclick: () => this.abort.abort() }, "Stop");
    this.running = h("div", { class: "progress", hidden: true }, this.bar, this.text, this.stop);
    this.result = h("div", { class: "progress", role: "status" });
    this.element = h("div", {}, this.result, this.running);
  }

  close() {
    this.isClosed = true;
    this.abort?.abort();
  }

  /** Search on from the last answer, or from the beginning. */
  async run(last = null) {
    const { ask, take, enough, describe, focus } = this.options;
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    const hasFocus = this.result.contains(document.activeElement);
    const searching = h("span", { class: "soft" }, "Searching…");
    this.result.replaceChildren(searching);
    this.text.textContent = "";
    this.bar.removeAttribute("value");
    const timer = setTimeout(() => {
      searching.className = "unseen";
      this.running.hidden = false;
      if (hasFocus) this.stop.focus();
    }, UPDATE_MS);
    let taken = 0, most = 0, failure = null;
    try {
      do {
        last = await ask(last, abort.signal);
        if (abort.signal.aborted) break;
        taken += take(last);
        most = Math.max(most, last.segments_left);
        this.bar.max = most;
        this.bar.value = most - last.segments_left;
        this.text.textContent = `${describe(last)} ${count(last.segments_left)} segments are left.`;
      } while (last.cursor && taken < enough);
    } catch (error) {
      if (!abort.signal.aborted) failure = error;
    }
    clearTimeout(timer);
    if (this.isClosed || this.abort !== abort) return; // the view is closed, or searches anew
    const isStopped = document.activeElement === this.stop && abort.signal.aborted;
    const mustFocus = hasFocus || document.activeElement === this.stop;
    this.running.hidden = true;
    this.result.replaceChildren(failure ? this.failed(failure, last) : this.rest(last));
    if (mustFocus && (isStopped || !taken || !focus?.(taken))) this.result.querySelector("button")?.focus();
  }

  rest(last) {
    const { describe, end } = this.options;
    if (last && !last.cursor) return end(last);
    return h("div", { class: "progress" }, h("span", {}, last ? describe(last) : "Stopped."), this.button("Go on", last));
  }

  failed(error, last) {
    return this.options.refuse(error) ?? problem(error, this.button("Try again", last));
  }

  button(text, last) {
    return h("button", { type: "button", onclick: () => this.run(last) }, text);
  }
}

export const searchedBack = (found) => `searched back to ${timeText(found.searched_to)}.`;
