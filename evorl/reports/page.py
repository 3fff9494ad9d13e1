"""A self-contained HTML page on one or many runs: tables, charts, images, and the commands that repeat the runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from importlib import resources

from evorl.config.names import did_you_mean
from evorl.ops.terminal_text import counted
from evorl.recorders.learning_curve import format_steps
from evorl.reports import comparison, comparison_charts, curve_charts
from evorl.reports.elements import Content, Element, as_html, element, table, without_folders
from evorl.reports.media import figures
from evorl.reports.recorded_run import RecordedRun
from evorl.reports.reproduction import reproduction
from evorl.reports.summary_table import HEADING, as_cells, summary_rows
from evorl.reports.svg import variable, variables

MAX_BYTES = 3_000_000  # size limit of a page
_OF_SEED = re.compile(r"_seed_\d+$")
_RESERVED_BYTES = 50_000
MAX_COLUMNS = 8  # maximum number of columns of groups in a table of settings
MAX_CHARTS = 8  # maximum number of loss charts
MAX_LISTED = 20
NEARLY_EQUAL = 0.9  # smallest ratio of environment steps that count as equal, because they are rounded to iterations
_METHOD = (
    "IQM is the interquartile mean of the last values of the seeds: the best and the worst quarter are discarded "
    "(with fewer than four seeds, IQM is the mean). Intervals are 95 % percentile bootstrap intervals: seeds are "
    "resampled within each environment. Intervals require three seeds, those of P(X > Y) four in total, and are too "
    "narrow for few seeds. P(X > Y) is the probability that a seed of X scores higher than a seed of Y. Source: "
    "Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice."
)


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of a page.

    Attributes:
        runs: runs, which all recorded the metric.
        groups: groups of these runs.
        title: title of the page; ``None`` uses the title of a single run, or names of algorithms and environments.
        notes: sentences about runs that were omitted.
        by: settings that the user grouped by, shown on the page.
    """

    runs: tuple[RecordedRun, ...]
    groups: tuple[comparison.Group, ...]
    title: str | None = None
    notes: tuple[str, ...] = ()
    by: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, runs: Sequence[RecordedRun], by: Sequence[str] = (), metric: str | None = None, title: str | None = None
    ) -> Report:
        """Build a report on the runs that recorded the metric; ``notes`` lists the others.

        Raises:
            ValueError: no run has recorded the metric, or an entry of ``by`` is not a setting of any run.
        """
        requested, metric = metric, metric or comparison.default_metric(runs)
        recorded = [run for run in runs if run.by_seed(metric)]
        if not recorded:
            known = sorted({metric for run in runs for metric in run.curves if not _OF_SEED.search(metric)})
            name = requested or "a return"
            raise ValueError(
                f"none of {len(runs)} runs has recorded {name} yet.{did_you_mean(name, known) if requested else ''}"
                + (f" Recorded metrics: {', '.join(known)}." if known else "")
            )
        without = [run.name for run in runs if not run.by_seed(metric)]
        notes = [f"Omitted, because they have not recorded {metric}: {_listed(without)}."] if without else []
        return cls(tuple(recorded), tuple(comparison.grouped(recorded, by, metric)), title, tuple(notes), tuple(by))

    @property
    def labels(self) -> list[str]:
        """Labels of the groups, without duplicates."""
        return list(dict.fromkeys(group.label for group in self.groups))

    @property
    def envs(self) -> list[str]:
        """Environments, without duplicates."""
        return list(dict.fromkeys(group.env for group in self.groups))

    @property
    def styles(self) -> dict[str, tuple[str, str]]:
        """Color and line style by label."""
        return {label: curve_charts.style_of(i) for i, label in enumerate(self.labels)}

    @property
    def unequal_steps(self) -> str | None:
        """Sentence on groups of one environment with different environment steps; ``None`` if they are about equal."""
        differing = []
        for env in self.envs:
            steps = {group.label: max(run.timesteps for run in group.runs) for group in self.groups if group.env == env}
            if min(steps.values()) < NEARLY_EQUAL * max(steps.values()):
                differing.append(f"{_listed([f'{x} {format_steps(n)}' for x, n in steps.items()])} in {env}")
        where = "; ".join(differing)
        return f"The groups are compared after different environment steps: {where}." if where else None

    def to_html(self, pictures: bool = True) -> str:
        """Return the HTML text of the page; ``pictures`` includes images of the run folders, up to the size limit."""
        sections = [self._results(), self._curves(), self._comparison(), self._settings(), self._learner()]
        repeat = _section("How to reproduce it", reproduction(self.runs))
        body = element("body", self._head(), sections, repeat)
        page = element("html", _head_of_page(self._title()), body, lang="en")
        room = MAX_BYTES - _RESERVED_BYTES - len(as_html(page).encode()) if pictures else 0
        shown = self._pictures(room) if room > 0 else None
        if shown is not None:
            body.insert(len(body) - 1, shown)
        return as_html(page)

    def _title(self) -> str:
        if self.title:
            return self.title
        if len(self.runs) == 1 and (title := self.runs[0].title):
            return title
        if len(self.groups) == 1 or len(self.runs) == 1:
            return f"{self.runs[0].algorithm} on {self.envs[0]}"
        agents = list(dict.fromkeys(run.algorithm for run in self.runs))
        named = ", ".join(agents) if len(agents) <= 4 else f"{len(agents)} algorithms"
        return f"{named} on {self.envs[0] if len(self.envs) == 1 else f'{len(self.envs)} environments'}"

    def _head(self) -> Content:
        seeds = sum(len(group.scores) for group in self.groups)
        parts = [counted(len(self.runs), "run"), counted(seeds, "seed"), counted(len(self.groups), "group")]
        lead = f"{', '.join(parts)}; {curve_charts.describe_metric(self.groups[0].metric)}."
        if self.by:
            lead += f" Grouped by {', '.join(self.by)}."
        failures = [
            f"{run.name} failed: {without_folders(run.state.failure)}" for run in self.runs if run.state.failure
        ]
        notes = [element("p", note, class_="note") for note in (*self.notes, *failures)]
        return [element("h1", self._title()), element("p", lead, class_="lead"), notes]

    def _results(self) -> Element:
        first = 0 if len(self.envs) > 1 else 1  # a single environment is in the title
        rows = [as_cells(row)[first:] for row in summary_rows(self.groups)]
        return _section("Results", table(HEADING[first:], rows, 2 - first), element("p", _METHOD, class_="note"))

    def _legend(self) -> Element | None:
        return None if len(self.labels) == 1 else legend(self.styles)

    def _curves(self) -> Element:
        of_env = [[group for group in self.groups if group.env == env] for env in self.envs]
        charts = [curve_charts.draw_returns(groups, self.styles, f"returns{i}") for i, groups in enumerate(of_env)]
        several = any(len(group.scores) > 1 for group in self.groups)
        note = "Thick: interquartile mean of the seeds; thin: each seed; shaded: 95 % interval of the mean"
        note += f", for at least {comparison.SEEDS_FOR_INTERVAL} seeds."
        return _section(
            "Learning curves", self._legend(), charts, element("p", note, class_="note") if several else None
        )

    def _comparison(self) -> Element | None:
        if len(self.labels) < 2:
            return None
        pairs = comparison_charts.improvements(self.groups)
        rows = [
            [
                f"{p.better} > {p.than}",
                f"{p.probability:.2f}",
                "-" if p.interval is None else "[{:.2f}, {:.2f}]".format(*p.interval),
            ]
            for p in pairs
        ]
        numbers = element(
            "details", element("summary", "As numbers"), table(["X > Y", "P(X > Y)", "95 % interval"], rows)
        )
        notes = [self.unequal_steps] if self.unequal_steps else []
        if len(self.envs) > 1:
            notes.append("Scores are normalized per environment: 0 is the lowest of the last values, 1 the highest.")
        profiles = comparison_charts.draw_profiles(self.groups, self.styles)
        chart = comparison_charts.draw_improvements(pairs) if pairs else None
        shown = [element("p", note, class_="note") for note in notes]
        return _section("Comparison", self._legend(), profiles, shown, chart, numbers if pairs else None)

    def _settings(self) -> Element | None:
        varied = comparison.varied_settings(self.runs)
        shared = set.intersection(
            *(set(comparison.settings_of(run)) for run in self.runs)
        )  # settings that some run lacks are not compared
        names = [*varied, *(n for n in comparison.differing_settings(self.runs) if n in shared and n not in varied)]
        content: list[Content] = []
        if names and len(self.groups) <= MAX_COLUMNS:
            heading = ["setting", *(f"{g.label} ({g.env})" if len(self.envs) > 1 else g.label for g in self.groups)]
            rows = [[name, *(comparison.values_in(group, name) for group in self.groups)] for name in names]
            content.append(table(heading, rows, left=len(heading)))
        elif names:
            some = (varied or names)[:MAX_COLUMNS]
            rows = [
                [group.env, group.label, *(comparison.values_in(group, name) for name in some)] for group in self.groups
            ]
            content.append(
                table(["environment", "group", *comparison.short_names(some).values()], rows, left=len(some) + 2)
            )
        for i, env in enumerate(self.envs):
            for algorithm in dict.fromkeys(run.algorithm for run in self.runs):
                runs = [run for run in self.runs if run.env == env and run.algorithm == algorithm]
                axes = comparison.varied_settings(runs)
                if axes and len(runs) > 2:
                    metric = self.groups[0].metric
                    chart = comparison_charts.draw_sweep(runs, axes, metric, f"sweep{i}-{algorithm.replace('/', '-')}")
                    content += [
                        element("h3", f"{algorithm} on {env}: one line per run; the best run is the strongest line"),
                        chart,
                    ]
        if len(self.runs) == 1:
            rows = [[name, without_folders(value)] for name, value in comparison.settings_of(self.runs[0]).items()]
            content.append(element("details", element("summary", "All settings"), table(["setting", "value"], rows, 2)))
        return _section("Hyperparameters", *content) if content else None

    def _learner(self) -> Element:
        content: list[Content] = []
        kinds = list(dict.fromkeys((run.algorithm, run.env) for run in self.runs))
        for i, (algorithm, env) in enumerate(kinds[:MAX_CHARTS]):
            groups = [dataclasses.replace(g, runs=tuple(r for r in g.runs if r.algorithm == algorithm))
                   for g in self.groups if g.env == env]  # fmt: skip
            chart = curve_charts.draw_metrics([g for g in groups if g.runs], self.styles, f"metrics{i}")
            if chart is not None:
                content += [element("h3", f"{algorithm} on {env}") if len(kinds) > 1 else None, chart]
        if len(kinds) > MAX_CHARTS:
            names = ", ".join(f"{algorithm} on {env}" for algorithm, env in kinds[MAX_CHARTS:])
            content.append(element("p", f"Not drawn: {names}. Select them with algorithm= and env=.", class_="note"))
        speeds = curve_charts.draw_speeds(self.groups, self.styles, "speeds")
        return _section("Losses and speed", self._legend(), *content, speeds)

    def _pictures(self, room: int) -> Element | None:
        shown, left_out = figures(self.runs, room)
        if not shown and not left_out:
            return None
        names = [f"{medium.run}: {medium.name}" for medium in left_out]
        note = f"Omitted to keep the page small: {_listed(names)}."
        content = [element("div", shown, class_="media"), element("p", note, class_="note") if left_out else None]
        return _section("Pictures", *content)


def legend(styles: dict[str, tuple[str, str]]) -> Element:
    """Build the legend: color and line style of each group."""
    dashes = {"-": "none", "--": "6 3", ":": "1.5 2.5", "-.": "6 2.5 1.5 2.5"}
    return element("ul", [
        element("li", element("svg", element(
            "line", x1="0", y1="5", x2="26", y2="5", stroke_width="3",
            style=f"stroke: {variable(color)}; stroke-dasharray: {dashes[dash]}",
        ), viewBox="0 0 26 10", aria_hidden="true"), label)
        for label, (color, dash) in styles.items()
    ], class_="legend")  # fmt: skip


def _head_of_page(title: str) -> Element:
    style = resources.files("evorl.reports").joinpath("page.css").read_text(encoding="utf-8")
    colors = (
        f":root {{ {variables(dark=False)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {variables(dark=True)} }} }}\n"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", colors + style),
    )


def _section(title: str, *content: Content) -> Element:
    return element("section", element("h2", title), content, id=title.lower().replace(" ", "-"))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more
