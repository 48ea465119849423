// Molecules: SMILES in, a table of answers out, and of one of them what its answer rests on.

import { Refused, describeModel, listModels, postJson } from "./api.js";
import { acceptDrops, element, fileField, format, labelled, save, scrollable, select } from "./dom.js";
import { Panel, describeTraining, openClient, toPython } from "./panel.js";
import { parseCsv, toCsv } from "./tables.js";

const EXAMPLE = `CC(=O)Oc1ccccc1C(=O)O aspirin
O=[N+]([O-])c1ccc(N)cc1 4-nitroaniline
CN1C=NC2=C1C(=O)N(C(=O)N2C)C caffeine
c1ccc2cc3ccccc3cc2c1 anthracene`;

/** Molecules of a table with a column `smiles`, or of lines of SMILES, each followed by an id or not. */
export function readMolecules(text) {
  const lines = text.split(/\r?\n/).filter((line) => line.trim() && !line.trim().startsWith("#"));
  const head = (lines[0] ?? "").split(/[,;\t]/).map((name) => name.trim().replace(/^"|"$/g, ""));
  if (head.length > 1 && head.some((name) => /^smiles$/i.test(name))) {
    const { names, rows } = parseCsv(lines.join("\n"));
    const column = names.find((name) => name.toLowerCase() === "smiles");
    const others = names.filter((name) => name !== column);
    const id = others.find((name) => /^(id|name)$/i.test(name)) ?? others[0];
    return rows.map((row, place) => ({ smiles: row[column], id: row[id] || String(place + 1) }));
  }
  const near = head.find((name) => /^\w*smiles\w*$/i.test(name) && !/^smiles$/i.test(name));
  if (near) {
    throw new Error(`The table has no column called "smiles". Rename "${near}".`);
  }
  const rows = lines.map((line) => line.trim().split(/[\s,;]+/));
  return rows
    .filter(([smiles], place) => place > 0 || !/^smiles$/i.test(smiles))
    .map(([smiles, ...rest], place) => ({ smiles, id: rest.join(" ") || String(place + 1) }));
}

/** The answer of /classify; where no molecule can be read, the error of each, as among others that can. */
async function classifyAll(body, signal) {
  try {
    return (await postJson("/classify", body, signal)).results;
  } catch (error) {
    const errors = error instanceof Refused ? (error.problem.errors ?? []) : [];
    if (error.problem?.type !== "urn:basin:problem:nothing-classified" || errors.length !== body.smiles.length) {
      throw error;
    }
    return errors.map((each) => ({ status: "error", error: each }));
  }
}

/** Of two classes 0 and 1 the second, so that all rows show one thing; else the label. */
function chooseShown({ label, probabilities }) {
  return Object.keys(probabilities).join() === "0,1" ? "1" : label;
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
    this.about = element("p", { className: "note" });
    const showAbout = () => {
      const model = details.find((each) => each.name === this.model.value);
      const asked = model.tasks.map(({ name, labels }) => `${name}: ${labels.join(" or ")}`).join("; ");
      this.about.textContent = `Answers ${asked}. ${describeTraining(model, model.metrics.test?.[model.tasks[0].name])}`;
    };
    this.model.addEventListener("change", showAbout);
    showAbout();
    this.text = element("textarea", { spellcheck: false, value: state.smiles ?? EXAMPLE });
    const read = (file) =>
      this.run(async () => {
        this.text.value = await file.text();
      }, "");
    acceptDrops(this.text, read);
    const file = fileField(".smi,.smiles,.txt,.csv,.tsv", read);
    const form = element(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          this.run((signal) => this.classify(signal));
        },
      },
      ...labelled("Model", this.model),
      this.about,
      ...labelled("SMILES, one a line, with a name after it if you like; or a table with a column smiles", this.text),
      element("div", { className: "row" }, ...labelled("or a file (.csv, .tsv, .smi, .txt)", file)),
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
    const smiles = readMolecules(this.text.value).map((row) => row.smiles);
    return { model: this.model.value, smiles };
  }

  async classify(signal) {
    this.table.replaceChildren();
    this.detail.replaceChildren();
    const rows = readMolecules(this.text.value);
    const body = this.body();
    const results = await classifyAll(body, signal);
    const tasks = Object.keys(results.find((each) => each.status === "ok")?.predictions ?? {});
    const head = ["Id", "SMILES", ...tasks, "Like its training data?"];
    const lines = element("tbody");
    results.forEach((result, place) => {
      const row = rows[place];
      const cells = [element("td", {}, row.id), element("td", {}, element("code", {}, row.smiles))];
      if (result.status === "ok") {
        for (const task of tasks) {
          const { label, probabilities } = result.predictions[task];
          const shown = chooseShown(result.predictions[task]);
          const meter = element("meter", { min: 0, max: 1, value: probabilities[shown] });
          meter.setAttribute("aria-label", `probability of ${shown}`);
          cells.push(element("td", {}, `${label} `, meter, ` P(${shown}) = ${format(probabilities[shown])}`));
        }
        const outside = result.convergence.out_of_distribution;
        cells.push(element("td", {}, outside === null ? "not known" : outside ? "no" : "yes"));
        const why = element("button", { type: "button" }, "Why?");
        why.setAttribute("aria-label", `Why? ${row.id}`);
        cells[0].append(" ", why); // beside the id, where a phone shows it
        const line = element("tr", {}, ...cells);
        why.addEventListener("click", () => {
          for (const other of lines.children) {
            other.classList.toggle("chosen", other === line);
          }
          this.run((running) => this.explain(body.model, row, running), "Leaving out one atom after another …");
        });
        lines.append(line);
      } else {
        const wrong = element("td", { colSpan: tasks.length + 1, className: "error" }, result.error.detail);
        lines.append(element("tr", {}, ...cells, wrong));
      }
    });
    const titles = head.map((title) => element("th", { scope: "col" }, title));
    const saving = element("button", { type: "button", onclick: () => saveResults(rows, results, tasks) }, "Save as CSV");
    this.table.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...titles)), lines), saving);
  }

  async explain(model, row, signal) {
    const request = { model, smiles: [row.smiles], include: ["explanation"] };
    const answer = await postJson("/classify", request, signal);
    const [result] = answer.results;
    this.detail.replaceChildren(element("h2", {}, row.id));
    for (const [task, explanation] of Object.entries(result.explanation)) {
      if (explanation.svg !== null) {
        const image = element("img", { className: "drawing", alt: `${row.id}: atoms coloured by effect` });
        image.onload = () => {
          URL.revokeObjectURL(image.src);
          this.detail.scrollIntoView({ block: "nearest" }); // below a long table it would go unseen
        };
        image.src = URL.createObjectURL(new Blob([explanation.svg], { type: "image/svg+xml" }));
        this.detail.append(image);
      }
      const { deletion } = explanation.nodes;
      const text =
        deletion === null
          ? "No atom supports it."
          : `Red atoms support it, blue ones oppose it. Without the ${deletion.removed} atoms that support it most, its log odds ` +
            `fall by ${format(deletion.moved)}; without as many at random by ${format(deletion.random)} ` +
            `(mean of ${deletion.draws} draws).`;
      this.detail.append(element("p", {}, `${task}: ${explanation.label}. ${text}`));
    }
  }
}

function saveResults(rows, results, tasks) {
  const lines = results.map(({ predictions = {}, error }, place) => {
    const line = { id: rows[place].id, smiles: rows[place].smiles, error: error?.code ?? "" };
    for (const task of tasks) {
      const { label = "", probabilities = {} } = predictions[task] ?? {};
      line[task] = label;
      Object.entries(probabilities).forEach(([name, value]) => (line[`${task}.${name}`] = value));
    }
    return line;
  });
  const names = [...new Set(lines.flatMap((line) => Object.keys(line)))];
  save("classes.csv", new Blob([toCsv(names, lines)], { type: "text/csv" }));
}
