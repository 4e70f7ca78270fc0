// The design page: choices write the study's text, the text is checked as one types, sliders are answered as they move.
"use strict";
const design = document.getElementById("design");
const text = document.getElementById("text");
const said = document.getElementById("said");
const saved = document.getElementById("saved");
const answer = document.getElementById("answer");
const working = document.getElementById("working");
const study = design.dataset.study;
const tab = crypto.randomUUID();
let seen = design.dataset.seen;
let number = 0; // of the newest question: older answers are not shown

const shape = (more) => ({ study, text: text.value, tab, ...more });

function show(found) {
  if (found.html) {
    const open = answer.querySelector("details[open]") !== null;
    answer.innerHTML = found.html;
    if (open) answer.querySelectorAll("details").forEach((one) => { one.open = true; });
    answer.classList.remove("stale");
  } else {
    answer.classList.add("stale");
  }
  answer.dataset.state = found.state || "";
}

async function plan() {
  const mine = ++number;
  answer.classList.add("stale");
  working.textContent = "Working out the exact numbers …";
  const found = await ask("/api/plan", shape());
  if (mine !== number || found.superseded) return;
  working.textContent = "";
  if (found.error) {
    answer.dataset.state = "refused";
    return say(said, found.error, "bad");
  }
  say(said, "The study is right.", "good");
  show(found);
}

async function check() {
  const mine = ++number;
  const found = await ask("/api/check", shape());
  if (mine !== number || found.superseded) return;
  if (found.error) {
    answer.classList.add("stale");
    answer.dataset.state = "refused";
    return say(said, found.error, "bad");
  }
  say(said, "The study is right.", "good");
  reflect(found.chosen);
  planSoon();
}

function reflect(chosen) {
  for (const control of document.querySelectorAll("[data-choice]")) {
    const value = String(chosen[control.dataset.choice]);
    if ([...control.options].some((one) => one.value === value)) control.value = value;
  }
  for (const slider of document.querySelectorAll("[data-slider]")) {
    const value = Number(chosen[slider.dataset.slider]);
    if (value > 0 && !moved.has(slider)) place(slider, value);
  }
}

function place(slider, value) {
  const at = Math.log10(value);
  if (at < Number(slider.min)) slider.min = at;
  if (at > Number(slider.max)) slider.max = at;
  if (document.activeElement !== slider || Math.abs(Number(slider.value) - at) > 0.003) slider.value = at;
  label(slider, value);
}

function label(slider, value) {
  const shown = value < 0.001 ? value.toExponential(1) : String(value);
  document.getElementById(`${slider.id}-value`).textContent = shown;
  slider.setAttribute("aria-valuetext", shown);
}

const valueOf = (slider) => Number((10 ** Number(slider.value)).toPrecision(slider.id === "delta" ? 2 : 3));

// Choices are written one after another, each into the text that the one before has left. A slider that was moved
// again while its last move is being written keeps its place until that move is written, too.
const moved = new Map();
let choosing = Promise.resolve();
function choose(name, value) {
  choosing = choosing.then(() => write(name, value));
  return choosing;
}

async function write(name, value) {
  const found = await ask("/api/choose", { text: text.value, name, value });
  for (const [slider, last] of moved) if (slider.id === name && last === value) moved.delete(slider);
  if (found.error) return say(said, found.error, "bad");
  if (text.value !== found.text) unsaved();
  text.value = found.text;
  reflect(found.chosen);
  plan();
}

function unsaved() {
  saved.textContent = "Not saved yet.";
}

let asking = false;
let next = null;
async function about() {
  if (asking) { next = about; return; }
  asking = true;
  const target = {};
  for (const slider of document.querySelectorAll("[data-slider]")) target[slider.id] = valueOf(slider);
  const mine = ++number;
  const found = await ask("/api/about", { study, text: text.value, ...target });
  asking = false;
  if (mine === number && !found.error) {
    working.textContent = found.state === "working" ? "The numbers between are still being worked out; let go for the exact ones." : "";
    show(found);
  }
  if (next) { const again = next; next = null; again(); }
}

for (const slider of document.querySelectorAll("[data-slider]")) {
  slider.addEventListener("input", () => { moved.set(slider, valueOf(slider)); label(slider, valueOf(slider)); about(); });
  slider.addEventListener("change", later(200, () => choose(slider.id, moved.get(slider) ?? valueOf(slider))));
}
for (const control of document.querySelectorAll("[data-choice]")) {
  control.addEventListener("change", () => choose(control.dataset.choice, control.value));
}
const checkSoon = later(300, check);
const planSoon = later(400, plan);
text.addEventListener("input", () => { unsaved(); checkSoon(); });

async function save() {
  const found = await ask("/api/save", { study, text: text.value, seen });
  if (found.error) return say(said, found.error, "bad");
  seen = found.seen;
  saved.textContent = "Saved.";
}
document.getElementById("save").addEventListener("click", save);
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "s") { event.preventDefault(); save(); }
});
addEventListener("beforeunload", (event) => { if (saved.textContent === "Not saved yet.") event.preventDefault(); });
plan();
