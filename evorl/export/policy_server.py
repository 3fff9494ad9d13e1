"""Server of a trained policy for simulators, games and robots that connect over the network."""

from __future__ import annotations

import dataclasses
from typing import Any

from evorl.export.exported_policy import read_exported
from evorl.export.portable_policy import described_space
from evorl.export.stored_policy import selected_policy
from evorl.serving.event_thread import EventThread
from evorl.serving.policy_inference import PolicyInference
from evorl.serving.switchboard import Switchboard


class PolicyServer:
    """Serves a policy to network clients, from the construction of this object until ``close``.

    Args:
        stored: ``StoredPolicy`` or ``ExportedPolicy`` to serve.
        settings: addresses and limits of the server, see ``ServeSettings``.
        options: options of ``evorl act`` by name, which select the policy, and the ``seed`` of sampled actions.

    Attributes:
        stored: the policy in use.
        switchboard: batches and answers the clients' requests.
        addresses: URLs at which the server listens.
    """

    def __init__(self, stored: Any, settings: Any, options: dict[str, Any]) -> None:
        self._options, self._metadata = options, {}
        policy = stored.policy
        self._inference = PolicyInference(policy, settings.max_clients, options["seed"])
        self._inference.compile_all()
        self.switchboard = Switchboard(
            self._inference, None, policy.obs_space, policy.action_space, settings.max_clients, token=settings.token
        )
        self._announce(stored)
        self._thread = EventThread(settings, self.switchboard, self._metadata)
        self.addresses = self._thread.addresses

    @classmethod
    def of_run(cls, options: dict[str, Any], settings: Any) -> PolicyServer:
        """Start a server for the policy of the stored run ``options["run"]``."""
        return cls(_loaded(options), settings, options)

    @classmethod
    def of_file(cls, options: dict[str, Any], settings: Any) -> PolicyServer:
        """Start a server for the policy in the exported file ``options["policy"]``."""
        return cls(read_exported(options["policy"], options["trust"]), settings, options)

    def look_for_newer(self) -> bool:
        """Serve the policy of a newer run, checkpoint or seed; return True if there is one. Errors change nothing."""
        stored = _loaded(self._options)
        new, old = ((each.folder, each.checkpoint, each.timesteps, each.seed.number) for each in (stored, self.stored))
        if new == old:
            return False
        self._inference.swap(stored.policy)
        self._announce(stored)
        return True

    def _announce(self, stored: Any) -> None:
        self.stored, policy = stored, stored.policy
        self._metadata |= {"env": stored.title, "algorithm": stored.algorithm, "timesteps": stored.timesteps}
        self._metadata |= {name: described_space(getattr(policy, name)) for name in ("obs_space", "action_space")}
        self._metadata["action_repeat"] = policy.action_repeat

    def refuse_failure(self) -> None:
        """Raise ``RuntimeError`` if clients can no longer be answered."""
        if (failure := self.switchboard.failure) is not None:
            raise RuntimeError(f"clients could not be answered: {failure}") from failure

    def close(self) -> None:
        """Stop the server and close all connections."""
        self._thread.close()

    def __enter__(self) -> PolicyServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _loaded(options: dict[str, Any]) -> Any:
    return dataclasses.replace(selected_policy(options), env=None)  # the policy does not need its environments to act
