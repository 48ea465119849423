"""Where models run: one thread, a bounded queue before it."""

from service.engine.classifying import Classified, classify
from service.engine.completing import Completed, CompleteTask, complete_picture
from service.engine.engine import Engine
from service.engine.frames import Frames
from service.engine.recognising import Recognised, recognise
from service.engine.sampling import Sampled, sample
from service.engine.scoring import Scored, results, score

__all__ = [
    "Classified",
    "CompleteTask",
    "Completed",
    "Engine",
    "Frames",
    "Recognised",
    "Sampled",
    "Scored",
    "classify",
    "complete_picture",
    "recognise",
    "results",
    "sample",
    "score",
]
