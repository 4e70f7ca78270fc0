// What all pages use: asking the studio, and saying what it answered. Nothing here computes anything about privacy.
"use strict";
const word = document.querySelector('meta[name="fedveil-word"]').content;

async function ask(address, body) {
  const answer = await fetch(address, {
    method: "POST",
    headers: { "content-type": "application/json", "x-fedveil-word": word },
    body: JSON.stringify(body),
  }).catch(() => null);
  if (answer === null) return { error: "The studio does not answer: was it stopped? Start it again; runs go on without it." };
  return answer.json().catch(() => ({ error: "The studio gave no answer that can be read." }));
}

function say(element, sentence, kind) {
  element.textContent = sentence;
  element.classList.toggle("bad", kind === "bad");
  element.classList.toggle("good", kind === "good");
}

function later(wait, action) {
  let waiting = 0;
  return (...given) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => action(...given), wait);
  };
}
