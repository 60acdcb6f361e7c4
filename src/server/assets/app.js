// The page of sub8: a chat, a comparison of two modes, and what the server is doing.
"use strict";

const $ = (id) => document.getElementById(id);
const refreshMs = 2000;

const state = {
  model: null,      // entry of /v1/models
  messages: [],     // {role, content}
  abort: null,      // AbortController of the answer under way
  lastTokens: null, // generated tokens at the last look at /metrics
  lastTime: 0,
};

function headers() {
  const out = { "Content-Type": "application/json" };
  const key = $("key").value.trim();
  if (key) out.Authorization = "Bearer " + key;
  return out;
}

function say(text) { $("status").textContent = text; }

async function errorText(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "The server answered " + response.status + ".";
  }
}

// ---- what is being served

function option(select, value, label) {
  const entry = document.createElement("option");
  entry.value = value;
  entry.textContent = label;
  select.append(entry);
}

function fillModes(modes, inForce) {
  const names = modes.filter((name) => name !== "auto");
  for (const id of ["mode", "left-mode", "right-mode"]) {
    $(id).replaceChildren();
    option($(id), "auto", "auto (" + inForce + ")");
    for (const name of names) option($(id), name, name);
  }
  const others = names.filter((name) => name !== inForce);
  $("left-mode").value = names.includes(inForce) ? inForce : "auto";
  $("right-mode").value = others[0] ?? $("left-mode").value;
  if (others.length === 0) $("compare-verdict").textContent = "This model runs in one mode only: both sides will show it.";
}

function showFacts(model) {
  const own = model.sub8;
  const sampling = Object.entries(own.sampling_defaults).map(([name, value]) => name + " " + value).join(", ");
  const rows = [
    ["Model", model.id + " (" + model.root + ")"],
    ["Weights", own.recipe],
    ["Mode in force", own.mode],
    ["Context", model.max_model_len + " tokens"],
    ["KV cache", own.kv_pages + " pages of " + own.page_tokens + " tokens, " + own.kv_type + ", " + own.kv_token_bytes + " bytes per token"],
    ["Sampling unless set", sampling],
    ["Structured output", own.structured_output ? "available" : "not installed"],
  ];
  $("facts").replaceChildren();
  for (const [name, value] of rows) {
    const dt = document.createElement("dt");
    const dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    $("facts").append(dt, dd);
  }
}

async function loadModel() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) throw new Error(await errorText(response));
    state.model = (await response.json()).data[0];
    const own = state.model.sub8;
    $("model").textContent = state.model.id + " · " + own.recipe + " · " + (own.mode_text || "mode " + own.mode);
    fillModes(own.modes, own.mode);
    showFacts(state.model);
    say("");
  } catch (error) {
    $("model").textContent = "No model: " + error.message;
    if (String(error.message).includes("API key")) {
      $("settings").open = true;
      $("key").focus();
    }
  }
}

// ---- load of the server, from /metrics

function readMetric(text, name) {
  let sum = null;
  for (const line of text.split("\n")) {
    if (line.startsWith(name + "{") || line.startsWith(name + " ")) sum = (sum ?? 0) + Number(line.slice(line.lastIndexOf(" ")));
  }
  return sum;
}

async function refreshLoad() {
  if (document.hidden) return;
  try {
    const text = await (await fetch("/metrics")).text();
    const now = performance.now();
    const tokens = readMetric(text, "vllm:generation_tokens_total");
    if (state.lastTokens !== null) {
      const rate = (tokens - state.lastTokens) / ((now - state.lastTime) / 1000);
      $("m-rate").textContent = rate.toFixed(rate < 10 ? 1 : 0);
    }
    state.lastTokens = tokens;
    state.lastTime = now;
    $("m-running").textContent = readMetric(text, "vllm:num_requests_running");
    $("m-waiting").textContent = readMetric(text, "vllm:num_requests_waiting");
    const kv = readMetric(text, "vllm:kv_cache_usage_perc");
    $("m-kv").textContent = (100 * kv).toFixed(0) + " %";
    $("m-kv-bar").value = kv;
  } catch {
    for (const id of ["m-rate", "m-running", "m-waiting", "m-kv"]) $(id).textContent = "–";
  }
}

// ---- one streamed answer

function settings() {
  const out = {};
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  out.temperature = number("temperature");
  out.max_completion_tokens = number("max-tokens");
  out.seed = number("seed");
  return out;
}

// Calls onText with every piece; resolves to {tokens, seconds, finish, timings}.
async function streamChat(body, signal, onText) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } }),
    signal,
  });
  if (!response.ok) throw new Error(await errorText(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const out = { tokens: 0, seconds: 0, finish: null, timings: null };
  let first = 0;
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection ended early.");
    pending += value;
    const events = pending.split("\n\n");
    pending = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      if (event === "data: [DONE]") return out;
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.timings) out.timings = chunk.timings;
      if (chunk.usage) out.tokens = chunk.usage.completion_tokens;
      const choice = chunk.choices[0];
      if (!choice) continue;
      if (!first) first = performance.now();
      out.seconds = (performance.now() - first) / 1000;
      if (choice.finish_reason) out.finish = choice.finish_reason;
      onText(choice.delta.content ?? "", out);
    }
  }
}

function speed(result) {
  // The server's own figures, once they are there: what arrives in one piece cannot be timed here.
  const measured = result.seconds > 0 ? (result.tokens - 1) / result.seconds : 0;
  const rate = result.timings ? result.timings.predicted_per_second : measured;
  let text = result.tokens + " tokens, " + rate.toFixed(1) + " tokens/s";
  if (result.timings) text += ", first after " + (result.timings.queue_ms + result.timings.prompt_ms).toFixed(0) + " ms";
  if (result.finish === "length") text += ", cut at the limit";
  return text;
}

// ---- chat

function addMessage(role, text) {
  $("empty")?.remove();
  const box = document.createElement("div");
  box.className = "message " + role;
  const title = document.createElement("h2");
  title.textContent = role === "user" ? "You" : "Model";
  const body = document.createElement("p");
  body.textContent = text;
  const facts = document.createElement("div");
  facts.className = "facts";
  box.append(title, body, facts);
  $("log").append(box);
  $("log").scrollTop = $("log").scrollHeight;
  return { box, body, facts };
}

function setBusy(busy) {
  $("send").disabled = busy;
  $("stop").disabled = !busy;
  $("retry").disabled = busy || state.messages.length === 0;
  $("clear").disabled = busy || state.messages.length === 0;
}

async function answer() {
  const view = addMessage("assistant", "");
  view.body.classList.add("waiting");
  const system = $("system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...state.messages] : state.messages;
  state.abort = new AbortController();
  setBusy(true);
  say("Waiting for the first token …");
  let text = "";
  try {
    const result = await streamChat({ ...settings(), mode: $("mode").value || "auto", messages }, state.abort.signal, (piece, soFar) => {
      const log = $("log");
      const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      text += piece;
      view.body.textContent = text;
      view.facts.textContent = speed(soFar);
      if (follow) log.scrollTop = log.scrollHeight;
      if (soFar.tokens === 1) say("Answering …");
    });
    view.facts.textContent = speed(result);
    say("Answer complete: " + result.tokens + " tokens.");
  } catch (error) {
    if (error.name === "AbortError") {
      view.facts.textContent += " – stopped";
      say("Stopped.");
    } else {
      view.box.classList.add("failed");
      view.facts.textContent = "Error: " + error.message;
      say("Error: " + error.message);
    }
  }
  view.body.classList.remove("waiting");
  // Even without text: Retry takes the last answer away again.
  state.messages.push({ role: "assistant", content: text });
  state.abort = null;
  setBusy(false);
}

async function send() {
  const text = $("prompt").value.trim();
  if (!text || state.abort) return;
  $("prompt").value = "";
  state.messages.push({ role: "user", content: text });
  addMessage("user", text);
  await answer();
  $("prompt").focus();
}

async function retry() {
  if (state.abort || state.messages.length === 0) return;
  if (state.messages.at(-1).role === "assistant") {
    state.messages.pop();
    $("log").lastElementChild.remove();
  }
  await answer();
}

function clearChat() {
  state.messages = [];
  $("log").replaceChildren();
  setBusy(false);
  say("Conversation cleared.");
  $("prompt").focus();
}

// ---- comparison

function commonPrefix(a, b) {
  let n = 0;
  while (n < a.length && n < b.length && a[n] === b[n]) ++n;
  return n;
}

async function compareSide(side, prompt, signal) {
  const body = { ...settings(), mode: $(side + "-mode").value, messages: [{ role: "user", content: prompt }] };
  body.temperature ??= 0; // differences come from the mode, not from chance
  let text = "";
  $(side + "-text").textContent = "";
  $(side + "-facts").textContent = "Waiting …";
  try {
    const result = await streamChat(body, signal, (piece, soFar) => {
      text += piece;
      $(side + "-text").textContent = text;
      $(side + "-facts").textContent = speed(soFar);
    });
    $(side + "-facts").textContent = speed(result);
    return text;
  } catch (error) {
    $(side + "-facts").textContent = error.name === "AbortError" ? "Stopped" : "Error: " + error.message;
    return null;
  }
}

async function compare() {
  const prompt = $("compare-prompt").value.trim();
  if (!prompt || state.abort) return;
  state.abort = new AbortController();
  $("compare-run").disabled = true;
  $("compare-stop").disabled = false;
  $("compare-verdict").textContent = "Running …";
  const [left, right] = await Promise.all([compareSide("left", prompt, state.abort.signal), compareSide("right", prompt, state.abort.signal)]);
  if (left === null || right === null) {
    $("compare-verdict").textContent = "Not both sides finished.";
  } else if (left === right) {
    $("compare-verdict").textContent = "Both answers are the same, character for character.";
  } else {
    $("compare-verdict").textContent = "The answers agree in their first " + commonPrefix(left, right) + " characters.";
  }
  state.abort = null;
  $("compare-run").disabled = false;
  $("compare-stop").disabled = true;
}

// ---- wiring

function selectTab(name) {
  for (const tab of ["chat", "compare"]) {
    const selected = tab === name;
    $("tab-" + tab).setAttribute("aria-selected", String(selected));
    $("tab-" + tab).tabIndex = selected ? 0 : -1;
    $("view-" + tab).hidden = !selected;
  }
  if (!state.abort) say("");
}

function onTabKey(event) {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  const next = event.target.id === "tab-chat" ? "compare" : "chat";
  selectTab(next);
  $("tab-" + next).focus();
}

for (const name of ["chat", "compare"]) {
  $("tab-" + name).addEventListener("click", () => selectTab(name));
  $("tab-" + name).addEventListener("keydown", onTabKey);
}
$("chat-form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("compare-form").addEventListener("submit", (event) => { event.preventDefault(); compare(); });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") state.abort?.abort(); });
$("stop").addEventListener("click", () => state.abort?.abort());
$("compare-stop").addEventListener("click", () => state.abort?.abort());
$("retry").addEventListener("click", retry);
$("clear").addEventListener("click", clearChat);
$("key").addEventListener("change", loadModel);

loadModel();
refreshLoad();
setInterval(refreshLoad, refreshMs);
