"""Where models run: one thread, a bounded queue before it."""

from service.endpoints.anomaly.infer import Scored, results, score
from service.endpoints.classify.infer import Classified, classify
from service.endpoints.complete.infer import Completed, CompleteTask, complete_picture
from service.endpoints.complete.previews import Frames
from service.endpoints.images.infer import Recognised, recognise
from service.endpoints.sample.infer import Sampled, sample
from service.engine.engine import Engine

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
