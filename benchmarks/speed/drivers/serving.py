"""A training server with clients in another process, which send requests immediately or at a given pace.

Settings: ``carrier`` (rlx or websocket), ``clients`` (64), ``pause`` (mean seconds of a client between a response and
its next request, 0), ``alone`` (an additional client, in a separate process, reports its latencies), ``records`` (the
steps become batches, which a learner discards), ``cache``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from benchmarks.speed.child import Reading, read_settings, serve
from benchmarks.speed.serving import Policy, loads, message_cpu_seconds, messages_as
from evorl.execution.runtime import prepare_runtime

MAX_CLIENTS = 256


class Server:
    """Starts both servers with their agent.

    Args:
        records: the steps become batches, which a learner discards.
        store_metric: receives metrics of clients; ``None`` discards them.
    """

    def __init__(self, records: bool, store_metric: Callable[..., None] | None = None) -> None:
        from evorl.serving.event_thread import EventThread
        from evorl.serving.segments import Segments
        from evorl.serving.serve_settings import ServeSettings
        from evorl.serving.switchboard import Switchboard

        self.policy = Policy(MAX_CLIENTS, records)
        workflow, simulators = self.policy.workflow, self.policy.workflow.env.simulators.main
        segments = Segments(workflow.rollout_length, workflow.env.num_envs, max_lag=1) if records else None
        self.switchboard = Switchboard(
            self.policy.inference, segments, simulators.obs_space, simulators.action_space, MAX_CLIENTS
        )
        if store_metric is not None:
            self.switchboard.store_metric = store_metric
        if records:
            threading.Thread(target=self._forget, daemon=True).start()
        self.thread = EventThread(ServeSettings(bind="127.0.0.1:0", web="127.0.0.1:0"), self.switchboard)
        self.addresses = {
            carrier: (host, int(port))
            for carrier, address in zip(("rlx", "websocket"), self.thread.addresses, strict=True)
            for host, _, port in [address.rpartition("//")[2].rpartition(":")]
        }

    def _forget(self) -> None:
        while self.switchboard.wait_for_batch(lambda: False) is not None:
            pass

    def count(self) -> int:
        """Return the number of messages answered so far."""
        return self.switchboard.num_answers


def prepare() -> Any:
    settings = read_settings()
    prepare_runtime(1, settings.get("cache") or False)
    server = Server(settings.get("records", False))
    sizes = server.policy.sizes
    carrier = settings["carrier"]
    load = (server.addresses[carrier], carrier, settings.get("clients", 64), messages_as(carrier))
    all_loads = [(*load, settings.get("pause", 0.0))]
    if settings.get("alone"):
        all_loads.append((*load[:2], 1, load[3], 0.005))

    def measure() -> Reading:
        with loads(*all_loads) as seen:
            reading = message_cpu_seconds(server.count, sizes.clear)
        batch = sum(size * count for size, count in sizes.items()) / sum(sizes.values())
        reading |= {"mean_batch": batch, "answer_seconds": seen[-1]["answer_seconds"]}
        return reading | {"policy_cpu_seconds": server.policy.own_cpu_seconds()}

    return measure


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "aiohttp", "msgpack", "evorl")
