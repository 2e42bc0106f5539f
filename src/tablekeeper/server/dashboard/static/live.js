// Pages work without this script. With it, parts marked `data-live` renew themselves, changes of what is marked
// `data-status` are told to screen readers, and parts marked `data-load` fetch their content.
"use strict";

const PERIOD_MS = 3000;
const FOCUSABLE = "a[href], [tabindex]";

// What has the focus inside of `part`, by what it is called, so that it can be found again after a renewal.
function focusKey(element) {
  return element.getAttribute("href") || element.getAttribute("aria-label");
}

function statusOf(part) {
  const marked = part.querySelector("[data-status]");
  return marked ? marked.textContent.trim() : "";
}

function replace(part, fresh) {
  const focused = part.contains(document.activeElement) ? focusKey(document.activeElement) : null;
  const places = [...part.querySelectorAll(".scroll, .log")].map((each) => [each.scrollLeft, each.scrollTop]);
  const before = statusOf(part);
  part.innerHTML = fresh.innerHTML;
  [...part.querySelectorAll(".scroll, .log")].forEach((each, at) => {
    if (places[at]) [each.scrollLeft, each.scrollTop] = places[at];
  });
  if (focused) {
    const again = [...part.querySelectorAll(FOCUSABLE)].find((each) => focusKey(each) === focused);
    if (again) again.focus({ preventScroll: true });
  }
  const after = statusOf(part);
  if (after && after !== before) document.getElementById("news").textContent = `Now ${after}`;
}

async function renew(part) {
  if (document.hidden) return;
  const answer = await fetch(location.href, { credentials: "same-origin" });
  // A session that ended is redirected to the login: the next click leads there.
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("[data-live]");
  if (fresh && fresh.innerHTML !== part.innerHTML) replace(part, fresh);
}

// Parts that take longer than the page itself are fetched after it.
async function load(part) {
  const answer = await fetch(part.dataset.load, { credentials: "same-origin" });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const loaded = page.querySelector("[data-part]");
  if (loaded) part.innerHTML = loaded.innerHTML;
}

for (const part of document.querySelectorAll("[data-live]")) {
  // An instance that is away is asked again in the next period.
  setInterval(() => renew(part).catch(() => {}), PERIOD_MS);
}
for (const part of document.querySelectorAll("[data-load]")) {
  // What cannot be loaded leaves the link that is there without this script too.
  load(part).catch(() => {});
}
