"""The two lanes of the suite: the tests that run only in the long one, with the reason of each group.

``make test`` runs the short lane: at least one test of everything that is essential in each part. ``make test-long``
runs the rest. A pattern is a regular expression that matches the beginning of a test's id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONG: dict[str, tuple[str, ...]] = {
    # Short: the whole contract of PPO, SAC, DQN, neuroevolution, ERL, MAP-Elites and PBT.
    "contract of a further algorithm of a family": (
        (
            r"tests/algorithms/test_(a2c|cemrl|crossq|discor|impala|iql|multi_objective|pga_me|pqn|r2d2|reinforce|td3|tqc)"
            r"\.py::TestContract::"
        ),
        r"tests/algorithms/test_(trpo|td3_bc|random_agent)\.py::\w*(Contract|test_programs|test_neither_devices)",
    ),
    # Short: PPO and SAC learn the probes, PPO solves CartPole.
    "learning of a further algorithm, or with memory": (
        r"tests/algorithms/test_\w+\.py::TestProbesWithMemory::",
        r"tests/algorithms/test_(?!ppo|sac)\w+\.py::(TestProbes::)?test_values_of_a_probe",
        r"tests/algorithms/test_cartpole\.py::test_cartpole_is_solved\[(?!ppo)",
        r"tests/algorithms/test_(td3|sac)\.py::test_pendulum_is_learned",
        r"tests/algorithms/test_reinforce\.py::test_actions_are_found_without_a_baseline",
        r"tests/algorithms/test_iql\.py::test_state_values_are_an_expectile",
        r"tests/algorithms/test_action_masks\.py::test_what_is_learned_stays_finite\[(?!ppo|dqn)",
        r"tests/algorithms/test_(action_spaces|dict_observations|soft_updates|td3_noise|soft_actor_critics)\.py::",
        r"tests/agents/test_(intrinsic|actor_critic)\.py::test_(any|every)_algorithm",
        r"tests/benchmarks/learning/test_evolution_budgets\.py::",
    ),
    # Short: PPO, SAC, OpenES, ERL and MAP-Elites train from the command line.
    "start of a further agent from the command line": (
        (
            r"tests/cli/test_every_agent\.py::test_an_agent_trains_from_the_command_line"
            r"\[(?!ppo\]|sac\]|ec/openes\]|erl/erl\]|qd/map_elites\])"
        ),
        r"tests/cli/test_app_agents\.py::test_every_agent",
        r"tests/cli/test_overrides\.py::test_no_wrong_value_of_any_setting",
    ),
    # Short: gymnax, Gymnasium, the simulators of the tests, and brax's contract on one environment.
    "environments of a further library": (
        r"tests/envs/test_(craftax|envpool|envpool_compiled|jaxmarl|jumanji|mjx|navix|pgx|playground|xminigrid)\.py::",
        r"tests/envs/test_(gymnasium_goals|mujoco|mujoco_shapes|mjx_contacts|pettingzoo|dm_control)\.py::",
        r"tests/envs/test_brax\.py::test_(every_environment|backends|nothing_is_printed)",
    ),
    "processes of actors, Ray, several servers": (
        r"tests/actors/test_(ray_pool|process_pool|actor_loop)\.py::",
        r"tests/cli/test_app_run\.py::",
        r"tests/interop/test_batcher_processes\.py::",
        r"tests/parameter_server/test_(delayed_workers|service)\.py::",
        r"tests/test_(launch|launchers|installs|host_runs)\.py::",
    ),
    "thousands of generations, and large populations": (
        r"tests/ec/test_safeguards\.py::",
        r"tests/ec/optimizers/test_cma_es\.py::",
    ),
    "every command of a page, notebooks, examples": (
        r"tests/test_(docs|notebooks|relaax_page|first_steps)\.py::",
        r"tests/examples/",
        r"tests/cli/test_render\.py::test_(of_several_seeds|where_nothing_can_draw)",
    ),
    "resumption, devices and seeds of further workflows": (
        r"tests/test_(run_lifecycle|adding_an_algorithm|nested_configs)\.py::",
        r"tests/workflows/test_device_exactness\.py::",
        r"tests/conformance/test_\w+_bite\w*\.py::",
    ),
}

_PATTERNS = [(re.compile(pattern), reason) for reason, patterns in LONG.items() for pattern in patterns]


def reason_for_long(test_id: str) -> str | None:
    """Return why a test runs only in the long lane; ``None`` if it is in the short one."""
    return next((reason for pattern, reason in _PATTERNS if pattern.match(test_id)), None)


def unused_patterns(test_ids: Iterable[str]) -> list[str]:
    """Return the patterns that match none of the tests: renamed or removed ones."""
    ids = list(test_ids)
    return [pattern.pattern for pattern, _ in _PATTERNS if not any(map(pattern.match, ids))]
