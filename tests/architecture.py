"""Architecture rules. Each rule takes the files of a tree and returns one sentence per breach.

The tests apply every rule to the repository, and to a small broken tree to show that the rule can fail.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Callable, Iterator

from tests.export_rules import exports_of_packages
from tests.support.errors import matched_sentences
from tests.support.source_tree import (
    LOAD_CALLERS,
    LOAD_TABLES,
    ClassInTree,
    SourceFile,
    circles,
    classes_of,
    depth,
    import_graph,
    overrides,
    sibling_bases,
)

# Bottom to top. A room imports from lower layers, from earlier rooms of its layer, and from itself.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("exports", "fields", "types", "ops", "distributions", "config", "distribution", "xla_flags"),
    ("sample_batch", "padded_batch", "metrics", "networks", "envs", "replay_buffers", "ec"),
    ("agent", "agents"),
    ("rollout",),
    ("evaluators",),
    ("runs", "episodes", "execution", "actors", "assembly"),
    ("workflows", "warm_start", "interop"),
    ("algorithms", "algorithm"),
    ("recorders", "rendering", "reports", "sockets", "live", "serving", "parameter_server", "training"),
    ("sweeps", "apps", "export", "cli", "launch", "__main__"),
)
ROOMS = [room for layer in LAYERS for room in layer]

# Modules that may import a third-party library: its adapter, or the room that wraps it.
ENV_LIBRARIES = "jumanji pgx jaxmarl craftax xminigrid navix envpool pettingzoo dm_control".split()
LIBRARY_HOMES: dict[str, tuple[str, ...]] = {
    "brax": ("evorl/envs/brax",),
    "mujoco": ("evorl/envs/brax", "evorl/envs/mjx", "evorl/envs/mujoco", "evorl/envs/playground"),
    **{name: (f"evorl/envs/{name}",) for name in ["gymnax", *ENV_LIBRARIES]},
    "gymnasium": ("evorl/envs/gymnasium", "evorl/envs/envpool", "evorl/apps/files/"),  # EnvPool uses Gymnasium's spaces
    "mujoco_playground": ("evorl/envs/playground",),
    "ray": ("evorl/actors/ray_pool",),
    **dict.fromkeys(("ale_py", "gymnasium_robotics", "shimmy"), ("evorl/envs/gymnasium", "evorl/apps/files/")),
    "evosax": ("evorl/ec/evosax",),
    "optuna": ("evorl/sweeps/optuna_study",),
    **dict.fromkeys(("aiohttp", "msgpack"), ("evorl/sockets/", "evorl/live/", "evorl/serving/")),
    **dict.fromkeys(("wandb", "tensorboardX", "mlflow"), ("evorl/recorders/",)),
    "matplotlib": ("evorl/recorders/", "evorl/rendering", "evorl/reports/"),
    **dict.fromkeys(("PIL", "av"), ("evorl/rendering",)),
    **dict.fromkeys(("onnx", "onnxruntime"), ("evorl/export/onnx_file",)),
    "rich": ("evorl/recorders/", "evorl/cli"),
    **dict.fromkeys(("huggingface_hub", "minari", "orbax"), ("evorl/runs",)),
    "hydra": ("evorl/cli",),
    "yaml": ("evorl/config/yaml_text.py", "evorl/apps/", "evorl/runs"),
    "logging": ("evorl/cli", "evorl/runs", "evorl/recorders/", "evorl/reports/", "evorl/execution/", "evorl/sockets/"),
}
# Imported inside functions, so that nothing else requires them: optional extras and slow imports.
OPTIONAL_LIBRARIES = {*ENV_LIBRARIES, *"aiohttp ale_py av evosax gymnasium gymnasium_robotics minari mujoco".split()}
OPTIONAL_LIBRARIES |= set("huggingface_hub mlflow mujoco_playground onnx onnxruntime optuna ray wandb".split())
DEVICE_HOMES = ("evorl/execution/",)
DEVICE_NAMES = (
    "jax.sharding jax.shard_map jax.make_mesh jax.set_mesh jax.devices jax.local_devices jax.device_count "
    "jax.local_device_count jax.device_put jax.default_device jax.experimental.shard_map jax.experimental.mesh_utils"
).split()
COLLECTIVE_NAMES = [
    f"jax.lax.{name}"
    for name in "psum pmean pmax pmin all_gather all_to_all ppermute psum_scatter axis_index axis_size".split()
]
DEPRECATED_NAMES = (
    "jax.pmap jax.device_put_replicated jax.device_put_sharded jax.tree_map jax.tree_multimap jax.tree_util.tree_map "
    "jax.random.PRNGKey jax.experimental.shard_map jax.experimental.maps jax.experimental.pjit jax.xla_computation"
).split()
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
FORBIDDEN_WORDS = {"utils", "util", "misc", "helpers", "helper", "common", "template", "templates"}
MAX_MATCHED_SENTENCES = 0
Files = list[SourceFile]
Rule = Callable[[Files], list[str]]


def _package(files: Files) -> Files:
    return [f for f in files if f.in_package]


def _matches(name: str, prefixes: list[str] | tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def _function_lines(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1  # pyright: ignore[reportAttributeAccessIssue]


def layers(files: Files) -> list[str]:
    """A file imports only from lower layers, earlier rooms of its layer, or its own room.

    Names that strings load late count as imports, also those in tables, since none points upwards.
    """
    breaches = []
    for file in _package(files):
        if not file.room:
            continue  # the package's __init__ exports names of every layer
        if file.room not in ROOMS:
            breaches.append(f"{file.path}: room {file.room!r} stands in no layer; add it to LAYERS")
            continue
        for target, line in (*file.imports, *file.loads):
            parts = target.split(".")
            if parts[0] != "evorl":
                continue
            room = parts[1] if len(parts) > 1 else ""
            if room not in ROOMS:
                breaches.append(f"{file.path}:{line}: imports {target}: import from the module that defines it")
            elif ROOMS.index(room) > ROOMS.index(file.room):
                breaches.append(f"{file.path}:{line}: {file.room} imports {target} from above it")
    return breaches


def algorithms_stand_alone(files: Files) -> list[str]:
    """No algorithm imports another one, except the base of its family: the module whose classes it subclasses."""
    return [
        f"{file.path}:{line}: imports another algorithm, {target}"
        for file in files
        if file.path.startswith("evorl/algorithms/") and not file.is_init
        for target, line in file.imports
        if target.startswith("evorl.algorithms.") and not _matches(target, [file.module, *sibling_bases(file)])
    ]


def no_circles(files: Files) -> list[str]:
    """No import cycles, including imports in functions, for types, and by strings that load a name late."""
    return [f"a circle of imports: {' -> '.join(group)}" for group in circles(import_graph(files, loads=True))]


def late_names_in_tables(files: Files) -> list[str]:
    """Strings that load a name late occur only in tables, and only the readers of the tables load them."""
    breaches = []
    for file in _package(files):
        if file.path not in LOAD_TABLES:
            breaches += [f"{file.path}:{line}: loads {name} late: import it" for name, line in file.loads]
        if file.path not in LOAD_CALLERS:
            breaches += [
                f"{file.path}:{line}: imports {name}, which only readers of tables need"
                for name, line in file.imports
                if name == "evorl.config.names.load"
            ]
    return breaches


def libraries_at_home(files: Files) -> list[str]:
    """A third-party library is imported only in its adapter, an optional one only inside functions."""
    breaches = []
    for file in _package(files):
        top_level = {n.lineno for n in file.tree.body if isinstance(n, ast.Import | ast.ImportFrom)}
        for target, line in file.imports:
            library = target.split(".")[0]
            homes = LIBRARY_HOMES.get(library)
            if homes and not file.path.startswith(homes):
                breaches.append(f"{file.path}:{line}: imports {library}, whose place is {' or '.join(homes)}")
            elif library in OPTIONAL_LIBRARIES and line in top_level:
                breaches.append(
                    f"{file.path}:{line}: {library} is optional: import it inside the function that needs it"
                )
    return breaches


def devices_in_one_place(files: Files) -> list[str]:
    """Only the execution layer uses devices and meshes; ``ops/collectives.py`` may also use axis collectives."""
    breaches = []
    for file in _package(files):
        if file.path.startswith(DEVICE_HOMES):
            continue
        collective = file.path == "evorl/ops/collectives.py"
        banned = DEVICE_NAMES + ([] if collective else COLLECTIVE_NAMES)
        breaches += [
            f"{file.path}:{line}: names {n}" for n, line in sorted(set(file.used_names)) if _matches(n, banned)
        ]
    return breaches


def modern_jax(files: Files) -> list[str]:
    """The package uses no name that JAX has deprecated or removed."""
    return [
        f"{file.path}:{line}: {name} is deprecated"
        for file in _package(files)
        for name, line in sorted(set(file.used_names))
        if _matches(name, DEPRECATED_NAMES)
    ]


def no_pickle(files: Files) -> list[str]:
    """No file uses a format that can run code when it is read."""
    breaches = []
    for file in files:
        breaches += [
            f"{file.path}:{line}: imports {name}" for name, line in file.imports if name.split(".")[0] in PICKLES
        ]
        for node in ast.walk(file.tree):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                breaches.append(f"{file.path}:{node.lineno}: allow_pickle")
    return breaches


def file_sizes(files: Files) -> list[str]:
    """Files have at most 350 lines, algorithms 250, scripts 30; the median file of the package has at most 150."""
    breaches = []
    for file in files:
        most = 350
        if file.path.startswith("evorl/algorithms/"):
            most = 250
        elif file.path.startswith("scripts/"):
            most = 30
        if file.num_lines > most:
            breaches.append(f"{file.path}: {file.num_lines} lines, at most {most}")
    sizes = [f.num_lines for f in _package(files) if not f.is_init]
    if sizes and statistics.median(sizes) > 150:
        breaches.append(f"evorl: the median file has {statistics.median(sizes)} lines, at most 150")
    return breaches


def function_sizes(files: Files) -> list[str]:
    """Functions have at most 70 lines, in algorithms 40; 90 % of the package's functions have at most 40."""
    breaches, sizes = [], []
    for file in files:
        most = 40 if file.path.startswith("evorl/algorithms/") else 70
        for node in file.functions:
            if _function_lines(node) > most:
                breaches.append(
                    f"{file.path}:{node.lineno}: {node.name} has {_function_lines(node)} lines, at most {most}"
                )
            if file.in_package:
                sizes.append(_function_lines(node))
    if len(sizes) > 1 and statistics.quantiles(sizes, n=10, method="inclusive")[-1] > 40:
        breaches.append("evorl: more than one function in ten has over 40 lines")
    return breaches


def plain_names(files: Files) -> list[str]:
    """File names contain no meaningless word, and class names no version number."""
    breaches = []
    for file in _package(files):
        if FORBIDDEN_WORDS & set(re.split(r"[./_]", file.path)):
            breaches.append(f"{file.path}: a name that says nothing; name it after what it holds")
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef) and re.search(r"V\d+$", node.name):
                breaches.append(f"{file.path}:{node.lineno}: class {node.name} carries a version number")
    return breaches


def class_depth(files: Files) -> list[str]:
    """Inheritance inside the package is at most four classes deep."""
    classes = classes_of(_package(files))
    depths = {name: depth(name, classes) for name in classes}
    return [f"class {name} stands {depth} steps deep, at most 4" for name, depth in depths.items() if depth > 4]


def _public_without_docstring(file: SourceFile, classes: dict[str, ClassInTree]) -> Iterator[tuple[str, int]]:
    """Yield public names of a file, and public methods of its public classes, without a docstring."""
    defs = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in file.tree.body:
        if not isinstance(node, defs) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield node.name, node.lineno
        for member in node.body if isinstance(node, ast.ClassDef) else []:
            if not isinstance(member, defs) or member.name.startswith("_") or ast.get_docstring(member):
                continue
            marks = " ".join(ast.unparse(d) for d in member.decorator_list)
            if (
                "overload" in marks
                or ".setter" in marks
                or overrides(member.name, f"{file.module}.{node.name}", classes)
            ):
                continue
            yield f"{node.name}.{member.name}", member.lineno


def documented(files: Files) -> list[str]:
    """Every module and public name of the package has a docstring; overrides inherit that of their base."""
    classes, breaches = classes_of(_package(files)), []
    for file in _package(files):
        if not ast.get_docstring(file.tree):
            breaches.append(f"{file.path}: the module has no docstring")
        breaches += [
            f"{file.path}:{line}: {name} has no docstring" for name, line in _public_without_docstring(file, classes)
        ]
    return breaches


def asserts_speak(files: Files) -> list[str]:
    """Every assert of the package has a message."""
    return [
        f"{file.path}:{node.lineno}: an assert without a message"
        for file in _package(files)
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Assert) and node.msg is None
    ]


def errors_by_parts(files: Files) -> list[str]:
    """Tests check the parts that an error names; ``match=`` has at most four plain words in a row."""
    tests = [f for f in files if f.path.startswith("tests/")]
    found = [f"{f.path}:{at}: use raises_naming for {text!r}" for f in tests for text, at in matched_sentences(f.tree)]
    return found if len(found) > MAX_MATCHED_SENTENCES else []


def mirror_tests(files: Files) -> list[str]:
    """At least 90 % of modules have a test at the mirrored path, with at least 0.6 test lines per source line."""
    paths = {f.path for f in files}
    modules = [f for f in _package(files) if not f.is_init]
    lonely = []
    for file in modules:
        folder, _, name = file.path.removeprefix("evorl/").rpartition("/")
        if "/".join(filter(None, ["tests", folder, f"test_{name}"])) not in paths:
            lonely.append(file.path)
    breaches = []
    if len(lonely) > len(modules) / 10:
        breaches.append(f"{len(lonely)} of {len(modules)} modules have no mirror test: {', '.join(lonely)}")
    source = sum(f.num_lines for f in _package(files))
    tests = sum(f.num_lines for f in files if f.path.startswith("tests/"))
    if tests < 0.6 * source:
        breaches.append(f"{tests} lines of tests for {source} of source, at least 0.6 each")
    return breaches


RULES: tuple[Rule, ...] = (
    layers,
    algorithms_stand_alone,
    exports_of_packages,
    no_circles,
    late_names_in_tables,
    libraries_at_home,
    devices_in_one_place,
    modern_jax,
    no_pickle,
    file_sizes,
    function_sizes,
    plain_names,
    class_depth,
    documented,
    asserts_speak,
    errors_by_parts,
    mirror_tests,
)
