// Pictures: a photo, a hole painted over it, and how it is filled, frame by frame.

import { Refused, describeModel, listModels, postForEvents } from "./api.js";
import { drawCurves } from "./chart.js";
import { acceptDrops, element, fileField, format, labelled, select, slider } from "./dom.js";
import { MaskPainter, toBase64, toBlob } from "./mask.js";
import { Panel, openClient } from "./panel.js";

const CURVE = [{ label: "energy, from the start", stroke: "#0b8794", width: 2.5 }];

export class PicturesPanel extends Panel {
  constructor() {
    super("pictures", "Pictures");
  }

  async build(state) {
    const models = await listModels("/complete");
    if (!models.length) {
      throw new Error("This server has no model that completes pictures.");
    }
    this.model = select(models.map((model) => model.name), state.model);
    this.painter = new MaskPainter();
    acceptDrops(this.painter.stage, (file) => this.run(() => this.open(file), ""));
    const file = fileField("image/png,image/jpeg,image/webp", (chosen) =>
      this.run(() => this.open(chosen), ""),
    );
    this.brush = slider("Brush", { min: 1, max: 100, step: 1, value: 12, format: (v) => `${v} px` });
    this.brush.field.addEventListener("input", () => (this.painter.brush = this.brush.field.valueAsNumber));
    this.zoom = slider("Zoom", { min: -3, max: 3, step: 0.25, value: 0, format: (v) => `${Math.round(100 * 2 ** v)} %` });
    this.zoom.field.addEventListener("input", () => this.painter.setZoom(2 ** this.zoom.field.valueAsNumber));
    const erase = element("input", {
      type: "checkbox",
      onchange: () => (this.painter.erases = erase.checked),
    });
    const button = (text, work) => element("button", { type: "button", onclick: work }, text);
    const form = element(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          this.run((signal) => this.complete(signal));
        },
      },
      ...labelled("Model", this.model),
      element("div", { className: "row" }, ...labelled("Picture (or drop one below)", file)),
      this.brush.row,
      this.zoom.row,
      element(
        "div",
        { className: "row" },
        erase,
        labelled("Erase", erase)[0],
        button("Undo", () => this.painter.undo()),
        button("Clear", () => this.painter.clear()),
        button("Example", () => this.run(() => this.showExample(), "")),
      ),
      element("p", { className: "note" }, "Paint over what is to be filled; all else stays as it is."),
      this.painter.stage,
      element("div", { className: "row" }, element("button", { className: "main" }, "Complete")),
      this.busy,
      this.error,
    );
    this.result = element("div");
    const share = this.shareButtons({
      path: "/complete",
      body: () => this.body(),
      python: ({ model }) =>
        `${openClient()}    answer = client.complete("photo.png", "mask.png", model=${JSON.stringify(model)})\n` +
        `    answer.images[0].save("completed.png")`,
      state: () => ({ model: this.model.value }),
    });
    this.root.append(
      element("div", { className: "columns" }, element("div", {}, form, share, this.copied, this.code), this.result),
    );
    await this.showExample();
  }

  async open(blob) {
    this.source = await toBase64(blob);
    await this.painter.load(blob);
    this.zoom.set(Math.log2(this.painter.zoom));
    this.brush.set(this.painter.brush);
    this.result.replaceChildren();
  }

  async showExample() {
    const { example } = await describeModel(this.model.value);
    await this.open(toBlob(example.image));
    await this.painter.showMask(example.mask);
  }

  async body() {
    const mask = await this.painter.encodeMask();
    if (mask === null) {
      throw new Error("Nothing is painted. Paint the area to fill.");
    }
    return { model: this.model.value, image: this.source, mask };
  }

  async complete(signal) {
    const body = await this.body();
    const after = element("img", { alt: "completed" });
    const before = element("img", { alt: "with the hole", src: this.drawHole() });
    const note = element("p", { className: "note", role: "status" });
    const chart = element("div", { className: "curve" });
    const curve = [[0], [0]];
    let plot = null;
    this.result.replaceChildren(element("h2", {}, "Completed"), element("div", { className: "compare" }, after, before), note, chart);
    for (const image of [after, before]) {
      image.style.width = this.painter.hole.style.width;
    }
    const cover = (share) => (before.style.clipPath = `inset(0 ${100 - share}% 0 0)`);
    cover(0);
    let last = null;
    await postForEvents(
      "/complete",
      body,
      (name, data) => {
        if (name === "progress") {
          after.src = `data:image/png;base64,${data.b64_png}`;
          const windows = data.windows.length > 1 ? `${data.windows[0]} to ${data.windows.at(-1)}` : data.windows[0];
          note.textContent = `step ${data.step} of ${data.steps}, window ${windows}, energy fallen by ${format(data.energy_drop)}`;
          curve[0].push(data.step);
          curve[1].push(data.energy_drop === null ? null : -data.energy_drop);
          plot ??= drawCurves(chart, CURVE, curve, { height: 180, x: "step of all windows", y: "energy per patch" });
          plot.setData(curve);
        } else if (name === "done") {
          last = data;
        } else if (name === "failed") {
          throw new Refused(data);
        }
      },
      signal,
    );
    if (last === null) {
      throw new Error("The server ended the answer before it was complete. Try again.");
    }
    const [image] = last.images;
    after.src = `data:image/png;base64,${image.b64_png}`;
    note.textContent =
      `${image.convergence.windows} window(s), energy per patch ${image.convergence.energy_initial.toFixed(1)} → ` +
      `${image.convergence.energy_final.toFixed(1)}, ${Math.round(last.timings_ms.total)} ms. Known pixels are as they were.`;
    const share = slider("Before and after", { min: 0, max: 100, step: 1, value: 0, format: (v) => `${v} %` });
    share.field.addEventListener("input", () => cover(share.field.valueAsNumber));
    const link = element("a", { download: "completed.png", href: after.src }, "Download");
    this.result.append(share.row, link);
  }

  /** The picture with its hole, as a data URI. */
  drawHole() {
    const { width, height } = this.painter.picture;
    const canvas = element("canvas", { width, height });
    const context = canvas.getContext("2d");
    context.drawImage(this.painter.picture, 0, 0);
    context.drawImage(this.painter.hole, 0, 0);
    return canvas.toDataURL();
  }
}
