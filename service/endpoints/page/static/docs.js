// The interface as Swagger UI shows it. A key is kept in memory, for as long as the page is open.

const form = document.getElementById("key");
const secret = document.getElementById("secret");
const failure = document.getElementById("failure");
const refusal = document.getElementById("refusal");

async function fetchInterface(key) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const response = await fetch("/openapi.json", { headers });
  const described = await response.json();
  if (!response.ok) {
    throw Object.assign(new Error(described.detail), { status: response.status });
  }
  return described;
}

function show(spec, key) {
  form.hidden = true;
  const ui = window.SwaggerUIBundle({
    spec,
    domNode: document.getElementById("interface"),
    deepLinking: true,
    docExpansion: "none",
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    syntaxHighlight: false, // of a picture in base64 it takes seconds
    validatorUrl: null,
    onComplete: () => key && ui.preauthorizeApiKey("key", key),
  });
  window.ui = ui;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    show(await fetchInterface(secret.value.trim()), secret.value.trim());
  } catch (error) {
    refusal.textContent = error.message;
  }
});

try {
  show(await fetchInterface(""), "");
} catch (error) {
  const needsKey = error.status === 401;
  form.hidden = !needsKey;
  failure.textContent = needsKey ? "" : error.message;
  secret.focus();
}
