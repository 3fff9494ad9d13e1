"""The folder of an app."""

from __future__ import annotations

import ast
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from evorl.apps.app_config import read_app
from evorl.apps.app_files import make_app, write_algorithm, write_containers
from evorl.apps.kinds import KINDS
from evorl.distribution import installed_version
from tests.support.apps import ROOT
from tests.support.errors import raises_naming
from tests.support.rlx_server import BanditServer


@pytest.mark.parametrize("kind", KINDS)
def test_an_app_is_read_again_and_its_files_stand_on_their_own(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    written = make_app(folder, kind, "ppo", {"total_timesteps": 10}, in_boxes=False)
    app = read_app(folder / "app.yaml")
    assert (app.agent, app.training, str(app.server)) == ("ppo", {"total_timesteps": 10}, "127.0.0.1:7001")
    assert app.run.max_episodes == KINDS[kind].max_episodes
    assert (folder / app.environment["run"][1]).is_file()
    assert all(path.is_file() for path in written)
    beside = {path.stem for path in written}
    for path in written:
        if path.suffix == ".py":
            imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
            modules = {str(node.module).split(".")[0] for node in imports}
            assert modules <= beside | set(sys.stdlib_module_names) | {"numpy"}, path


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine").touch()
    with raises_naming(ValueError, tmp_path / "app", "exists"):
        make_app(tmp_path / "app", "bandit", "ppo", {}, in_boxes=False)
    assert [path.name for path in (tmp_path / "app").iterdir()] == ["mine"]


def test_a_simulator_is_started_by_hand_where_evorl_is_not_to_be_found(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    make_app(folder, "bandit", "ppo", {}, in_boxes=False)
    file = folder / "app.yaml"
    hidden = "import sys; sys.modules.update(evorl=None, jax=None, numpy=None); sys.path.insert(0, 'environment');"
    code = f"{hidden} import runpy; runpy.run_path('environment/bandit_app.py', run_name='__main__')"
    with BanditServer() as server:
        text = file.read_text().replace("7001", str(server.port)).replace("max_episodes: 100", "max_episodes: 2")
        file.write_text(text)
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "regret per pull:" in done.stdout
    assert len(server.metrics("episode_reward")) == 2


def test_an_algorithm_comes_with_its_settings(tmp_path: Path) -> None:
    source, file = ROOT / "evorl/algorithms/td3.py", ROOT / "configs/agent/ddpg.yaml"
    assert write_algorithm(tmp_path, source, file) == "own/ddpg"
    own = yaml.safe_load((tmp_path / "algorithm/agent/own/ddpg.yaml").read_text())
    assert own["workflow"] == "algorithm.td3.TD3Workflow"
    assert (tmp_path / "algorithm/td3.py").read_text() == source.read_text()
    with raises_naming(ValueError, "ddpg.yaml", "evorl.algorithms.ppo"):
        write_algorithm(tmp_path / "other", ROOT / "evorl/algorithms/ppo.py", file)


def test_containers_take_their_addresses_from_variables_alone(tmp_path: Path) -> None:
    wheel, docker, compose, ignored = write_containers(tmp_path, ROOT / "configs")
    assert f'"/wheels/{wheel.name}[serve]"' in docker.read_text()
    assert installed_version() in wheel.name
    assert "runs/" in ignored.read_text().splitlines()
    services = yaml.safe_load(compose.read_text())["services"]
    assert services["server"]["environment"]["EVORL_SERVER_BIND"] == "0.0.0.0:7001"
    assert services["environment"]["environment"]["EVORL_SERVER_BIND"] == "server:7001"
    assert services["environment"]["command"] == ["environment"]
    assert all("EVORL_SERVER_TOKEN" in service["environment"] for service in services.values())
    assert stat.S_ISREG(compose.stat().st_mode)
    _, _, compose, _ = write_containers(tmp_path, ROOT / "configs", with_parameter_server=True)
    services = yaml.safe_load(compose.read_text())["services"]
    assert services.keys() == {"parameters", "server-0", "server-1", "environment-0", "environment-1"}
    assert services["server-1"]["command"] == ["server", "servers=1", "worker=1"]
    assert services["server-1"]["environment"]["EVORL_PARAMETERS_BIND"] == "parameters:7000"
    assert services["environment-1"]["environment"]["EVORL_SERVER_BIND"] == "server-1:7001"
    assert all("EVORL_PARAMETERS_TOKEN" in service["environment"] for service in services.values())
    make_app(tmp_path / "app", "bandit", "ppo", {}, in_boxes=False)
    app = read_app(tmp_path / "app/app.yaml", {"EVORL_SERVER_BIND": "server:7001", "EVORL_SERVER_TOKEN": "a long word"})
    assert (str(app.server), app.server.token) == ("server:7001", "a long word")
