"""Small pieces of a page: tables, folded tables, legends, paragraphs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

STYLE = Path(__file__).with_name("report.css")


def document(title: str, heading: str, words: str, parts: Sequence[tuple[str, str, str]]) -> str:
    """A whole file without scripts, which needs no other. `words`: below the heading; `parts`: (anchor,
    heading, content) each, of which empty ones are left out."""
    shown = [part for part in parts if part[2]]
    links = "".join(f'<li><a href="#{anchor}">{escape(name)}</a></li>' for anchor, name, _ in shown)
    body = "".join(section(anchor, name, content) for anchor, name, content in shown)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE.read_text()}</style></head><body>"
        f"<header><h1>{escape(heading)}</h1>{paragraph(words, 'faint')}</header>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav><main>{body}</main></body></html>\n'
    )


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A column is of numbers, and set to the right, if its cells are; it may be scrolled where it is wide.
    Cells are text, numbers, None for what is not known, or Markup."""
    numeric = [
        all(isinstance(row[i], int | float | None) or _is_numeral(row[i]) for row in rows)
        for i in range(len(columns))
    ]
    kinds = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(columns, kinds))
    body = "".join(f"<tr>{''.join(_cell(cell, kind) for cell, kind in zip(row, kinds))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


class Markup(str):
    """Text that is HTML already."""


def _cell(cell: Any, kind: str) -> str:
    words = number(cell) if cell is None or isinstance(cell, int | float) else cell
    kind = kind or (' class="words"' if len(words) > 60 else "")
    return f"<td{kind}>{words if isinstance(words, Markup) else escape(words)}</td>"


def _is_numeral(cell: Any) -> bool:
    return (
        isinstance(cell, str) and not isinstance(cell, Markup) and cell[:1] in "0123456789−+∞–" and cell != ""
    )


def folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def figure(chart: str, caption: str, fold: str) -> str:
    """A chart with the table of its numbers below; nothing where there is nothing to draw."""
    if not chart:
        return ""
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{chart}{words}{fold}</figure>"


def legend(names: Sequence[tuple[str, int]]) -> str:
    """Names beside the shade and dash of their lines."""
    sample = '<svg viewBox="0 0 30 10" aria-hidden="true" class="s{}"><path class="line" d="M1 5H29"/></svg>'
    items = "".join(f"<li>{sample.format(shade)}{escape(name)}</li>" for name, shade in names)
    return f'<ul class="legend">{items}</ul>'


def section(anchor: str, heading: str, *content: str) -> str:
    return f'<section id="{anchor}"><h2>{escape(heading)}</h2>{"".join(content)}</section>'


def paragraph(words: str, kind: str = "") -> str:
    return f"<p{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{escape(words)}</p>"


def bullets(sentences: Sequence[str | Markup]) -> str:
    items = "".join(f"<li>{s if isinstance(s, Markup) else escape(s)}</li>" for s in sentences)
    return f"<ul>{items}</ul>"


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    digits = 0 if isinstance(value, int) else digits
    return f"{value:,.{digits}f}".replace("-", "−").replace(",", "\u202f")
