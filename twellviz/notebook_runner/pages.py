"""HTML pages of executed notebooks that need nothing from a network."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

# nbconvert's page loads RequireJS, MathJax and Mermaid from a server; the notebooks use none of them.
_TEMPLATE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock html_head_js -%}
{%- block html_head_js_mathjax -%}{%- endblock html_head_js_mathjax -%}
{%- block html_head_js_mermaidjs -%}{%- endblock html_head_js_mermaidjs -%}
{%- block jupyter_widgets -%}{%- endblock jupyter_widgets -%}
{%- block notebook_css -%}
{{ super() }}
<style>
.jp-RenderedMarkdown .highlight pre { font-family: monospace !important; font-size: 13px; line-height: 1.35; }
.jp-InputArea-editor, .jp-RenderedMarkdown .highlight { overflow-x: auto !important; }
</style>
{%- endblock notebook_css -%}
{%- block data_png scoped -%}
<div class="jp-RenderedImage jp-OutputArea-output {{ extra_class }}">
<img src="data:image/png;base64,{{ output.data['image/png'] | escape_html }}" \
class="jp-needs-light-background" style="max-width: 100%" \
alt="{{ (output | get_metadata('alt', 'image/png') or 'figure') | escape_html }}">
</div>
{%- endblock data_png -%}
"""


def write_page(notebook_text: str, page: Path, *, title: str) -> Path:
    """Write the notebook (its JSON text) as one self-contained HTML file and return the file's path."""
    jinja2, nbconvert, nbformat = map(import_module, ("jinja2", "nbconvert", "nbformat"))
    loader = jinja2.DictLoader({"offline.html.j2": _TEMPLATE})
    exporter = nbconvert.HTMLExporter(extra_loaders=[loader], template_file="offline.html.j2")
    notebook = nbformat.reads(notebook_text, as_version=4)
    notebook.metadata["title"] = title
    text, _ = exporter.from_notebook_node(notebook)
    page.write_text(text, encoding="utf-8", newline="\n")
    return page


def write_index(out: Path, rows: Iterable[tuple[str, Path, float, bool]]) -> Path:
    """Write ``out/index.html``, a list of the pages, and return its path.

    Parameters
    ----------
    out : Path
    rows : iterable of (name, page, seconds, ran)
    """
    items = []
    for name, page, seconds, ran in rows:
        link = html.escape(Path(os.path.relpath(page, out)).as_posix(), quote=True)
        state = f"{seconds:.0f} s" if ran else "failed"
        items.append(f'<tr><td><a href="{link}">{html.escape(name)}</a></td><td>{state}</td></tr>')
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Notebooks</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<style>:root { color-scheme: light dark; } td { padding-right: 1.5rem; }"
        " body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem; }</style></head>\n"
        "<body><h1>Notebooks</h1>\n<table>\n" + "\n".join(items) + "\n</table></body></html>\n"
    )
    index = out / "index.html"
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_text(text, encoding="utf-8", newline="\n")
    return index
