"""What does the state mean?"""

from models.heads.anomaly import AnomalyHead
from models.heads.classes import ClassHead

__all__ = ["AnomalyHead", "ClassHead"]
