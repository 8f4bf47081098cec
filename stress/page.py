"""The page of a report: one HTML file without scripts and without anything from elsewhere. It shows the
numbers of report.json and computes none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from monitor.charts import short
from monitor.markup import bullets, document, figure, folded, number, paragraph, table
from stress.charts import intervals
from stress.markup import interval, outcome
from stress.method import METHOD
from stress.panels import (
    clock_name,
    floats,
    heat_maps,
    learning_curves,
    ratios,
    realised_lag,
    wall_clock,
)

Report = Mapping[str, Any]


def page(report: Report) -> str:
    """The page, from the content of report.json."""
    name = str(report["study"].get("name") or "study")
    parts = [
        ("verdict", "What it says", _verdict(report)),
        ("primary", "Contrasts named beforehand", _primary(report)),
        ("arms", "Each arm in words", _arms(report)),
        ("lags", "Lag and correction", heat_maps(report)),
        ("curves", "Learning curves", learning_curves(report)),
        ("clock", "Wall clock", wall_clock(report)),
        ("realised", "The lag that asynchronous runs had", realised_lag(report)),
        ("warnings", "What warned first", _warnings(report)),
        ("audits", "Audits", _audits(report)),
        ("gates", "What does not count, and what failed", _gates(report)),
        ("numbers", "All arms in numbers", _numbers(report)),
        ("rates", "How learning rates were chosen", _rates(report)),
        ("settings", "Settings, machine, hours", _settings(report)),
        ("method", "How it was judged", bullets(METHOD)),
    ]
    return document(f"{name}: stability report", f"Stability report: {name}", _state(report), parts)


def _state(report: Report) -> str:
    state, study = report["state"], report["study"]
    planned = study.get("planned_cells")
    of = f" of {planned}" if planned is not None else ""
    parts = [f"{state['finished'] + state['tuning'] + state['thrown_out']}{of} cells finished"]
    parts += [
        f"{state[name]} {words}"
        for name, words in (("failed", "failed"), ("thrown_out", "thrown out"), ("tuning", "for tuning"))
        if state[name]
    ]
    parts.append(f"{len(state['seeds'])} seeds")
    parts.append(f"{number(state['hours'], 2)} hours of training")
    return "; ".join(parts) + "."


def _verdict(report: Report) -> str:
    said = report["headline"]
    kind = "verdict warn" if report["state"]["missing"] or report["thrown_out"] else "verdict"
    return f'<div class="{kind}">{bullets(said or ["No cell is finished yet."])}</div>'


# Contrasts


def _primary(report: Report) -> str:
    found = report["primary"]
    if not found:
        return ""
    scores = [c for c in found if c["kind"] != "ratio" and c["seeds"]]
    times = [c for c in found if c["kind"] == "ratio" and c["seeds"]]
    parts = [paragraph(
        "Each stands for itself, at the 5 % level. A difference is of paired seeds, in units of a solved "
        "task's score; bars are 95 % intervals."
    )]  # fmt: skip
    margins = {c["margin"] for c in scores if c["margin"] is not None}
    parts.append(figure(
        intervals(
            "Differences", "Mean paired difference of each contrast with its 95 % interval.",
            [(c["name"], floats(c["estimate"]), 0) for c in scores],
            x_label="a − b, in units of a solved task's score", middle=0.0,
            margin=min(margins) if margins else None,
        ), "The strip is the margin within which things count as equal." if margins else "", "",
    ))  # fmt: skip
    parts.append(ratios("Ratios of times to the threshold", times))
    parts.append(bullets([f"{c['name']}: {c['sentence']}" for c in found if c["seeds"]]))
    if open_ := [f"{c['name']}: {c['sentence']}" for c in found if not c["seeds"]]:
        parts.append(folded(f"{len(open_)} without any pair of runs", bullets(open_)))
    parts.append(folded("The contrasts in numbers", _contrast_table("Contrasts named beforehand", found)))
    return "".join(parts)


def _contrast_table(caption: str, found: Sequence[Report]) -> str:
    rows = [
        [
            c["name"], f"{c['a']} against {c['b']}", c["metric"].replace("_", " "), outcome(c["outcome"]),
            interval(c["estimate"]), number(c["margin"], 2), _p(c, "p"), _p(c, "p_signs"),
            _p(c, "p_equivalence") if c["kind"] == "equivalence" else "–", c["seeds"],
            f"{c['failed'][0]}, {c['failed'][1]}", number(c["wanted"]), number(c["improvement"][0], 2),
        ]
        for c in found
    ]  # fmt: skip
    columns = (
        "contrast", "between", "metric", "outcome", "estimate [95 %]", "margin", "p", "p by signs",
        "p of more", "seeds", "failed or never there", "seeds that would decide", "a beats b",
    )  # fmt: skip
    return table(caption, columns, rows)


def _p(contrast: Report, name: str) -> str:
    if contrast["kind"] == "ratio":
        return "–"
    p = contrast[name]
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


# Arms


def _arms(report: Report) -> str:
    parts = []
    for task in report["study"]["tasks"]:
        mine = [one for one in report["verdicts"] if one["task"] == task]
        if not mine:
            continue
        rows = [[one["name"], one["words"]] for one in mine]
        evidence = [
            [one["name"], c["lag"], _QUESTIONS[c["name"]].format(c["b"]),
             outcome(c["outcome"]), interval(c["estimate"]),
             _p(c, "p_equivalence" if c["kind"] == "equivalence" else "p"), number(c["adjusted"], 4),
             c["seeds"], number(c["wanted"])]
            for one in mine for c in one["contrasts"]
        ]  # fmt: skip
        columns = ("arm", "lag", "question", "outcome", "difference [95 %]", "p", "p after Holm", "seeds",
                   "seeds that would decide")  # fmt: skip
        parts += [
            f"<h3>{escape(task)}</h3>", table(f"Verdicts on {task}", ("arm", "verdict"), rows),
            folded("The evidence", table(f"Secondary contrasts on {task}, of the area", columns, evidence)),
        ]  # fmt: skip
    if not parts:
        return ""
    return paragraph(
        "Beside the contrasts above, three questions are asked of every arm at every lag, of the area under "
        "the learning curve; each question is a family of its own for Holm's correction. What the seeds do "
        "not decide is called not decided: that is no sign of equality."
    ) + "".join(parts)


_QUESTIONS = {
    "control": "does it differ from {}?",
    "cost": "does it differ from {}?",
    "free": "is it equal to {}?",
}


# Warnings and audits


def _warnings(report: Report) -> str:
    parts = []
    for task, found in report["alarms"].items():
        if not found["fell"]:
            parts.append(
                paragraph(f"On {task} none of {found['calm']} lagged runs fell: nothing could warn.")
            )
            continue
        parts.append(f"<h3>{escape(task)}</h3>")
        parts.append(paragraph(
            f"{found['fell']} lagged runs fell below half of their best so far, {found['calm']} did not. "
            f"{_first_words(found)}"
        ))  # fmt: skip
        for reference, words in (("calm runs", "thresholds of runs that did not fall"),
                                 ("lag 0", "thresholds of runs at lag 0")):  # fmt: skip
            rows = [
                [row["diagnostic"], f"{row['detected']} of {found['fell']}", row["first"],
                 number(row["lead_median_steps"], 0), f"{row['false_alarms']} of {found['calm']}",
                 number(row["telling"], 2)]
                for row in found.get(reference, ())
            ]  # fmt: skip
            columns = ("diagnostic", "warned before", "was first", "median lead, env steps", "false alarms",
                       "hits − false alarms")  # fmt: skip
            parts.append(table(f"{task}: {words}", columns, rows))
    return "".join(parts)


def _first_words(found: Report) -> str:
    rows = [row for row in found.get("calm runs", ()) if row["detected"]]
    if not rows:
        return "No diagnostic warned beforehand."
    best = rows[0]
    first = max(rows, key=lambda row: (row["first"], row["telling"]))
    words = (
        f"The most telling was {best['diagnostic']}: it warned before {best['detected']} of "
        f"{found['fell']} falls, by {short(best['lead_median_steps'])} steps in the median, "
        f"and in {best['false_alarms']} of {found['calm']} runs for nothing."
    )
    if first is not best:
        words += f" The one that was first most often, {first['first']} times, was {first['diagnostic']}."
    return words


def _audits(report: Report) -> str:
    audits = report["audits"]
    total = sum(audits["alarms"].values())
    said = (
        f"{total} alarms in {audits['runs']} runs that did not fail, {number(audits['hours'], 2)} hours and "
        f"{number(audits['updates'])} updates together."
    )
    if audits["runs_with_alarms"]:
        said += f" They came from {len(audits['runs_with_alarms'])} runs."
    rows = [[name, count] for name, count in audits["alarms"].items()]
    return paragraph(said) + table("Alarms by audit", ("audit", "alarms"), rows)


# What does not count


def _gates(report: Report) -> str:
    state = report["state"]
    parts = [paragraph(
        "A run tells nothing, and is thrown out, if all its gradients were zero, if its ratios were exactly "
        "1 although it lagged, or if it ended with the very weights of another correction under the same "
        "lag."
    )]  # fmt: skip
    columns = ("task", "arm", "seed", "why")
    for title, found, none in (
        ("Thrown out", report["thrown_out"], "No run was thrown out."),
        ("Failed: counted with the score of a random policy", report["failures"], "No run failed."),
    ):
        rows = [[cell["task"], clock_name(cell), cell["seed"], cell["why"] or "–"] for cell in found]
        parts.append(table(title, columns, rows) if rows else paragraph(none))
    if state["missing"]:
        parts.append(paragraph(f"{state['missing']} planned cells are not finished."))
    if state["left_out"]:
        parts.append(paragraph(f"Not read: {', '.join(state['left_out'])}."))
    if state["foreign"]:
        parts.append(paragraph(f"{state['foreign']} cells of the store are not of the study as it is now."))
    if len(state["codes"]) > 1:
        parts.append(paragraph(
            f"These cells were made by {len(state['codes'])} states of the code: {', '.join(state['codes'])}."
        ))  # fmt: skip
    return "".join(parts)


def _numbers(report: Report) -> str:
    rows = [
        [arm["task"], clock_name(arm), arm["epochs"], f"{arm['learning_rate']:g}", len(arm["seeds"]),
         arm["failed"], interval(arm["final"], 2), interval(arm["area"], 2),
         interval(arm["optimality_gap"], 2), number(arm["evaluated_mean"], 2),
         number(arm["worst"], 2), number(arm["worst_quarter"], 2), arm["collapsed"],
         arm["fell"], number(arm["drawdown"], 2), arm["reached"],
         number(arm["steps_to_threshold"], 0), number(arm["lag_mean"], 2)]
        for arm in report["arms"]
    ]  # fmt: skip
    if not rows:
        return ""
    columns = ("task", "arm", "epochs", "rate", "seeds", "failed", "final [95 %]", "area [95 %]",
               "optimality gap [95 %]", "evaluated", "worst seed", "worst quarter", "collapsed",
               "fell", "largest fall",
               "reached threshold", "expected steps to it", "mean lag")  # fmt: skip
    one = " With one task the bootstrap is one over seeds." if report["state"]["single_task"] else ""
    words = (
        f"Interquartile means over seeds; intervals by {number(report['resamples'])} stratified bootstrap "
        f"resamples, within a task over its seeds.{one} Performance profiles and every single run are in "
        "report.json."
    )
    return paragraph(words) + folded(f"{len(rows)} arms", table("All arms", columns, rows))


def _rates(report: Report) -> str:
    found = report["tuned"]
    if not found:
        return ""
    edge = sum(one["at_edge"] for one in found)
    rows = [
        [one["task"], one["correction"], one["lag"], f"{one['best']:g}{' (edge)' if one['at_edge'] else ''}",
         "; ".join(f"{rate:g}: {number(area, 2)}" for rate, area in one["areas"]), one["seeds"]]
        for one in found
    ]  # fmt: skip
    words = (
        "By the mean area under the curve of runs with other seeds, which count for nothing else. Lags that "
        "are not here took the rate of a neighbour; the list of all arms has every rate. In "
        f"{edge} of {len(found)} cases the best was the smallest or largest rate tried."
    )
    columns = ("task", "correction", "lag", "best rate", "area by rate", "seeds")
    return paragraph(words) + folded(f"{len(found)} choices", table("Learning rates", columns, rows))


def _settings(report: Report) -> str:
    study = report["study"]
    tasks = [[name, t["solved"], t["floor"], t.get("threshold"), number(t["steps"]), bool(t.get("slow_tail"))]
             for name, t in study["tasks"].items()]  # fmt: skip
    facts = [[key, _flat(value)] for key, value in study.items() if key not in ("tasks", "primary")]
    return table(
        "Tasks", ("task", "solved", "floor", "threshold", "budget in steps", "heavy-tailed step times"), tasks
    ) + folded("Everything the study was asked for", table("study.resolved.json", ("key", "value"), facts))


def _flat(value: Any) -> Any:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_flat(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(str(_flat(item)) for item in value)
    return str(value)
