// Where the boxes of each tree lie, in the order of the document, and how far the page is wider than its window.
const trees = [...document.querySelectorAll(".tree")].map((tree) =>
  [...tree.querySelectorAll(".cell b")].map((label) => {
    const { left, right, top, bottom } = label.getBoundingClientRect();
    const kind = ["stood", "fell", "own"].find((name) => label.parentElement.classList.contains(name)) ?? "root";
    return { kind, left, right, top, bottom };
  }),
);
return { wide: document.documentElement.scrollWidth - window.innerWidth, trees };
