"""Merged output of several processes."""

from __future__ import annotations

import io
import re

from evorl.apps.prefixed_log import PrefixedLog


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_bear_time_and_name_and_no_colors_where_no_terminal_is() -> None:
    stream = io.StringIO()
    log = PrefixedLog(stream, clock=lambda: 1.5)
    log.follow("environment-0", ["\x1b[31mone\x1b[0m\n", "50 %\r100 %\r\n", "\n"]).join()
    log.say("run", "two")
    lines = stream.getvalue().splitlines()
    assert all(re.fullmatch(r"\d\d:\d\d:01\.500 \S+ *\|.*", line) for line in lines)
    assert [line.partition("|")[2] for line in lines] == [" one", " 100 %", "", " two"]
    assert lines[-1].index("|") == lines[0].index("|")


def test_a_terminal_sees_a_color_for_each_name() -> None:
    stream = Terminal()
    log = PrefixedLog(stream)
    for name in ("server", "environment-0", "server"):
        log.say(name, "text")
    colors = re.findall(r"^\x1b\[(\d+)m.*\x1b\[0m text$", stream.getvalue(), re.MULTILINE)
    assert len(colors) == 3
    assert colors[0] == colors[2] != colors[1]
