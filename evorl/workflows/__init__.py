"""Base classes of workflows (training procedures): on-policy, off-policy, evolutionary and quality-diversity."""

from typing import TYPE_CHECKING

from evorl.exports import lazy_exports

if TYPE_CHECKING:
    from evorl.workflows.evolution import EvolutionWorkflow as EvolutionWorkflow
    from evorl.workflows.evolution_guided import EvolutionGuidedWorkflow as EvolutionGuidedWorkflow
    from evorl.workflows.generational import GenerationalWorkflow as GenerationalWorkflow
    from evorl.workflows.off_policy import OffPolicyWorkflow as OffPolicyWorkflow
    from evorl.workflows.on_policy import ActorCriticWorkflow as ActorCriticWorkflow
    from evorl.workflows.on_policy import OnPolicyWorkflow as OnPolicyWorkflow
    from evorl.workflows.quality_diversity import QualityDiversityWorkflow as QualityDiversityWorkflow
    from evorl.workflows.workflow import Workflow as Workflow
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        evolution="EvolutionWorkflow",
        evolution_guided="EvolutionGuidedWorkflow",
        generational="GenerationalWorkflow",
        off_policy="OffPolicyWorkflow",
        on_policy="ActorCriticWorkflow OnPolicyWorkflow",
        quality_diversity="QualityDiversityWorkflow",
        workflow="Workflow",
    )
