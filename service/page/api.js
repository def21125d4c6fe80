// What the service is asked, and how it answers. All addresses are below the page's own.

export const BASE = new URL("..", import.meta.url);
const SAFETENSORS = "application/vnd.safetensors";
let key = "";

/** Keeps an API key, in memory alone. */
export const useKey = (value) => (key = value);

/** What the service refused, in its own words. */
export class Refused extends Error {
  constructor(status, problem) {
    const { detail } = problem, [fault] = Array.isArray(detail) ? detail : [{ msg: detail, type: problem.code, loc: [] }]; // TypeSafe's API lists faults
    super(fault.msg || problem.title || `The service answered ${status}.`);
    this.status = status;
    this.code = fault.type;
    this.loc = fault.loc;
  }
}

export const address = (path) => new URL(path, BASE).href;

async function send(path, body, accept) {
  const headers = { accept };
  if (key) headers.authorization = `Bearer ${key}`;
  if (body) headers["content-type"] = "application/json";
  const request = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), cache: "no-store" };
  let answer;
  try {
    answer = await fetch(address(path), request);
  } catch {
    throw new Refused(0, { detail: "The service is not responding." });
  }
  if (answer.ok) return answer;
  throw new Refused(answer.status, await answer.json().catch(() => ({})));
}

/** Asks for JSON; without a body by GET. */
export const ask = async (path, body) => (await send(path, body, "application/json")).json();

/** Asks for arrays: the answer's JSON, and its tensors by name. */
export async function arrays(path, body) {
  const bytes = await (await send(path, body, SAFETENSORS)).arrayBuffer();
  return decode(bytes);
}

/** Reads a safetensors file: little-endian header length, JSON header, data. */
export function decode(bytes) {
  const length = Number(new DataView(bytes).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, length)));
  const { __metadata__: { headlight }, ...entries } = header;
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(entries)) {
    const data = bytes.slice(8 + length + from, 8 + length + to);
    tensors[name] = { shape, values: dtype === "F16" ? halves(data) : new { F32: Float32Array, I32: Int32Array, F64: Float64Array }[dtype](data) };
  }
  return { answer: JSON.parse(headlight), tensors };
}

function halves(data) {
  return Float32Array.from(new Uint16Array(data), (bits) => {
    const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  });
}

/** The curl command that asks the same; without a body by GET. */
export function curl(path, body) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`, url = address(path);
  const secret = key ? " -H 'Authorization: Bearer YOUR-KEY'" : "";
  const sent = body ? ` -H 'Content-Type: application/json'${secret} -d ${quoted(JSON.stringify(body))}` : secret;
  return `curl ${/^[\w:/.-]+$/.test(url) ? url : quoted(url)}${sent}`;
}
