// Names of a sequence's tokens and words, as a reader knows them from the text.

/**
 * The name of each place of a map's axis: a token or a word as the text has it. A vocabulary's own
 * names stand for what is no part of the text alone: in one of bytes "\u4f60" is three letters of others.
 */
export function names(item, { tokens, words, offsets, segments }, view = {}) {
  const { spans = tokens.map((_, i) => [i, i + 1]) } = view;
  const axis = view.axis ?? spans.map((_, i) => i);
  const texts = [item.text, item.pair ?? ""].map((text) => Array.from(text));
  return axis.map((place) => {
    const [from, to] = spans[place];
    if (words[from] === null) return tokens[from];
    const text = texts[segments?.[from] ?? 0].slice(offsets[from][0], offsets[to - 1][1]).join("");
    return text.trim() || text.replace(/\s/g, "\u2423") || "\u2205"; // some vocabularies count the blank before a word as its own
  });
}

/** The places of a similarity's axis: its tokens, or its words, special tokens apart or left out. */
export function places({ words, special, segments }, { level, specials }) {
  const spans = [];
  words.forEach((word, i) => {
    const same = level === "word" && word !== null && i && words[i - 1] === word && segments?.[i - 1] === segments?.[i];
    if (same) spans.at(-1)[1] = i + 1;
    else spans.push([i, i + 1]);
  });
  const kept = spans.flatMap(([from], i) => (specials === "drop" && special[from] ? [] : [i]));
  return { spans, axis: kept };
}

/** The same with a number behind each name that comes more than once. */
export function numbered(list) {
  const seen = new Map();
  return list.map((name) => {
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return list.indexOf(name) === list.lastIndexOf(name) ? name : `${name} (${seen.get(name)})`;
  });
}
