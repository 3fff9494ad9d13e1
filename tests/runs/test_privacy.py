"""The rule for secrets: entries and texts that leave a run folder."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.config.gate import leaves
from evorl.runs.privacy import is_secret, shareable, shareable_argument, shareable_text

SECRET = "hushhush"
_NAMES = "seed network serve parameters env num_tokens key eval_key obs_keys token_by_env_var title a-b".split()
_SECRETS = "token hub_token HF_TOKEN apiKey api_key AWS_SECRET_ACCESS_KEY password1 db-password ssh_key auth".split()
_VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.sampled_from(["a", "b c"]))


@st.composite
def _planted(draw: st.DrawFn) -> dict[str, Any]:
    """Return a nested config whose secrets contain ``SECRET``."""

    def node(depth: int) -> Any:
        if depth == 0 or draw(st.integers(0, 3)) == 0:
            return draw(_VALUES)
        if draw(st.integers(0, 4)) == 0:
            return [node(depth - 1) for _ in range(draw(st.integers(0, 2)))]
        made = {name: node(depth - 1) for name in draw(st.lists(st.sampled_from(_NAMES), max_size=3, unique=True))}
        for name in draw(st.lists(st.sampled_from(_SECRETS), max_size=2, unique=True)):
            made[name] = draw(st.sampled_from([SECRET, [SECRET], {"user": "a", "word": SECRET}]))
        if draw(st.booleans()):
            made["address"] = f"https://anna:{SECRET}@example.org/a?b=1&access_token={SECRET}#c"
        return made

    return {"top": node(3), "serve": {"token": SECRET, "key": f"/{SECRET}.pem", "max_clients": 3}}


@given(_planted())
def test_no_secret_is_shared_and_all_else_is(config: dict[str, Any]) -> None:
    before = copy.deepcopy(config)
    shared = shareable(config)
    assert config == before
    assert SECRET not in repr(shared)
    assert shared["serve"] == {"max_clients": 3}
    left = dict(leaves(shared))
    for path, value in leaves(config):
        if SECRET not in str(value) and not any(map(is_secret, path.split("."))):
            below = path.rpartition(".")[0]
            if path in left:
                assert left[path] == value or value is None
            else:  # a mapping that lost all its entries
                assert value is None or below in left
    assert shareable(shared) == shared


def test_flat_settings_follow_the_same_rule() -> None:
    settings = {"serve.token": SECRET, "serve.bind": "host:1", "env.api_key": SECRET, "env.name": "a", "serve.size": 3}
    assert shareable(settings) == {"env.name": "a", "serve.size": 3}


@pytest.mark.parametrize("name", _SECRETS)
def test_secret_names(name: str) -> None:
    assert is_secret(name)
    assert is_secret(f"env.{name}")


@pytest.mark.parametrize("name", [*_NAMES, "tokens", "token_dim", "passes", "keys", "monkey", ""])
def test_other_names_are_no_secrets(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("argument", "shared"),
    [
        ("my.api_key=123abc", "my.api_key=..."),
        ("++env.auth_token=123abc", "++env.auth_token=..."),
        ("recorders.wandb={api_key: 123abc}", "recorders.wandb=..."),
        ("serve.bind=10.0.0.1:7001", "serve.bind=..."),
        ("serve={bind: '10.0.0.1:7001', max_clients: 3}", "serve=..."),
        ("serve.max_clients=3", "serve.max_clients=3"),
        ("init_from=https://a.org/p.zip?token=1&b=2#sha256=0", "init_from=https://a.org/p.zip?token=...&b=2#sha256=0"),
        ("init_from=https://a.org/p.zip?X-Amz-Signature=1", "init_from=https://a.org/p.zip?X-Amz-Signature=..."),
        ("recorders.mlflow={uri: 'http://anna:p@w@a.org:1'}", "recorders.mlflow={uri: 'http://...@a.org:1'}"),
        ("agent.network.torso=[8, 8]", "agent.network.torso=[8, 8]"),
        ("resume=latest", "resume=latest"),
        ("token", "token"),
    ],
)
def test_arguments(argument: str, shared: str) -> None:
    assert shareable_argument(argument) == shared


def test_texts_keep_addresses_without_passwords() -> None:
    text = "MLflow at http://anna:word@a.org:5000/x?key=1 fails; see https://b.org/c@2 and a@b.org"
    assert shareable_text(text) == (
        "MLflow at http://...@a.org:5000/x?key=... fails; see https://b.org/c@2 and a@b.org"
    )
