// The sign-in form, and requests that ask for the token when it is missing.

import { ApiError, accepts, forgetToken, hasToken, post, setToken } from "./api.js";
import { sentence, setText, toast } from "./dom.js";

const dialog = document.getElementById("sign-in");
const field = document.getElementById("token");
const button = document.getElementById("session");
const error = document.getElementById("sign-in-error");
let waiting = null;
let onChange = () => {};
let onDone = () => {};

/** Call `listener` when somebody signed in or out. */
export function onSession(listener) {
  onChange = listener;
}

/** Call `listener` when a control request was accepted. */
export function onAction(listener) {
  onDone = listener;
}

export function showSession(isNeeded) {
  button.hidden = !isNeeded && !hasToken();
  setText(button, hasToken() ? "Sign out" : "Sign in");
}

/** Ask for the token. Resolves to whether there is one now. */
export function signIn(reason) {
  if (waiting) return waiting.promise;
  waiting = Promise.withResolvers();
  setText(document.getElementById("sign-in-reason"), reason);
  setText(error, "");
  field.value = "";
  dialog.showModal();
  field.focus();
  return waiting.promise;
}

function finish(isSignedIn) {
  if (dialog.open) dialog.close();
  const { resolve } = waiting ?? {};
  waiting = null;
  if (isSignedIn) onChange();
  resolve?.(isSignedIn);
}

dialog.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = field.value.trim();
  try {
    if (!(await accepts(token))) {
      setText(error, "The server does not accept this token.");
      field.select();
      return;
    }
  } catch (failure) {
    setText(error, failure.message);
    return;
  }
  setToken(token);
  finish(true);
});
dialog.addEventListener("cancel", () => finish(false));
document.getElementById("sign-in-cancel").addEventListener("click", () => finish(false));
button.addEventListener("click", () => {
  if (!hasToken()) {
    signIn("Rows and control requests need the token.");
    return;
  }
  forgetToken();
  onChange();
});

/** Send a control request; asks for the token if it needs one. Resolves to the answer, or null if it failed. */
export async function act(path, parameters, done) {
  for (;;) {
    try {
      const answer = await post(path, parameters);
      toast(done(answer));
      onDone();
      return answer;
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      if (failure.status === 401) {
        forgetToken();
        if (await signIn("This action needs the token.")) continue;
        return null;
      }
      toast([failure.message, failure.hint].map(sentence).filter(Boolean).join(" "), true);
      return null;
    }
  }
}
