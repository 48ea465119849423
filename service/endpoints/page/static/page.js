// The page: its tabs, the key, and which panel is shown. A panel is built when it is first shown.

import { onKeyNeeded } from "./api.js";
import { element } from "./dom.js";
import { readHash } from "./panel.js";
import { EnergyPanel } from "./energy.js";
import { GraphsPanel } from "./graphs.js";
import { MemoriesPanel } from "./memories.js";
import { MoleculesPanel } from "./molecules.js";
import { PicturesPanel } from "./pictures.js";

const panels = [
  new MoleculesPanel(),
  new PicturesPanel(),
  new GraphsPanel(),
  new EnergyPanel(),
  new MemoriesPanel(),
];
const tabs = document.getElementById("tabs");
const built = new Set();

function show(panel, state = {}, focus = false) {
  for (const each of panels) {
    const tab = document.getElementById(`tab-${each.name}`);
    tab.setAttribute("aria-selected", String(each === panel));
    tab.tabIndex = each === panel ? 0 : -1;
    each.root.hidden = each !== panel;
    if (each === panel && focus) {
      tab.focus();
    }
  }
  if (!built.has(panel)) {
    built.add(panel);
    panel.start(state).then((isBuilt) => isBuilt || built.delete(panel));
  }
}

for (const [place, panel] of panels.entries()) {
  const open = (focus) => {
    history.replaceState(null, "", `#${panel.name}`);
    show(panel, {}, focus);
  };
  const tab = element("button", { id: `tab-${panel.name}`, role: "tab", onclick: () => open(false) }, panel.title);
  tab.setAttribute("aria-controls", `panel-${panel.name}`);
  tab.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) {
      const next = panels[(place + by + panels.length) % panels.length];
      history.replaceState(null, "", `#${next.name}`);
      show(next, {}, true);
    }
  });
  tabs.append(tab);
  document.getElementById("panels").append(panel.root);
}

const form = document.getElementById("key");
const secret = document.getElementById("secret");
let waiting = null;

onKeyNeeded((refusal) => {
  // Several requests may wait for one key.
  waiting ??= new Promise((resolve) => {
    document.getElementById("refusal").textContent = refusal;
    form.hidden = false;
    secret.focus();
    form.onsubmit = (event) => {
      event.preventDefault();
      form.hidden = true;
      waiting = null;
      resolve(secret.value.trim());
    };
  });
  return waiting;
});

addEventListener("hashchange", () => location.reload()); // a link pasted into the open page

const { name, state } = readHash();
show(panels.find((panel) => panel.name === name) ?? panels[0], state);
