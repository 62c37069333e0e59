"""What a notebook shows of an object: a small table that is read on light and dark pages."""

from collections.abc import Iterable
from html import escape

_CARD = "display:inline-block;border:1px solid #8886;border-radius:8px;padding:8px 14px;font-size:13px;line-height:1.5"
_LEFT = "padding:0 16px 0 0;text-align:left;opacity:.65;vertical-align:top;background:none"
_RIGHT = "padding:0;text-align:left;background:none"


def card(title: str, rows: Iterable[tuple[str, str]], *, note: str = "") -> str:
    """A title, names with values, and a last line; everything is escaped, and no color but a notebook's own is used.

    >>> "<b>LogZ</b>" in card("LogZ", [("value", "1.5 < 2")]) and "1.5 &lt; 2" in card("LogZ", [("value", "1.5 < 2")])
    True
    """
    lines = "".join(
        f'<tr style="background:none"><td style="{_LEFT}">{escape(name)}</td><td style="{_RIGHT}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    table = f'<table style="margin:2px 0;border-collapse:collapse">{lines}</table>' if lines else ""
    below = f'<div style="opacity:.65">{escape(note)}</div>' if note else ""
    return f'<div style="{_CARD}"><b>{escape(title)}</b>{table}{below}</div>'


def number(value: float) -> str:
    """A number to five digits.

    >>> number(-18.3830001), number(float("nan"))
    ('-18.383', 'not known')
    """
    return "not known" if value != value else f"{value:.5g}"
