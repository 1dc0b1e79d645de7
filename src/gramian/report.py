"""Figures and one HTML page from a run directory, and nothing else: no store is opened, nothing is computed.

Each finished stage of a run leaves its facts in the journal: time, memory, results, choices and curves. A
curve of one of the kinds in `FIGURES` becomes a figure; the page has everything within itself.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gramian.blocks import size_text
from gramian.errors import RunError
from gramian.store.run import Run

PAGE = "report.html"
DEPTH = 1.0  # how far below the best score a regularization path is drawn
MANY_CLASSES = 20  # that a legend still names
INK = "#010203"  # what is drawn in it takes the page's text colour, light or dark
COLOURS = ("#3d8bd4", "#e0803a", "#2fa37c", "#a873d1", "#d4598c", "#9a8a3c")


@dataclass(frozen=True)
class Figure:
    """One drawing: SVG text and what it says."""

    title: str
    svg: str
    caption: str


def write_report(root: str | Path) -> Path:
    """Write the page of a run directory beside its records.

    Parameters
    ----------
    root : path
        A run directory, complete or not.

    Returns
    -------
    Path
        The page, one HTML file with everything in it.

    Raises
    ------
    RunError
        Where no run is found, or no stage of it has finished yet.
    """
    run = Run.open(root, None)
    if not run.stages:
        raise RunError(
            f"no stage of {run.root} has finished", "complete it with --resume, then ask for the report"
        )
    target = run.root / PAGE
    unfinished = target.with_name(f".{PAGE}")
    unfinished.write_text(page(run.root.name, run.manifest, records_of(run)), encoding="utf-8")
    unfinished.replace(target)
    return target


def records_of(run: Run) -> list[dict[str, Any]]:
    """The facts of the finished stages, in the order of the job, others after them."""
    order = {name: place for place, name in enumerate(run.manifest.get("parameters", {}).get("stages", {}))}
    names = sorted(run.stages, key=lambda name: order.get(name, len(order)))
    return [{"stage": name, **run.stages[name]} for name in names]


# ---------------------------------------------------------------- figures


def figures(records: Iterable[Mapping[str, Any]]) -> list[Figure]:
    """Every figure that the records hold curves for; none is drawn empty."""
    records = list(records)
    drawn = []
    for kind, draw in FIGURES.items():
        series = [
            (str(record["stage"]), record["curves"][kind])
            for record in records
            if kind in record.get("curves", {})
        ]
        drawn.extend(draw(series) if series else [])
    return drawn


def _kernel_error(series: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Figure]:
    def draw(axes: Any) -> None:
        every = sorted({m for _, curve in series for m in curve["projections"]})
        axes.plot(every, [m**-0.5 for m in every], "--", color=INK, alpha=0.6, label="1/√m")
        for (name, curve), colour in zip(series, _colours(), strict=False):
            axes.plot(curve["projections"], curve["error"], "o-", color=colour, label=name)
        axes.set(xscale="log", yscale="log", xlabel="number of projections m", ylabel="mean absolute error")
        _plain_ticks(axes.xaxis, every)
        _plain_ticks(axes.yaxis, _decades([value for _, curve in series for value in curve["error"]]))
        axes.legend(frameon=False)

    counts = sorted({curve["pairs"] for _, curve in series})
    pairs = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    caption = (
        "Mean absolute difference between the kernel and its estimate from the first m random projections, "
        f"on {pairs} pairs of subspaces. The estimate is unbiased, so the error falls as 1/√m."
    )
    return [Figure("Kernel error against the number of projections", _svg(draw, "kernel-error"), caption)]


def _spectrum(series: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Figure]:
    def draw(axes: Any) -> None:
        for (name, curve), colour in zip(_alike(series), _colours(), strict=False):
            places, values = curve["component"], curve["eigenvalues"]
            axes.plot(places, values, color=colour, label=name)
            if curve["components"] < places[-1]:
                last = max(
                    place for place, component in enumerate(places) if component <= curve["components"]
                )
                axes.plot([places[last]], [values[last]], "o", color=colour)
        axes.set(yscale="log", xlabel="component", ylabel="eigenvalue")
        axes.legend(frameon=False)

    caption = (
        "Eigenvalues of the centred kernel over the training rows, on the scale where the mean of its "
        "diagonal is one. A dot marks the number of components that was chosen, where not all were kept."
    )
    return [Figure("Spectrum", _svg(draw, "spectrum"), caption)]


def _alike(series: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Equal curves once, under all their names."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name, curve in series:
        same = next((place for place, (_, other) in enumerate(found) if other == curve), None)
        if same is None:
            found.append((name, curve))
        else:
            found[same] = (f"{found[same][0]}, {name}", curve)
    return found


def _path(series: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Figure]:
    drawn = []
    for name, curve in series:

        def draw(axes: Any, curve: Mapping[str, Any] = curve) -> None:
            points = sorted(zip(curve["alpha"], curve["score"], curve["spread"], strict=True))
            alphas, scores, spreads = (list(column) for column in zip(*points, strict=True))
            low = [score - spread for score, spread in zip(scores, spreads, strict=True)]
            high = [score + spread for score, spread in zip(scores, spreads, strict=True)]
            axes.fill_between(alphas, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
            axes.plot(alphas, scores, "-", color=COLOURS[0])
            axes.axvline(curve["chosen"], color=COLOURS[1], linestyle="--", linewidth=1.2)
            best = min(points, key=lambda point: abs(math.log(point[0] / curve["chosen"])))
            axes.plot(
                [curve["chosen"]], [best[1]], "o", color=COLOURS[1], label=f"chosen: {curve['chosen']:.3g}"
            )
            axes.set(xscale="log", xlabel="alpha", ylabel=f"cross-validated {curve['metric']}")
            margin = 0.05 * (max(high) - min(low))
            axes.set_ylim(bottom=max(min(low) - margin, max(scores) - DEPTH))
            axes.legend(frameon=False)

        caption = (
            f"Mean score over the {curve['folds']} folds at each alpha; the band is one standard deviation "
            "of the folds to either side."
        )
        if min(curve["score"]) < max(curve["score"]) - DEPTH:
            caption += f" The axis ends {DEPTH:g} below the best score."
        drawn.append(Figure(f"Regularization path: {name}", _svg(draw, f"path-{name}"), caption))
    return drawn


def _objective(series: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Figure]:
    drawn = []
    for kind in dict.fromkeys(curve["objective"] for _, curve in series):
        alike = [(name, curve) for name, curve in series if curve["objective"] == kind]

        def draw(axes: Any, alike: Any = alike) -> None:
            for (name, curve), colour in zip(alike, _colours(), strict=False):
                axes.plot(curve["iteration"], curve["value"], "o-", color=colour, label=name)
            axes.set(xlabel="iteration", ylabel="objective a row")
            axes.legend(frameon=False)

        what = (
            "the expected part of the training rows whose stochastic neighbour is of their class"
            if kind == "accuracy"
            else "the mean logarithm of the probability of a neighbour of the own class"
        )
        caption = f"Objective of neighbourhood components analysis after each iteration: {what}."
        drawn.append(Figure("Objective by iteration", _svg(draw, f"objective-{kind}"), caption))
    return drawn


def _neighbours(series: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Figure]:
    drawn = []
    for name, curve in series:
        bars = {
            "all columns": curve["columns"],
            f"start ({curve['start_name']})": curve["start"],
            "learnt map": curve["end"],
        }

        def draw(axes: Any, bars: Any = bars) -> None:
            found = axes.barh(list(bars), list(bars.values()), color=(COLOURS[5], COLOURS[1], COLOURS[0]))
            axes.bar_label(found, [f"{value:.3f}" for value in bars.values()], padding=4)
            axes.set(xlabel="accuracy", xlim=(0, 1.12))
            axes.invert_yaxis()
            axes.grid(visible=False, axis="y")

        caption = (
            f"Part of {curve['rows']:,} training rows whose class most of their {curve['nearest']} nearest "
            "others have, in all columns, in the map at the start and in the map that was learnt."
        )
        drawn.append(Figure(f"Nearest neighbours: {name}", _svg(draw, f"neighbours-{name}"), caption))
    return drawn


def _scatter(series: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Figure]:
    drawn = []
    for name, curve in series:
        for moment, start in (("before", f", at the start ({curve['start_name']})"), ("after", "")):

            def draw(axes: Any, curve: Mapping[str, Any] = curve, moment: str = moment) -> None:
                import matplotlib

                shades = matplotlib.colormaps["tab20" if len(curve["classes"]) > 10 else "tab10"]
                for code, label in enumerate(curve["classes"]):
                    points = [xy for xy, c in zip(curve[moment], curve["codes"], strict=True) if c == code]
                    if points:
                        x, y = zip(*points, strict=True)
                        axes.plot(x, y, "o", color=shades(code % shades.N), markersize=3, label=label)
                axes.set(xlabel="first component", ylabel="second component")
                if len(curve["classes"]) <= MANY_CLASSES:
                    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)

            caption = f"{len(curve['codes']):,} training rows, coloured by class, {moment} the fit{start}."
            drawn.append(Figure(f"{name}: {moment}", _svg(draw, f"scatter-{name}-{moment}"), caption))
    return drawn


# kind of curve in a record: what draws all curves of that kind
FIGURES: dict[str, Callable[[Sequence[tuple[str, Mapping[str, Any]]]], list[Figure]]] = {
    "kernel_error": _kernel_error,
    "spectrum": _spectrum,
    "path": _path,
    "objective": _objective,
    "neighbours": _neighbours,
    "scatter": _scatter,
}


def _svg(draw: Callable[[Any], None], name: str) -> str:
    """A drawing as SVG for use within HTML: transparent, its ink the colour of the text around it."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    ink = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    )
    style: Any = ink | {
        "svg.hashsalt": name,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.15,
        "grid.color": INK,
        "lines.markersize": 4,
        "savefig.transparent": True,
    }
    with matplotlib.rc_context(style):
        canvas = Canvas(figsize=(5.6, 3.6), layout="constrained")
        FigureCanvasSVG(canvas)
        draw(canvas.add_subplot())
        stream = io.StringIO()
        canvas.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue().replace(INK, "currentColor")
    return text[text.index("<svg") :]


def _colours() -> Iterable[str]:
    while True:
        yield from COLOURS


def _plain_ticks(axis: Any, places: Sequence[float]) -> None:
    """Numbers instead of powers of ten, every second one where they would crowd."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    step = 1 + len(places) // 8
    axis.set_major_locator(FixedLocator(list(places)[::-step][::-1]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _decades(values: Sequence[float]) -> list[float]:
    """The numbers 1, 2, 5 x 10^i that span the values."""
    low, high = min(value for value in values if value > 0), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [mark for mark in marks if low / 1.5 <= mark <= high * 1.5]


# ---------------------------------------------------------------- page


def page(name: str, manifest: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """The whole page as text."""
    stages = manifest.get("parameters", {}).get("stages", {})
    open_stages = [stage for stage in stages if stage not in {record["stage"] for record in records}]
    state = f"{len(records)} stages" if len(records) != 1 else "1 stage"
    if open_stages:
        state += f", not finished: {', '.join(open_stages)}"
    parts = [
        _header(manifest, name, state),
        *(_table_part(table) for record in records for table in record.get("tables", ())),
        _results_part(records),
        _figures_part(figures(records)),
        _stages_part(records),
        _memory_part(manifest, records),
        _choices_part(records),
        _plan_part(manifest),
        _origin_part(manifest),
    ]
    body = "\n".join(part for part in parts if part)
    return TEMPLATE.replace("{title}", _text(manifest.get("title", name))).replace("{body}", body)


def _header(manifest: Mapping[str, Any], name: str, state: str) -> str:
    version = manifest.get("versions", {}).get("gramian", "")
    line = f"{state} · gramian {version} · {_minute(manifest.get('started', ''))}"
    return f"<header><h1>{_text(manifest.get('title', name))}</h1><p class=sub>{_text(line)}</p></header>"


def _minute(moment: str) -> str:
    return f"{moment[:10]} {moment[11:16]} UTC" if moment else ""


def _results_part(records: Sequence[Mapping[str, Any]]) -> str:
    found = [record for record in records if record.get("results")]
    names = list(dict.fromkeys(name for record in found for name in record["results"]))
    rows = [[record["stage"], *(_number(record["results"].get(name)) for name in names)] for record in found]
    return _section("Results", _table(["stage", *names], rows)) if rows else ""


def _figures_part(drawn: Sequence[Figure]) -> str:
    items = [
        f"<figure><h3>{_text(figure.title)}</h3>{_labelled(figure)}<figcaption>{_text(figure.caption)}</figcaption>"
        "</figure>"
        for figure in drawn
    ]
    return _section("Figures", f"<div class=figures>{''.join(items)}</div>") if items else ""


def _labelled(figure: Figure) -> str:
    return figure.svg.replace("<svg", f'<svg role="img" aria-label="{_text(figure.title)}"', 1)


def _stages_part(records: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            record["stage"],
            record["command"],
            record.get("output") or "–",
            " x ".join(f"{size:,}" for size in record.get("shape", ())) or "–",
            f"{record['blocks']:,}" if record.get("blocks") else "–",
            f"{record['seconds']:.1f} s",
        ]
        for record in records
    ]
    return _section(
        "Stages", _table(["stage", "command", "output", "shape", "blocks computed", "time"], rows)
    )


def _memory_part(manifest: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            record["stage"],
            size_text(record["planned_bytes"]),
            size_text(record["measured_bytes"]),
            f"{record['planned_bytes'] / record['measured_bytes']:.2f}",
        ]
        for record in records
        if record.get("planned_bytes") and record.get("measured_bytes")
    ]
    if not rows:
        return ""
    limit = manifest.get("max_memory")
    note = f"Limit: {size_text(limit)}. " if limit else ""
    note += "Peak memory of the driver and all workers together: planned, and the largest resident size seen."
    table = _table(["stage", "planned peak", "measured peak", "planned / measured"], rows)
    return _section("Memory, planned and measured", f"<p>{_text(note)}</p>{table}")


def _choices_part(records: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [record["stage"], name, _number(value)]
        for record in records
        for name, value in record.get("choices", {}).items()
    ]
    return _section("What was chosen", _table(["stage", "name", "value"], rows)) if rows else ""


def _plan_part(manifest: Mapping[str, Any]) -> str:
    steps = manifest.get("plan", {}).get("steps", [])
    if not steps:
        return ""
    names = list(steps[0])
    return _section("Plan", _table(names, [[step[name] for name in names] for step in steps]))


def _origin_part(manifest: Mapping[str, Any]) -> str:
    rows = [
        ["software", ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())]
    ]
    rows += [["processor", _flat(manifest.get("cpu", ""))]]
    for name, words in manifest.get("parameters", {}).get("stages", {}).items():
        rows.append([f"stage {name}", ", ".join(f"{key} = {_flat(value)}" for key, value in words.items())])
    rows += [[f"seed of {stage}", str(seed)] for stage, seed in manifest.get("seeds", {}).items()]
    return _section("Where it comes from", _table(["what", "value"], rows))


def _table_part(table: Mapping[str, Any]) -> str:
    rows = [[_number(value) for value in row] for row in table["rows"]]
    note = f"<p>{_text(table['note'])}</p>" if table.get("note") else ""
    return _section(table["title"], _table(table["columns"], rows) + note)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{content}</section>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{_side(value)}>{_text(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _side(value: str) -> str:
    """Numbers stand at the right."""
    return " class=n" if value[:1].isdigit() or value[:1] in "-–" else ""


def _number(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e3 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_flat(item)}" for name, item in value.items())
    return str(value)


def _text(value: Any) -> str:
    return html.escape(str(value))


TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {
  color-scheme: light dark;
  --ink: #1c2733; --soft: #5b6b7b; --line: #dde4ea; --page: #ffffff; --card: #f6f8fa;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4eaf0; --soft: #9fb0c0; --line: #33414e; --page: #12181e; --card: #1a222a; }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .7rem; }
h3 { font-size: 1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; max-width: 75ch; }
.sub, figcaption, section > p { color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 20px; }
figure {
  margin: 0; padding: 16px; background: var(--card);
  border: 1px solid var(--line); border-radius: 8px;
}
figure svg { width: 100%; height: auto; display: block; color: var(--ink); }
figcaption { font-size: .88rem; margin-top: .6rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td {
  text-align: left; padding: .38rem .8rem .38rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere;
}
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.n { font-variant-numeric: tabular-nums; }
@media print { figure, tr { break-inside: avoid; } }
</style>
</head>
<body><main>
{body}
</main></body>
</html>
"""
