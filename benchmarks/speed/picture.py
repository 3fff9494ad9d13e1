"""Picture of the speed relative to peers, as SVG: a bar for each comparison with another library."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.comparison import COMPARISONS, Verdict, readings_by_side

PEERS = {"rejax": "rejax", "brax": "brax", "evosax": "evosax", "sb3": "SB3", "sbx": "SBX"}
LABELS = {
    "ppo_cartpole_1seed": "PPO, CartPole",
    "ppo_cartpole_8seeds": "PPO, CartPole, 8 seeds",
    "ppo_hopper_brax": "PPO, hopper (brax)",
    "sac_hopper": "SAC, hopper (brax)",
    "dqn_cartpole": "DQN, CartPole",
    "sac_pendulum": "SAC, Pendulum",
    "td3_pendulum": "TD3, Pendulum",
    "openes_cartpole": "OpenES, CartPole",
    "openes_pendulum": "OpenES, Pendulum",
    "openes_hopper": "OpenES, hopper (brax)",
    "cmaes_pendulum": "CMA-ES, Pendulum",
    "host_ppo_cartpole_sb3": "PPO, CartPole (Gymnasium)",
    "host_ppo_hopper_sb3": "PPO, Hopper (MuJoCo)",
    "host_sac_hopper_sbx": "SAC, Hopper (MuJoCo)",
}
COLORS = {  # text, faint text, lines, bars of evorl, the peer's speed
    "light": ("#1f2430", "#5b6472", "#d5d9e2", "#3f51b5", "#d9480f"),
    "dark": ("#e6e8ee", "#a9b1bf", "#454b58", "#8c9eff", "#ff9e5e"),
}
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 560, 215, 50, 52, 24  # pixels


def measured_ratios(results: Mapping[str, Any]) -> dict[tuple[str, str], Verdict]:
    """Return the ratio of steps per second, with its range over the rounds, by comparison and peer."""
    ratios = {}
    for name, comparison in COMPARISONS.items():
        readings = readings_by_side(results[name]["readings"]) if name in results else {}
        for bar in comparison.bars:
            peer = bar.text.removeprefix("evorl / ")
            if peer in PEERS and bar.text.startswith("evorl / ") and bar.is_measured(readings):
                ratios[name, peer] = bar.judge(readings)
    return ratios


def speed_picture(results: Mapping[str, Any], scheme: str) -> str:
    """Return the SVG for the color scheme ``"light"`` or ``"dark"``.

    Raises:
        KeyError: a comparison with a peer has no entry in ``LABELS``.
    """
    text, faint, line, bar, peer_line = COLORS[scheme]
    ratios = measured_ratios(results)
    end = max([2.0, *(ratio.value for ratio in ratios.values())])
    scale = (_WIDTH - _LEFT - _RIGHT) / end
    bottom = _TOP + _ROW * len(ratios)
    parts = [
        f'<text y="16" font-size="15" fill="{text}">Steps per second, relative to other libraries</text>',
        f'<text y="36" fill="{faint}">same task and sizes, on 2 CPU cores; medians over rounds in turn</text>',
    ]
    for tick in range(int(end) + 1):
        x = _LEFT + tick * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}" stroke="{line}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="{faint}">{tick}x</text>')
    for number, ((name, peer), ratio) in enumerate(ratios.items()):
        y, length = _TOP + _ROW * number, ratio.value * scale
        label = html.escape(f"{LABELS[name]}: {PEERS[peer]}")
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 16}" text-anchor="end" fill="{text}">{label}</text>')
        parts.append(f'<rect x="{_LEFT}" y="{y + 4}" width="{length:.1f}" height="{_ROW - 8}" rx="2" fill="{bar}"/>')
        parts.append(
            f'<text x="{_LEFT + length + 6:.1f}" y="{y + 16}" font-weight="600" fill="{text}">{ratio.value:.3g}x</text>'
        )
    x = _LEFT + scale
    parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}" stroke="{peer_line}" stroke-width="2"/>')
    parts.append(
        f'<text x="{x:.1f}" y="{bottom + 32}" text-anchor="middle" fill="{peer_line}">the other library</text>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 40}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12.5">'
        "<title>Speed of evorl relative to other libraries</title>"
    )
    return "\n".join([head, *parts, "</svg>\n"])


def write_speed_pictures(results: Mapping[str, Any], folder: Path) -> None:
    """Write ``speed-light.svg`` and ``speed-dark.svg`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in COLORS:
        (folder / f"speed-{scheme}.svg").write_text(speed_picture(results, scheme), encoding="utf-8")
