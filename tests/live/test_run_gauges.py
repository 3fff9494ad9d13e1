"""Metrics for Prometheus."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from evorl.live.metrics_store import MetricsStore
from evorl.live.prometheus_text import as_text
from evorl.live.run_gauges import gauges_of
from evorl.live.watched_runs import WatchedRuns
from tests.support.run_folders import make_run


def test_the_newest_numbers(tmp_path: Path) -> None:
    make_run(tmp_path, 'odd "name"', [[1.0], [7.0]])
    make_run(tmp_path, "broken", [[1.0]]).metrics_csv.write_text("x\n1,2\n")
    runs, store = WatchedRuns([str(tmp_path)]), MetricsStore()
    runs.refresh()
    assert "evorl_client" not in as_text(gauges_of(runs, store))
    store.scalar("episode_reward", 12.5, x=300)
    families = text_string_to_metric_families(as_text(gauges_of(runs, store)))
    read = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    assert read["evorl_run_metric", 'odd "name"', "eval/episode_return"] == 7.0
    assert read["evorl_run_metric", 'odd "name"', "time/steps_per_second"] == 200.0
    assert read["evorl_run_timesteps", 'odd "name"'] == 2000
    assert read["evorl_run_running", 'odd "name"'] == read["evorl_run_running", "broken"] == 0
    assert ("evorl_run_timesteps", "broken") not in read
    assert read["evorl_client_metric", "episode_reward"] == 12.5
    assert read["evorl_client_step",] == 300
