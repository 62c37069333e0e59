// Energies typed in: a tokenizer, a Pratt parser that writes a tape of operations, and reverse-mode derivatives along it.
// Nothing is handed to the browser's own interpreter.

const CONSTANTS = { pi: Math.PI, e: Math.E };
const UNARY = {
  exp: [Math.exp, (u, y) => y],
  log: [Math.log, (u) => 1 / u],
  sqrt: [Math.sqrt, (u, y) => 0.5 / y],
  sin: [Math.sin, (u) => Math.cos(u)],
  cos: [Math.cos, (u) => -Math.sin(u)],
  tan: [Math.tan, (u, y) => 1 + y * y],
  sinh: [Math.sinh, (u) => Math.cosh(u)],
  cosh: [Math.cosh, (u) => Math.sinh(u)],
  tanh: [Math.tanh, (u, y) => 1 - y * y],
  atan: [Math.atan, (u) => 1 / (1 + u * u)],
  abs: [Math.abs, (u) => Math.sign(u)],
};
const BINARY = {
  "+": [(a, b) => a + b, () => 1, () => 1],
  "-": [(a, b) => a - b, () => 1, () => -1],
  "*": [(a, b) => a * b, (a, b) => b, (a) => a],
  "/": [(a, b) => a / b, (a, b) => 1 / b, (a, b) => -a / (b * b)],
  "^": [Math.pow, (a, b) => (b === 0 ? 0 : b * Math.pow(a, b - 1)), (a, b, y) => (y === 0 ? 0 : y * Math.log(a))],
  min: [Math.min, (a, b) => (a <= b ? 1 : 0), (a, b) => (a <= b ? 0 : 1)],
  max: [Math.max, (a, b) => (a >= b ? 1 : 0), (a, b) => (a >= b ? 0 : 1)],
  atan2: [Math.atan2, (a, b) => b / (a * a + b * b), (a, b) => -a / (a * a + b * b)],
};
const POWER = { "+": 10, "-": 10, "*": 20, "/": 20, "^": 40 };
const SIGN = 30; // -x^2 is -(x^2), -x*y is (-x)*y

export const FUNCTIONS = [...Object.keys(UNARY), "min", "max", "atan2"];

export class FormulaError extends Error {
  constructor(message, at) {
    super(`${message}, at character ${at + 1}`);
    this.at = at;
  }
}

function tokenize(text) {
  const pattern = /\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_π]\w*)|(\*\*|[-+*/^(),²³·×−])|(\S))/y;
  const signs = { "**": ["^"], "²": ["^", "2"], "³": ["^", "3"], "·": ["*"], "×": ["*"], "−": ["-"] };
  const end = text.trimEnd().length, tokens = [];
  while (pattern.lastIndex < end) {
    const m = pattern.exec(text), at = pattern.lastIndex - m[0].trimStart().length;
    if (m[4]) throw new FormulaError(`“${m[4]}” means nothing here`, at);
    if (m[1]) tokens.push({ kind: "number", text: m[1], at });
    else if (m[2]) tokens.push({ kind: "name", text: m[2] === "π" ? "pi" : m[2], at });
    else for (const sign of signs[m[3]] ?? [m[3]]) tokens.push({ kind: /\d/.test(sign) ? "number" : "sign", text: sign, at });
  }
  tokens.push({ kind: "end", text: "the end", at: end });
  return tokens;
}

/** A formula of the given variables as a tape; `evaluate(x, g)` returns its value and writes its gradient. */
export function parse(text, variables = ["x", "y"]) {
  const tokens = tokenize(text);
  let at = 0;
  const tape = variables.map(() => ({ kind: "variable" }));
  const push = (entry) => tape.push(entry) - 1;
  const number = (value) => push({ kind: "number", value });
  const unary = (name, a) => (tape[a].kind === "number" ? number(UNARY[name][0](tape[a].value)) : push({ kind: "unary", name, a }));
  const binary = (name, a, b) => {
    if (tape[a].kind === "number" && tape[b].kind === "number") return number(BINARY[name][0](tape[a].value, tape[b].value));
    return push({ kind: "binary", name, a, b });
  };
  const expect = (sign) => {
    const token = tokens[at++];
    if (token.text !== sign) throw new FormulaError(`expected “${sign}”, found ${token.text === "the end" ? "the end" : `“${token.text}”`}`, token.at);
  };

  function called(token) {
    const args = [];
    expect("(");
    do args.push(expression(0));
    while (tokens[at].text === "," && ++at);
    expect(")");
    const wanted = token.text in UNARY ? 1 : 2;
    if (args.length !== wanted) throw new FormulaError(`${token.text} takes ${wanted} argument${wanted > 1 ? "s" : ""}, got ${args.length}`, token.at);
    return wanted === 1 ? unary(token.text, args[0]) : binary(token.text, args[0], args[1]);
  }

  function prefix() {
    const token = tokens[at++];
    if (token.kind === "number") return number(parseFloat(token.text));
    if (token.kind === "name") {
      if (variables.includes(token.text)) return variables.indexOf(token.text);
      if (FUNCTIONS.includes(token.text)) return called(token);
      if (token.text in CONSTANTS) return number(CONSTANTS[token.text]);
      throw new FormulaError(`“${token.text}” is not known; there are ${variables.join(", ")}, pi, e and ${FUNCTIONS.join(", ")}`, token.at);
    }
    if (token.text === "(") {
      const inside = expression(0);
      expect(")");
      return inside;
    }
    if (token.text === "-") return binary("*", number(-1), expression(SIGN));
    if (token.text === "+") return expression(SIGN);
    throw new FormulaError(`expected a number, a variable or “(”, found ${token.kind === "end" ? "the end" : `“${token.text}”`}`, token.at);
  }

  function expression(floor) {
    let left = prefix();
    for (;;) {
      const token = tokens[at];
      const implied = token.kind === "number" || token.kind === "name" || token.text === "("; // 2x, x(y+1)
      const name = implied ? "*" : token.text, power = POWER[name] ?? 0;
      if (power <= floor) return left;
      if (!implied) at++;
      left = binary(name, left, expression(name === "^" ? power - 1 : power)); // 2^3^2 is 2^(3^2)
    }
  }

  const result = expression(0);
  if (tokens[at].kind !== "end") throw new FormulaError(`“${tokens[at].text}” comes too early`, tokens[at].at);
  return compile(tape, result, variables.length);
}

/** The tape as closures over an array of values, run forward for the value and backward for the gradient. */
function compile(tape, result, inputs) {
  const value = new Float64Array(tape.length), adjoint = new Float64Array(tape.length);
  tape.forEach((entry, i) => entry.kind === "number" && (value[i] = entry.value));
  const moves = [], code = [];
  tape.forEach((entry, i) => {
    if (entry.kind === "unary") {
      const [f, df] = UNARY[entry.name];
      moves.push({ i, a: entry.a, b: -1, f, df, dg: null });
    } else if (entry.kind === "binary") {
      const [f, df, dg] = BINARY[entry.name];
      const fixed = tape[entry.b].kind === "number"; // no log of a base where the exponent is a number
      moves.push({ i, a: entry.a, b: entry.b, f, df, dg: fixed ? null : dg });
    }
    code.push(entry.kind);
  });
  return {
    dim: inputs,
    evaluate(x, g) {
      for (let j = 0; j < inputs; j++) value[j] = x[j];
      for (const m of moves) value[m.i] = m.b < 0 ? m.f(value[m.a]) : m.f(value[m.a], value[m.b]);
      adjoint.fill(0);
      adjoint[result] = 1;
      for (let k = moves.length - 1; k >= 0; k--) {
        const m = moves[k], s = adjoint[m.i];
        if (s === 0) continue;
        const a = value[m.a], y = value[m.i];
        if (m.b < 0) adjoint[m.a] += s * m.df(a, y);
        else {
          const b = value[m.b];
          if (code[m.a] !== "number") adjoint[m.a] += s * m.df(a, b, y);
          if (m.dg) adjoint[m.b] += s * m.dg(a, b, y);
        }
      }
      for (let j = 0; j < inputs; j++) g[j] = adjoint[j];
      return value[result];
    },
  };
}
