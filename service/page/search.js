// The search of the API's page: only the sections that hold all words stay, and their links.

/** Searches while a reader types; `told` says how many sections are left. */
export function search(field, told) {
  const sections = [...document.querySelectorAll("main section")].map((section) => ({ section, text: section.textContent.toLowerCase() }));
  const links = [...document.querySelectorAll("nav li")].map((item) => ({ item, id: item.firstChild.hash.slice(1) }));
  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean), left = new Set();
    for (const { section, text } of sections) {
      section.hidden = !words.every((word) => text.includes(word));
      if (!section.hidden) left.add(section.id);
    }
    for (const { item, id } of links) item.hidden = !left.has(id);
    for (const list of document.querySelectorAll("nav ul")) list.previousElementSibling.hidden = list.hidden = ![...list.children].some((item) => !item.hidden);
    for (const fold of document.querySelectorAll("nav details")) fold.open ||= words.length > 0;
    told.textContent = words.length ? `${left.size || "No"} ${left.size === 1 ? "section has" : "sections have"} this.` : "";
  };
  field.oninput = show;
  // A link may lead to a section that the search has left out.
  addEventListener("hashchange", () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target?.hidden) return;
    field.value = "";
    show();
    target.scrollIntoView();
  });
}
