// The explore page: figures follow their sliders; the game is played against the studio's own coin.
"use strict";
const tab = crypto.randomUUID();
const newest = {};

function valueOf(slider) {
  const low = Number(slider.dataset.low), high = Number(slider.dataset.high), share = Number(slider.value) / 1000;
  const value = slider.dataset.log ? low * (high / low) ** share : low + share * (high - low);
  return slider.dataset.whole ? Math.round(value) : Number(value.toPrecision(3));
}

function valuesOf(part) {
  const found = {};
  for (const slider of document.querySelectorAll(`[data-part="${part}"]`)) found[slider.dataset.key] = valueOf(slider);
  return found;
}

const busy = {};
async function draw(part) {
  if (busy[part]) { newest[part] = true; return; }
  busy[part] = true;
  const place = document.getElementById(`${part}-figure`);
  place.classList.add("stale");
  const found = await ask("/api/figure", { name: part, tab, ...valuesOf(part) });
  busy[part] = false;
  if (newest[part]) { newest[part] = false; return draw(part); }
  if (found.superseded) return;
  place.classList.remove("stale");
  if (found.error) { place.textContent = found.error; return; }
  const open = place.querySelector("details[open]") !== null;
  place.innerHTML = found.html;
  if (open) place.querySelector("details").open = true;
  place.dataset.drawn = "yes";
}

for (const slider of document.querySelectorAll("[data-part]")) {
  slider.addEventListener("input", () => {
    const value = valueOf(slider);
    const shown = value < 0.001 ? value.toExponential(1) : String(value);
    document.getElementById(`${slider.id}-value`).textContent = shown;
    slider.setAttribute("aria-valuetext", shown);
    if (slider.dataset.part === "trade_off") forget();
    if (slider.dataset.slow) document.getElementById(`${slider.dataset.part}-figure`).classList.add("stale");
    else draw(slider.dataset.part);
  });
  slider.addEventListener("change", () => draw(slider.dataset.part));
}

let game = null;
const number = document.getElementById("number"), score = document.getElementById("score");
const buttons = ["show", "used", "unused"].map((name) => document.getElementById(name));

function forget() {
  game = null;
  number.textContent = "–";
  score.textContent = "";
  buttons[0].disabled = false;
  buttons[1].disabled = buttons[2].disabled = true;
}

buttons[0].addEventListener("click", async () => {
  const found = await ask("/api/game", game === null ? valuesOf("trade_off") : { game });
  if (found.error) return say(score, found.error, "bad");
  game = found.game;
  number.textContent = found.number.toFixed(2);
  buttons[0].disabled = true;
  buttons[1].disabled = buttons[2].disabled = false;
  buttons[1].focus();
});
for (const [at, guess] of [[1, true], [2, false]]) {
  buttons[at].addEventListener("click", async () => {
    const found = await ask("/api/game", { game, guess });
    if (found.error) return say(score, found.error, "bad");
    const share = Math.round(100 * found.right / found.played);
    say(score, `It was ${found.used ? "used" : "not used"}. Right: ${found.right} of ${found.played} (${share}%).`);
    buttons[0].disabled = false;
    buttons[1].disabled = buttons[2].disabled = true;
    buttons[0].focus();
  });
}
const parts = [...document.querySelectorAll("[data-figure]")].map((one) => one.dataset.figure);
const slow = (part) => Number(document.querySelector(`[data-part="${part}"][data-slow]`) !== null);
for (const part of parts.sort((one, other) => slow(one) - slow(other))) draw(part);
