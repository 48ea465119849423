// Requests to this server. The key is kept in memory alone, and sent to this server alone.

let key = "";

/** Called where the server wants a key; resolves with one. */
let askForKey = async () => "";

export function hasKey() {
  return key !== "";
}

export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** An error of the server in its own words: what was wrong, and where. */
export class Refused extends Error {
  constructor(problem) {
    const places = (problem.errors ?? []).map((each) => `${each.pointer}: ${each.detail}`);
    const more = places.filter((place) => !place.endsWith(problem.detail));
    super([problem.detail ?? problem.title, ...more.slice(0, 3)].join("\n"));
    this.problem = problem;
  }
}

export async function request(method, path, { body, accept = "application/json", signal } = {}) {
  for (;;) {
    const headers = { accept };
    const used = key;
    if (used) {
      headers.authorization = `Bearer ${used}`;
    }
    if (body !== undefined) {
      headers["content-type"] = "application/json";
    }
    let response;
    try {
      response = await fetch(path, {
        method,
        headers,
        signal,
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") {
        throw error;
      }
      throw new Error("The server does not answer. Is it still running?");
    }
    if (response.ok) {
      return response;
    }
    const problem = await response.json().catch(() => ({ title: `Status ${response.status}` }));
    if (response.status !== 401) {
      throw new Refused(problem);
    }
    if (key === used) {
      // Otherwise another request has asked for a new key meanwhile.
      key = await askForKey(used ? problem.detail : "");
    }
  }
}

export async function getJson(path, signal) {
  return (await request("GET", path, { signal })).json();
}

export async function postJson(path, body, signal) {
  return (await request("POST", path, { body, signal })).json();
}

/** Server-sent events of a POST: `onEvent(name, data)` for each. */
export async function postForEvents(path, body, onEvent, signal) {
  const response = await request("POST", path, { body, signal, accept: "text/event-stream" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      return;
    }
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const name = lines.find((line) => line.startsWith("event: "))?.slice(7);
      const data = lines.find((line) => line.startsWith("data: "))?.slice(6);
      if (name && data) {
        onEvent(name, JSON.parse(data));
      }
    }
  }
}

/** The models of a route, and of each what it says of itself. */
export async function listModels(route) {
  const { models } = await getJson("/models");
  const chosen = models.filter((model) => model.route === route || route === undefined);
  return chosen.sort((a, b) => b.default_for.length - a.default_for.length);
}

export function describeModel(name, signal) {
  return getJson(`/models/${encodeURIComponent(name)}`, signal);
}
