// Pages work without this script. With it, parts marked `data-live` renew themselves, and tables marked `data-sortable`
// are sorted by a click, or by Enter, on a header.
"use strict";

const PERIOD_MS = 3000;

async function renew(part) {
  if (document.hidden || part.contains(document.activeElement)) return;
  const answer = await fetch(location.href, { credentials: "same-origin" });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("[data-live]");
  if (fresh && fresh.innerHTML !== part.innerHTML) part.innerHTML = fresh.innerHTML;
}

function sortBy(table, column, header) {
  const isDown = header.getAttribute("aria-sort") === "ascending";
  const rows = [...table.tBodies[0].rows];
  const text = (row) => row.cells[column] ? row.cells[column].textContent.trim() : "";
  rows.sort((a, b) => text(a).localeCompare(text(b), undefined, { numeric: true }) * (isDown ? -1 : 1));
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  table.tBodies[0].append(...rows);
}

for (const part of document.querySelectorAll("[data-live]")) {
  setInterval(() => renew(part).catch(() => {}), PERIOD_MS);
}
for (const table of document.querySelectorAll("table[data-sortable]")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    header.tabIndex = 0;
    header.addEventListener("click", () => sortBy(table, column, header));
    header.addEventListener("keydown", (event) => { if (event.key === "Enter") sortBy(table, column, header); });
  });
}
