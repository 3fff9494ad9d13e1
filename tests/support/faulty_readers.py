"""Frame readers, each with one possible fault of a client."""

from __future__ import annotations

from evorl.serving import rlx


class OneReadOneFrame(rlx.FrameReader):
    """Treats the data of one read as a frame."""

    def feed(self, data: bytes) -> list[bytes]:
        return [data.partition(b":")[2][:-1]]


class EndsAtComma(rlx.FrameReader):
    """Searches for the comma instead of counting bytes."""

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        head, comma, self._buffer = self._buffer.partition(b",")
        return [bytes(head.partition(b":")[2])] if comma else []


class TrustsComma(rlx.FrameReader):
    def feed(self, data: bytes) -> list[bytes]:
        return super().feed(data.replace(b";", b",") if data.endswith(b";") else data)


class TakesZeros(rlx.FrameReader):
    def feed(self, data: bytes) -> list[bytes]:
        return super().feed(data.lstrip(b"0"))


class WaitsForEver(rlx.FrameReader):
    def feed(self, data: bytes) -> list[bytes]:
        try:
            return super().feed(data)
        except rlx.ProtocolError:
            return []


class FirstAnswerOnly(rlx.FrameReader):
    def feed(self, data: bytes) -> list[bytes]:
        return super().feed(data)[:1]
