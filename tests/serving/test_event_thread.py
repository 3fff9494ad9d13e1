"""The server thread listens once created, reports why it cannot, and cleans up."""

from __future__ import annotations

import socket
import sys
import threading
from typing import Any

import pytest

from evorl.serving.event_thread import EventThread
from evorl.serving.serve_settings import ServeSettings
from tests.serving.test_switchboard import SwitchboardSetup
from tests.support.errors import raises_naming


def start(**settings: Any) -> EventThread:
    return EventThread(ServeSettings(**{"bind": "127.0.0.1:0", **settings}), SwitchboardSetup().switchboard)


def test_it_says_where_it_listens() -> None:
    thread = start(web="127.0.0.1:0")
    assert [address.partition(":")[0] for address in thread.addresses] == ["rlx", "http"]
    ports = [int(address.rpartition(":")[2]) for address in thread.addresses]
    for port in ports:
        socket.create_connection(("127.0.0.1", port), 5.0).close()
    thread.close()
    thread.close()  # closing twice is allowed
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5.0)


def test_other_machines_addresses_have_brackets() -> None:
    try:
        thread = start(bind="[::1]:0")
    except OSError:
        pytest.skip("this machine has no IPv6.")
    assert thread.addresses[0].startswith("rlx://[::1]:")
    thread.close()


@pytest.mark.parametrize("name", ["bind", "web"])
def test_an_address_that_is_taken_is_one_sentence(name: str) -> None:
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with raises_naming(OSError, address, "in use") as caught:
            start(**{name: address})
    assert "\n" not in str(caught.value)
    assert threading.active_count() == before


def test_an_address_of_another_machine_is_one_sentence() -> None:
    with raises_naming(OSError, "203.0.113.1:7001"):
        start(bind="203.0.113.1:7001", token="a good long token")


def test_websockets_need_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with raises_naming(ImportError, "WebSocket", "pip install aiohttp"):
        start(web="127.0.0.1:0")
