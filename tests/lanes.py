"""The two lanes of the suite: the tests that run only in the long one, with the reason of each group.

``make test`` runs the short lane: at least one test of everything that is essential in each part. ``make test-long``
runs the rest. A pattern is a regular expression that matches the beginning of a test's id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONG: dict[str, tuple[str, ...]] = {
    # Short: PPO, SAC, DQN, neuroevolution, ERL and MAP-Elites. Every algorithm is built by tests/test_configs.py.
    "further algorithms of a family": (
        r"tests/algorithms/test_(a2c|cemrl|crossq|discor|impala|iql|multi_objective|pbt|pga_me|pqn|r2d2|reinforce)\.py::",
        r"tests/algorithms/test_(td3|td3_bc|tqc|trpo|soft_updates|td3_noise|soft_actor_critics)\.py::",
        r"tests/algorithms/test_(action_spaces|dict_observations)\.py::",
    ),
    # Short: PPO and SAC learn the probes, PPO solves CartPole.
    "learning of a further algorithm, or with memory": (
        r"tests/algorithms/test_\w+\.py::TestProbesWithMemory::",
        r"tests/algorithms/test_(?!ppo|sac)\w+\.py::(TestProbes::|test_\w+_probe)",
        r"tests/algorithms/test_cartpole\.py::test_cartpole_is_solved\[(?!ppo)",
        r"tests/algorithms/test_sac\.py::test_pendulum_is_learned",
        r"tests/algorithms/test_action_masks\.py::test_what_is_learned_stays_finite\[(?!ppo|dqn)",
        r"tests/agents/test_(intrinsic|actor_critic)\.py::test_(any|every|two|replay)_",
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
    # Short: one experiment of each kind of algorithm is built.
    "experiments and combinations beyond the first of a kind": (
        r"tests/test_configs\.py::test_an_experiment_builds\[(?!ppo/cartpole\]|sac/pendulum\]|dqn/cartpole\])",
        r"tests/algorithms/test_(erl|sac|neuroevolution)\.py::TestContract::test_(neither_devices|resumed_on_more|no_key)",
        r"tests/algorithms/test_erl\.py::test_(every_combination|critics_with_running|injection_waits)",
        r"tests/algorithms/test_neuroevolution\.py::test_continuous_actions",
        r"tests/algorithms/test_ppo\.py::test_a_further_pass",
        r"tests/workflows/test_evolution_guided\.py::test_(devices_do_not_show|a_seed_of_several|the_buffer_holds)",
        r"tests/workflows/test_learner_emitter\.py::test_any_learner_lends_its_gradients\[(?!sac)",
        r"tests/workflows/test_replay_settings\.py::test_hindsight_solves",
        r"tests/workflows/test_on_policy\.py::test_schedules_may_advance\w*\[(?!ppo)",
        r"tests/execution/test_env_faults\.py::test_(a_generation|settings_side|a_population)",
        r"tests/networks/test_kernel_activations\.py::test_ppo_learns",
        r"tests/networks/test_image_sides\.py::",
        r"tests/envs/host/test_bridge\.py::test_seeds_side_by_side",
        r"tests/envs/host/test_bridge\.py::test_the_numbers_are_those_of_the_same_environment_in_jax\[(?!ppo)",
        r"tests/envs/wrappers/test_randomization\.py::test_simulators",
        r"tests/envs/test_gymnax\.py::test_(one_environment_is_imported|the_plain_import)",
        r"tests/envs/test_physics\.py::",
        r"tests/envs/goals/test_(setting|point_maze)\.py::",
    ),
    "packages that are missing, broken clients, other processes, sweeps of every kind": (
        r"tests/test_extras\.py::",
        r"tests/recorders/test_wandb_recorder\.py::",
        r"tests/serving/test_(abuse|pong|remote_run|pictures)\.py::",
        r"tests/export/test_artifacts\.py::test_a_process_without_evorl\w*\[(?!onnx)",
        r"tests/parameter_server/test_training\.py::test_(a_training_outlives|simulators_come)",
        r"tests/sweeps/test_(search|capacity)\.py::",
        r"tests/cli/test_(python_api|proposed_lines|override_text|preparation)\.py::",
        r"tests/cli/test_main\.py::test_a_population_of_another_agent",
        r"tests/apps/(files/test_bandit_app|test_app_text|test_supervision)\.py::",
        r"tests/benchmarks/",
    ),
    "static checks, which make check runs as well": (r"tests/test_(architecture|code_sinks|house)\.py::",),
}

_PATTERNS = [(re.compile(pattern), reason) for reason, patterns in LONG.items() for pattern in patterns]


def reason_for_long(test_id: str) -> str | None:
    """Return why a test runs only in the long lane; ``None`` if it is in the short one."""
    return next((reason for pattern, reason in _PATTERNS if pattern.match(test_id)), None)


def unused_patterns(test_ids: Iterable[str]) -> list[str]:
    """Return the patterns that match none of the tests: renamed or removed ones."""
    ids = list(test_ids)
    return [pattern.pattern for pattern, _ in _PATTERNS if not any(map(pattern.match, ids))]
