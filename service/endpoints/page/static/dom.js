// Elements, made without a string of HTML: what comes from a server or a user is text.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) {
      made.addEventListener(name.slice(2), value);
    } else if (name in made && name !== "list") {
      made[name] = value;
    } else {
      made.setAttribute(name, value);
    }
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

let count = 0;

/** A label and its field, one above the other. */
export function labelled(text, field) {
  field.id ||= `field-${(count += 1)}`;
  return [element("label", { htmlFor: field.id }, text), field];
}

export function select(options, chosen) {
  const field = element("select");
  for (const name of options) {
    field.append(element("option", { value: name, selected: name === chosen }, name));
  }
  return field;
}

/** A range with its value beside it; `format` of null or the number. */
export function slider(text, { min, max, step, value, format = String }) {
  const field = element("input", { type: "range", min, max, step });
  field.value = value;
  const output = element("output");
  const show = () => {
    output.textContent = format(field.valueAsNumber);
    field.setAttribute("aria-valuetext", output.textContent);
  };
  field.addEventListener("input", show);
  show();
  const row = element("div", { className: "row" }, ...labelled(text, field), output);
  return {
    row,
    field,
    set(next) {
      field.value = next;
      field.dispatchEvent(new Event("input"));
    },
  };
}

/** A place for a table that may be wider than the page; it scrolls by keys too. */
export function scrollable(title) {
  const made = element("div", { className: "scroll", tabIndex: 0, role: "region" });
  made.setAttribute("aria-label", title);
  return made;
}

/** A field for a file, which `read` gets. It is emptied, so that the same file can be chosen again. */
export function fileField(accept, read) {
  const field = element("input", {
    type: "file",
    accept,
    onchange: () => {
      const [file] = field.files;
      if (file) {
        read(file);
      }
    },
    onclick: () => {
      field.value = "";
    },
  });
  return field;
}

/** Save a file under a name. */
export function save(name, blob) {
  const href = URL.createObjectURL(blob);
  element("a", { download: name, href }).click();
  URL.revokeObjectURL(href);
}

/** Read a dropped file by `read`. */
export function acceptDrops(target, read) {
  target.addEventListener("dragover", (event) => {
    event.preventDefault();
    target.classList.add("dropping");
  });
  target.addEventListener("dragleave", () => target.classList.remove("dropping"));
  target.addEventListener("drop", (event) => {
    event.preventDefault();
    target.classList.remove("dropping");
    if (event.dataTransfer.files.length) {
      read(event.dataTransfer.files[0]);
    }
  });
}

export function format(number, digits = 3) {
  return number === null || number === undefined ? "–" : Number(number).toPrecision(digits);
}
