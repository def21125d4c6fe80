// The API as a page: every route with its fields and answers, and a form to send it.

import { curl, useKey } from "./api.js";
import { at, copied, make } from "./dom.js";
import { search } from "./search.js";

const LONGEST = 20000; // characters of an answer that are shown
let api, served = ""; // the document, and the name of the model
const commands = []; // each writes its route's anew

const code = (text, kind = "") => make("code", kind ? { class: kind } : {}, text);
const show = (value) => JSON.stringify(value);
// JSON to be read: what fits stands on one line, and so do plain lists.
const pretty = (value, most = 84, indent = "") => {
  if (typeof value !== "object" || value === null) return show(value);
  const list = Array.isArray(value), [start, end] = list ? "[]" : "{}";
  const parts = Object.entries(value).map(([key, each]) => (list ? "" : `${show(key)}: `) + pretty(each, most, indent + "  "));
  const line = start + parts.join(", ") + end;
  const plain = list && value.every((each) => typeof each !== "object" || each === null);
  if (plain || indent.length + line.length <= most && !line.includes("\n")) return line;
  return `${start}\n${parts.map((part) => `${indent}  ${part}`).join(",\n")}\n${indent}${end}`;
};
const named = (schema) => schema.$ref?.split("/").pop();
// A sentence, in which names of fields stand between backticks.
const sentence = (text) => text.split("`").map((part, index) => index % 2 ? code(part) : part);
const find = (schema) => schema.$ref ? api.components.schemas[named(schema)] : schema;
const place = (...parts) => parts.join("-").replace(/[^A-Za-z0-9]+/g, "-").replace(/-$/, "");
const type = (name) => place("type", name);
const request = (path, more = {}) => {
  const key = at("key").value;
  const headers = { ...more.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  return fetch("." + path, { ...more, headers });
};

// A schema in a few words; objects are links to their own fields.
const kind = (schema) => {
  if (schema.$ref && find(schema).properties) return [make("a", { href: `#${type(named(schema))}` }, named(schema))];
  schema = { ...find(schema), ...schema.$ref ? {} : schema };
  const several = schema.anyOf || schema.oneOf;
  if (several) return several.flatMap((each, index) => index ? [" or ", ...kind(each)] : kind(each));
  if (schema.enum) return [schema.enum.map(show).join(", ")];
  if ("const" in schema) return [show(schema.const)];
  if (schema.type === "array") return ["list of ", ...kind(schema.items || {})];
  if (schema.type === "object" && typeof schema.additionalProperties === "object")
    return ["object of ", ...kind(schema.additionalProperties)];
  return [[schema.type || "any"].flat().join(" or ") + bounds(schema)];
};
const bounds = ({ minimum, maximum, minLength, maxLength, pattern }) => {
  const words = [];
  if (minimum !== undefined && maximum !== undefined) words.push(`${minimum} to ${maximum}`);
  else if (minimum !== undefined) words.push(`at least ${minimum}`);
  else if (maximum !== undefined) words.push(`at most ${maximum}`);
  if (minLength !== undefined) words.push(`at least ${minLength} characters`);
  if (maxLength !== undefined) words.push(`at most ${maxLength} characters`);
  if (pattern) words.push(`pattern ${pattern}`);
  return words.length ? ` (${words.join(", ")})` : "";
};

const field = (name, schema, required) => {
  const term = make("dt", {}, code(name, "name"), " ", make("span", { class: "kind" }, ...kind(schema)));
  if (required) term.append(" ", make("span", { class: "required" }, "required"));
  if ("default" in schema && schema.default !== null)
    term.append(" ", make("span", { class: "default" }, "default ", code(show(schema.default))));
  const about = make("dd", {}, ...sentence(schema.description || ""));
  if (schema.examples) about.append(" ", make("span", { class: "example" }, "Example: ", code(show(schema.examples[0]))));
  return [term, about];
};
const fields = (schema, required = schema.required || []) =>
  make("dl", {}, ...Object.entries(schema.properties).flatMap(([each, of]) => field(each, of, required.includes(each))));
// The fields of an object, or of each that it may be.
const body = (schema) => {
  const several = schema.anyOf || schema.oneOf;
  if (several) return make("div", {}, ...several.map(body));
  const target = find(schema);
  if (target.properties) {
    const count = Object.keys(target.properties).length;
    return make("details", {}, make("summary", {}, code(named(schema)), `, ${count} ${count === 1 ? "field" : "fields"}`), fields(target));
  }
  return make("p", {}, ...kind(schema), ...target.description ? [": ", ...sentence(target.description)] : []);
};

// What is sent: the parameters, and a body from one of the examples.
const trial = (path, method, about) => {
  const inputs = (about.parameters || []).filter((each) => each.in !== "header").map((parameter) => {
    const input = parameter.schema.type === "boolean" ? make("input", { type: "checkbox" })
      : make("input", { value: parameter.example || "" });
    return { ...parameter, input };
  });
  const examples = about.requestBody?.content["application/json"].examples || {};
  const text = make("textarea", { rows: 9, spellcheck: false, "aria-label": `body of ${path}` });
  const choice = make("select", { "aria-label": `example for ${path}` },
    ...Object.entries(examples).map(([name, { summary }]) => make("option", { value: name }, summary || name)));
  const stored = make("div", {});
  const choose = () => {
    const example = examples[choice.value];
    text.value = pretty("model" in example.value && served ? { ...example.value, model: served } : example.value, 50);
    stored.replaceChildren(...storedAnswer(choice.value, about));
    command();
    const query = new URLSearchParams(example["x-query"]);
    for (const each of inputs) if (each.in === "query") each.input.checked = query.get(each.name) === "true";
  };
  const address = () => {
    const query = new URLSearchParams(inputs.filter((each) => each.in === "query" && each.input.checked).map((each) => [each.name, "true"]));
    const whole = inputs.reduce((rest, each) => rest.replace(`{${each.name}}`, encodeURI(each.input.value)), path);
    return whole + (query.size ? `?${query}` : "");
  };
  const status = make("p", { class: "status", role: "status" });
  const output = make("pre", { hidden: true });
  const send = make("button", { type: "button" }, "Send");
  send.onclick = async () => {
    status.textContent = "Waiting.";
    try {
      const post = method === "post" ? { method: "POST", headers: { "content-type": "application/json" }, body: text.value } : {};
      const answer = await request(address(), post);
      const json = answer.headers.get("content-type")?.includes("json");
      const plain = json ? pretty(await answer.json()) : await answer.text();
      status.textContent = `${answer.status} ${answer.statusText}`.trim();
      status.classList.toggle("good", answer.ok);
      output.textContent = plain.length > LONGEST ? `${plain.slice(0, LONGEST)}\n.. ${plain.length - LONGEST} more characters` : plain;
      output.hidden = !plain;
    } catch (error) {
      status.textContent = `No answer: ${error.message}`;
      status.classList.remove("good");
      output.hidden = true;
    }
  };
  const line = make("pre", { class: "curl", tabIndex: 0 }), done = make("span", { role: "status" });
  // The command that sends what stands in the form, as long as that can be read
  const command = () => {
    useKey(at("key").value);
    try {
      line.textContent = curl(address().slice(1), method === "post" ? JSON.parse(text.value || "{}") : undefined);
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      line.textContent = `This is no JSON yet: ${error.message}`;
    }
  };
  commands.push(command);
  for (const each of [text, ...inputs.map(({ input }) => input)]) each.addEventListener("input", command);
  const copy = make("button", { type: "button" }, "Copy");
  copy.onclick = async () => (done.textContent = (await copied(line.textContent)) ? "Copied." : "Select the line and copy it: the clipboard needs HTTPS or localhost.");
  const first = make("div", {}, make("h3", {}, "Copy this"), line, make("p", {}, copy, " ", done));
  const box = make("div", { class: "try" }, make("h3", {}, "Try it"));
  if (Object.keys(examples).length) {
    box.append(make("label", {}, "Example", choice), text);
    choice.onchange = choose;
    choose();
  }
  for (const { name, input } of inputs) box.append(make("label", {}, code(name), input));
  box.append(make("p", {}, send), status, output);
  command();
  return [first, box, stored];
};
// What the bundled model answered to an example.
const storedAnswer = (name, { responses }) => {
  for (const [status, { content = {} }] of Object.entries(responses)) {
    const answer = Object.values(content)[0]?.examples?.[name];
    if (answer) return [make("h3", {}, answer.summary), make("pre", { class: "stored", tabIndex: 0 }, `${status}\n${pretty(answer.value)}`),
      ...answer.description ? [make("p", {}, ...sentence(answer.description))] : []];
  }
  return [];
};

const opened = (box) => {
  for (const each of [box, ...box.querySelectorAll("details")]) if (each.tagName === "DETAILS") each.open = true;
  return box;
};
const answers = (about) => {
  const parts = [];
  for (const [status, { content = {} }] of Object.entries(about.responses)) {
    const [{ schema } = {}] = Object.values(content);
    if (status.startsWith("2")) {
      parts.push(make("h3", {}, `Answer, ${Object.keys(content).join(" or ") || "without a body"}`));
      if (schema?.$ref || schema?.anyOf) parts.push(body(schema));
    }
  }
  const refusals = Object.entries(about.responses).filter(([status]) => !status.startsWith("2"));
  const list = make("dl", {}, ...refusals.map(([status, { description }]) => make("dt", {}, code(status), " ", description)));
  parts.push(make("details", {}, make("summary", {}, "Refusals"), list));
  return parts;
};

const operation = (path, method, about) => {
  const section = make("section", { id: place(method, path) || method },
    make("h2", {}, make("span", { class: "method" }, method.toUpperCase()), " ", code(path)), make("p", {}, about.summary + "."));
  if (about.description) section.append(make("p", {}, ...sentence(about.description)));
  if (about.externalDocs) section.append(make("p", {}, "Its answers are described by ", make("a", { href: about.externalDocs.url, rel: "noreferrer" }, "the API's own document"), "."));
  section.append(...trial(path, method, about));
  if (about.parameters) section.append(make("h3", {}, "Parameters"), make("dl", {}, ...about.parameters.flatMap((each) =>
    field(each.name, { ...each.schema, description: `${each.description || ""} In the ${each.in}.`.trim() }, each.required))));
  const content = about.requestBody?.content;
  if (content) section.append(make("h3", {}, `Request, ${Object.keys(content).join(" or ")}`), opened(body(content["application/json"].schema)));
  section.append(...answers(about));
  return section;
};
const entry = (href, ...children) => make("li", {}, make("a", { href: `#${href}` }, ...children));

const render = (document_, model) => {
  [api, served] = [document_, model];
  const main = document.querySelector("main"), nav = document.querySelector("nav");
  const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => ({ path, method, about })));
  for (const { about } of operations) for (const parameter of about.parameters || [])
    if (["model", "id"].includes(parameter.name)) parameter.example = model;
    else if (parameter.name === "version") parameter.example = "1";
  for (const { name } of api.tags) {
    const own = operations.filter(({ about }) => about.tags[0] === name);
    nav.append(make("h2", {}, name), make("ul", {}, ...own.map(({ path, method }) =>
      entry(place(method, path) || method, make("span", { class: "method" }, method.toUpperCase()), path))));
    main.append(...own.map(({ path, method, about }) => operation(path, method, about)));
  }
  const types = Object.entries(api.components.schemas).filter(([, schema]) => schema.properties);
  nav.append(make("details", {}, make("summary", {}, `Types (${types.length})`),
    make("ul", {}, ...types.map(([name]) => entry(type(name), name)))));
  main.append(...types.map(([name, schema]) => make("section", { id: type(name) },
    make("h2", {}, code(name)), make("p", { class: "text" }, ...sentence(schema.description || "")), fields(schema))));
  search(at("search"), at("found"));
  at("search").disabled = false;
  at("state").remove();
  if (location.hash) at(location.hash.slice(1))?.scrollIntoView();
};

const load = async () => {
  const state = at("state");
  const answer = await request("/openapi.json");
  if (!answer.ok) {
    state.textContent = answer.status === 401 ? (at("key").value ? "This service does not accept that key." : "This service requires an API key to show its API: enter one above.") : `Could not load openapi.json: ${answer.status}`;
    return;
  }
  const info = await request("/info");
  render(await answer.json(), info.ok ? (await info.json()).model : "");
};
at("key").onchange = () => {
  if (!api) return load();
  for (const command of commands) command();
};
load();
