// Memories: samples at three temperatures, and recall of a pattern of which half is hidden.

import { getJson, postJson } from "./api.js";
import { element, format, labelled, select, slider } from "./dom.js";
import { toBase64 } from "./mask.js";
import { Panel, openClient, toPython } from "./panel.js";

const BETAS = [200, 2000, 20000];

export class MemoriesPanel extends Panel {
  constructor() {
    super("memories", "Memories");
  }

  async build(state) {
    const { memories } = await getJson("/memories");
    if (!memories.length) {
      throw new Error("This server has no memory. PUT /memories/{id} stores one.");
    }
    this.memories = new Map(memories.map((memory) => [memory.id, memory]));
    const first = memories.find((memory) => memory.kind === "images") ?? memories[0];
    this.memory = select([...this.memories.keys()], state.memory ?? first.id);
    this.betas = BETAS.map((value, place) =>
      slider(`β ${place + 1}`, {
        min: 0,
        max: 6,
        step: 0.1,
        value: state[`beta${place}`] ?? Math.log10(value),
        format: (power) => String(Number((10 ** power).toPrecision(3))),
      }),
    );
    this.steps = slider("Steps", { min: 100, max: 5000, step: 100, value: state.steps ?? 1000 });
    const form = element(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          this.run((signal) => this.sample(signal));
        },
      },
      ...labelled("Memory", this.memory),
      ...this.betas.map((each) => each.row),
      this.steps.row,
      element(
        "div",
        { className: "row" },
        element("button", { className: "main" }, "Sample"),
        element("button", { type: "button", onclick: () => this.run((signal) => this.recall(signal)) }, "Recall a half"),
      ),
      this.busy,
      this.error,
    );
    this.result = element("div");
    const share = this.shareButtons({
      path: "/sample",
      body: () => this.body(),
      python: ({ memory, ...options }) => {
        const entries = Object.entries(options).map(([name, value]) => `${name}=${toPython(value)}`);
        return (
          `${openClient()}    print(client.sample(${toPython(memory)}, ${entries.join(", ")}).diagnostics)`
        );
      },
      state: () => ({
        memory: this.memory.value,
        steps: this.steps.field.value,
        ...Object.fromEntries(this.betas.map((each, place) => [`beta${place}`, each.field.value])),
      }),
    });
    this.root.append(
      element("div", { className: "columns" }, element("div", {}, form, share, this.copied, this.code), this.result),
    );
  }

  body() {
    const beta = this.betas.map((each) => Number((10 ** each.field.valueAsNumber).toPrecision(3)));
    return { memory: this.memory.value, beta, num_samples: 6, steps: this.steps.field.valueAsNumber };
  }

  async sample(signal) {
    const body = this.body();
    const { spectrum, memory } = await postJson("/sample", body, signal);
    this.result.replaceChildren();
    spectrum.forEach(({ samples, diagnostics }) => {
      const shown = element("div", { className: "row" }, ...samples.map((each) => drawPattern(each, memory)));
      this.result.append(
        element("h2", {}, `β = ${diagnostics.beta}`),
        shown,
        element(
          "p",
          { className: "note" },
          `novelty ${format(diagnostics.novelty)} (noise alone ${format(diagnostics.null?.novelty)}), ` +
            `diversity ${format(diagnostics.diversity)}, energy ${format(diagnostics.energy, 4)}`,
        ),
      );
    });
  }

  /** A pattern of the memory, by many steps at a low temperature; then of its upper half alone. */
  async recall(signal) {
    const memory = this.memories.get(this.memory.value);
    if (memory.kind !== "images") {
      throw new Error("Recall is shown of images. Choose a memory of images.");
    }
    const seed = Math.floor(Math.random() * 1e6);
    const request = { memory: memory.id, beta: 1e6, num_samples: 1, steps: 50, seed };
    const { samples } = await postJson("/sample", request, signal);
    const [pattern] = samples;
    const whole = drawPattern(pattern, memory);
    const [height, width] = memory.shape;
    const cue = element("canvas", { width, height, className: "pattern" });
    cue.getContext("2d").drawImage(whole, 0, 0);
    cue.getContext("2d").fillRect(0, height / 2, width, height / 2);
    const mask = element("canvas", { width, height });
    const context = mask.getContext("2d");
    context.fillRect(0, 0, width, height);
    context.fillStyle = "#fff";
    context.fillRect(0, height / 2, width, height / 2);
    const encode = async (canvas) =>
      toBase64(await new Promise((resolve) => canvas.toBlob(resolve, "image/png")));
    const answer = await postJson(
      "/complete",
      { memory: memory.id, image: await encode(cue), mask: await encode(mask) },
      signal,
    );
    const recalled = element("img", { className: "pattern", alt: "recalled" });
    recalled.src = `data:image/png;base64,${answer.images[0].b64_png}`;
    const titled = (title, shown) => element("figure", {}, shown, element("figcaption", {}, title));
    this.result.replaceChildren(
      element("h2", {}, "Recall"),
      element("div", { className: "row" }, titled("a pattern", whole), titled("its upper half", cue), titled("recalled", recalled)),
    );
  }
}

/** An image of numbers on a canvas, or text of anything else. */
function drawPattern(pattern, memory) {
  if (memory.kind !== "images") {
    const text = Array.isArray(pattern) ? pattern.flat(3).map((value) => format(value)).join(" ") : String(pattern);
    return element("code", {}, text.slice(0, 400));
  }
  const [height, width, channels = 1] = memory.shape;
  const values = pattern.flat(3);
  const low = Math.min(...values);
  const high = Math.max(...values);
  const pixels = new ImageData(width, height);
  for (let place = 0; place < width * height; place += 1) {
    for (let channel = 0; channel < 3; channel += 1) {
      const value = values[place * channels + (channels === 3 ? channel : 0)];
      pixels.data[4 * place + channel] = (255 * (value - low)) / (high - low || 1);
    }
    pixels.data[4 * place + 3] = 255;
  }
  const canvas = element("canvas", { width, height, className: "pattern" });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "a sample");
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}
