// Draws the equations that the builder left as TeX; what cannot be read is reported, and stays as it is.
const MACROS = {
  "\\E": "\\mathbb{E}", "\\R": "\\mathbb{R}", "\\KL": "\\operatorname{KL}", "\\tr": "\\operatorname{tr}", "\\Var": "\\operatorname{Var}",
};
const MANY_LINES = /\\\\(?![^{]*\\end)|&/;

function draw(node, displayMode) {
  let tex = node.textContent.trim();
  if (displayMode && MANY_LINES.test(tex) && !/\\begin\{/.test(tex)) tex = `\\begin{aligned}${tex}\\end{aligned}`;
  try {
    katex.render(tex, node, { displayMode, macros: { ...MACROS }, throwOnError: true, strict: "ignore" });
  } catch (error) {
    console.error(`equation not drawn: ${tex}: ${error.message}`);
  }
}

for (const node of document.querySelectorAll(".math.inline")) draw(node, false);
for (const node of document.querySelectorAll(".math.display")) draw(node, true);
