"""Creates the recorders of evaluation episodes in a run folder."""

from __future__ import annotations

from evorl.assembly import evaluation_env
from evorl.episodes.recorder import EpisodeRecorder
from evorl.recorders.goal_table import GoalTableRecorder
from evorl.recorders.projection_recorder import ProjectionRecorder
from evorl.recorders.video_recorder import VideoRecorder
from evorl.runs.folder import RunFolder
from evorl.runs.recorder import Recorder
from evorl.runs.spec import RunSpec
from evorl.workflows.workflow import Workflow


def episode_recorders(
    folder: RunFolder, workflow: Workflow, spec: RunSpec, of_training: bool = True, suffix: str = ""
) -> list[Recorder]:
    """Create the recorders that write evaluation episodes to a run folder.

    Args:
        folder: the run folder.
        workflow: workflow of the run, with the settings of its evaluations.
        spec: settings of the run.
        of_training: true for evaluations during training, which can also record the goal table and videos.
        suffix: appended to the number of steps in the names of saved episodes and plots.
    """
    keeping, recorders = workflow.keeping, []
    if of_training and spec.render_interval:
        recorders.append(VideoRecorder(folder, spec.render_interval))
    if keeping is None:
        return recorders
    if keeping.goals and of_training:
        recorders.append(GoalTableRecorder(folder.eval_goals))
    if keeping.save_episodes:
        named = {name: spec.env.get(name) for name in ("library", "name")}
        about = {**named, "env": evaluation_env(spec), "seed": spec.seed}
        recorders.append(EpisodeRecorder(folder.episodes, about, keeping.save_episodes, suffix))
    if keeping.plot_episodes:
        projection = (keeping.plot_episodes, keeping.plot_of, keeping.plot_dimensions)
        recorders.append(ProjectionRecorder(folder.plots, workflow.eval_env, *projection, suffix))
    return recorders
