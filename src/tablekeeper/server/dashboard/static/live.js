// Pages work without this script. With it, parts marked `data-live` renew themselves, changes of what is marked
// `data-status` are told to screen readers, and parts marked `data-load` fetch their content.
"use strict";

const PERIOD_MS = 3000;
const SCROLLED = ".scroll, .log";
const FOCUSABLE = "a[href], [tabindex], summary";

let renewedAt = new Date();

// What has the focus inside of `part`, by what it is called, so that it can be found again after a renewal.
function focusKey(element) {
  return element.getAttribute("href") || element.getAttribute("aria-label") || element.textContent.trim();
}

function isAtEnd(element) {
  return element.scrollTop + element.clientHeight >= element.scrollHeight - 4
    && element.scrollLeft + element.clientWidth >= element.scrollWidth - 4;
}

// Parts marked `data-end` show what came last: the end of an output, the newest of a timeline.
function showEnd(element) {
  if (element.matches("[data-end]")) element.scrollTo(element.scrollWidth, element.scrollHeight);
}

function statusOf(part) {
  const marked = part.querySelector("[data-status]");
  return marked ? marked.textContent.trim() : "";
}

function replace(part, fresh) {
  const focused = part.contains(document.activeElement) ? focusKey(document.activeElement) : null;
  const places = [...part.querySelectorAll(SCROLLED)].map((each) => [each.scrollLeft, each.scrollTop, isAtEnd(each)]);
  const opened = [...part.querySelectorAll("details")].map((each) => each.open);
  const before = statusOf(part);
  part.innerHTML = fresh.innerHTML;
  [...part.querySelectorAll("details")].forEach((each, at) => { each.open = opened[at] || false; });
  [...part.querySelectorAll(SCROLLED)].forEach((each, at) => {
    if (!places[at] || (places[at][2] && each.matches("[data-end]"))) showEnd(each);
    else [each.scrollLeft, each.scrollTop] = places[at];
  });
  if (focused) {
    const again = [...part.querySelectorAll(FOCUSABLE)].find((each) => focusKey(each) === focused);
    if (again) again.focus({ preventScroll: true });
  }
  const after = statusOf(part);
  if (after && after !== before) document.getElementById("news").textContent = `Now ${after}`;
}

// Whoever selects a text is not to lose it.
function isInUse(part) {
  const selection = getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode);
}

// Says that what is seen is old, until it is not any more.
function tellStale(reason) {
  const told = document.getElementById("stale");
  const text = reason && `${reason} What is shown is from ${renewedAt.toLocaleTimeString()}.`;
  if (told.textContent !== text) told.textContent = text;
  told.hidden = !reason;
}

async function renew(part) {
  if (document.hidden || isInUse(part)) return;
  let answer;
  try {
    answer = await fetch(location.href, { credentials: "same-origin" });
  } catch {
    tellStale("The service does not answer.");
    return;
  }
  if (answer.redirected) return tellStale("Your session has ended: reload the page to log in.");
  if (!answer.ok) return tellStale(`The service answered ${answer.status}.`);
  renewedAt = new Date();
  tellStale("");
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("[data-live]");
  if (fresh && fresh.innerHTML !== part.innerHTML) replace(part, fresh);
}

// A service that is slow is not asked again before it has answered.
async function keepRenewing(part) {
  await renew(part).catch(() => {});
  setTimeout(() => keepRenewing(part), PERIOD_MS);
}

// Parts that take longer than the page itself are fetched after it.
async function load(part) {
  const answer = await fetch(part.dataset.load, { credentials: "same-origin" });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const loaded = page.querySelector("[data-part]");
  if (loaded) part.innerHTML = loaded.innerHTML;
}

document.querySelectorAll(SCROLLED).forEach(showEnd);
for (const part of document.querySelectorAll("[data-live]")) {
  setTimeout(() => keepRenewing(part), PERIOD_MS);
}
for (const part of document.querySelectorAll("[data-load]")) {
  // What cannot be loaded leaves the link that is there without this script too.
  load(part).catch(() => {});
}
