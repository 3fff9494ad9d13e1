"""Rules for places where text becomes code, or where foreign files are read: each uses the gate or is reviewed.

A place that is not in a table of this module fails the test. Check whether a setting, a file or a server can choose
the text. If so, route it through ``evorl.config.gate``; otherwise add the place with the reason why it is safe.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from tests.support.source_tree import SourceFile

# Calls and references that import, execute or start what their arguments name. A name with a leading dot matches any
# attribute of that name.
SINKS = {
    *(
        "eval exec compile __import__ importlib.import_module importlib.reload "
        "importlib.util.spec_from_file_location".split()
    ),
    *("runpy pkgutil.resolve_name importlib.metadata.entry_points hydra.main hydra.compose hydra.utils".split()),
    *("os.system os.popen os.execv os.execve os.execvp os.execl os.spawnv os.posix_spawn os.startfile".split()),
    *("subprocess.Popen subprocess.run subprocess.call subprocess.check_call subprocess.check_output".split()),
    *("ctypes yaml.load yaml.unsafe_load yaml.full_load pickle cloudpickle dill joblib torch.load".split()),
    *(".make .make_vec .make_spec .make_gymnasium .get_environment .deserialize .InferenceSession".split()),
    *("sys.path.insert sys.path.append".split()),
}
LOADERS = ("evorl.config.names.load", "evorl.config.names.load_all")  # paths that are constants of the code

# Functions that read a file or response of foreign origin from which code may be built.
SOURCES = {
    *(".load_config evorl.runs.trust.read_stored_config read_stored_config .read_exported read_exported".split()),
    *("SweepFolder.open SavedEpisode.load client.config evorl.apps.app_config.read_app read_app".split()),
}

Place = tuple[str, str]  # file and function
# Reasons why the sinks of a function execute nothing that untrusted input chooses.
REVIEWED_SINKS: Mapping[Place, str] = {
    ("evorl/actors/process_pool.py", "jax_settings"): "names of settings of JAX, written there",
    ("evorl/actors/process_pool.py", "_serve"): "the class of workers, which the code that makes the pool names",
    ("evorl/actors/ray_pool.py", "answer"): "the class of workers, which the code that makes the pool names",
    ("evorl/algorithm/__init__.py", "exec_module"): "modules of evorl.algorithms, by the import system",
    ("evorl/algorithm/__init__.py", "__getattr__"): "modules of evorl.algorithms, by the import system",
    ("evorl/apps/child.py", "__init__"): "programs of an app, which evorl run is asked to start",
    ("evorl/apps/child.py", "end"): "a command of Windows that ends a process by its number",
    ("evorl/apps/files/app_options.py", "_from_file"): "a loader derived from SafeLoader, which makes plain data",
    ("evorl/apps/files/gymnasium_app.py", "make_env"): "a simulator of an app, which evorl run is asked to start",
    ("evorl/apps/files/lab_app.py", "_lab"): "a module named there",
    ("evorl/apps/files/vizdoom_app.py", "make_env"): "a simulator of an app, which evorl run is asked to start",
    ("evorl/apps/supervision.py", ""): "names of signals, written there",
    ("evorl/cli/app_commands.py", "_fill_spaces"): "the script that was just copied from this package",
    ("evorl/cli/python_api.py", "_composed"): "overrides of the caller",
    ("evorl/cli/commands.py", "run"): "a table of commands",
    ("evorl/cli/composition.py", "compose_config"): "overrides of the user, or of app.yaml after refuse_composed_code",
    ("evorl/cli/errors.py", "print_any_character"): "stdout and stderr",
    ("evorl/cli/run_command.py", "with_hydra"): "the user's command line, or a sweep's after refuse_composed_code",
    ("evorl/config/names.py", "load"): "callers are checked by this test",
    ("evorl/config/names.py", "load_all"): "callers are checked by this test",
    ("evorl/config/names.py", "_import_for"): "load_named and load_class call it behind the gate",
    ("evorl/envs/brax.py", "__getattr__"): "stands in for jax.numpy in a module of brax",
    ("evorl/envs/craftax.py", "__init__"): "the module of a class that is imported already",
    ("evorl/envs/envpool.py", "__init__"): "tasks of EnvPool's list; options pass the gate",
    ("evorl/envs/envpool.py", "make_pool"): "as above",
    ("evorl/envs/factory.py", "_create"): "tables of libraries",
    ("evorl/envs/factory.py", "_made_as_configured"): "tables of libraries",
    ("evorl/envs/goals/goal_envs.py", "create_wrapped_goal_env"): "a table of environments",
    ("evorl/envs/gymnasium.py", "_make_one"): "name and arguments pass the gate; wrappers are of Gymnasium's list",
    ("evorl/envs/gymnax_import.py", "__getattr__"): "a table of modules",
    ("evorl/envs/gymnax_import.py", "_import_alone"): "a table of environments",
    ("evorl/envs/gymnax_import.py", "load_environment_class"): "a table of environments",
    ("evorl/envs/jaxmarl.py", "_make_adapter"): "environments of JaxMARL's list",
    ("evorl/envs/jumanji.py", "_make_adapter"): "environments of Jumanji's list",
    ("evorl/envs/libraries.py", "available_envs"): "tables of libraries",
    ("evorl/envs/libraries.py", "short_title"): "tables of libraries",
    ("evorl/envs/mujoco_frames.py", "draw_without_screen"): "libraries named there",
    ("evorl/envs/pettingzoo.py", "_make_copy"): "names of PettingZoo's list; arguments pass the gate",
    ("evorl/envs/xminigrid.py", "_make_adapter"): "environments of a list",
    ("evorl/exports.py", "load"): "tables of the packages' own names",
    ("evorl/export/artifacts.py", "_checked"): "the file that was just written by this process",
    ("evorl/export/exported_policy.py", "_read_stablehlo"): "a program whose calls are checked by program_calls",
    ("evorl/export/html_file.py", "checked_page"): "the page that was just written by this process",
    ("evorl/export/onnx_file.py", "__init__"): "operations of ONNX, which execute no code of the file",
    ("evorl/export/onnx_file.py", "_imported"): "packages named by the callers in that file",
    ("evorl/launch.py", "__init__"): "the user's command line",
    ("evorl/ops/optimization.py", "_maker"): "names of OptimizerName, or a name that load_named has let through",
    ("evorl/recorders/video_recorder.py", "__init__"): "the command line of this package, which inherits the gate",
    ("evorl/recorders/video_recorder.py", "_begin"): "the command line of this package, which inherits the gate",
    ("evorl/runs/about.py", "git"): "git with arguments written there",
    ("evorl/fields.py", "_resolved"): "annotations of classes that are imported already",
}
# How a function that reads a source prevents its contents from becoming code.
REVIEWED_SOURCES: Mapping[Place, str] = {
    ("evorl/cli/app_commands.py", "config_from_arguments"): "composed after refuse_composed_code, never built",
    ("evorl/cli/app_commands.py", "generate_from_arguments"): "composed after refuse_composed_code, never built",
    ("evorl/cli/app_commands.py", "new_from_arguments"): "the file that was just written",
    ("evorl/cli/app_commands.py", "_check_text"): "composed after refuse_composed_code, never built",
    ("evorl/cli/app_run.py", "run_from_arguments"): "starts the app; refuse_named_code for its training",
    ("evorl/cli/compare.py", "compare"): "only the states of its runs are read; refuse_composed_code unless trusted",
    ("evorl/cli/runs.py", "list_runs"): "shown with a warning, never built",
    ("evorl/cli/multirun.py", "resume_sweep"): "refuse_composed_code in SweepFolder.open; distrust in cli/train",
    ("evorl/sweeps/multirun.py", "train_runs"): "the same sweep again, with the trust of resume_sweep",
    ("evorl/parameter_server/service.py", "refuse_ordinary_run"): "looks whether a key is there",
    ("evorl/cli/work.py", "work_from_arguments"): "distrust and check_worker_config",
    ("evorl/serving/remote_run.py", "refuse_local_run"): "looks whether a key has a value",
    ("evorl/cli/show_episode.py", "show_episode_from_arguments"): "distrust and refuse_foreign_code",
    ("evorl/runs/stored.py", "read"): "plain data; its method spec calls distrust and refuse_foreign_code",
    ("evorl/export/policy_server.py", "of_file"): "its calls are checked unless it is trusted",
    ("evorl/reports/recorded_run.py", "config"): "shown, never built",
    ("evorl/export/packed_policy.py", "packed_files"): "copied as plain data, after StoredConfig.spec of _checkpoint",
    ("evorl/runs/best_run.py", "find_run"): "its command lines are not composed: only returns and folders are read",
    ("evorl/runs/sweep_folder.py", "_continues_with"): "its command lines are not composed: only states are read",
    ("evorl/runs/best_run.py", "_env_of"): "only names are compared, never built",
    ("evorl/runs/folder.py", "load_config"): "refuse_foreign_code unless it is trusted",
    ("evorl/reports/recorded_run.py", "_last_started"): "only names of folders are compared",
    ("evorl/runs/folder.py", "update_config"): "compared with another text",
}


def breaches(
    files: list[SourceFile],
    find: Callable[[SourceFile], Iterator[tuple[str, int, str]]],
    reviewed: Mapping[Place, str],
) -> list[str]:
    """Return places that are not reviewed, and reviewed places that no longer exist."""
    found = {(file.path, function): f"{line}: {sink}" for file in files for function, line, sink in find(file)}
    unknown = [f"{path}:{found[path, name]} in {name}()" for path, name in found if (path, name) not in reviewed]
    return unknown + [f"{path}: nothing is left in {name}(): drop it" for path, name in set(reviewed) - set(found)]


def sinks(file: SourceFile) -> Iterator[tuple[str, int, str]]:
    """Yield function, line and name of each place in a file that turns text into code without the gate."""
    aliases = aliases_of(file)
    constants = {
        t.id for node in file.tree.body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)
    }
    for function, node in by_function(file.tree):
        if isinstance(node, ast.Attribute | ast.Name) and (name := spelled(node, aliases)) and _is_sink(name):
            yield function, node.lineno, name
        if not isinstance(node, ast.Call):
            continue
        called = spelled(node.func, aliases) or ""
        if called in LOADERS and not (node.args and _is_written(node.args[0], constants)):
            yield function, node.lineno, f"{called} of a text that is not written here"
        if called == "getattr" and _is_module(node.args[0], aliases) and not isinstance(node.args[1], ast.Constant):
            yield function, node.lineno, f"getattr of {ast.unparse(node.args[0])}"
        for keyword in node.keywords:
            if keyword.arg == "shell" and not _is_false(keyword.value):
                yield function, node.lineno, "shell"
            if keyword.arg == "allow_pickle" and not _is_false(keyword.value):
                yield function, node.lineno, "allow_pickle"


def sources(file: SourceFile) -> Iterator[tuple[str, int, str]]:
    """Yield function, line and name of each place in a file that reads foreign data."""
    aliases = aliases_of(file)
    for function, node in by_function(file.tree):
        if isinstance(node, ast.Call) and (name := spelled(node.func, aliases)):
            for source in SOURCES:
                if name == source or name.endswith(source if source[0] == "." else f".{source}"):
                    yield function, node.lineno, name


def by_function(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield every node with the name of its innermost enclosing function."""
    for node in ast.iter_child_nodes(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield name, node
        yield from by_function(node, node.name if is_function else name)


def aliases_of(file: SourceFile) -> dict[str, str]:
    """Return the full names of a file's imports by their local names."""
    aliases = {}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            aliases |= {
                a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and not node.level:
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return aliases


def spelled(node: ast.AST, aliases: Mapping[str, str]) -> str | None:
    """Return the full name of a name or attribute chain, ``.attribute`` for attributes of other expressions."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        above = spelled(node.value, aliases)
        return f"{above or ''}.{node.attr}"
    return None


def _is_sink(name: str) -> bool:
    return any(
        name == sink or name.startswith(f"{sink}.") or (sink[0] == "." and name.endswith(sink)) for sink in SINKS
    )


def _is_written(node: ast.AST, constants: set[str]) -> bool:
    """Return True if a text is a constant, or begins with a constant of the module."""
    if isinstance(node, ast.JoinedStr):
        return all(
            _is_written(part.value if isinstance(part, ast.FormattedValue) else part, constants) for part in node.values
        )
    is_constant = isinstance(node, ast.Name) and node.id.isupper() and (node.id in constants)
    return is_constant or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_module(node: ast.AST, aliases: Mapping[str, str]) -> bool:
    """Return True for a module: imported as a whole, or returned by an import function."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).endswith("import_module")
    root = ast.unparse(node).partition(".")[0]
    return aliases.get(root) is not None and aliases[root].rpartition(".")[2].islower()


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
