// Runs in the page, behind its own script: uses the controls as a reader would and leaves what it
// saw in the document. Errors are noted by the lines that the test puts at the top of the page.
addEventListener("load", () => {
  const seen = { errors: window.seenErrors, canvases: [] };
  // 24 x 8 averages of a canvas: enough to tell pictures apart, whatever the fonts.
  const small = canvas => {
    const copy = new OffscreenCanvas(24, 8), g = copy.getContext("2d");
    g.fillStyle = getComputedStyle(document.body).backgroundColor;
    g.fillRect(0, 0, 24, 8);
    g.imageSmoothingQuality = "high";
    g.drawImage(canvas, 0, 0, 24, 8);
    const pixels = g.getImageData(0, 0, 24, 8).data;
    return Array.from({ length: 192 }, (_, i) => Math.round((pixels[4 * i] + pixels[4 * i + 1] + pixels[4 * i + 2]) / 3));
  };
  const drawn = canvas => { const g = canvas.getContext("2d"), p = g.getImageData(0, 0, canvas.width, canvas.height).data; const colors = new Set(); for (let i = 0; i < p.length; i += 4) colors.add((p[i] << 16) | (p[i + 1] << 8) | p[i + 2]); return colors.size; };
  const frame = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  const at = (canvas, x, y, type, more = {}) => {
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new PointerEvent(type, { clientX: box.left + x * box.width, clientY: box.top + y * box.height, pointerId: 1, bubbles: true, ...more }));
  };
  (async () => {
    const { devices } = window.vmmReport, device = devices[0];
    const canvases = [...document.querySelectorAll(".device canvas[data-device='0']")];
    const tip = document.getElementById("tip");
    const press = act => document.querySelector(`[data-act=${act}][data-device='0']`).click();
    for (const canvas of canvases) seen.canvases.push({ kind: canvas.dataset.kind, colors: drawn(canvas), small: small(canvas) });
    for (const canvas of canvases) { at(canvas, 0.5, 0.5, "pointermove"); seen[`tip_${canvas.dataset.kind}`] = tip.hidden ? "" : tip.textContent; }
    seen.whole = [device.t0, device.t1];
    press("in"); seen.zoomed = [device.t0, device.t1];
    press("right"); seen.moved = [device.t0, device.t1];
    await frame();
    seen.zoomedSmall = small(canvases[1]);
    press("all"); seen.again = [device.t0, device.t1];
    canvases[0].dispatchEvent(new WheelEvent("wheel", { deltaY: -300, ctrlKey: true, cancelable: true }));
    seen.wheel = [device.t0, device.t1];
    canvases[0].dispatchEvent(new KeyboardEvent("keydown", { key: "0", cancelable: true }));
    seen.key = [device.t0, device.t1];
    await frame();
    seen.againSmall = small(canvases[1]);
    const line = document.querySelector("[data-line=reserved][data-device='0']");
    line.click(); await frame();
    seen.lineOff = [line.getAttribute("aria-pressed"), small(canvases[0])];
    line.click(); await frame();
    seen.lineOn = [line.getAttribute("aria-pressed"), small(canvases[0])];
    const map = canvases.find(canvas => canvas.dataset.kind === "map"), addresses = () => [device.a0, device.a1];
    seen.addresses = addresses();
    press("taller"); press("taller"); seen.taller = addresses();
    await frame();
    seen.mapTaller = small(map);
    press("up"); seen.up = addresses();
    map.dispatchEvent(new WheelEvent("wheel", { deltaY: 200, shiftKey: true, cancelable: true }));
    seen.addressWheel = addresses();
    map.dispatchEvent(new KeyboardEvent("keydown", { key: "PageUp", cancelable: true }));
    seen.addressKey = addresses();
    at(map, 0.5, 0.5, "pointermove"); seen.tipTaller = tip.textContent;
    seen.timeMeanwhile = [device.t0, device.t1];
    press("all"); seen.addressesAgain = addresses();
    await frame();
    seen.mapAgain = small(map);
    // Bars and their texts are in the page twice, and one of both is shown.
    const box = element => { const { left, right, width, height } = element.getBoundingClientRect(); return { left, right, width, height }; };
    seen.figures = [...document.querySelectorAll("#device0 svg")].map(svg => ({
      name: svg.getAttribute("class"), shown: svg.checkVisibility(), box: box(svg),
      texts: [...svg.querySelectorAll("text:not(.title)")].map(text => ({ text: text.textContent, ...box(text) })),
      bars: [...svg.querySelectorAll("rect")].filter(bar => bar.querySelector("title")).map(bar => ({ name: bar.textContent, fill: getComputedStyle(bar).fill, ...box(bar) })),
    }));
    seen.cut = [...document.querySelectorAll(".scroll")].filter(part => part.checkVisibility() && part.scrollWidth > part.clientWidth).map(part => part.textContent);
    for (const canvas of canvases) at(canvas, 0, 0, "pointerleave");
    await frame();
    const themes = () => Object.fromEntries(canvases.map(canvas => [canvas.dataset.kind, small(canvas)]));
    seen.light = themes();
    document.getElementById("theme").click(); await frame();
    seen.otherTheme = small(canvases[1]);
    seen.dark = themes();
    seen.darkBars = [...document.querySelectorAll("#device0 svg rect")].filter(bar => bar.checkVisibility()).map(bar => getComputedStyle(bar).fill);
    const tabs = [...document.querySelectorAll("[role=tab]")];
    if (tabs.length > 1) {
      tabs[1].click(); await frame();
      seen.tabs = [document.getElementById("device0").hidden, document.getElementById("device1").hidden];
      seen.secondColors = drawn(document.querySelector("#device1 canvas"));
      const buttons = [...document.querySelectorAll("[data-state][data-device='1']")];
      if (buttons.length) {
        const canvas = document.querySelector("#device1 canvas[data-kind=peak]");
        const look = () => { at(canvas, 0.9, 0.5, "pointermove"); return { pressed: buttons.map(button => button.getAttribute("aria-pressed")), small: small(canvas), tip: tip.textContent }; };
        seen.peakState = look();
        buttons[1].click(); await frame(); seen.failureState = look();
        buttons[0].click(); await frame(); seen.peakAgain = look();
      }
      const key = name => {
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
        return tabs.map(tab => tab.getAttribute("aria-selected") === "true" && tab.tabIndex === 0 && tab === document.activeElement);
      };
      tabs[1].focus();
      seen.tabKeys = ["ArrowRight", "ArrowLeft", "Home", "End"].map(key);
    }
    // Times would differ from machine to machine: what counts is how many numbers a draw reads.
    const chart = device.charts.find(c => c.kind === "memory" && !c.small);
    document.querySelectorAll("[role=tab]").forEach((tab, i) => { if (!i) tab.click(); });
    seen.reads = [1, 4, 16, 64].map(zoom => { device.t0 = 0; device.t1 = device.end / zoom; device.curve.reads = 0; chart.draw(); return device.curve.reads; });
    seen.stretches = device.curve.t.length;
    // The quick way to the least and most of a range against the plain one.
    seen.ranges = [[0, seen.stretches], [1, seen.stretches - 1], [7, 8], [5, 1000], [512, 777]].map(([a, b]) => {
      let low = Infinity, high = -Infinity;
      for (let i = a; i < b; i++) { low = Math.min(low, device.curve.v[i * 9]); high = Math.max(high, device.curve.v[i * 9 + 1]); }
      return [device.curve.range(a, b, 0), [low, high]];
    });
    seen.inner = chart.inner;
    seen.width = [document.documentElement.scrollWidth, innerWidth];
    seen.requests = performance.getEntriesByType("resource").map(entry => entry.name);
    seen.done = true;
  })().catch(error => seen.errors.push(String(error.stack))).finally(() => {
    const out = document.createElement("pre");
    out.id = "seen";
    out.textContent = JSON.stringify(seen);
    document.body.append(out);
  });
});
