"""Prometheus gauges of runs and of clients' metrics."""

from __future__ import annotations

from evorl.live.metrics_store import MetricsStore
from evorl.live.prometheus_text import Gauge
from evorl.live.watched_runs import WatchedRuns


def gauges_of(runs: WatchedRuns, store: MetricsStore) -> list[Gauge]:
    """Return gauges with the newest values of all runs and all client metrics."""
    summaries = runs.summaries()
    labels = [{"run": str(summary.data["name"])} for summary in summaries]
    pairs = list(zip(labels, summaries, strict=True))
    running = [(label, float(run.data["state"] == "running")) for label, run in pairs]
    steps = [(label, run.data["timesteps"]) for label, run in pairs if "timesteps" in run.data]
    newest = [(label | {"metric": name}, value) for label, summary in pairs for name, value in summary.latest.items()]
    sent = [({"metric": name}, value) for name, value in store.latest().items()]
    return [
        Gauge("evorl_run_running", "1 for a run in progress, otherwise 0.", running),
        Gauge("evorl_run_timesteps", "Environment steps of a run, per seed.", steps),
        Gauge("evorl_run_metric", "Newest value of a metric of a run.", newest),
        Gauge("evorl_client_metric", "Newest value of a metric that clients send.", sent),
        Gauge("evorl_client_step", "Largest step sent so far.", [] if store.step is None else [({}, store.step)]),
    ]
