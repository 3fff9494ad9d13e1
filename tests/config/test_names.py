from __future__ import annotations

from evorl.config.names import did_you_mean, no_such


def test_the_nearest_name_is_suggested() -> None:
    assert did_you_mean("rellu", ["relu", "tanh"]) == " Did you mean 'relu'?"
    assert did_you_mean("xyz", ["relu", "tanh"]) == ""
    assert did_you_mean(3, {"tanh": 1}) == ""


def test_what_there_is_is_listed() -> None:
    assert no_such("cell", "lsmt", ("gru", "lstm")) == (
        "there is no cell 'lsmt'. Did you mean 'lstm'? There are: gru, lstm."
    )
    assert no_such("cell", None, ["gru"]) == "there is no cell None. There are: gru."
