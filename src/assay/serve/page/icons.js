// Icons as paths on a grid of 24, drawn with the colour of the words around them.

const NS = "http://www.w3.org/2000/svg";
const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h10",
  gear: "M10.4 5.8L10.5 3.5L13.5 3.5L13.6 5.8L15.2 6.5L17.0 5.0L19.0 7.0L17.5 8.8L18.2 10.4L20.5 10.5L20.5 13.5L18.2 13.6L17.5 15.2L19.0 17.0L17.0 19.0L15.2 17.5L13.6 18.2L13.5 20.5L10.5 20.5L10.4 18.2L8.8 17.5L7.0 19.0L5.0 17.0L6.5 15.2L5.8 13.6L3.5 13.5L3.5 10.5L5.8 10.4L6.5 8.8L5.0 7.0L7.0 5.0L8.8 6.5zM12 9.300a2.700 2.700 0 1 0 0 5.400 2.700 2.700 0 0 0 0-5.400",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  plus: "M12 5v14M5 12h14",
  search: "M10.500 4a6.500 6.500 0 1 0 0 13 6.500 6.500 0 0 0 0-13M15.500 15.500 20 20",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "M5 13l4.500 4.500L19 7",
  cross: "M6 6l12 12M18 6 6 18",
  again: "M19 12a7 7 0 1 1-2.200-5.100M19 4v4h-4",
  edit: "M5 19l1-4L16 5l3 3L9 18zM13.500 7.500l3 3",
  tokens: "M4 6h7v5H4zM14 6h6v5h-6zM4 14h4v5H4zM11 14h9v5h-9z",
  shade: "M4 18h16M6 14h2M11 14h2M16 14h2M6 10h12M6 6h7",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  clip: "M8 12.500l5.500-5.500a2.800 2.800 0 0 1 4 4L10 18.500a4.500 4.500 0 0 1-6.300-6.300L11 5",
  send: "M12 19V6M6 11.500 12 5.500l6 6",
  stop: "M7 7h10v10H7z",
  trash: "M5 7h14M10 4h4M7 7l1 13h8l1-13M10.500 11v5M13.500 11v5",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  chat: "M4 5h16v11H10l-4 4v-4H4z",
  layers: "M12 4l8 4-8 4-8-4zM4 12l8 4 8-4M4 16l8 4 8-4",
  compare: "M4 5h6v14H4zM14 5h6v14h-6z",
  diagnose: "M4 12h4l2-6 4 12 2-6h4",
  server: "M4 5h16v6H4zM4 13h16v6H4zM7.500 8h.01M7.500 16h.01",
};

export function icon(name) {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(NS, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

// Elements that name an icon get it: <button data-icon="gear">.
export function draw(root) {
  for (const element of root.querySelectorAll("[data-icon]")) element.prepend(icon(element.dataset.icon));
}
