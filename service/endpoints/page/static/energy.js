// Energy: how it falls, step by step, with the steps, temperature, step size and solver of one's choice.

import { describeModel, listModels, postJson } from "./api.js";
import { drawCurves } from "./chart.js";
import { element, format, labelled, scrollable, select, slider } from "./dom.js";
import { Panel, postWithHttpx } from "./panel.js";

const COLORS = ["#0b8794", "#d9731a", "#7a5cc7", "#c23b5a"];

/** The first `convergence` with a trace in an answer, of the whole request or of its first result. */
function findConvergence(answer) {
  const all = [answer.convergence, answer.results?.[0]?.convergence, answer.images?.[0]?.convergence];
  return all.find((each) => each?.trace);
}

export class EnergyPanel extends Panel {
  constructor() {
    super("energy", "Energy");
    this.runs = [];
  }

  async build(state, signal) {
    const models = await listModels();
    if (!models.length) {
      throw new Error("This server has no model.");
    }
    this.model = select(models.map((model) => model.name), state.model);
    this.model.addEventListener("change", () => this.run((choosing) => this.choose(choosing), ""));
    this.steps = slider("Steps of each block", { min: 0, max: 64, step: 1, value: 2 });
    const power = (value) => `× ${format(10 ** value)}`;
    this.beta = slider("β", { min: -2, max: 2, step: "any", value: 0, format: power });
    this.size = slider("Step size", { min: -2, max: 1, step: "any", value: 0, format: (v) => format(10 ** v) });
    this.solver = select(["euler", "nesterov", "descent"], state.solver);
    this.keep = element("input", { type: "checkbox" });
    this.chart = element("div");
    this.table = scrollable("Runs");
    const form = element(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          this.run((signal) => this.relax(signal));
        },
      },
      ...labelled("Model", this.model),
      this.steps.row,
      this.beta.row,
      this.size.row,
      element("div", { className: "row" }, ...labelled("Solver", this.solver)),
      element("div", { className: "row" }, this.keep, labelled("Keep the previous run in the chart", this.keep)[0]),
      element("div", { className: "row" }, element("button", { className: "main" }, "Relax")),
      this.busy,
      this.error,
    );
    const share = this.shareButtons({
      path: () => this.detail.route,
      body: () => this.body(),
      python: (body) => postWithHttpx(this.detail.route, body),
      state: () => ({
        model: this.model.value,
        steps: this.steps.field.value,
        beta: this.beta.field.value,
        size: this.size.field.value,
        solver: this.solver.value,
      }),
    });
    this.root.append(
      element(
        "div",
        { className: "columns" },
        element("div", {}, form, share, this.copied, this.code),
        element("div", {}, this.chart, this.table),
      ),
    );
    await this.choose(signal);
    for (const [name, field] of Object.entries({ steps: this.steps, beta: this.beta, size: this.size })) {
      if (state[name] !== undefined) {
        field.set(state[name]);
      }
    }
  }

  /** Read the model, and set the sliders to what it was trained with. */
  async choose(signal) {
    this.detail = await describeModel(this.model.value, signal);
    this.steps.field.max = this.detail.limits.max_steps;
    this.steps.set(this.detail.knobs.steps);
    this.beta.set(0);
    this.size.set(Math.log10(this.detail.knobs.step_size));
  }

  body() {
    return {
      ...this.detail.example,
      dynamics: {
        steps: this.steps.field.valueAsNumber,
        beta_scale: Number((10 ** this.beta.field.valueAsNumber).toPrecision(6)),
        step_size: Number((10 ** this.size.field.valueAsNumber).toPrecision(6)),
        solver: this.solver.value,
      },
      include: ["trace"],
    };
  }

  async relax(signal) {
    if (this.detail?.name !== this.model.value) {
      await this.choose(signal);
    }
    const body = this.body();
    const answer = await postJson(this.detail.route, body, signal);
    const { steps, beta_scale, solver } = body.dynamics;
    const name = `${body.model}, ${steps} steps, β × ${format(beta_scale)}, ${solver}`;
    this.runs = [...(this.keep.checked ? this.runs.slice(-1) : []), { name, convergence: findConvergence(answer) }];
    this.draw();
  }

  draw() {
    const parts = new Set();
    for (const { convergence } of this.runs) {
      for (const entry of convergence.trace) {
        Object.keys(entry).forEach((name) => parts.add(name));
      }
    }
    ["block", "step", "energy"].forEach((name) => parts.delete(name));
    const longest = Math.max(...this.runs.map((run) => run.convergence.trace.length));
    const data = [Array.from({ length: longest }, (_, place) => place)];
    const series = [];
    this.runs.forEach((run, place) => {
      ["energy", ...parts].forEach((part, index) => {
        const values = run.convergence.trace.map((entry) => entry[part] ?? null);
        data.push([...values, ...Array(longest - values.length).fill(null)]);
        series.push({
          label: this.runs.length > 1 ? `${part} (${place + 1})` : part,
          stroke: COLORS[index % COLORS.length],
          width: part === "energy" ? 2.5 : 1.25,
          dash: place < this.runs.length - 1 ? [6, 4] : undefined,
        });
      });
    });
    this.plot?.destroy();
    this.plot = drawCurves(this.chart, series, data, { x: "step, block after block" });
    const rows = this.runs.map(({ name, convergence }, place) => {
      const cells = [
        `${place + 1}: ${name}`,
        `${format(convergence.energy_initial, 5)} → ${format(convergence.energy_final, 5)}`,
        format(convergence.residual),
        convergence.stop_reason,
        describeRises(convergence),
      ];
      return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
    });
    const titles = ["Run", "Energy", "Residual", "Stopped at", "Energy within the blocks"];
    const head = element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)));
    this.table.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  }
}

/** Whether the energy, or V where there is one, rose by more than rounding, and in how many steps. */
function describeRises({ trace, energy_rose: rose }) {
  const steps = trace.filter((entry) => entry.step > 0).length;
  if (rose === null) {
    return steps ? "not known" : "no step";
  }
  if (!rose) {
    return "never rose";
  }
  const read = (entry) => entry.storage ?? entry.energy;
  const rises = trace.filter((entry, place) => entry.step > 0 && read(entry) > read(trace[place - 1])).length;
  return `${"storage" in trace[0] ? "V rose" : "rose"} in ${rises} of ${steps} steps`;
}
