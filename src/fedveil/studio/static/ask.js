// The page of questions: what is chosen and where epsilon stands is answered with the precision to expect.
"use strict";
const form = document.getElementById("ask");
const said = document.getElementById("said");
const answer = document.getElementById("answer");
const slider = document.getElementById("epsilon");
const sent = form.querySelector('input[type="hidden"][name="epsilon"]');
const tab = crypto.randomUUID();
slider.removeAttribute("name"); // its value is a power of ten: the hidden field carries the number
let number = 0; // of the newest question: older answers are not shown

function fields() {
  const found = { data: form.dataset.data, delta: form.elements.delta.value, epsilon: sent.value, tab };
  for (const one of form.querySelectorAll("[data-question]")) found[`of ${one.dataset.question}`] = one.value;
  return found;
}

async function expect() {
  const mine = ++number;
  if (![...form.querySelectorAll("[data-question]")].some((one) => one.value)) {
    answer.textContent = "Choose what to ask of a column.";
    return say(said, "");
  }
  answer.classList.add("stale");
  const found = await ask("/api/questions", fields());
  if (mine !== number || found.superseded) return;
  answer.classList.remove("stale");
  if (found.error) {
    answer.textContent = "";
    return say(said, found.error, "bad");
  }
  say(said, "");
  answer.innerHTML = found.html;
}

const soon = later(250, expect);
slider.addEventListener("input", () => {
  sent.value = String(Number((10 ** Number(slider.value)).toPrecision(3)));
  document.getElementById("epsilon-value").textContent = sent.value;
  slider.setAttribute("aria-valuetext", sent.value);
  soon();
});
for (const one of form.querySelectorAll("[data-question]")) one.addEventListener("change", expect);
document.getElementById("all").addEventListener("click", () => {
  for (const one of form.querySelectorAll("[data-question]")) one.selectedIndex = 1;
  expect();
});
expect();
