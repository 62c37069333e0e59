// The page: news of all runs by server-sent events, each shown by a card of its own.

import { Card } from "./card.js";

const main = document.getElementById("runs"), link = document.getElementById("link"), same = document.getElementById("same-axes");
const cards = [];
let captions = {}, ended = false, waiting = 0;

function draw() {
  waiting = 0;
  const ranges = same.checked ? together() : {};
  for (const card of cards) card.draw(ranges);
}

/** Draw before the next picture of the screen, however many news there are. Where nothing is on the screen, soon. */
function soon() {
  if (!waiting) waiting = setTimeout(draw, 30);
}

/** The least and greatest step and value of every number over all runs. */
function together() {
  const out = {};
  for (const card of cards) {
    for (const [name, r] of Object.entries(card.ranges())) {
      const o = out[name] ?? r;
      out[name] = { x: [Math.min(o.x[0], r.x[0]), Math.max(o.x[1], r.x[1])], y: [Math.min(o.y[0], r.y[0]), Math.max(o.y[1], r.y[1])] };
    }
  }
  return out;
}

function say(text, lost = false) {
  link.textContent = text;
  link.classList.toggle("lost", lost);
}

function told(news) {
  if (!cards[news.run]) {
    cards[news.run] = new Card(news.run, captions, soon);
    main.append(cards[news.run].node);
    document.getElementById("same").hidden = cards.length < 2;
  }
  cards[news.run].take(news);
  document.title = `${cards.map((card) => card.title()).join(", ")} · live`;
  soon();
}

const source = new EventSource("events");
source.addEventListener("hello", (event) => { captions = JSON.parse(event.data).curves; say("connected"); });
source.addEventListener("run", (event) => told(JSON.parse(event.data)));
source.addEventListener("end", () => { ended = true; source.close(); say("the server has ended; `gibbsian watch` shows the run again"); });
source.addEventListener("error", () => { if (!ended) say("the connection is lost; trying again", true); });
addEventListener("pagehide", () => source.close());
addEventListener("resize", soon);
same.addEventListener("change", soon);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
window.live = { cards };
