// Tables of text: CSV in (comma, semicolon or tab), CSV out.

/** Rows of a CSV as objects by the names of its header. */
export function parseCsv(text) {
  const [first] = text.split(/\r?\n/, 1);
  const counts = [",", ";", "\t"].map((mark) => [first.split(mark).length, mark]);
  const separator = counts.sort((a, b) => b[0] - a[0])[0][1];
  const rows = [];
  let row = [];
  let cell = "";
  let quoted = false;
  const endCell = () => {
    row.push(cell);
    cell = "";
  };
  for (let place = 0; place < text.length; place += 1) {
    const letter = text[place];
    if (quoted) {
      if (letter === '"' && text[place + 1] === '"') {
        cell += '"';
        place += 1;
      } else if (letter === '"') {
        quoted = false;
      } else {
        cell += letter;
      }
    } else if (letter === '"' && cell === "") {
      quoted = true;
    } else if (letter === separator) {
      endCell();
    } else if (letter === "\n") {
      endCell();
      rows.push(row);
      row = [];
    } else if (letter !== "\r") {
      cell += letter;
    }
  }
  if (cell || row.length) {
    endCell();
    rows.push(row);
  }
  const [head, ...body] = rows.filter((each) => each.some((value) => value.trim()));
  if (!head || !body.length) {
    throw new Error("The table has no rows. It needs a header and at least one row.");
  }
  const names = head.map((name) => name.trim().replace(/^\uFEFF/, ""));
  const repeated = names.find((name, place) => names.indexOf(name) !== place);
  if (repeated !== undefined) {
    throw new Error(`Two columns are called "${repeated}". Rename one.`);
  }
  const uneven = body.findIndex((each) => each.length !== names.length);
  if (uneven >= 0) {
    throw new Error(`Row ${uneven + 1} has ${body[uneven].length} cells; the header has ${names.length}.`);
  }
  return { names, rows: body.map((each) => Object.fromEntries(names.map((name, at) => [name, each[at].trim()]))) };
}

/**
 * Write the decimal commas of columns of numbers as points, and return these columns: no value has a point or two
 * commas, and one has not three digits after its comma, which could be thousands. Others `toNumber` refuses.
 */
export function readDecimalCommas(rows, columns) {
  const commas = columns.filter((name) => {
    const values = rows.map((row) => row[name] ?? "");
    const written = values.filter((value) => value.includes(","));
    return (
      written.every((value) => /^[-+]?\d*,\d+$/.test(value)) &&
      written.some((value) => !/,\d{3}$/.test(value)) &&
      !values.some((value) => value.includes("."))
    );
  });
  for (const row of rows) {
    for (const name of commas) {
      row[name] = row[name].replace(",", ".");
    }
  }
  return commas;
}

/** A number of a table, or an error that says where it is none. */
export function toNumber(text, row, name) {
  const number = text === "" ? NaN : Number(text);
  if (!Number.isFinite(number)) {
    const hint = text.includes(",") ? " Write a decimal point, and no thousands separators." : "";
    const wrong = text === "" ? "the value is missing" : `"${text}" is not a number`;
    throw new Error(`Row ${row + 1}, column ${name}: ${wrong}.${hint}`);
  }
  return number;
}

export function toCsv(names, rows) {
  const quote = (value) => (/[",\n\r]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  return [names, ...rows.map((row) => names.map((name) => row[name] ?? ""))].map((row) => row.map(quote).join(",")).join("\n");
}
