// What is wrong with how the page looks, as {kind of problem: [examples]}. Evaluated in the page by test_looks.py.
(() => {
  const found = {};
  const note = (kind, text) => { (found[kind] ??= []).length < 8 && found[kind].push(text); };
  const wide = document.documentElement.clientWidth;
  const seen = (e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const short = (text) => text.trim().replace(/\s+/g, " ").slice(0, 60);

  // The page does not scroll sideways.
  if (document.documentElement.scrollWidth > wide) {
    for (const e of document.querySelectorAll("body *"))
      if (seen(e) && e.getBoundingClientRect().right > wide + 1)
        note("sticks out", `${e.tagName}.${e.getAttribute("class")} ${Math.round(e.getBoundingClientRect().right)} > ${wide}`);
  }

  // Text: its boxes, its words, its contrast.
  const texts = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || !seen(parent) || parent.closest("title, script, style")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const r of range.getClientRects()) if (r.width > 1 && r.height > 1) texts.push({ node, r });
    if (parent.closest("svg, code, pre")) continue;
    for (const word of node.data.matchAll(/\S+/g)) {
      let before = null;
      for (let at = word.index; at < word.index + word[0].length; at++) {
        range.setStart(node, at);
        range.setEnd(node, at + 1);
        const r = range.getClientRects()[0];
        if (!r || !r.width) continue;
        if (before !== null && r.top > before + 4 && !"-–—/_=.:→…\u00ad".includes(node.data[at - 1])) {
          note("split word", word[0]);
          break;
        }
        before = r.top;
      }
    }
  }
  texts.sort((a, b) => a.r.top - b.r.top);
  for (let i = 0; i < texts.length; i++) {
    const a = texts[i];
    for (let j = i + 1; j < texts.length && texts[j].r.top < a.r.bottom; j++) {
      const b = texts[j];
      const across = Math.min(a.r.right, b.r.right) - Math.max(a.r.left, b.r.left);
      const down = Math.min(a.r.bottom, b.r.bottom) - Math.max(a.r.top, b.r.top);
      if (a.node !== b.node && across > 1.5 && down > 0.3 * Math.min(a.r.height, b.r.height))
        note("overprinted", `${short(a.node.data)} | ${short(b.node.data)}`);
    }
  }

  // Words of the verdict are within the screen and within every box that could clip them.
  for (const e of document.querySelectorAll(".word")) {
    const r = e.getBoundingClientRect();
    let inside = seen(e) && r.width > 0 && r.left >= -1 && r.right <= wide + 1;
    for (let box = e.parentElement; box && inside; box = box.parentElement)
      if (getComputedStyle(box).overflowX !== "visible" && box !== document.documentElement)
        inside = r.right <= box.getBoundingClientRect().right + 1;
    if (!inside) note("verdict hidden", short(e.textContent));
  }

  // Every strip has an axis: in its cell, or above its column; every framed chart has labels at both sides.
  for (const strip of document.querySelectorAll("svg.strip:not(.axis)")) {
    if (!seen(strip)) continue;
    const own = strip.parentElement.querySelectorAll("svg.axis");
    const above = strip.closest("table")?.tHead?.querySelectorAll("svg.axis") ?? [];
    const axis = [...own, ...above].find((e) => seen(e) && e.querySelectorAll("text").length > 1);
    const a = axis?.getBoundingClientRect(), s = strip.getBoundingClientRect();
    if (!axis) note("no axis", strip.getAttribute("aria-label"));
    else if (Math.abs(a.left - s.left) > 2 || Math.abs(a.right - s.right) > 2)
      note("axis does not match", strip.getAttribute("aria-label"));
  }
  for (const box of document.querySelectorAll(".framed")) {
    if (!seen(box)) continue;
    const [upright, chart] = box.querySelectorAll(":scope > svg");
    if (!upright.querySelector("text") || chart.querySelectorAll("text.tick-words").length < 2)
      note("no axis", chart.getAttribute("aria-label"));
  }

  // Contrast (WCAG 2.2): 4.5 for text, 3 for graphics that carry meaning.
  const parse = (c) => { const n = (c.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const over = (top, under, share) => under.map((u, i) => (i < 3 ? top[i] * top[3] * share + u * (1 - top[3] * share) : 1));
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const paper = (e) => {
    const layers = [];
    for (let box = e; box; box = box.parentElement) layers.unshift(parse(getComputedStyle(box).backgroundColor));
    return layers.reduce((under, layer) => over(layer, under, 1), [255, 255, 255, 1]);
  };
  const solid = (e) => { let share = 1; for (let b = e; b; b = b.parentElement) share *= Number(getComputedStyle(b).opacity); return share; };
  const told = new Set();
  for (const { node } of texts) {
    const e = node.parentElement, style = getComputedStyle(e), under = paper(e);
    const ink = over(parse(e.closest("svg") ? style.fill : style.color), under, solid(e));
    const ratio = contrast(ink, under), key = `${e.tagName}.${e.getAttribute("class")}`;
    if (ratio < 4.5 && !told.has(key)) { told.add(key); note("faint text", `${key} ${ratio.toFixed(2)}: ${short(node.data)}`); }
  }
  for (const e of document.querySelectorAll(".dot, .bar, .line:not(.ideal), .limit, .icon, .edge path, .node")) {
    if (!seen(e) || e.closest(".crowded") || e.classList.contains("ideal")) continue;
    const style = getComputedStyle(e), under = paper(e);
    const inks = [style.fill, style.stroke].filter((c) => c !== "none").map((c) => over(parse(c), under, solid(e)));
    const ratio = Math.max(...inks.map((c) => contrast(c, under))), key = e.getAttribute("class") ?? e.tagName;
    if (ratio < 3 && !told.has(key)) { told.add(key); note("faint graphic", `${key} ${ratio.toFixed(2)}`); }
  }
  return found;
})()
