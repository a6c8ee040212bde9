// Where the boxes of each tree lie, in the order of the document, and how far the page is wider than its window.
const trees = [...document.querySelectorAll(".tree")].map((tree) =>
  [...tree.querySelectorAll("td[class]")].map((box) => {
    const { left, right, top, bottom } = box.getBoundingClientRect();
    return { kind: box.className, left, right, top, bottom };
  }),
);
return { wide: document.documentElement.scrollWidth - window.innerWidth, trees };
