"""The report as one HTML file: no scripts, no network, readable on a phone."""

from __future__ import annotations

import re
from html import escape
from math import expm1
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from .examples import Example
from .figures import all_figures, headline, svg_text

if TYPE_CHECKING:
    from .report import Report

__all__ = ["coloured_tokens", "render", "svg"]

_SHOWN_TOKENS = 1500
_FULL_RESPONSES = 3


def svg(figure: Any, prefix: str) -> Markup:
    """A figure as inline SVG that scales with the page; its ids get a prefix, so that several live in one page."""
    text = svg_text(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1 role="img"', text, count=1)
    text = re.sub(r'id="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    return Markup(text)


def coloured_tokens(example: Example, limit: int = _SHOWN_TOKENS) -> Markup:
    """The response token by token: red where the policy moved up (z > 0), green where down, the stronger the farther.

    Without token texts or ids, tokens are shown by their position.  At most ``limit`` tokens; a longer response shows the window of
    that length with the largest mass.
    """
    z = example.z.astype(np.float64)
    start = 0
    if z.size > limit:
        mass = np.concatenate([[0.0], np.cumsum(np.abs(z))])
        start = int(np.argmax(mass[limit:] - mass[:-limit]))
    scale = max(float(np.quantile(np.abs(z), 0.95)) if z.size else 0.0, 1e-9)
    parts: list[str] = []
    for t in range(start, min(start + limit, z.size)):
        if example.tokens:
            text = example.tokens[t].replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")
        else:
            text = str(example.token_ids[t]) if example.token_ids else f"·{t + 1}"
        strength = min(1.0, abs(z[t]) / scale) * 0.85
        colour = f"rgba(192,57,43,{strength:.2f})" if z[t] > 0 else f"rgba(30,132,73,{strength:.2f})"
        title = f"token {t + 1}: log-ratio {z[t]:+.4f}, ratio {expm1(z[t]) + 1:.3f}"
        shown = escape(text).replace("\n", "↵<br>")
        parts.append(f'<span style="background:{colour}" title="{title}">{shown}</span>')
    left_out = z.size - (min(start + limit, z.size) - start)
    note = f'<p class="small">{left_out:,} more tokens are not shown; the window is the one with the largest mass.</p>' if left_out else ""
    return Markup("<div class=tokens>" + ("" if example.tokens else " ").join(parts) + "</div>" + note)


def render(report: Report) -> str:
    """The page."""
    figures = all_figures(report)
    examples = []
    if report.masks is not None:
        drawn = [e for e in report.masks.examples if e.z.size > 1]
        for i, example in enumerate(drawn):
            picture = svg(figures[f"response-{i + 1}"], f"r{i}") if i < 2 * _FULL_RESPONSES else None
            examples.append(
                {
                    "why": example.why,
                    "where": f"{example.file}, row {example.row}",
                    "headline": headline(example),
                    "reward": None if example.reward != example.reward else f"{example.reward:g}",
                    "picture": picture,
                    "tokens": coloured_tokens(example, _SHOWN_TOKENS if i < _FULL_RESPONSES else 300),
                    "open": i == 0,
                }
            )
    environment = Environment(
        loader=PackageLoader("rollout_logs"), autoescape=select_autoescape(default=True), trim_blocks=True, lstrip_blocks=True
    )
    template = environment.get_template("report.html.j2")
    return template.render(
        report=report,
        verdict=report.verdict(),
        unknown=report.unknown(),
        settings=report.settings(),
        tables=report.tables(),
        figures={name: svg(figure, name) for name, figure in figures.items() if not name.startswith("response-")},
        examples=examples,
    )
