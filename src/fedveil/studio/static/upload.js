// Copy a file into the working folder.
"use strict";
const sending = document.getElementById("upload-form");
sending.addEventListener("submit", async (event) => {
  event.preventDefault();
  const file = document.getElementById("upload").files[0];
  const said = document.getElementById("upload-said");
  if (!file) return say(said, "Choose a file first.", "bad");
  say(said, "Copying …");
  const target = sending.dataset.to || "/upload";
  const answer = await fetch(`${target}?name=${encodeURIComponent(file.name)}${sending.dataset.more || ""}`, {
    method: "POST",
    headers: { "content-type": "application/octet-stream", "x-fedveil-word": word },
    body: file,
  }).then((found) => found.json()).catch(() => ({ error: "The upload broke off, and nothing was kept." }));
  if (answer.error) return say(said, answer.error, "bad");
  if (answer.open) { location.href = answer.open; return; }
  say(said, "");
  document.getElementById("predicted").innerHTML = answer.html;
});
