"""How does the state move, and when does it stop?"""

from models.dynamics.layer_norm import LayerNorm
from models.dynamics.motion import ControlledDynamics, Descent, Motion
from models.dynamics.solve import Moment, RowKnobs, Solution, StopReason, Watch, relax, solve

__all__ = [
    "ControlledDynamics",
    "Descent",
    "LayerNorm",
    "Moment",
    "Motion",
    "RowKnobs",
    "Solution",
    "StopReason",
    "Watch",
    "relax",
    "solve",
]
