// Plan algorithms, or degrees of trust, side by side.
"use strict";
const comparing = document.getElementById("compare-form");
comparing.addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = document.getElementById("working");
  const start = document.getElementById("compare");
  start.disabled = true;
  say(said, "Planning each of them …");
  const found = await ask("/api/compare", { study: comparing.dataset.study, view: document.getElementById("view").value });
  start.disabled = false;
  if (found.error) return say(said, found.error, "bad");
  say(said, "");
  document.getElementById("answer").innerHTML = found.html;
});
