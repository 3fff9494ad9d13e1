"""The same agent behind a minimal gRPC stream, which receives states and sends actions as bytes.

Nothing is checked, and requests in the same iteration of the event loop are batched, as in evorl's server. Settings:
``clients`` (64), ``cache``. It requires grpcio in addition to the server's packages.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np

from benchmarks.speed.child import Reading, read_settings, serve
from benchmarks.speed.serving import Policy, loads, message_cpu_seconds, messages_as
from evorl.execution.runtime import prepare_runtime

MAX_CLIENTS = 256


class Streams:
    """Batches the requests of all streams."""

    def __init__(self) -> None:
        from evorl.serving.switchboard import Switchboard

        self.policy = Policy(MAX_CLIENTS, records=False)
        simulators = self.policy.workflow.env.simulators.main
        self.switchboard = Switchboard(
            self.policy.inference, None, simulators.obs_space, simulators.action_space, MAX_CLIENTS
        )

    async def play(self, messages: Any, context: Any) -> None:
        """Serve one client."""
        from evorl.serving.batched_inference import ActionRequest

        number, slot = self.switchboard.enter(False)
        loop, step = asyncio.get_running_loop(), 0
        try:
            while message := await context.read():
                answer: asyncio.Future[Any] = loop.create_future()
                state = np.frombuffer(message, np.float32)
                request = ActionRequest(
                    number, slot, step, state, 0.5, step == 0, False, False, False, answer.set_result
                )
                self.switchboard.ask(request)
                step += 1
                await context.write(np.asarray(await answer, np.float32).tobytes())
        finally:
            self.switchboard.leave(number, slot)

    async def listen(self) -> int:
        """Return the port of the server."""
        import grpc

        handler = grpc.stream_stream_rpc_method_handler(self.play)
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("serving", {"Play": handler}),))
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        return port


def prepare() -> Any:
    settings = read_settings()
    prepare_runtime(1, settings.get("cache") or False)
    streams, loop = Streams(), asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    port = asyncio.run_coroutine_threadsafe(streams.listen(), loop).result()
    load = (("127.0.0.1", port), "grpc", settings.get("clients", 64), messages_as("grpc"))
    sizes = streams.policy.sizes

    def measure() -> Reading:
        with loads(load):
            reading = message_cpu_seconds(lambda: streams.switchboard.num_answers, sizes.clear)
        batch = sum(size * count for size, count in sizes.items()) / sum(sizes.values())
        return {**reading, "mean_batch": batch}

    return measure


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "grpcio", "evorl")
