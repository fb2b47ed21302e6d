"use strict";
const byId = (id) => document.getElementById(id);
const gib = (bytes) => (bytes / 2 ** 30).toFixed(1);
let key = sessionStorage.getItem("key") || "";

function ask(path, method) {
  const headers = { "X-Sparkdeploy": "page" };
  if (key) headers.Authorization = "Bearer " + key;
  return fetch(path, { method, headers, cache: "no-store", redirect: "error" });
}

function problem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

async function change(name, verb) {
  try {
    const answer = await ask("gateway/models/" + encodeURIComponent(name) + "/" + verb, "POST");
    if (!answer.ok) problem((await answer.json()).error.message);
  } catch (error) {
    problem("the gateway does not answer");
  }
  look();
}

// Kept from one look to the next, so that what has the focus keeps it.
function made(parent, template, name) {
  let item = [...parent.children].find((it) => it.dataset.name === name);
  if (!item) {
    item = byId(template).content.firstElementChild.cloneNode(true);
    item.dataset.name = name;
    item.querySelector(".name").textContent = name;
    for (const verb of ["start", "stop"]) {
      const button = item.querySelector("." + verb);
      if (button) button.addEventListener("click", () => change(name, verb));
    }
    parent.append(item);
  }
  return item;
}

function showNode(node) {
  const item = made(byId("nodes"), "node", node.name);
  const used = node.total - node.available;
  const meter = item.querySelector("meter");
  meter.max = node.total;
  meter.value = used;
  item.querySelector(".figures").textContent =
    gib(used) + " of " + gib(node.total) + " GiB in use";
}

function showModel(model) {
  const item = made(byId("models"), "model", model.name);
  const state = item.querySelector(".state");
  state.textContent = model.state;
  state.className = "state " + model.state;
  const names = model.aliases.length ? "; also " + model.aliases.join(", ") : "";
  item.querySelector(".about").textContent = model.recipe + ", keep: " + model.keep + names;
  const figures = [model.running + " running", model.waiting + " waiting"];
  if (model.tokens_per_s !== null) figures.unshift(model.tokens_per_s.toFixed(1) + " tok/s");
  if (model.start_s !== null) figures.push("starts in " + Math.round(model.start_s) + " s");
  item.querySelector(".figures").textContent = figures.join(", ");
  const cause = item.querySelector(".cause");
  cause.textContent = model.cause;
  cause.hidden = !model.cause;
  const isThere = ["ready", "starting"].includes(model.state);
  item.querySelector(".start").disabled = isThere;
  item.querySelector(".stop").disabled = !isThere;
}

async function look() {
  try {
    const answer = await ask("gateway/state", "GET");
    byId("login").hidden = answer.status !== 401;
    if (!answer.ok) {
      problem(answer.status === 401 && !key ? "" : (await answer.json()).error.message);
      return;
    }
    const state = await answer.json();
    byId("name").textContent = state.name;
    document.title = state.name + " - sparkdeploy gateway";
    problem(state.problem);
    state.nodes.forEach(showNode);
    state.models.forEach(showModel);
  } catch (error) {
    problem("the gateway does not answer");
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
  sessionStorage.setItem("key", key);
  byId("key").value = "";
  look();
});
look();
setInterval(() => document.hidden || look(), 2000);
