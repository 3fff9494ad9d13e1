"""Suggests environments for misspelled names and names from other frameworks, and the evorl extra to install.

The environments of Gymnasium, Atari and PettingZoo are listed here, because their registries are slow to import. A test
compares the lists with the installed registries.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from evorl.config.synonyms import names_for_synonym
from evorl.envs.libraries import available_envs

# Gymnasium's environments in their newest versions, by the evorl extra that installs them.
GYMNASIUM: Mapping[str, str] = {
    "extra gymnasium": """
        Acrobot-v1 Ant-v5 Blackjack-v1 CartPole-v1 CliffWalking-v1 CliffWalkingSlippery-v1 FrozenLake-v1
        FrozenLake8x8-v1 HalfCheetah-v5 Hopper-v5 Humanoid-v5 HumanoidStandup-v5 InvertedDoublePendulum-v5
        InvertedPendulum-v5 MountainCar-v0 MountainCarContinuous-v0 Pendulum-v1 Pusher-v5 Reacher-v5 Swimmer-v5
        Taxi-v4 Walker2d-v5""",
    "extra box2d": """
        BipedalWalker-v3 BipedalWalkerHardcore-v3 CarRacing-v3 LunarLander-v3 LunarLanderContinuous-v3""",
    "extra robotics": """
        AdroitHandDoor-v1 AdroitHandHammer-v1 AdroitHandPen-v1 AdroitHandRelocate-v1 AntMaze_Large-v5 AntMaze_Medium-v5
        AntMaze_Open-v5 AntMaze_UMaze-v5 FetchPickAndPlace-v4 FetchPush-v4 FetchReach-v4 FetchSlide-v4 FrankaKitchen-v1
        HandManipulateBlock-v1 HandManipulateEgg-v1 HandManipulatePen-v1 HandReach-v3 PointMaze_Large-v3
        PointMaze_Medium-v3 PointMaze_Open-v3 PointMaze_UMaze-v3""",
}
ATARI_GAMES = """
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis Atlantis2 Backgammon BankHeist BasicMath
    BattleZone BeamRider Berzerk Blackjack Bowling Boxing Breakout Carnival Casino Centipede ChopperCommand
    CrazyClimber Crossbow Darkchambers Defender DemonAttack DonkeyKong DoubleDunk Earthworld ElevatorAction Enduro
    Entombed Et FishingDerby FlagCapture Freeway Frogger Frostbite Galaxian Gopher Gravitar Hangman HauntedHouse Hero
    HumanCannonball IceHockey Jamesbond JourneyEscape Kaboom Kangaroo KeystoneKapers KingKong Klax Koolaid Krull
    KungFuMaster LaserGates LostLuggage MarioBros MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame Othello
    Pacman Phoenix Pitfall Pitfall2 Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest SirLancelot
    Skiing Solaris SpaceInvaders SpaceWar StarGunner Superman Surround Tennis Tetris TicTacToe3D TimePilot Trondead
    Turmoil Tutankham UpNDown Venture VideoCheckers VideoChess VideoCube VideoPinball WizardOfWor WordZapper YarsRevenge
    Zaxxon""".split()
DM_CONTROL = """
    acrobot-swingup acrobot-swingup_sparse ball_in_cup-catch cartpole-balance cartpole-balance_sparse cartpole-swingup
    cartpole-swingup_sparse cheetah-run dog-run dog-stand dog-trot dog-walk finger-spin finger-turn_easy
    finger-turn_hard fish-swim fish-upright hopper-hop hopper-stand humanoid-run humanoid-stand humanoid-walk
    manipulator-bring_ball pendulum-swingup point_mass-easy quadruped-run quadruped-walk reacher-easy reacher-hard
    swimmer-swimmer6 walker-run walker-stand walker-walk""".split()
PETTINGZOO = """
    butterfly/cooperative_pong-v6 butterfly/knights_archers_zombies-v11 butterfly/pistonball-v6 classic/rps-v2
    sisl/multiwalker-v9 sisl/pursuit-v5""".split()
# Libraries that an extra of the same name installs.
_EXTRAS = frozenset("envpool pettingzoo playground jumanji craftax xminigrid jaxmarl".split())
# Prefixes used by other frameworks -> library or kind of environment.
_PREFIXES = {
    "ale": "atari", "atari": "atari", "atari57": "atari", "gym": "gymnasium", "mujoco": "gymnasium",
    "box2d": "gymnasium", "minatar": "minatar", "bsuite": "gymnax", "dmc": "playground", "dmcontrol": "playground",
    "dm": "playground", "minigrid": "xminigrid", "robotics": "gymnasium", "mpe": "jaxmarl", "openai": "gymnasium",
    "openaigym": "gymnasium", "openaigymnasium": "gymnasium", "dmcontrolsuite": "playground",
}  # fmt: skip
# App of ``evorl new`` with a remote simulator -> start of its environments' names in other frameworks.
_APPS = {"vizdoom": "vizdoom", "deepmind-lab": "deepmindlab"}
_VERSION = re.compile(r"[-_]v\d+$", re.IGNORECASE)
_DECORATIONS = re.compile(r"(noframeskip|deterministic|ramdeterministic|bulletenv|mujocoenv|env)$")
_FAMILIES = re.compile(r"[-_](MinAtar|bsuite|misc)$", re.IGNORECASE)
_ATARI_NAMES = re.compile(r"noframeskip|(?<!min)atari|^ALE/|deterministic-v", re.IGNORECASE)
_MIN_SIMILARITY = 0.8
_MAX_SUGGESTIONS = 5  # maximum number of environments that a message lists
# Preference order of libraries for names with and without a version, best first.
_VERSIONED = ("gymnasium", "host", "envpool", "gymnax", "brax", "mjx")
_UNVERSIONED = ("brax", "gymnax", "host", "mjx", "playground", "gymnasium")


class Suggestion(NamedTuple):
    """An environment that a name may refer to.

    Attributes:
        path: value of ``env=``, such as ``gymnasium/Hopper-v5``.
        needs: requirement to install, such as ``"extra atari"``; empty if evorl's own dependencies suffice.
    """

    path: str
    needs: str = ""

    def __str__(self) -> str:
        return f"{self.path!r} ({self.needs})" if self.needs else repr(self.path)


def suggest_envs(
    name: str, short_names: Mapping[str, str] | None = None, others: Iterable[str] = ()
) -> list[Suggestion]:
    """Return up to five environments that a name may refer to, most likely first.

    Names are compared without library, version, case and separators. If no name is equal, the most similar names are
    suggested. If ``name`` begins with the library of some suggestions, only these are returned, as paths.

    Args:
        name: name that the user typed, with or without a library.
        short_names: aliases, ``{"hopper": "brax/hopper"}``, suggested for paths if ``name`` has no matching library.
        others: other valid values of ``env=``, such as names of config files.
    """
    prefix, _, rest = name.rpartition("/")
    keys = {key for key in (_key(rest), _key(name)) if key}
    named, short_names = _catalog(), short_names or {}
    listed = {suggestion.path for of_key in named.values() for suggestion in of_key}
    for other in set(others) - listed - set(short_names):
        named.setdefault(_key(other), []).append(Suggestion(other))
    fitting = [key for key in named if key in keys]
    if not fitting:
        near = [match for key in keys for match in difflib.get_close_matches(key, named, n=1, cutoff=_MIN_SIMILARITY)]
        fitting = sorted(
            near, key=lambda match: -max(difflib.SequenceMatcher(None, match, key).ratio() for key in keys)
        )
    matches = [suggestion for key in fitting for suggestion in named[key]]
    matches = sorted(dict.fromkeys(matches), key=lambda suggestion: _rank(suggestion, name, prefix))
    of_library = [each for each in matches if prefix and each.path.startswith(f"{prefix}/")]
    if of_library:  # the library that the user named has the environment
        return of_library[:_MAX_SUGGESTIONS]
    short = {path: alias for alias, path in short_names.items()}
    return [Suggestion(short.get(each.path, each.path), each.needs) for each in matches[:_MAX_SUGGESTIONS]]


def describe_suggestions(suggestions: Sequence[Suggestion]) -> str:
    """Return `` Did you mean ...?``, and a hint for Atari games; an empty string without suggestions."""
    texts = list(map(str, suggestions))
    if not texts:
        return ""
    game = suggestions[0].path.removeprefix("gymnasium/")
    preprocessed = f" For preprocessed images, use env=atari/pong env.name={game}." if game.startswith("ALE/") else ""
    return f" Did you mean {', '.join(texts[:-1])}{' or ' if texts[1:] else ''}{texts[-1]}?{preprocessed}"


def describe_library(name: str) -> str:
    """Return a text that explains how to select a library's environments; an empty string for an unknown library.

    Args:
        name: evorl's or another framework's name of the library, alone or before a slash, as the user typed it.
    """
    prefix = name.partition("/")[0]
    key = re.sub(r"[^a-z0-9]", "", prefix.lower())
    for app, start in _APPS.items():
        if key.startswith(start) or app in names_for_synonym(prefix, _APPS):
            return (
                f" Simulators of {app} connect over the network: evorl new <folder> env={app} creates an app with such "
                "a simulator. To train, call evorl run in that folder."
            )
    library = _PREFIXES.get(key, prefix.lower())
    examples = [each for of_key in _catalog().values() for each in of_key if each.path.startswith(f"{library}/")]
    if library == "atari":
        return " For other Atari games, use env=atari/pong and set env.name, such as env.name=ALE/Breakout-v5."
    if not examples:
        return ""
    example = min(examples, key=lambda each: "cartpole" not in each.path.lower())
    return f" Choose an environment of {library} with env={library}/<name>, such as {example}."


def known_envs() -> dict[str, str]:
    """Return all listed environments with the requirement to install: ``{"gymnasium/ALE/Pong-v5": "extra atari"}``.

    The requirement is ``""`` if evorl's own dependencies suffice. Remote simulators are not included.
    """
    libraries = {library: names for library, names in available_envs().items() if library != "remote"}
    needs = {library: f"extra {library}" if library in _EXTRAS else "" for library in libraries}
    known = {f"{library}/{name}": needs[library] for library, names in libraries.items() for name in names}
    known |= {f"gymnasium/{name}": extra for extra, names in GYMNASIUM.items() for name in names.split()}
    known |= {f"pettingzoo/{name}": "extra pettingzoo" for name in PETTINGZOO}
    known |= {f"gymnasium/ALE/{game}-v5": "extra atari" for game in ATARI_GAMES}
    known |= {f"gymnasium/dm_control/{task}-v0": "extra dm_control" for task in DM_CONTROL}
    return known | {f"envpool/{game}-v5": "extra envpool" for game in ATARI_GAMES}


def _catalog() -> dict[str, list[Suggestion]]:
    """Return all environments, grouped by the key of their name, see ``_key``."""
    named: dict[str, list[Suggestion]] = {}
    for path, needs in known_envs().items():
        named.setdefault(_key(path.rpartition("/")[2]), []).append(Suggestion(path, needs))
    return named


def _key(name: str) -> str:
    """Return letters (in lower case) and digits of a name, without library, version and framework-specific words."""
    plain = _FAMILIES.sub("", _VERSION.sub("", name.rpartition("/")[2]))
    plain = re.sub(r"[^a-z0-9]", "", plain.lower())
    return _DECORATIONS.sub("", plain).removeprefix("mpe").removeprefix("dm") or plain


def _rank(suggestion: Suggestion, name: str, prefix: str) -> tuple[int, ...]:
    """Return the sort key of a suggestion for ``name``; the most likely suggestion has the smallest key."""
    library, _, env_name = suggestion.path.partition("/")
    intended = _PREFIXES.get(re.sub(r"[^a-z0-9]", "", prefix.partition("/")[0].lower()), prefix)
    if "minatar" in name.lower():
        intended = "minatar"
    elif _ATARI_NAMES.search(name) or intended == "atari":
        intended = "atari"
    is_intended = intended in (library, *(["atari"] if env_name.startswith("ALE/") else ()))
    is_intended = is_intended or (intended == "minatar" and env_name.endswith("-MinAtar"))
    order = _VERSIONED if _VERSION.search(name) else _UNVERSIONED
    position = (
        -1 if not env_name else order.index(library) if library in order else len(order)
    )  # config files come first
    return (
        not is_intended,
        _VERSION.sub("", env_name) != _VERSION.sub("", name.rpartition("/")[2]) and is_intended,
        position,
    )
