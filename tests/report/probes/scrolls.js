// PAGE in a frame of each of WIDTHS: how far each box that may scroll is wider than it shows, and the page itself.
// A frame, because a window of headless Chromium is never narrower than 500 pixels.
const frame = document.createElement("iframe");
frame.style.height = "900px";
document.body.append(frame);
const inner = frame.contentDocument;
inner.open();
inner.write(PAGE);
inner.close();
const beyond = (box) => box.scrollWidth - box.clientWidth;
return WIDTHS.map((width) => {
  frame.style.width = `${width}px`;
  const tables = [...inner.querySelectorAll("table")];
  const names = [...inner.querySelectorAll("tbody th")];
  return {
    width: frame.contentWindow.innerWidth,
    page: beyond(inner.documentElement),
    tables: tables.map((table) => beyond(table.parentElement)),
    names: names.map((name) => name.textContent),
  };
});
