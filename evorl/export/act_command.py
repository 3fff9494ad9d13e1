"""The command ``evorl act``: serves a trained policy to simulators, games and robots over the network."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from evorl.cli.command_options import SEED, Option, checkpoint, number, read_options, whole
from evorl.config.values import seed_choice

_SECONDS = number("[0, 1e9]")
OPTIONS = {
    "run": Option(None, "a run folder, or latest", text=True),
    "policy": Option(None, "instead of a run the file of evorl export, format=onnx or jax", text=True),
    "runs_folder": Option("runs", "where run folders are"),
    "checkpoint": Option("best", "whose policy acts: best, latest or an iteration", checkpoint),
    "sample": Option(False, "whether actions are drawn as in training, instead of the most confident ones"),
    "seed": Option(0, "of these draws", SEED),
    "seed_number": Option("best", "which of several seeds acts, from 0; best for the best by evaluation", seed_choice),
    "follow": Option(0.0, "seconds between looks for a newer checkpoint, which then acts; 0 for none", _SECONDS),
    "bind": Option("127.0.0.1:7001", "address and port of the RLX protocol over TCP"),
    "web": Option(None, "address and port of WebSocket, of /healthz and of robots' clients (extra serve)", text=True),
    "token": Option(None, "that clients show, needed where others than this machine can connect", text=True),
    "cert": Option(None, "file of a TLS certificate; null for no TLS", text=True),
    "key": Option(None, "file of its private key", text=True),
    "max_clients": Option(256, "clients at a time", whole(1, 100_000)),
    "max_frame": Option(2**24, "bytes of a message", whole(64, 2**30)),
    "idle_seconds": Option(600.0, "that a client may be silent; 0 for ever", _SECONDS),
    "trust": Option(False, "whether the run or file may name code outside evorl: true only if you trust its maker"),
}
_SERVER_OPTIONS = ("bind", "web", "token", "cert", "key", "max_clients", "max_frame", "idle_seconds")


def act_from_arguments(arguments: Sequence[str]) -> None:
    """Serve the policy of a stored run, or of an exported file, until Ctrl-C.

    Args:
        arguments: ``name=value``, see ``OPTIONS``.

    Raises:
        ValueError: an option is unknown or invalid.
        RunFolderError: the run does not exist, or is not trusted.
        OSError: the address is in use.
        ImportError: ``web`` is given, and the extra serve is not installed.
    """
    from evorl.cli.signals import stop_on_signals
    from evorl.serving.serve_settings import serve_settings

    options, _ = read_options(arguments, OPTIONS, "evorl act")
    _check_source(options)
    follow = options["follow"]
    try:
        settings = serve_settings({name: options[name] for name in _SERVER_OPTIONS})
    except ValueError as error:  # in a training's config these settings are below ``serve``
        raise ValueError(str(error).replace("serve.", "")) from error
    make = PolicyServer.of_file if options["policy"] else PolicyServer.of_run
    with make(options, settings) as server, stop_on_signals() as should_stop:
        print(f"{server.stored.describe()}\nWaiting for clients at {', '.join(server.addresses)}.", flush=True)
        checked_at = time.monotonic()
        while not should_stop():
            time.sleep(0.1)
            server.refuse_failure()
            if follow and time.monotonic() - checked_at >= follow:
                if server.look_for_newer():
                    print(f"Now serving: {server.stored.describe()}", flush=True)
                checked_at = time.monotonic()
        print(f"{server.switchboard.num_answers:,} actions were sent.")


def _check_source(options: dict[str, Any]) -> None:
    """Raise ``ValueError`` unless exactly one of run and policy is given, or if an option does not apply to a file."""
    if not options["run"] and not options["policy"]:
        raise ValueError("no policy is given: set run=<folder>, run=latest, or policy=<file of evorl export>.")
    if not options["policy"]:
        return
    fixed = [
        name
        for name in ("run", "checkpoint", "sample", "seed_number", "follow")
        if options[name] != OPTIONS[name].default
    ]
    if fixed:
        raise ValueError(f"policy={options['policy']} is a single exported policy: leave out {', '.join(fixed)}.")


class PolicyServer:
    """Serves a policy from its construction until ``close``.

    Args:
        stored: the policy.
        settings: addresses and limits of the server.
        options: options to load a newer checkpoint with, see ``OPTIONS``.

    Attributes:
        stored: the policy in use.
        switchboard: batches and answers the clients' requests.
        addresses: addresses that the server listens on.
    """

    def __init__(self, stored: Any, settings: Any, options: dict[str, Any]) -> None:
        from evorl.export.portable_policy import described_space
        from evorl.serving.event_thread import EventThread
        from evorl.serving.policy_inference import PolicyInference
        from evorl.serving.switchboard import Switchboard

        self.stored, self._options = stored, options
        policy = stored.policy
        self._inference = PolicyInference(policy, settings.max_clients, options["seed"])
        self._inference.compile_all()
        self.switchboard = Switchboard(
            self._inference, None, policy.obs_space, policy.action_space, settings.max_clients, token=settings.token
        )
        metadata = {
            "env": stored.title,
            "algorithm": stored.algorithm,
            "timesteps": stored.timesteps,
            "action_repeat": policy.action_repeat,
            "obs_space": described_space(policy.obs_space),
            "action_space": described_space(policy.action_space),
        }
        self._thread = EventThread(settings, self.switchboard, metadata)
        self.addresses = self._thread.addresses

    @classmethod
    def of_run(cls, options: dict[str, Any], settings: Any) -> PolicyServer:
        """Build the server of a stored run's policy."""
        return cls(_loaded(options), settings, options)

    @classmethod
    def of_file(cls, options: dict[str, Any], settings: Any) -> PolicyServer:
        """Build the server of an exported policy."""
        from evorl.export.exported_policy import read_exported

        return cls(read_exported(options["policy"], options["trust"]), settings, options)

    def look_for_newer(self) -> bool:
        """Load the checkpoint that is now the best or the latest; return True if it differs from the one in use."""
        stored = _loaded(self._options)
        if (stored.timesteps, stored.checkpoint) == (self.stored.timesteps, self.stored.checkpoint):
            return False
        self._inference.swap(stored.policy)
        self.stored = stored
        return True

    def refuse_failure(self) -> None:
        """Raise ``RuntimeError`` if clients can no longer be answered."""
        if (failure := self.switchboard.failure) is not None:
            raise RuntimeError(f"clients could not be answered: {failure}") from failure

    def close(self) -> None:
        """Close all connections."""
        self._thread.close()

    def __enter__(self) -> PolicyServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _loaded(options: dict[str, Any]) -> Any:
    from evorl.export.stored_policy import stored_policy

    checkpoint = options["checkpoint"]
    stored = stored_policy(
        options["run"],
        options["runs_folder"],
        checkpoint=int(checkpoint) if str(checkpoint).isdigit() else checkpoint,
        sample=options["sample"],
        seed_number=options["seed_number"],
        trust=options["trust"],
    )
    return dataclasses.replace(stored, env=None)  # the policy acts without its environments
