// What the console's pages have in common: elements, tables, colours.
"use strict";

const $ = (id) => document.getElementById(id);

function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === "style") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Tables. Rows that stay are the same elements, so that what has the focus keeps it.

function rows(body, items, key, fill) {
  const old = new Map([...body.children].map((row) => [row.dataset.key, row]));
  items.forEach((item, place) => {
    const name = String(key(item));
    const row = old.get(name) ?? element("tr", {"data-key": name});
    old.delete(name);
    fill(row, item);
    if (body.children[place] !== row) body.insertBefore(row, body.children[place] ?? null);
  });
  for (const row of old.values()) row.remove();
}

function cells(row, ...specs) {
  specs.forEach(([content, kind], place) => {
    const cell = row.children[place] ?? row.appendChild(element("td"));
    if (kind !== undefined && cell.className !== kind) cell.className = kind;
    if (content instanceof Node) { if (!cell.firstChild?.isEqualNode(content)) cell.replaceChildren(content); }
    else setText(cell, content);
  });
}

// Light or dark, as was chosen last or as the system has it; CHANGED is called with each change
function beginTheme(changed) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const choose = (theme) => {
    document.documentElement.dataset.theme = theme;
    setText($("theme"), theme === "dark" ? "Light" : "Dark");
    changed();
  };
  choose(localStorage.getItem("clgrpc-theme") ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => {
    if (!localStorage.getItem("clgrpc-theme")) choose(dark.matches ? "dark" : "light");
  });
  $("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("clgrpc-theme", theme);
    choose(theme);
  });
}
