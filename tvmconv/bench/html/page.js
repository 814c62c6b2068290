"use strict";
for (const th of document.querySelectorAll("th")) {
  const table = th.closest("table"), column = th.cellIndex;
  const sort = () => {
    const down = th.getAttribute("aria-sort") !== "descending";
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.textContent;
    };
    const empty = (value) => value === "" || value === "-";
    const compare = (a, b) => {
      if (empty(a) || empty(b)) return empty(a) - empty(b);
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return down ? -order : order;
    };
    const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
    rows.sort((a, b) => compare(a[0], b[0]));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  th.tabIndex = 0;
  th.classList.add("sorts");
  th.addEventListener("click", sort);
  th.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      sort();
    }
  });
}
