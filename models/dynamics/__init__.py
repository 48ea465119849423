"""How does the state move, and when does it stop?"""

from models.dynamics.batch import Company, company_of, sparse
from models.dynamics.motion import ControlledDynamics, Descent, Motion
from models.dynamics.relaxation import (
    Moment,
    Relaxation,
    RowKnobs,
    Solution,
    StopReason,
    Watch,
)
from models.dynamics.solve import Driver, Interrupt, drive, driven_by, relax, rest, solve
from models.dynamics.system import Came, Seen, System
from models.nn.layer_norm import LayerNorm

__all__ = [
    "Came",
    "Company",
    "ControlledDynamics",
    "Descent",
    "Driver",
    "Interrupt",
    "LayerNorm",
    "Moment",
    "Motion",
    "Relaxation",
    "RowKnobs",
    "Seen",
    "Solution",
    "StopReason",
    "System",
    "Watch",
    "company_of",
    "drive",
    "driven_by",
    "relax",
    "rest",
    "solve",
    "sparse",
]
