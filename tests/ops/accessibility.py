"""What a reader could not read or reach in a page: contrast, names, focus."""

from __future__ import annotations

from typing import Any

from tests.fixtures.browser import Page

_ROLES = {"button", "link", "textbox", "searchbox", "slider", "combobox", "table", "navigation", "figure", "dialog"}
"""Elements with these roles must have a name."""

# WCAG 2: at least 4.5 between a text and what is behind it.
_CONTRAST = """(() => {
    const parse = (text) => {
        const numbers = text.match(/[\\d.]+/g).map(Number);
        if (text.startsWith("color(srgb")) return [...numbers.slice(0, 3).map((n) => n * 255), numbers[3] ?? 1];
        return [numbers[0], numbers[1], numbers[2], numbers[3] ?? 1];
    };
    const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
    const behind = (element) => {
        const layers = [];
        for (let each = element; each; each = each.parentElement) {
            layers.push(parse(getComputedStyle(each).backgroundColor));
            if (layers.at(-1)[3] === 1) break;
        }
        return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
    };
    const light = (color) => color.slice(0, 3).map((n) => n / 255)
        .map((n) => (n <= 0.03928 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4))
        .reduce((sum, n, i) => sum + n * [0.2126, 0.7152, 0.0722][i], 0);
    const found = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        const text = walker.currentNode.textContent.trim();
        if (!text || !element.checkVisibility() || element.closest(":disabled")) continue;
        const back = behind(element), front = over(parse(getComputedStyle(element).color), back);
        const [bright, dark] = [light(front), light(back)].sort((a, b) => b - a);
        const ratio = (bright + 0.05) / (dark + 0.05);
        if (ratio < 4.5) found.add(`${text.slice(0, 40)}: contrast ${ratio.toFixed(2)}`);
    }
    return [...found];
})()"""

_FOCUS = """(() => {
    const all = [...document.querySelectorAll("a[href], button, input, [tabindex='0']")]
        .filter((each) => each.checkVisibility() && !each.disabled && !each.closest("dialog"));
    const unseen = all.filter((each) => {
        each.focus();
        const style = getComputedStyle(each);
        return style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2;
    });
    document.activeElement.blur();
    return unseen.map((each) => `${each.outerHTML.slice(0, 80)}: no visible focus`);
})()"""


def accessibility_faults(page: Page) -> list[str]:
    """Texts that are hard to read, elements without a name, and those that do not show that they have the focus."""
    page.press("Tab")  # the keyboard is in use, so the focus is shown
    page.run("Promise.all(document.getAnimations().map((each) => each.finished)).then(() => true)")
    return [*page.run(_CONTRAST), *page.run(_FOCUS), *_unnamed(page)]


def _unnamed(page: Page) -> list[str]:
    nodes: list[dict[str, Any]] = page.send("Accessibility.getFullAXTree")["nodes"]
    return [
        f"a {role} without a name"
        for node in nodes
        if not node["ignored"]
        and (role := node["role"]["value"]) in _ROLES
        and not node.get("name", {}).get("value", "").strip()
    ]
