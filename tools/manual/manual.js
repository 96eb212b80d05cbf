// The search: all words must be in the title or the text of a section or an entry; what has them in
// its title comes first. The index is a script beside this one, so that it works without a server.
"use strict";

const input = document.getElementById("search");
const list = document.getElementById("found");
const contents = document.querySelector("nav > details");
const MOST = 30;

if (window.matchMedia("(max-width: 820px)").matches) contents.open = false;

function rank(row, words) {
  const title = row[0].toLowerCase(), text = row[2].toLowerCase();
  let sum = 0;
  for (const word of words) {
    if (title === word) sum += 100;
    else if (title.startsWith(word)) sum += 20;
    else if (title.includes(word)) sum += 10;
    else if (text.includes(word)) sum += 1;
    else return 0;
  }
  return sum;
}

function excerpt(text, word) {
  const at = Math.max(0, text.toLowerCase().indexOf(word) - 30);
  return (at > 0 ? "…" : "") + text.slice(at, at + 110) + (text.length > at + 110 ? "…" : "");
}

function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
  list.hidden = words.length === 0;
  list.replaceChildren();
  if (words.length === 0) return;
  const found = INDEX.map((row) => [rank(row, words), row]).filter((pair) => pair[0] > 0)
    .sort((one, other) => other[0] - one[0]).slice(0, MOST);
  for (const [, row] of found) {
    const link = document.createElement("a");
    link.href = input.dataset.up + row[1];
    link.textContent = row[0];
    const small = document.createElement("small");
    small.textContent = excerpt(row[2], words[0]);
    const item = document.createElement("li");
    item.append(link, small);
    list.append(item);
  }
  if (found.length === 0) {
    const item = document.createElement("li");
    item.textContent = "Nothing has all of these words.";
    list.append(item);
  }
}

input.addEventListener("input", search);
input.addEventListener("keydown", (event) => {
  const first = list.querySelector("a");
  if (event.key === "Enter" && first) location.href = first.href;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== input) {
    event.preventDefault();
    input.focus();
  }
});
