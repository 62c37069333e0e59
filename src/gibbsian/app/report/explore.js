// Curves that can be hovered and zoomed, and samples with a slider. Without scripts the still pictures stay.
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const node = (name, attributes = {}, text = "") => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  };
  const html = (name, attributes = {}, text = "") => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  };
  const say = (v) => {
    if (v === 0) return "0";
    const size = Math.abs(v);
    if (size >= 1e6 || size < 1e-4) return v.toExponential(2).replace("e+", "e");
    const digits = Math.max(0, 3 - Math.floor(Math.log10(size)));
    return Number.isInteger(v) ? String(v) : v.toFixed(Math.min(digits, 6));
  };
  const ticks = (low, high, count) => {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power, out = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) out.push(+(i * step).toPrecision(12));
    return out;
  };
  const label = (values) => { // as many decimals as tell ticks apart
    const step = values.length > 1 ? values[1] - values[0] : 1, size = Math.max(...values.map(Math.abs));
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return values.map((v) => v === 0 ? "0" : String(+v.toPrecision(3)).length < 9 ? String(+v.toPrecision(3)) : v.toExponential(1).replace("e+", "e"));
    return values.map((v) => v.toFixed(Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)))));
  };
  const extent = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

  function plot(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent), still = figure.querySelector("svg");
    const whole = data.range || extent(data.series.flatMap((s) => s.points.map((p) => p[0])));
    if (!(whole[1] > whole[0])) return;
    let view = [...whole], drag = null, at = null;
    const box = html("div", { class: "chart" }), tip = html("output", { class: "tip", hidden: "" });
    const back = html("button", { type: "button", class: "back", hidden: "" }, "whole curve");
    const about = `${still.getAttribute("aria-label") || data.y}: drag to zoom, arrow keys to read, plus and minus to zoom, Escape for the whole`;
    const svg = node("svg", { role: "img", tabindex: "0", "aria-label": about });
    box.append(svg, tip, back);
    still.replaceWith(box);
    let width = 0, height = 0, left = 0, x, y, unx;
    const bottom = 40, top = 10, right = 12;

    function draw() {
      width = Math.max(220, box.clientWidth);
      height = Math.round(data.square ? Math.min(width, 420) * 0.86 : Math.max(190, Math.min(280, width * 0.52)));
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.replaceChildren();
      const inside = data.series.flatMap((s) => s.points.filter((p) => p[0] >= view[0] && p[0] <= view[1]).map((p) => p[1]));
      let [low, high] = data.tall || (inside.length ? extent(inside) : [0, 1]);
      if (high <= low) [low, high] = [low - 0.5 * (Math.abs(low) || 1), high + 0.5 * (Math.abs(high) || 1)];
      const pad = data.tall ? 0 : 0.06 * (high - low);
      low -= pad; high += pad;
      const rows = ticks(low, high, 5), words = label(rows);
      left = 26 + 7 * Math.max(...words.map((w) => w.length));
      x = (v) => left + (v - view[0]) / (view[1] - view[0]) * (width - left - right);
      unx = (p) => view[0] + (p - left) / (width - left - right) * (view[1] - view[0]);
      y = (v) => height - bottom - (v - low) / (high - low) * (height - bottom - top);
      rows.forEach((v, i) => svg.append(
        node("line", { x1: left, x2: width - right, y1: y(v), y2: y(v), class: "grid" }),
        node("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, words[i])));
      const columns = ticks(view[0], view[1], Math.max(2, Math.floor((width - left) / 90))), heads = label(columns);
      columns.forEach((v, i) => {
        svg.append(node("line", { x1: x(v), x2: x(v), y1: height - bottom, y2: height - bottom + 4, class: "axis" }),
          node("text", { x: x(v), y: height - bottom + 17, "text-anchor": x(v) > width - 24 ? "end" : "middle" }, heads[i]));
      });
      svg.append(node("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, class: "axis" }),
        node("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, data.x),
        node("text", { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + height - bottom) / 2})` }, data.y));
      const id = `clip-${[...document.querySelectorAll(".chart")].indexOf(box)}`, clip = node("clipPath", { id });
      clip.append(node("rect", { x: left - 4, y: top - 4, width: width - left - right + 8, height: height - top - bottom + 8 }));
      const lines = node("g", { "clip-path": `url(#${id})` });
      svg.append(clip, lines);
      if (data.diagonal) lines.append(node("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), class: "event" }));
      for (const [step, text] of data.events || []) {
        const line = node("line", { x1: x(step), x2: x(step), y1: top, y2: height - bottom, class: "event" });
        line.append(node("title", {}, `step ${step}: ${text}`));
        lines.append(line);
      }
      data.series.forEach((s, i) => {
        const path = s.points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ");
        lines.append(node("polyline", { points: path, class: "line", style: `stroke: var(--c${i % 7})` }));
        if (s.points.length < 30) for (const p of s.points) lines.append(node("circle", { cx: x(p[0]), cy: y(p[1]), r: 2.5, style: `fill: var(--c${i % 7})` }));
      });
      svg.append(node("g", { class: "cross" }), node("rect", { class: "brush", y: top, height: height - bottom - top, width: 0 }));
      back.hidden = view[0] === whole[0] && view[1] === whole[1];
    }

    function read(value) {
      const cross = svg.querySelector(".cross");
      cross.replaceChildren();
      at = value;
      tip.hidden = value === null;
      if (value === null) return;
      const near = data.series.map((s, i) => ({ s, i, p: s.points.reduce((a, b) => Math.abs(b[0] - value) < Math.abs(a[0] - value) ? b : a) }));
      const first = near.reduce((a, b) => Math.abs(b.p[0] - value) < Math.abs(a.p[0] - value) ? b : a).p[0];
      at = first;
      cross.append(node("line", { x1: x(first), x2: x(first), y1: top, y2: height - bottom, class: "grid" }));
      const said = near.map(({ s, i, p }) => {
        cross.append(node("circle", { cx: x(p[0]), cy: y(p[1]), r: 4, style: `fill: var(--c${i % 7})` }));
        return `${data.series.length > 1 ? s.name + " " : ""}${say(p[1])}`;
      });
      tip.textContent = `${data.x} ${say(first)}: ${said.join(" · ")}`;
      const event = (data.events || []).find((e) => Math.abs(x(e[0]) - x(first)) < 6);
      if (event) tip.textContent += ` · ${event[1]}`;
    }

    const zoom = (low, high) => {
      view = [Math.max(whole[0], low), Math.min(whole[1], high)];
      if (!(view[1] - view[0] > 1e-6 * (whole[1] - whole[0]))) view = [...whole];
      draw(); read(null);
    };
    const place = (event) => {
      const area = svg.getBoundingClientRect();
      return Math.min(width - right, Math.max(left, (event.clientX - area.left) * width / area.width));
    };
    svg.addEventListener("pointerdown", (event) => { drag = place(event); svg.setPointerCapture(event.pointerId); });
    svg.addEventListener("pointermove", (event) => {
      const here = place(event);
      read(unx(here));
      if (drag === null || event.pointerType === "touch") return;
      const brush = svg.querySelector(".brush");
      brush.setAttribute("x", Math.min(drag, here));
      brush.setAttribute("width", Math.abs(here - drag));
    });
    svg.addEventListener("pointerup", (event) => {
      const here = place(event), from = drag;
      drag = null;
      if (from !== null && event.pointerType !== "touch" && Math.abs(here - from) > 8) zoom(unx(Math.min(from, here)), unx(Math.max(from, here)));
      else read(unx(here));
    });
    svg.addEventListener("pointerleave", () => { if (drag === null) read(null); });
    svg.addEventListener("dblclick", () => zoom(...whole));
    svg.addEventListener("keydown", (event) => {
      const xs = [...new Set(data.series.flatMap((s) => s.points.map((p) => p[0])))].filter((v) => v >= view[0] && v <= view[1]).sort((a, b) => a - b);
      const middle = at ?? (view[0] + view[1]) / 2, half = (view[1] - view[0]) / 2, i = xs.indexOf(at);
      const keys = {
        ArrowRight: () => read(xs[Math.min(xs.length - 1, i + 1)]), ArrowLeft: () => read(xs[i < 0 ? xs.length - 1 : Math.max(0, i - 1)]),
        "+": () => zoom(middle - half / 2, middle + half / 2), "-": () => zoom(middle - 2 * half, middle + 2 * half), Escape: () => zoom(...whole),
      };
      if (keys[event.key] && xs.length) { event.preventDefault(); keys[event.key](); }
    });
    back.addEventListener("click", () => zoom(...whole));
    if (data.series.length > 1) {
      const key = html("p", { class: "key" });
      data.series.forEach((s, i) => { const one = html("span", {}, s.name); one.style.setProperty("--own", `var(--c${i % 7})`); key.append(one); });
      box.append(key);
    }
    draw();
    addEventListener("resize", draw);
  }

  function film(box) {
    const frames = [...box.children];
    if (frames.length < 2) return;
    const slider = html("input", { type: "range", min: 0, max: frames.length - 1, value: frames.length - 1, "aria-label": "samples through training" });
    const word = html("output"), play = html("button", { type: "button" }, "play"), bar = html("div", { class: "reel" });
    let timer = 0;
    const show = (i) => {
      frames.forEach((frame, j) => { frame.hidden = j !== i; });
      slider.value = i;
      word.textContent = frames[i].querySelector("figcaption").textContent;
      slider.setAttribute("aria-valuetext", word.textContent);
    };
    const stop = () => { clearInterval(timer); timer = 0; play.textContent = "play"; };
    slider.addEventListener("input", () => { stop(); show(+slider.value); });
    play.addEventListener("click", () => {
      if (timer) return stop();
      play.textContent = "stop";
      show(+slider.value === frames.length - 1 ? 0 : +slider.value);
      timer = setInterval(() => { if (+slider.value >= frames.length - 1) stop(); else show(+slider.value + 1); }, 700);
    });
    bar.append(play, slider, word);
    box.classList.add("moving");
    box.before(bar);
    show(frames.length - 1);
  }

  document.querySelectorAll("figure.plot").forEach(plot);
  document.querySelectorAll(".film").forEach(film);
})();
