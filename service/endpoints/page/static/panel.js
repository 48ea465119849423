// What every panel has: a button that runs, what went wrong, code to copy, a link that holds its state.

import { hasKey } from "./api.js";
import { element, format } from "./dom.js";

export class Panel {
  /** `name` stands in the link, `title` on the tab. */
  constructor(name, title) {
    this.name = name;
    this.title = title;
    this.root = element("section", { role: "tabpanel", id: `panel-${name}`, hidden: true });
    this.root.setAttribute("aria-labelledby", `tab-${name}`);
    this.error = element("p", { className: "error", role: "alert" });
    this.busy = element("p", { className: "note", role: "status" });
    this.code = element("pre", { hidden: true, tabIndex: 0 });
    this.copied = element("p", { className: "note", role: "status" });
    this.root.append(this.busy, this.error);
  }

  /** Build what the panel shows; return whether that worked. If not, it can be tried again. */
  async start(state) {
    const isBuilt = await this.run((signal) => this.build(state, signal), "Loading …");
    if (!isBuilt) {
      this.root.replaceChildren(this.busy, this.error);
    }
    return isBuilt;
  }

  /** Run `work` with an AbortSignal; return false where it failed. A second run ends the first. */
  async run(work, message = "Computing …") {
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    this.error.textContent = "";
    this.busy.textContent = message;
    try {
      await work(running.signal);
      return true;
    } catch (error) {
      if (running.signal.aborted) {
        return true; // a panel whose controls start another run is built
      }
      this.error.textContent = error.message;
      return false;
    } finally {
      if (this.running === running) {
        this.busy.textContent = "";
      }
    }
  }

  /** Buttons that show the present request as code, and copy a link to the present state. */
  shareButtons({ path, body, python, state }) {
    const show = async (text) => {
      this.code.hidden = false;
      this.code.textContent = text;
      try {
        await navigator.clipboard.writeText(text);
        this.copied.textContent = "Copied.";
      } catch {
        this.copied.textContent = "Select the text and copy it.";
      }
    };
    const copy = async (make) => {
      try {
        await show(await make());
      } catch (error) {
        this.error.textContent = error.message;
      }
    };
    const button = (text, make) =>
      element("button", { type: "button", onclick: () => copy(make) }, text);
    return element(
      "div",
      { className: "row" },
      button("Copy as curl", async () => toCurl(typeof path === "function" ? path() : path, await body())),
      button("Copy as Python", async () => python(await body())),
      button("Copy link", async () => {
        const link = toHash(this.name, state());
        history.replaceState(null, "", link);
        return location.href;
      }),
    );
  }
}

/** What a model was trained on, and how good it is on its test part. */
export function describeTraining({ training }, measured) {
  const quality = measured?.roc_auc === undefined ? "" : `, ROC-AUC ${format(measured.roc_auc)} on its test part`;
  return `Trained on ${training.dataset}${quality}.`;
}

export function toHash(name, state) {
  const entries = Object.entries(state).filter(([, value]) => value !== "" && value !== null);
  return `#${name}?${new URLSearchParams(entries)}`;
}

export function readHash() {
  const [name, query = ""] = location.hash.slice(1).split("?");
  return { name, state: Object.fromEntries(new URLSearchParams(query)) };
}

/** A command for a shell. The body is its input, as an argument may not be longer than 128 KiB. */
function toCurl(path, body) {
  const key = hasKey() ? ' -H "Authorization: Bearer $BASIN_KEY"' : "";
  const options = `${key} -H 'Content-Type: application/json' -d @-`;
  return `curl -s ${location.origin}${path}${options} <<'END'\n${JSON.stringify(body)}\nEND`;
}

/** The lines of Python that open a client of this server. */
export function openClient() {
  const key = hasKey() ? ', key=os.environ["BASIN_KEY"]' : "";
  const imports = hasKey() ? "import os\n\n" : "";
  return `${imports}from basin_client import Client\n\nwith Client("${location.origin}"${key}) as client:\n`;
}

/** Lines of Python that post a body as it is. */
export function postWithHttpx(path, body) {
  const key = hasKey() ? ', headers={"authorization": "Bearer " + os.environ["BASIN_KEY"]}' : "";
  const imports = hasKey() ? "import os\n\nimport httpx\n" : "import httpx\n";
  return `${imports}\nbody = ${toPython(body)}\nanswer = httpx.post("${location.origin}${path}", json=body${key})\nprint(answer.json())`;
}

/** A literal of Python. */
export function toPython(value) {
  if (value === null || value === undefined) {
    return "None";
  }
  if (typeof value === "boolean") {
    return value ? "True" : "False";
  }
  if (Array.isArray(value)) {
    return `[${value.map(toPython).join(", ")}]`;
  }
  if (typeof value === "object") {
    const entries = Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${toPython(each)}`);
    return `{${entries.join(", ")}}`;
  }
  return JSON.stringify(value);
}
