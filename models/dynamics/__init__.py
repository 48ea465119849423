"""How does the state move, and when does it stop?"""

from models.dynamics.batch import RelaxationBatch, batch_key, should_compact
from models.dynamics.motion import ControlledDynamics, Descent, Motion
from models.dynamics.relaxation import (
    Relaxation,
    Solution,
    StepCallback,
    StopReason,
    TracePoint,
)
from models.dynamics.row_params import RowParams
from models.dynamics.solve import (
    RUN_ALONE,
    Interrupt,
    StepControl,
    relax_as_trained,
    relax_differentiable,
    run_to_completion,
    solve,
    solve_system,
)
from models.dynamics.system import Evaluation, PreviousStep, StepBackend
from models.nn.layer_norm import EnergyLayerNorm

__all__ = [
    "RUN_ALONE",
    "ControlledDynamics",
    "Descent",
    "EnergyLayerNorm",
    "Evaluation",
    "Interrupt",
    "Motion",
    "PreviousStep",
    "Relaxation",
    "RelaxationBatch",
    "RowParams",
    "Solution",
    "StepBackend",
    "StepCallback",
    "StepControl",
    "StopReason",
    "TracePoint",
    "batch_key",
    "relax_as_trained",
    "relax_differentiable",
    "run_to_completion",
    "should_compact",
    "solve",
    "solve_system",
]
