"""The view as HTML. All text of tokens comes from outside and is escaped here, nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from twellviz.explorers.view import Neighbour, NeuronRow, View
from twellviz.traces.labels import shorten, visible

_LIGHT, _DARK = (247, 251, 255), (8, 48, 107)
"""Ends of a one-hue scale: its lightness alone orders it, so it reads without colour vision."""

BORDER = "var(--jp-border-color1, var(--vscode-panel-border, #888))"
FOREGROUND = "var(--jp-ui-font-color1, var(--vscode-foreground, inherit))"
CHOSEN = "#d55e00"


def colours(shade: float) -> tuple[str, str]:
    """Background for a shade from 0 to 1, and the text colour, black or white, that contrasts with it more."""
    levels = [round(light + (dark - light) * shade) for light, dark in zip(_LIGHT, _DARK, strict=True)]
    # Relative luminance of sRGB (WCAG 2.1); at 0.179 black and white contrast equally.
    red, green, blue = (
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (level / 255 for level in levels)
    )
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "rgb({},{},{})".format(*levels), "#000" if luminance > 0.179 else "#fff"


def strip_html(view: View, *, numbers: bool = False) -> str:
    """The text, each token on its shade; ``numbers`` writes the counts beside the tokens."""
    parts = []
    for token in view.strip:
        background, text = colours(token.shade)
        style = f"background:{background};color:{text};padding:1px 2px;border-radius:2px"
        current = ""
        if token.index == view.token:
            style += f";outline:3px solid {CHOSEN};font-weight:bold"
            current = ' aria-current="true"'
        number = f"<sub>{token.count}</sub>" if numbers else ""
        parts.append(
            f'<span style="{style}" title="{escape(token.title)}"{current}>{escape(token.label)}{number}</span>'
            + ("<br>" if token.breaks else " ")
        )
    return (
        f'<div style="font-family:monospace;line-height:1.7;color:{FOREGROUND}">{"".join(parts)}</div>'
        f'<p style="color:{FOREGROUND}"><small>{escape(view.notice)}. Darker means more active neurons in layer '
        f"{view.layer}; hover for the counts of every layer.</small></p>"
    )


def counts_html(view: View) -> str:
    """One line: how many neurons the chosen token fires in each layer."""
    cells = " &nbsp; ".join(
        f"<b>layer {layer}: {count}</b>" if layer == view.layer else f"layer {layer}: {count}"
        for layer, count in enumerate(view.counts_L)
    )
    share = view.n_active / view.n_hidden
    return (
        f'<p style="color:{FOREGROUND}">Active neurons of token {view.token}: {cells}'
        f" &nbsp; ({share:.1%} of {view.n_hidden} in layer {view.layer})</p>"
    )


def neurons_html(view: View) -> str:
    """Table of the chosen token's strongest neurons, with the tokens that excite each most."""
    if not view.neurons:
        return f'<p style="color:{FOREGROUND}">No neuron of layer {view.layer} fires for this token.</p>'
    cell = f'style="border-bottom:1px solid {BORDER};padding:2px 10px;text-align:left"'
    heads = "".join(
        f'<th scope="col" {cell}>{head}</th>' for head in ("neuron", "|h|", "fires for", "strongest for the tokens")
    )
    rows = []
    for row in view.neurons:
        contexts = "<br>".join(
            f"{escape(_tail(before))}<b>{escape(shorten(visible(token)))}</b>{escape(_head(after))}"
            for before, token, after in row.contexts
        )
        rows.append(
            f'<tr><th scope="row" {cell}>{row.neuron}</th><td {cell}>{row.strength:.3f}</td>'
            f"<td {cell}>{row.share:.2%} of tokens</td><td {cell}>{contexts}</td></tr>"
        )
    return (
        f'<table style="border-collapse:collapse;color:{FOREGROUND}"><caption style="text-align:left">Strongest of '
        f"{view.n_active} active neurons in layer {view.layer}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def neuron_html(row: NeuronRow, near: Sequence[Neighbour]) -> str:
    """One neuron: the tokens that excite it most, and the neurons that fire together with it."""
    if not row.contexts:
        return f'<p style="color:{FOREGROUND}">Neuron {row.neuron} fires for no token here.</p>'
    cell = f'style="border-bottom:1px solid {BORDER};padding:2px 10px;text-align:left"'
    contexts = "".join(
        f"<li>{escape(_tail(before))}<b>{escape(shorten(visible(token)))}</b>{escape(_head(after))}</li>"
        for before, token, after in row.contexts
    )
    rows = "".join(
        f'<tr><th scope="row" {cell}>{one.neuron}</th><td {cell}>{one.overlap:.1%}</td><td {cell}>{one.both}</td></tr>'
        for one in near
    )
    heads = "".join(
        f'<th scope="col" {cell}>{head}</th>' for head in ("neuron", "of the tokens of either", "tokens of both")
    )
    return (
        f'<div style="color:{FOREGROUND}"><p>Neuron {row.neuron} fires for {row.share:.2%} of tokens, up to |h| = '
        f"{row.strength:.3f}. Strongest for:</p><ol>{contexts}</ol>"
        '<table style="border-collapse:collapse"><caption style="text-align:left">Neurons of the layer that fire with '
        f"it most</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _tail(text: str, longest: int = 40) -> str:
    shown = visible(text)
    return shown if len(shown) <= longest else "…" + shown[-longest:]


def _head(text: str, longest: int = 40) -> str:
    shown = visible(text)
    return shown if len(shown) <= longest else shown[:longest] + "…"
