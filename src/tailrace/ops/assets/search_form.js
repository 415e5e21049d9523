// The fields that name a table and a key. A key has as many fields as the table's key has columns.

import { get } from "./api.js";
import { h } from "./dom.js";

export class TableAndKey {
  constructor(parameters) {
    this.table = h("input", { name: "table", list: "table-names", placeholder: "public.orders or public.*", autocomplete: "off", spellcheck: false, value: parameters.get("table") ?? "" });
    this.names = h("datalist", { id: "table-names" });
    this.keys = h("div", { class: "keys" });
    this.given = parameters.getAll("key");
    this.columns = new Map();
    this.fields = [];
    this.element = [field("Table", this.table, this.names), this.keys];
    this.table.addEventListener("change", () => this.showKeys());
    this.showKeys();
    this.load();
  }

  /** Learn the tables' names and keys, for suggestions. Without them, everything works as well. */
  async load() {
    const { tables } = await get("tables").catch(() => ({ tables: null }));
    if (!tables) return;
    this.columns = new Map(tables.filter((table) => table.key).map((table) => [table.name, table.key]));
    this.names.replaceChildren(...tables.map((table) => h("option", { value: table.name })));
    this.showKeys();
  }

  showKeys() {
    const columns = this.columns.get(this.table.value.trim()) ?? [];
    const labels = columns.length ? columns : this.given.length > 1 ? this.given.map((_, index) => `Key ${index + 1}`) : [""];
    const texts = this.fields.length ? this.key : this.given;
    const had = this.fields.findIndex((input) => input === document.activeElement);
    if (this.fields.length === labels.length && this.labels?.join("\n") === labels.join("\n")) return;
    this.labels = labels;
    this.fields = labels.map((label, index) => h("input", { name: "key", autocomplete: "off", spellcheck: false, value: texts[index] ?? "" }));
    this.keys.replaceChildren(...this.fields.map((input, index) => field(labels[index] ? `Key: ${labels[index]}` : "Key", input)));
    this.fields[had]?.focus();
  }

  get key() {
    return this.fields.map((input) => input.value);
  }

  /** Table and key as they go into an address; the key only if all of it is given. */
  get values() {
    const { key } = this;
    return { table: this.table.value.trim(), key: key.every((text) => text !== "") ? key : [] };
  }
}

export const field = (label, input, ...more) => h("label", { class: "field" }, h("span", {}, label), input, ...more);

/** The address of a view with parameters; empty ones are left out. */
export function address(view, parameters) {
  const query = new URLSearchParams();
  for (const [name, values] of Object.entries(parameters)) {
    for (const each of Array.isArray(values) ? values : [values]) if (each) query.append(name, each);
  }
  return query.size ? `#/${view}?${query}` : `#/${view}`;
}
