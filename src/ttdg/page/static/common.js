// Requests with the CSRF token, and messages for the user.
const csrf = document.querySelector("meta[name=csrf]").content;

export async function send(method, address, body) {
  const headers = { "x-csrf-token": csrf };
  if (body !== undefined && !(body instanceof Blob)) {
    headers["content-type"] = "application/json";
    body = JSON.stringify(body);
  }
  const answer = await fetch(address, { method, headers, body, credentials: "same-origin" });
  if (!answer.ok) {
    const text = await answer.text();
    let reason = text;
    try { reason = JSON.parse(text).reason; } catch { /* a plain text */ }
    throw new Error(reason || `the server answered ${answer.status}`);
  }
  return answer.json();
}

export async function part(address) {
  const answer = await fetch(address, { credentials: "same-origin" });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.text();
}

export function say(text) {
  document.getElementById("notice").textContent = text;
}
