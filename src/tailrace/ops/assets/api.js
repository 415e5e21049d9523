// Requests to the server, and the token that some of them need. The token stays in this tab.

export class ApiError extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

// It may come behind the `#`, which browsers do not send.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname);
}

export const hasToken = () => sessionStorage.getItem("token") !== null;
export const setToken = (token) => sessionStorage.setItem("token", token);
export const forgetToken = () => sessionStorage.removeItem("token");

async function request(method, path, parameters = {}, { token = sessionStorage.getItem("token"), signal } = {}) {
  const query = new URLSearchParams();
  for (const [name, values] of Object.entries(parameters)) {
    for (const each of Array.isArray(values) ? values : [values]) {
      if (each !== undefined && each !== null && each !== "") query.append(name, each);
    }
  }
  const address = query.size ? `${path}?${query}` : path;
  const headers = token ? { Authorization: "Bearer " + token } : {};
  let response;
  try {
    response = await fetch(address, { method, headers, signal, cache: "no-store" });
  } catch {
    throw new ApiError(0, "The server does not respond.", "It may be stopped, or the connection is down.");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, body.error ?? `HTTP ${response.status}`, body.hint);
  return body;
}

export const get = (path, parameters, signal) => request("GET", path, parameters, { signal });
export const post = (path, parameters) => request("POST", path, parameters);

/** Whether the server accepts a token. Of the requests that need one, this is the cheapest. */
export async function accepts(token) {
  try {
    await request("GET", "dead-letters", { sink: "\u0000" }, { token });
    return true;
  } catch (error) {
    if (error.status === 401) return false;
    if (error.status === 400 || error.status === 404) return true;
    throw error;
  }
}
