"""Describe a model: what it reads, its knobs, metrics and limits."""

from __future__ import annotations

from typing import Any

from models.inputs.questions import list_example_questions
from service.endpoints.models.examples import make_example
from service.endpoints.models.schemas import (
    ClassifierDetail,
    ClassifyLimits,
    CompleteLimits,
    CompleterDetail,
    ImageLimits,
    LabelTrees,
    ModelSummary,
    PartWeights,
    RecogniserDetail,
    ScorerDetail,
    TaskBody,
    Trees,
)
from service.registry.handles import (
    Classifier,
    ClassifierBase,
    Completer,
    ImageClassifier,
    ImageModel,
    Model,
    Scorer,
    VisualQuestionModel,
)
from service.settings import Settings

ModelDetail = ScorerDetail | ClassifierDetail | CompleterDetail | RecogniserDetail


def describe_model(model: Model[Any], settings: Settings) -> ModelDetail:
    """Return what `GET /models/{name}` tells of a model."""
    manifest = model.manifest
    bounded = ClassifyLimits.model_fields | CompleteLimits.model_fields | ImageLimits.model_fields
    limits = {name: getattr(settings, name) for name in bounded}
    common = {
        **summarize_model(model, settings).model_dump(),
        "config": manifest.config,
        "knobs": manifest.knobs,
        "features": manifest.features,
        "energy": manifest.energy,
        "training": manifest.training,
        "metrics": manifest.metrics,
        "limits": limits,
        "example": make_example(model),
    }
    if isinstance(model, Classifier):
        return ClassifierDetail(
            **common,
            edge_features=list(manifest.edge_features),
            tasks=_tasks(model),
            reads_smiles=model.reads_smiles,
        )
    if isinstance(model, Completer):
        c = model.config
        return CompleterDetail(
            **common,
            size=c.size,
            patch=c.patch,
            channels=c.channels,
            has_uncertainty=model.network.has_uncertainty,
        )
    if isinstance(model, ImageModel):
        channels, height, width = model.config.shape
        return RecogniserDetail(
            **common,
            height=height,
            width=width,
            channels=channels,
            patch=model.config.patch * 2 ** len(model.config.stem),
            tasks=_tasks(model),
            questions=list_example_questions(model.question_kinds)
            if isinstance(model, VisualQuestionModel)
            else None,
        )
    assert isinstance(model, Scorer)
    return ScorerDetail(
        **common,
        edge_features=list(manifest.edge_features),
        relations=list(model.relations),
        undirected=model.network.config.undirected,
        missing_values="refused",
        threshold=manifest.threshold,
        decision=manifest.decision,
        neighborhood=manifest.neighborhood,
        transactions=manifest.transactions,
        networks=model.network.config.members,
        trees=_trees(model),
        label_trees=_label_trees(model),
        calibration=manifest.calibration,
    )


def _trees(model: Scorer) -> Trees | None:
    trees = model.network.features.trees
    if trees is None:
        return None
    of_network, of_trees = model.network.part_weights.tolist()
    return Trees(
        folds=trees.shape.folds,
        count=trees.shape.trees,
        network_weight=of_network,
        trees_weight=of_trees,
    )


def _label_trees(model: Scorer) -> LabelTrees | None:
    network = model.network
    if network.label_trees is None:
        return None
    names = PartWeights.model_fields
    far, near = (
        PartWeights.model_validate(dict(zip(names, weights, strict=True)))
        for weights in network.label_weights.tolist()
    )
    shape = network.label_trees.shape
    return LabelTrees(
        folds=shape.folds,
        count=shape.trees,
        prior=float(network.label_prior),
        without_label_near=far,
        with_label_near=near,
    )


def _tasks(model: ClassifierBase[Any]) -> list[TaskBody]:
    pairs = zip(model.tasks, model.temperatures, strict=True)
    return [
        TaskBody(name=t.name, labels=list(t.labels), temperature=temperature)
        for t, temperature in pairs
    ]


def summarize_model(model: Model[Any], settings: Settings) -> ModelSummary:
    """Return what `GET /models` tells of a model."""
    manifest = model.manifest
    defaults = {
        Scorer.route: settings.default_anomaly_model,
        Classifier.route: settings.default_classify_model,
        Completer.route: settings.default_completion_model,
        ImageClassifier.route: settings.default_picture_model,
        VisualQuestionModel.route: settings.default_answer_model,
    }
    return ModelSummary(
        **model.ref.model_dump(),
        architecture=manifest.architecture,
        task=manifest.task,
        route=model.route,
        device=str(model.network.device),
        runtime=model.runtime,
        default_for=[model.route] if defaults[model.route] == model.name else [],
    )
