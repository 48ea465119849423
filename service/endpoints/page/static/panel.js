// What every panel has: a button that runs, what went wrong, code to copy, a link that holds its state.

import { element } from "./dom.js";

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
  }

  /** Run `work` with an AbortSignal; a second run ends the first. */
  async run(work, message = "Computing …") {
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    this.error.textContent = "";
    this.busy.textContent = message;
    try {
      await work(running.signal);
    } catch (error) {
      if (!running.signal.aborted) {
        this.error.textContent = error.message;
        if (!this.error.isConnected) {
          this.root.append(this.error); // building the panel failed
        }
      }
    } finally {
      if (this.running === running) {
        this.busy.textContent = "";
      }
    }
  }

  /** Buttons that show the present request as code, and copy a link to the present state. */
  shareButtons({ path, body, python, state }) {
    const show = (text) => {
      this.code.hidden = false;
      this.code.textContent = text;
      navigator.clipboard?.writeText(text).catch(() => {});
    };
    const copy = async (make) => {
      try {
        show(await make());
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

export function toHash(name, state) {
  const given = Object.entries(state).filter(([, value]) => value !== "" && value !== null);
  return `#${name}?${new URLSearchParams(given)}`;
}

export function readHash() {
  const [name, query = ""] = location.hash.slice(1).split("?");
  return { name, state: Object.fromEntries(new URLSearchParams(query)) };
}

function toCurl(path, body) {
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -s ${location.origin}${path} -H 'Content-Type: application/json' -d '${quoted}'`;
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
