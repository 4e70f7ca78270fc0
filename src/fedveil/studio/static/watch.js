// Ask every second how far a job is, until it has ended.
"use strict";
const watched = document.getElementById("watched");
let told = "";
async function look() {
  const found = await fetch(`/api/job?job=${encodeURIComponent(watched.dataset.job)}`)
    .then((answer) => answer.json()).catch(() => null);
  if (found && !found.error) {
    const within = watched.contains(document.activeElement); // do not take a button away from under a finger
    if (!within || found.state !== watched.dataset.state) watched.innerHTML = found.html;
    if (found.state !== watched.dataset.state) document.getElementById("announced").textContent = found.state;
    watched.dataset.state = found.state;
    told = found.told;
  }
  if (watched.dataset.state === "running") setTimeout(look, 700);
}
look();
