"""Equations of docstrings, which are plain text with the papers' symbols, as MathML, which browsers draw by themselves.

    x ← x + (αᵢ/2) s(x, σᵢ) + √αᵢ z,   log Z = Σ_{i>0} ½xᵢ²

What is raised or lowered, roots, sums with their limits and words are found; quotients stay on the line, as they are written. Wide gaps
part equations; a block that is mostly words is left to be shown as it is (`typeset` answers None).
"""

import re
from html import escape

UP = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀˡᵏⁿᵛ", "0123456789+-⊤lknv", strict=True))
DOWN = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ᵢⱼₖₗₘₙₐₓ", "0123456789+-ijklmnax", strict=True))
FUNCTIONS = set(re.findall(r"\w+", """log exp max min det tanh cosh sinh coth cos sin tr diag softplus softmax logsumexp mean MLP Cov KL
    Gamma MMD KSD SW Meff CD"""))  # fmt: skip
SHORT = {"an", "as", "at", "be", "by", "if", "in", "is", "it", "no", "of", "on", "or", "to", "up"}
LIMITS = {"Σ", "Π", "max", "min", "mean"}
CLOSED = {")": "(", "}": "{", "]": "["}
SPACED = "=<>+-±·←→∝≈≤≥≠⇔~/,;:"  # signs that bring their own room
OPERATORS = SPACED + ".|‖()[]⟨⟩⌈⌉∈…⋯!#&"
WORD = re.compile(r"s\.t\.|[A-Za-z]{3,}(?:-[A-Za-z]{3,})+|[A-Za-z]+")
NUMBER = re.compile(r"\d+(?:\.\d+)?|[½¼¾∞]")
LETTER = re.compile(r"(?:[^\W\d_]|[∇∂∫∅⊤])[\u0302-\u0304]?")
WIDE = 75  # characters of a line beyond which its parts stand below each other
PROSE = 0.75  # share of letters in words above which a block is none of equations


def is_word(text: str) -> bool:
    """Whether letters are a word, not a product of quantities."""
    return text not in FUNCTIONS and (text in SHORT or len(text) > 2)


def group(text: str, start: int) -> int:
    """The place after the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in CLOSED.values()) - (text[place] in CLOSED)
        if not depth:
            return place + 1
    return len(text)


def row(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"


class Line:
    """One line, read from left to right: `parts` are the elements so far, `bases` what each of them shows."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.parts: list[str] = []
        self.bases: list[str] = []
        while self.place < len(text):
            self.read()

    def add(self, element: str, base: str, length: int) -> None:
        self.parts.append(element)
        self.bases.append(base)
        self.place += length

    def read(self) -> None:
        rest, char = self.text[self.place :], self.text[self.place]
        spaces = len(rest) - len(rest.lstrip(" "))
        if spaces:
            width = "2em" if spaces > 1 else "0.25em"
            roomy = spaces == 1 and (not self.bases or self.bases[-1] in SPACED or rest[1] in SPACED)
            self.add("" if roomy else f'<mspace width="{width}"/>', self.bases[-1] if self.bases else "", spaces)
        elif char == "'":
            self.add('<mo lspace="0" rspace="0">′</mo>', "′", 1)
        elif char in UP or char in DOWN or char in "^_" or (char == "*" and self.bases and self.bases[-1].isalpha()):
            self.scripts()
        elif char == "√":
            self.root()
        elif char == "`":
            end = rest.index("`", 1)
            self.add(f"<mtext><code>{escape(rest[1:end])}</code></mtext>", "`", end + 1)
        elif found := WORD.match(rest):
            self.word(found[0])
        elif found := NUMBER.match(rest):
            self.add(f"<mn>{found[0]}</mn>", found[0], len(found[0]))
        elif char in "ΣΠ":
            matrix = re.match(r"Σ(_\w)?([)⁻,]|$)", rest)  # a covariance has the letter of a sum
            self.add(
                "<mi>Σ</mi>" if matrix else f"<mo>{'∑' if char == 'Σ' else '∏'}</mo>", "matrix" if matrix else char, 1
            )
        elif char in OPERATORS or char in "{}":
            self.operator(char)
        elif found := LETTER.match(rest):
            self.add(f"<mi>{found[0]}</mi>", found[0], len(found[0]))
        else:
            raise ValueError(f"{char!r} in {self.text!r}")

    def operator(self, char: str) -> None:
        shown = {"-": "−", "~": "∼", "·": "⋅"}.get(char, char)
        first = not self.bases or self.bases[-1] in OPERATORS
        follows = self.text[self.place + 1 : self.place + 2]
        form = ' form="prefix"' if char in "-+±" and first and follows != " " else ""
        if char == "+" and follows == "=":
            self.add("<mo>+=</mo>", "=", 2)
            return
        fence = ' stretchy="false"' if char in "()[]{}|‖⟨⟩⌈⌉" else ""
        if char in "|‖/!":
            form = ' lspace="0" rspace="0"'
        self.add(f"<mo{form}{fence}>{escape(shown)}</mo>", char, 1)

    def word(self, found: str) -> None:
        if found in FUNCTIONS:
            self.add(f"<mo>{found}</mo>" if found in LIMITS else f"<mi>{found}</mi>", found, len(found))
        elif is_word(found) or (found == "a" and self.bases and self.bases[-1] == "word"):
            self.add(f"<mtext>{found}</mtext>", "word", len(found))
        else:
            for letter in found:
                accent = self.text[self.place + 1 : self.place + 2]
                accent = accent if "\u0302" <= accent <= "\u0304" else ""
                self.add(f"<mi>{letter}{accent}</mi>", letter, 1 + len(accent))

    def argument(self) -> str:
        """What a `^` or `_` at this place raises or lowers; moves behind it."""
        start = self.place + 1
        if self.text[start : start + 1] in tuple("{("):
            self.place = group(self.text, start)
            return self.text[start + 1 : self.place - 1]
        found = re.match(r"[A-Za-z]+|\d+|.[\u0302-\u0304]?", self.text[start:])
        length = len(found[0]) if found else 0
        if self.text[self.place] == "^":
            length = min(length, 1)
        self.place = start + length
        return self.text[start : self.place]

    def scripts(self) -> None:
        """All that hangs on the last element, above and below."""
        above, below = "", ""
        while self.place < len(self.text):
            char = self.text[self.place]
            if char in UP or char in DOWN:
                above, below = above + UP.get(char, ""), below + DOWN.get(char, "")
                self.place += 1
            elif char == "*" and not above:
                above += char
                self.place += 1
            elif char == "^":
                above += self.argument()
            elif char == "_":
                below += self.argument()
            else:
                break
        base = self.parts.pop() if self.parts else "<mi></mi>"
        limits = bool(self.bases) and self.bases[-1] in LIMITS
        over, under = ("mover", "munder") if limits else ("msup", "msub")
        both = "munderover" if limits else "msubsup"
        if above and below:
            self.parts.append(f"<{both}>{base}{small(below)}{small(above)}</{both}>")
        else:
            kind = over if above else under
            self.parts.append(f"<{kind}>{base}{small(above or below)}</{kind}>")
        if not self.bases:
            self.bases.append("")

    def root(self) -> None:
        rest = self.text[self.place + 1 :]
        if rest.startswith("("):
            end = group(rest, 0)
            inside = rest[1 : end - 1]
        else:
            marks = "".join(UP) + "".join(DOWN)
            found = re.match(rf"\d+|.[\u0302-\u0304]?(_\w)?[{marks}]*", rest)
            end = len(found[0]) if found else 0
            inside = rest[:end]
        self.add(f"<msqrt>{row(Line(inside).parts)}</msqrt>", "√", end + 1)


def small(text: str) -> str:
    """An index: indices of several letters are letters, not words, but for a few names."""
    if re.fullmatch(r"[A-Za-z]{3,}", text):
        return f"<mi>{text}</mi>"
    if re.fullmatch(r"[A-Za-z]{2}", text):
        return row([f"<mi>{letter}</mi>" for letter in text])
    if text in {"*", "⊤"}:
        return f"<mo>{text}</mo>"
    return row(Line(text.replace("⊤", " ⊤").strip()).parts)


def typeset(lines: list[str]) -> str | None:
    """A block of lines as one element, or None where it is mostly words or has signs that are not known."""
    lines = [line.rstrip() for line in lines if line.strip()]
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    words = sum(len(found) for line in lines for found in WORD.findall(line) if is_word(found) and found not in SHORT)
    if words > PROSE * sum(char.isalpha() for line in lines for char in line):
        return None
    pieces = [line[indent:].replace("...", "…").replace("···", "⋯") for line in lines]
    for gap in (r" {3,}", r" {2,}"):
        pieces = [part for piece in pieces for part in (re.split(gap, piece) if len(piece) > WIDE else [piece])]
    try:
        rows = [f"<mtr><mtd>{''.join(Line(piece).parts)}</mtd></mtr>" for piece in pieces]
    except ValueError:
        return None
    said = escape("; ".join(re.sub(r"\s+", " ", line.strip()) for line in lines), quote=True)
    return f'<div class="equation"><math display="block" aria-label="{said}"><mtable columnalign="left">{"".join(rows)}</mtable></math></div>'
