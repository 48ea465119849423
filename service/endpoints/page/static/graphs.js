// Graphs and transactions: tables in, a ranked list out, and what moved the score of a node.

import { describeModel, listModels, postJson } from "./api.js";
import { acceptDrops, element, fileField, format, labelled, save, scrollable, select, slider } from "./dom.js";
import { Panel, describeTraining, postWithHttpx } from "./panel.js";
import { parseCsv, readDecimalCommas, toCsv, toNumber } from "./tables.js";

const MAX_DRAWN = 400;
const MAX_LISTED = 200;
const MAX_NAMED = 12;

export class GraphsPanel extends Panel {
  constructor() {
    super("graphs", "Graphs");
  }

  async build(state, signal) {
    const models = await listModels("/anomaly/score");
    if (!models.length) {
      throw new Error("This server has no model that scores graphs.");
    }
    const details = await Promise.all(models.map((model) => describeModel(model.name)));
    this.model = select(models.map((model) => model.name), state.model);
    details.forEach(({ name, transactions }, place) => {
      this.model.options[place].textContent = transactions ? `${name}: transactions` : name;
    });
    this.about = element("p", { className: "note" });
    this.model.addEventListener("change", () => this.run((choosing) => this.choose(choosing), ""));
    this.nodes = this.buildDrop("Nodes", "nodes");
    this.edges = this.buildDrop("Edges", "edges");
    this.read = element("p", { className: "note" });
    const form = element(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          this.run((signal) => this.score(signal));
        },
      },
      ...labelled("Model", this.model),
      this.about,
      this.nodes.root,
      this.edges.root,
      this.read,
      element(
        "div",
        { className: "row" },
        element("button", { className: "main" }, "Score"),
        element("button", { type: "button", onclick: () => this.run((choosing) => this.choose(choosing), "") }, "Example"),
      ),
      this.busy,
      this.error,
    );
    this.threshold = slider("Threshold", { min: 0, max: 1, step: "any", value: 0.5, format: (v) => v.toFixed(3) });
    this.threshold.field.addEventListener("input", () => this.showAlerts());
    this.alerts = element("p", { role: "status" });
    this.canvas = element("div", { className: "graph" });
    this.list = scrollable("Scores");
    this.detail = element("div");
    const saving = element("button", { type: "button", onclick: () => this.saveScores() }, "Save as CSV");
    this.results = element("div", { hidden: true }, this.threshold.row, this.alerts, this.canvas, this.detail, saving, this.list);
    const share = this.shareButtons({
      path: "/anomaly/score",
      body: () => this.requireBody(),
      python: (body) => postWithHttpx("/anomaly/score", body),
      state: () => ({ model: this.model.value }),
    });
    await this.choose(signal); // before there is anything to drop a table on, which it would forget
    this.root.append(
      element("div", { className: "columns" }, element("div", {}, form, share, this.copied, this.code), this.results),
    );
  }

  buildDrop(text, name) {
    const read = (file) =>
      this.run(async () => {
        this.clear();
        try {
          this[`${name}Table`] = parseCsv(await file.text());
          this.useTables();
        } catch (error) {
          this.read.textContent = "The tables cannot be used.";
          this.refusal = `The tables cannot be used. ${error.message}`;
          throw error;
        }
      }, "");
    const field = fileField(".csv,.tsv,.txt", read);
    const [title] = labelled(text, field);
    const root = element("div", {}, title, field);
    acceptDrops(root, read);
    return { root, title, field };
  }

  /** Forget the request and its scores, until there is a whole one. */
  clear() {
    this.body = this.refusal = null;
    this.results.hidden = true;
  }

  requireBody() {
    if (this.body === null) {
      throw new Error(this.refusal ?? this.read.textContent);
    }
    return this.body;
  }

  /** Take the example of the model. */
  async choose(signal) {
    this.detailOfModel = await describeModel(this.model.value, signal);
    this.clear();
    this.body = this.detailOfModel.example;
    this.nodesTable = this.edgesTable = null;
    this.nodes.field.value = this.edges.field.value = "";
    const { transactions, relations, metrics } = this.detailOfModel;
    this.about.textContent = describeTraining(this.detailOfModel, metrics.test);
    this.edges.root.hidden = transactions !== null;
    const columns = this.listWanted();
    const list = (names) => names.slice(0, MAX_NAMED).join(", ") + (names.length > MAX_NAMED ? ` … ${names.at(-1)}` : "");
    this.nodes.title.textContent = `${transactions ? "Transactions" : "Nodes"}: a CSV with ${list(columns.nodes)}`;
    const types = relations.length > 1 ? ` (type is one of ${relations.join(", ")})` : "";
    this.edges.title.textContent = `Edges: a CSV with ${list(columns.edges)}${types}`;
    this.read.textContent = "The example of the model: values that training has seen.";
  }

  listColumns(recipe) {
    const named = [recipe.time, recipe.source, recipe.target, recipe.amount, ...recipe.numbers];
    const label = recipe.label ? [recipe.label] : []; // known ones are read, blank ones are not known
    return [...new Set([...named, ...Object.keys(recipe.categories), ...recipe.shared, ...label])];
  }

  /** The columns that each table should have. */
  listWanted() {
    const { transactions, features, relations, edge_features: edgeFeatures } = this.detailOfModel;
    const names = (columns) => columns.map((column) => column.name);
    if (transactions) {
      return { nodes: this.listColumns(transactions).filter((name) => name !== transactions.label), edges: [] };
    }
    const type = relations.length > 1 ? ["type"] : [];
    return { nodes: ["id", ...names(features)], edges: ["source", "target", ...type, ...names(edgeFeatures)] };
  }

  /** Refuse a table that lacks columns of the model. */
  requireColumns(what, table, wanted) {
    const missing = wanted.filter((name) => table !== null && !table.names.includes(name));
    if (missing.length) {
      throw new Error(
        `The table of ${what} lacks ${missing.join(", ")}; it has ${table.names.join(", ")}. Rename its columns. ` +
          `${this.model.value} cannot read other features: for those choose or train another model.`,
      );
    }
  }

  useTables() {
    const notes = [];
    const leaveOut = (names, known) => {
      const extra = names.filter((name) => !known.includes(name));
      if (extra.length) {
        notes.push(`Not read: ${extra.join(", ")}.`);
      }
    };
    const { transactions, features, edge_features: edgeFeatures } = this.detailOfModel;
    const { names, rows } = this.nodesTable ?? { names: [], rows: [] };
    const wanted = this.listWanted();
    const mayLack = transactions ? [...Object.keys(transactions.categories), ...transactions.shared, ...transactions.with_missing] : [];
    const required = wanted.nodes.filter((name) => !mayLack.includes(name));
    this.requireColumns(transactions ? "transactions" : "nodes", this.nodesTable, required);
    this.requireColumns("edges", this.edgesTable, wanted.edges);
    const lacking = wanted.nodes.filter((name) => mayLack.includes(name) && !names.includes(name));
    if (transactions && lacking.length) {
      notes.push(`Taken as missing: ${lacking.join(", ")}.`);
    }
    const readCommas = (table, columns) => {
      table.commas ??= readDecimalCommas(table.rows, columns); // a second time there are none
      if (table.commas.length) {
        notes.push(`With decimal commas: ${table.commas.join(", ")}.`);
      }
    };
    if (transactions) {
      leaveOut(names, ["id", ...this.listColumns(transactions)]);
      const numbers = [transactions.amount, ...transactions.numbers, transactions.label];
      const isNumber = (name) => numbers.includes(name) || (name === transactions.time && !transactions.calendar);
      const known = [...this.listColumns(transactions), ...(names.includes("id") ? ["id"] : [])];
      readCommas(this.nodesTable, known.filter(isNumber));
      const listed = rows.map((row, place) =>
        Object.fromEntries(
          known
            .filter((name) => row[name] !== undefined && row[name] !== "")
            .map((name) => [name, isNumber(name) ? toNumber(row[name], place, name) : row[name]]),
        ),
      );
      this.body = { model: this.model.value, transactions: listed };
      notes.unshift(`${rows.length} transactions.`);
    } else {
      if (this.nodesTable === null || this.edgesTable === null) {
        this.read.textContent = "Give both tables: nodes and edges.";
        return;
      }
      const columns = features.map((feature) => feature.name);
      const ofEdges = edgeFeatures.map((feature) => feature.name);
      leaveOut(names, ["id", ...columns]);
      leaveOut(this.edgesTable.names, ["source", "target", "type", ...ofEdges]);
      readCommas(this.nodesTable, columns);
      readCommas(this.edgesTable, ofEdges);
      const pick = (row, place, wanted) =>
        Object.fromEntries(wanted.filter((name) => name in row).map((name) => [name, toNumber(row[name], place, name)]));
      this.body = {
        model: this.model.value,
        nodes: rows.map((row, place) => ({ id: row.id, ...pick(row, place, columns) })),
        edges: this.edgesTable.rows.map((row, place) => ({
          source: row.source,
          target: row.target,
          ...(row.type ? { type: row.type } : {}),
          ...pick(row, place, ofEdges),
        })),
      };
      notes.unshift(`${rows.length} nodes, ${this.edgesTable.rows.length} edges.`);
    }
    this.read.textContent = notes.join(" ");
  }

  async score(signal) {
    if (this.detailOfModel?.name !== this.model.value) {
      await this.choose(signal);
    }
    this.scored = this.requireBody();
    const answer = await postJson("/anomaly/score", this.scored, signal);
    this.scores = [...answer.results].sort((a, b) => a.rank - b.rank);
    this.results.hidden = false;
    this.detail.replaceChildren();
    const body = element("tbody");
    for (const result of this.scores.slice(0, MAX_LISTED)) {
      const name = element("button", { type: "button" }, String(result.node_id));
      const cells = [result.rank, name, format(result.probability), format(result.score)];
      const row = element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
      name.addEventListener("click", () => this.run((running) => this.explain(result.node_id, running)));
      body.append(row);
    }
    const titles = ["Rank", "Id", "Probability", "Score"].map((title) => element("th", { scope: "col" }, title));
    const more = this.scores.length > MAX_LISTED ? `The first ${MAX_LISTED} of ${this.scores.length}; all are in the CSV.` : "";
    this.list.replaceChildren(
      element("table", {}, element("thead", {}, element("tr", {}, ...titles)), body),
      element("p", { className: "note" }, more),
    );
    await this.draw(signal);
    this.threshold.set(this.scores[0].threshold);
  }

  showAlerts() {
    const threshold = this.threshold.field.valueAsNumber;
    const alerts = this.scores.filter((result) => result.probability >= threshold).length;
    this.alerts.textContent = `${alerts} of ${this.scores.length} are alerts.`;
    for (const node of this.drawn?.nodes() ?? []) {
      node.toggleClass("alert", node.data("probability") >= threshold);
    }
  }

  /** Draw a graph of nodes and edges, if it is not too large to be read. */
  async draw(signal) {
    this.drawn?.destroy();
    this.drawn = null;
    const { nodes, edges } = this.scored;
    this.canvas.hidden = !nodes || nodes.length > MAX_DRAWN;
    if (this.canvas.hidden) {
      return;
    }
    const { default: cytoscape } = await import("./vendor/cytoscape/cytoscape.esm.min.js");
    signal.throwIfAborted(); // another run draws
    const probabilities = new Map(this.scores.map((result) => [String(result.node_id), result.probability]));
    const ink = getComputedStyle(document.body).color;
    this.drawn = cytoscape({
      container: this.canvas,
      elements: [
        ...nodes.map(({ id }) => ({ data: { id: String(id), probability: probabilities.get(String(id)) ?? 0 } })),
        ...edges.map(({ source, target }) => ({ data: { source: String(source), target: String(target) } })),
      ],
      layout: { name: "cose", animate: false },
      style: [
        {
          selector: "node",
          style: {
            "background-color": "mapData(probability, 0, 1, #7fb7be, #c23b1a)",
            label: "data(id)",
            color: ink,
            "font-size": 11,
            width: 22,
            height: 22,
          },
        },
        { selector: "node.alert", style: { "border-width": 4, "border-color": "#e07a1f" } },
        { selector: "edge", style: { width: 1.5, "line-color": "#8a9aa3", "curve-style": "haystack" } },
      ],
    });
    this.drawn.on("tap", "node", (event) => this.run((running) => this.explain(event.target.id(), running)));
  }

  async explain(id, signal) {
    const result = this.scores.find((each) => String(each.node_id) === String(id));
    const body = { ...this.scored, targets: [result.node_id], include: ["explanation"] };
    const answer = await postJson("/anomaly/score", body, signal);
    const { neighbours, features } = answer.results[0].explanation;
    const list = (causes, toText) => {
      const all = [...causes.supports, ...causes.opposes].sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect));
      const lines = all.slice(0, 6).map((cause) => element("li", {}, `${toText(cause)}: ${format(cause.effect)}`));
      return element("ul", {}, ...(lines.length ? lines : [element("li", {}, "nothing")]));
    };
    this.detail.replaceChildren(
      element("h2", {}, `What moves the score of ${result.node_id}`),
      element("p", { className: "note" }, "By how much the score falls without it (where negative, it rises)."),
      element("h3", {}, "Neighbours"),
      list(neighbours, (cause) => String(cause.node_id)),
      element("h3", {}, "Features"),
      list(features, (cause) => `${cause.feature} = ${format(cause.value)}, in place of ${format(cause.instead)}`),
    );
    this.detail.scrollIntoView({ block: "nearest" }); // the row may be far below
  }

  saveScores() {
    const names = ["node_id", "score", "probability", "label", "rank"];
    const threshold = this.threshold.field.valueAsNumber;
    const rows = this.scores.map((result) => ({ ...result, label: Number(result.probability >= threshold) }));
    save("scores.csv", new Blob([toCsv(names, rows)], { type: "text/csv" }));
  }
}
