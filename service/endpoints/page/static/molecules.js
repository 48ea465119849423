// Molecules: SMILES in, a table of answers out, and of one of them what its answer rests on.

import { describeModel, listModels, postJson } from "./api.js";
import { acceptDrops, element, fileField, format, labelled, scrollable, select } from "./dom.js";
import { Panel, openClient, toPython } from "./panel.js";

const EXAMPLE = `CC(=O)Oc1ccccc1C(=O)O aspirin
O=[N+]([O-])c1ccc(N)cc1 4-nitroaniline
CN1C=NC2=C1C(=O)N(C(=O)N2C)C caffeine
c1ccc2cc3ccccc3cc2c1 anthracene`;

/** Lines of SMILES, each followed by an id or not; a header is left out. */
export function readLines(text) {
  const rows = [];
  for (const line of text.split(/\r?\n/)) {
    const [smiles, ...rest] = line.trim().split(/[\s,;]+/);
    if (smiles && !/^smiles$/i.test(smiles)) {
      rows.push({ smiles, id: rest.join(" ") || String(rows.length + 1) });
    }
  }
  return rows;
}

export class MoleculesPanel extends Panel {
  constructor() {
    super("molecules", "Molecules");
  }

  async build(state) {
    const models = await listModels("/classify");
    const details = await Promise.all(models.map((model) => describeModel(model.name)));
    const readers = details.filter((model) => model.reads_smiles).map((model) => model.name);
    if (!readers.length) {
      throw new Error("This server has no model that reads molecules.");
    }
    this.model = select(readers, state.model);
    this.text = element("textarea", { spellcheck: false, value: state.smiles ?? EXAMPLE });
    const read = (file) =>
      this.run(async () => {
        this.text.value = await file.text();
      }, "");
    acceptDrops(this.text, read);
    const file = fileField(".smi,.txt,.csv", read);
    const form = element(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          this.run((signal) => this.classify(signal));
        },
      },
      ...labelled("Model", this.model),
      ...labelled("SMILES, one a line, with an id after it if you like", this.text),
      element("div", { className: "row" }, ...labelled("or a file", file)),
      element("div", { className: "row" }, element("button", { className: "main" }, "Classify")),
      this.busy,
      this.error,
    );
    this.table = scrollable("Answers");
    this.detail = element("div");
    const share = this.shareButtons({
      path: "/classify",
      body: () => this.body(),
      python: ({ model, smiles }) =>
        `${openClient()}    print(client.classify(${toPython(smiles)}, model=${toPython(model)}).raw)`,
      state: () => ({ model: this.model.value, smiles: this.text.value }),
    });
    this.root.append(
      element(
        "div",
        { className: "columns" },
        element("div", {}, form, share, this.copied, this.code),
        element("div", {}, this.table, this.detail),
      ),
    );
  }

  body() {
    const smiles = readLines(this.text.value).map((row) => row.smiles);
    return { model: this.model.value, smiles };
  }

  async classify(signal) {
    const rows = readLines(this.text.value);
    const body = this.body();
    const answer = await postJson("/classify", body, signal);
    const tasks = Object.keys(answer.results.find((each) => each.status === "ok")?.predictions ?? {});
    const head = ["Id", "SMILES", ...tasks, "Within the training range?", ""];
    const lines = element("tbody");
    this.detail.replaceChildren();
    answer.results.forEach((result, place) => {
      const row = rows[place];
      const cells = [element("td", {}, row.id), element("td", {}, element("code", {}, row.smiles))];
      if (result.status === "ok") {
        for (const task of tasks) {
          const { label, probability } = result.predictions[task];
          const meter = element("meter", { min: 0, max: 1, value: probability });
          meter.setAttribute("aria-label", `probability of ${label}`);
          cells.push(element("td", {}, `${label} `, meter, ` ${format(probability)}`));
        }
        const outside = result.convergence.out_of_distribution;
        cells.push(element("td", {}, outside === null ? "not known" : outside ? "no" : "yes"));
        const why = element("button", { type: "button" }, "Why?");
        why.setAttribute("aria-label", `Why? ${row.id}`);
        const line = element("tr", {}, ...cells, element("td", {}, why));
        why.addEventListener("click", () => {
          for (const other of lines.children) {
            other.classList.toggle("chosen", other === line);
          }
          this.run((running) => this.explain(body.model, row, running), "Leaving out one atom after another …");
        });
        lines.append(line);
      } else {
        const wrong = element("td", { colSpan: tasks.length + 2, className: "error" }, result.error.detail);
        lines.append(element("tr", {}, ...cells, wrong));
      }
    });
    const titles = head.map((title) => element("th", { scope: "col" }, title));
    this.table.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...titles)), lines));
  }

  async explain(model, row, signal) {
    const request = { model, smiles: [row.smiles], include: ["explanation"] };
    const answer = await postJson("/classify", request, signal);
    const [result] = answer.results;
    this.detail.replaceChildren(element("h2", {}, row.id));
    for (const [task, explanation] of Object.entries(result.explanation)) {
      if (explanation.svg !== null) {
        const image = element("img", { className: "drawing", alt: `${row.id}: atoms coloured by effect` });
        image.onload = () => URL.revokeObjectURL(image.src);
        image.src = URL.createObjectURL(new Blob([explanation.svg], { type: "image/svg+xml" }));
        this.detail.append(image);
      }
      const { deletion } = explanation.nodes;
      const text =
        deletion === null
          ? "No atom supports it."
          : `Without the ${deletion.removed} atoms that support it most, its log odds fall by ${format(deletion.moved)}; ` +
            `without as many at random by ${format(deletion.random)} (mean of ${deletion.draws} draws).`;
      this.detail.append(element("p", {}, `${task}: ${explanation.label}. ${text}`));
    }
  }
}
