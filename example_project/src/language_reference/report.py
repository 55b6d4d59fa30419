"""The results of the evaluation, in words and in a chart."""

import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from language_reference.storage import join, read_json, write_bytes, write_text

Result = dict[str, Any]


def write_report(output_path: str, *, evaluation: str) -> dict[str, float | str]:
    """Writes the results as a Markdown report and a chart of perplexity by context length."""
    metrics = read_json(join(evaluation, "metrics.json"))
    results = dict(sorted(metrics["models"].items(), key=lambda item: item[1]["order"]))
    best = min(results, key=lambda name: results[name]["val_perplexity"])
    write_bytes(join(output_path, "perplexity.png"), draw_chart(list(results.values())))
    write_text(join(output_path, "report.md"), render_report(metrics, results, best))
    return {
        "best_model": best,
        "best_val_perplexity": results[best]["val_perplexity"],
        "best_val_bits_per_byte": results[best]["val_bits_per_byte"],
    }


def render_report(metrics: dict[str, Any], results: dict[str, Result], best: str) -> str:
    """The report in Markdown; every number and every comparison in it comes from the metrics."""
    rows = [
        f"| {name} | {r['val_perplexity']:.1f} | {r['train_perplexity']:.1f} "
        f"| {r['val_bits_per_byte']:.2f} | {r['val_known_ngrams']:.0%} |"
        for name, r in results.items()
    ]
    changes = [f"- {describe_change(a, b)}" for a, b in pairwise(results.values())]
    best_score = results[best]["val_perplexity"]
    introduction = (
        f"N-gram models trained on {metrics['train_tokens']:,} tokens were asked to predict "
        f"{metrics['val_tokens']:,} tokens of {metrics['val_documents']} documents that they had "
        f"never seen. A model that knows nothing would score {metrics['vocabulary']:,}, the size "
        f"of the vocabulary; the best one, **{best}**, scores **{best_score:.1f}**."
    )
    memory = (
        f"The held-out text is {best_score / results[best]['train_perplexity']:.1f} times as "
        f"perplexing to {best} as its own training text: that distance is what the model has "
        "memorised rather than learnt."
    )
    lines = [
        "# How predictable is Python's language reference?",
        "",
        introduction,
        "",
        "| model | perplexity | on training text | bits per byte | n-grams seen before |",
        "|---|---:|---:|---:|---:|",
        *rows,
        "",
        "![Perplexity of each model](perplexity.png)",
        "",
        "## What a longer context buys",
        "",
        *changes,
        "",
        memory,
    ]
    return "\n".join(lines) + "\n"


def describe_change(shorter: Result, longer: Result) -> str:
    """One sentence on what the step from one model to the next changed, and why."""
    before, after = shorter["val_perplexity"], longer["val_perplexity"]
    change = after / before - 1
    n, known = longer["order"], longer["val_known_ngrams"]
    head = f"From {shorter['order']}-grams to {n}-grams, perplexity"
    numbers = f"({before:.1f} to {after:.1f})"
    seen = f"{known:.0%} of the held-out {n}-grams occur in the training text"
    if abs(change) < 0.02:
        return (
            f"{head} stays about the same {numbers}: only {seen}, so the model mostly falls back "
            "on the shorter context."
        )
    if change < 0:
        return f"{head} falls by {-change:.0%} {numbers}: {seen}, enough for the context to help."
    return (
        f"{head} rises by {change:.0%} {numbers}: only {seen}, too few to be worth the probability "
        "that the seen ones take from the rest."
    )


def draw_chart(results: Sequence[Result]) -> bytes:
    """A PNG with the perplexity on held-out and on training text for each length of n-gram."""
    # Imported here because it is slow, and the graph is loaded far more often than drawn. The
    # object interface rather than pyplot: it needs no display and keeps no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    orders = [r["order"] for r in results]
    series = [
        ("val_perplexity", "held-out text", "#1f5fa8"),
        ("train_perplexity", "training text", "#b9c4d0"),
    ]
    width = 0.38
    for position, (measure, label, color) in enumerate(series):
        at = [order + (position - 0.5) * width for order in orders]
        bars = axes.bar(at, [r[measure] for r in results], width * 0.94, label=label, color=color)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=9, color="#333333")
    axes.set_title("Perplexity by length of n-gram (lower is better)", loc="left", fontsize=11)
    axes.set_ylabel("perplexity per token")
    axes.set_xticks(orders, [f"{r['order']}-gram" for r in results])
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    # Without the version of the drawing library, equal pictures are equal files.
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()
