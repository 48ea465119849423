# Written by `python -m tests.client.method_stubs` from the functions that `methods.py` names.

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from basin_client.images import ImageInput
from basin_client.request import AlertOptions, AlertRule, Dynamics, Include, Request
from basin_client.results import (
    ClassificationResult,
    CompletionResult,
    ImageResult,
    SampleResult,
    Scores,
)

T = TypeVar("T")

class Methods(ABC):
    @abstractmethod
    def send(self, request: Request[T]) -> T: ...
    def score(
        self,
        graph: Any,
        targets: Sequence[Any] | None = None,
        *,
        features: Sequence[str] | None = None,
        drop: str | Sequence[str] = (),
        label: str | None = None,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        decision: AlertRule | None = None,
        timeout_s: float | None = None,
    ) -> Scores:
        """Score how suspicious each node of a graph is.

        Columns of tables and attributes of NetworkX graphs are matched with the features of the
        model by name, types of edges with its relations; arrays are taken in the model's order.

        Args:
            graph: a tuple of nodes and edges, each a pandas frame or the path of a table; a
                NetworkX graph; a `torch_geometric.data.Data`; or a `Graph` of arrays. See
                `graphs.to_graph`.
            targets: ids of the nodes to return (rows if the graph has no ids); all nodes if None.
            features: columns or attributes to take as features; all others if None.
            drop: columns or attributes to leave out; `*` is all that the model does not read.
            label: column of the table of nodes with labels that are known, 1 for fraud, blank if
                not known, for a model that reads labels of neighbours; a `Graph` has `labels`.
            model: name of the model; the default of the route if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add: `trace`, `components`, `resonance` to `convergence`; `attention`,
                `memories`, `components` to `tensors`; `explanation` of each target to `raw`.
            decision: which targets get label 1, as {"budget": 50}; those from the model's threshold
                on if None. Keys as in `AlertRule`.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            Scores of the T targets in their order, with arrays (T,).

        Raises:
            TypeError: `graph` has an unsupported type.
            InputError: the graph does not fit the model, or there is no such target.
            MissingLibraryError: pandas or pyarrow is not installed; tables and NetworkX need them.
            ProblemError: the server refused the request when it was sent.
        """
    def score_transactions(
        self,
        transactions: Any,
        targets: Sequence[Any] | None = None,
        *,
        id: str | None = None,
        drop: str | Sequence[str] = (),
        decimal: str = ".",
        unlabelled: str | None = None,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        decision: AlertRule | None = None,
        timeout_s: float | None = None,
    ) -> Scores:
        """Score transactions, or accounts where the model scores these.

        A transaction is scored by its own row and the rows before it, an account by the rows up to
        its last one.

        Args:
            transactions: path of a table, or a pandas frame, with the columns that the model was
                trained on; earlier rows of the same accounts must come along, of the last two
                longest windows of the model.
            targets: ids of the transactions to return, or their row numbers from 0 where `id` is
                None, or ids of accounts; all if None.
            id: column of the id of a transaction; without ids if None.
            drop: columns to leave out; `*` is all that the model does not read.
            decimal: the decimal point of numbers in text.
            unlabelled: value of the label that means unknown, as a blank does, where the model
                reads labels; only a blank if None.
            model: name of the model; the default of the route if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
                `attention`, `memories` and `explanation` of each target.
            decision: which targets get label 1, as {"budget": 50}; those from the model's threshold
                on if None. Keys as in `AlertRule`.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            Scores of the T targets in their order, with arrays (T,).

        Raises:
            InputError: the table does not fit the model.
            MissingLibraryError: pandas or pyarrow is not installed.
            ProblemError: the server refused the request when it was sent.
        """
    def classify(
        self,
        inputs: Any,
        *,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        timeout_s: float | None = None,
    ) -> ClassificationResult:
        """Classify molecules or graphs.

        Args:
            inputs: SMILES or RDKit molecules, or graphs (`Graph` or `torch_geometric.data.Data`);
                one or an iterable, such as a list, a Series or a generator. None and NaN among
                SMILES become errors of these items.
            model: name of the model; the default of the route if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
                `attention`, `memories` and `explanation` of each input, with a drawing of a
                molecule.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            One `Prediction` or, of a molecule that cannot be read, `ItemError` per input, in order.

        Raises:
            TypeError: an input has an unsupported type.
            InputError: the arrays of a graph do not fit together.
            ProblemError: the server refused the request when it was sent, as for a malformed graph.
        """
    def complete(
        self,
        image: ImageInput,
        mask: ImageInput | None = None,
        *,
        mask_mode: Literal["white_fill", "black_fill", "alpha", "soft"] | None = None,
        region: Literal["image", "hole"] | None = None,
        num_samples: int = 1,
        model: str | None = None,
        memory: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        timeout_s: float | None = None,
    ) -> CompletionResult:
        """Fill the part of an image that a mask marks. Needs Pillow.

        Args:
            image: a path, the bytes of a file, an open file, a `PIL.Image`, or an array (H, W) or
                (H, W, 3), of integers from 0 to 255 or floats from 0 to 1. See
                `images.encode_image`.
            mask: an image of the same size; None only with `mask_mode="alpha"`.
            mask_mode: which pixels to fill: `white_fill` the white ones of the mask, `black_fill`
                the black ones, `alpha` the transparent ones, of the image if there is no mask;
                `soft` all that are lighter than black (4 of 255 or more), blended by how white they
                are. `white_fill` if None.
            region: what to return: `image`, or of it the `hole`, the smallest rectangle with all
                that was filled, whose place is `CompletionResult.box`. `image` if None.
            num_samples: how many completions, from 1 to 16, which differ by the seed of their
                noise.
            model: name of the model; the default of the route if None.
            memory: in place of `model`, the id of a memory of images of the size of this one, to
                fill from those whose known pixels are nearest; a larger `beta` attends to fewer.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add: `uncertainty` to the result, of a model that `has_uncertainty`;
                `trace`, `components` and `resonance` to `convergence`; `attention` and `memories`
                to `raw`: of a memory, which of its images came back with what weight.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            The completed images as `PIL.Image`s, with the known pixels as they were.

        Raises:
            InputError: an image has an unsupported type, shape or range, or there is no such file.
            MissingLibraryError: Pillow is not installed.
            ProblemError: the server refused the request when it was sent, as for a mask of another
                size.
        """
    def classify_images(
        self,
        images: ImageInput | Sequence[ImageInput],
        *,
        fit: Literal["stretch", "crop"] | None = None,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        timeout_s: float | None = None,
    ) -> list[ImageResult]:
        """Tell which of the model's classes each image shows.

        Args:
            images: one image or an iterable of them, each as in `complete`.
            fit: how an image is resized to the model's size: `stretch` uses all of it, `crop` its
                center with the aspect ratio of the model. `stretch` if None.
            model: name of the model; the default of the route if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
                `attention`, `memories` of each image.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            One result per image, in order: the most probable label, and a probability per label.

        Raises:
            InputError: an image has an unsupported type, shape or range, or there is no such file.
            MissingLibraryError: an image is an array, and Pillow is not installed.
            ProblemError: the server refused the request when it was sent, as for too many images.
        """
    def answer_images(
        self,
        images: ImageInput | Sequence[ImageInput],
        question: str | Mapping[str, str] | Sequence[str | Mapping[str, str]],
        *,
        fit: Literal["stretch", "crop"] | None = None,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        timeout_s: float | None = None,
    ) -> list[ImageResult]:
        """Answer questions about images.

        Args:
            images: one image or an iterable of them, each as in `complete`.
            question: one about all images, as many as there are images, or several about one image.
                Each is a sentence of those that `model` lists, or its parts, as {"asked": "shape of
                the closest", "colour": "red"}.
            fit: how an image is resized to the model's size: `stretch` uses all of it, `crop` its
                center with the aspect ratio of the model. `stretch` if None.
            model: name of the model; the default of the route if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
                `attention`, `memories` of each image.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            One result per image or question, in order; `label` is the answer.

        Raises:
            InputError: an image has an unsupported type, shape or range, or there is no such file.
            MissingLibraryError: an image is an array, and Pillow is not installed.
            ProblemError: the server refused the request when it was sent, as for a question that
                the model does not understand.
        """
    def sample(
        self,
        memory: str | np.ndarray | Sequence[str],
        *,
        kind: Literal["vectors", "images", "returns"] | None = None,
        timeout_s: float | None = None,
        **params: Any,
    ) -> SampleResult:
        """Draw samples of a memory by Langevin dynamics.

        Args:
            memory: id of a stored memory; an array of patterns: (N, D), or images (N, H, W) or (N,
                H, W, 3) of values from 0 to 1; or aligned sequences.
            kind: what the patterns of an array are; `vectors` if None.
            timeout_s: seconds in which the server must respond; its own limit if None.
            params: fields of `POST /sample`, with these defaults: num_samples=30, chains=30,
                steps=5000, burn_in (two fifths of the steps), thin (a thirtieth of those after it),
                beta="auto" (or a number, or a list), step_size=0.01, method="ula" (or "mala"),
                heads=1, seed=0, init="patterns", clamp=None.

        Returns:
            The samples in the units of the memory, and diagnostics of the chains; a list of each if
            `beta` is a list.

        Raises:
            ProblemError: the server refused the request when it was sent, as for an unknown memory.
        """
    def store_memory(
        self,
        name: str,
        patterns: np.ndarray | Sequence[str],
        *,
        kind: Literal["vectors", "images", "returns"] | None = None,
        licence: str = "",
        note: str = "",
    ) -> dict[str, Any]:
        """Store patterns or aligned sequences under an id. Replaces a memory of this id.

        Args:
            name: the id, of 1 to 64 lower-case letters, digits, underscores, hyphens and dots.
            patterns: an array as in `sample`, or N sequences of equal length, with `-` for gaps.
            kind: what the patterns of an array are; `vectors` if None.
            licence: under what terms the patterns may be used, at most 200 characters.
            note: what they are and where they come from, at most 2000 characters.

        Returns:
            The description of the memory: `id`, `kind`, `patterns` (how many), `shape`, `dim`,
            `sha256`, `licence`, `note`.

        Raises:
            InputError: the id is not allowed.
            ProblemError: the server refused the request when it was sent.
        """
    def forget_memory(self, name: str) -> None:
        """Delete a stored memory.

        Args:
            name: its id.

        Raises:
            InputError: the id is not one that a memory can have.
            ProblemError: the server refused the request when it was sent, as for an unknown memory.
        """
    def memories(self) -> list[dict[str, Any]]:
        """List the stored memories.

        Returns:
            A dict per memory, as `store_memory` returns it.

        Raises:
            ProblemError: the server refused the request when it was sent.
        """
    def store_graph(
        self,
        id: str,
        graph: Any,
        *,
        features: Sequence[str] | None = None,
        drop: str | Sequence[str] = (),
        label: str | None = None,
        model: str | None = None,
        alerts: AlertOptions | None = None,
    ) -> dict[str, Any]:
        """Store a graph under an id. Replaces a graph of this id.

        Args:
            id: of 1 to 64 lower-case letters, digits, underscores, hyphens and dots.
            graph: as in `score`.
            features: columns or attributes to take as features; all others if None.
            drop: columns or attributes to leave out; `*` is all that the model does not read.
            label: column of the table of nodes with labels that are known, 1 for fraud, blank if
                not known, for a model that reads labels of neighbours; a `Graph` has `labels`. With
                one of these, even if none is known, `add_labels` and `change_graph` may add more.
            model: the model that names the features of nodes and edges, and the relations; the
                default for graphs if None.
            alerts: if given, even as {}, the model scores all nodes, and after each change those
                that it may have touched; `alerts` and `watch_alerts` list those that reach the
                threshold. None raises no alerts. Keys as in `AlertOptions`.

        Returns:
            The description of the graph: `id`, `features`, `edge_features`, `relations`,
            `labels` (whether nodes may have some), `num_nodes`, `num_edges`, `revision`, which each
            change increments, its `digest`, and `model` if it raises alerts.

        Raises:
            TypeError: `graph` has an unsupported type.
            InputError: the graph does not fit the model, or the id is not allowed.
            MissingLibraryError: pandas or pyarrow is not installed; tables and NetworkX need them.
            ProblemError: the server refused the request when it was sent.
        """
    def change_graph(
        self,
        id: str,
        *,
        nodes: Any = (),
        edges: Any = (),
        delete_nodes: Iterable[Any] = (),
        delete_edges: Any = (),
        labels: Mapping[Any, int | None] | None = None,
    ) -> dict[str, Any]:
        """Change a stored graph atomically. Sending it twice has the effect of once.

        In all, up to 10,000 nodes, edges and labels. Edges are deleted first, then nodes; then
        nodes and edges are added, and labels set.

        Args:
            id: of the graph.
            nodes: to add or replace: a frame with `id` and the features, or a mapping of these per
                node.
            edges: to add: a frame with `source`, `target`, optionally `type`, and the features that
                edges of the graph have, or a mapping of these per edge; without features also a
                tuple. An edge that is there takes the features that come with it.
            delete_nodes: ids of nodes to delete, with their edges.
            delete_edges: as `edges`, of which features are not sent.
            labels: 1 for fraud, 0 for none, None for not known any more, by the id of the node, of
                a graph that was stored with labels.

        Returns:
            The description of the graph, as of `store_graph`.

        Raises:
            TypeError: `delete_nodes` is a single string.
            InputError: a value in a frame is missing or no number, or an id is not allowed.
            ProblemError: the server refused the request when it was sent, as for an edge to an
                unknown node; then nothing is changed.
        """
    def forget_graph(self, id: str) -> None:
        """Delete a stored graph, with its alerts.

        Args:
            id: of the graph.

        Raises:
            InputError: the id is not one that a graph can have.
            ProblemError: the server refused the request when it was sent, as for an unknown graph.
        """
    def score_nodes(
        self,
        id: str,
        targets: Sequence[Any],
        *,
        hops: int | None = None,
        max_neighbors: int | None = None,
        seed: int | None = None,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        decision: AlertRule | None = None,
        timeout_s: float | None = None,
    ) -> Scores:
        """Score nodes of a stored graph from their neighbourhood.

        Args:
            id: of the graph.
            targets: ids of the nodes.
            hops: edges between a target and the farthest nodes that count, 0 to 8; those of the
                model if None.
            max_neighbors: how many neighbours of each node count; those of the model if None.
            seed: of the choice among more neighbours than that; 0 if None.
            model: name of the model; the default for graphs if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add: `trace`, `components`, `resonance` to `convergence`; `attention`,
                `memories`, `components` to `tensors`; `explanation` of each target to `raw`.
            decision: which targets get label 1, as {"budget": 50}; those from the model's threshold
                on if None. Keys as in `AlertRule`.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            Scores of the T targets in their order, with arrays (T,).

        Raises:
            InputError: an id is missing or not allowed.
            ProblemError: the server refused the request when it was sent, as for an unknown graph
                or node.
        """
    def store_transaction_graph(
        self,
        id: str,
        *,
        model: str,
        threshold: float | None = None,
        daily_budget: float | None = None,
        keep: float | None = None,
        webhook: str | None = None,
    ) -> dict[str, Any]:
        """Store a graph of transactions under an id, empty at first. Replaces a graph of this id.

        Args:
            id: of 1 to 64 lower-case letters, digits, underscores, hyphens and dots.
            model: that reads transactions, and scores those that `add_transactions` adds, or their
                accounts.
            threshold: probability from which on a transaction or account raises an alert; that of
                the model if None.
            daily_budget: use instead of `threshold`: about this many alerts a day, estimated on the
                model's validation part.
            keep: transactions that are older than the newest one by more are forgotten, in seconds
                or the unit of their time; four longest windows of the model if None.
            webhook: URL to which each alert is sent, on an origin that the server allows; none if
                None.

        Returns:
            The description of the graph, as of `store_graph`.

        Raises:
            InputError: the id is not allowed.
            ProblemError: the server refused the request when it was sent, as for a model that reads
                no transactions.
        """
    def add_transactions(
        self,
        graph: str,
        transactions: Any,
        *,
        id: str = "id",
        drop: str | Sequence[str] = (),
        decimal: str = ".",
        unlabelled: str | None = None,
        include: Sequence[Include] = (),
        timeout_s: float | None = None,
    ) -> Scores:
        """Store transactions in a graph, and score them. Sending them twice has the effect of once.

        Those whose probability reaches the threshold of the graph raise alerts. Where the model
        scores accounts, who pays and who is paid are scored, as of each transaction, and raise
        alerts when they reach the threshold.

        Args:
            graph: id of a graph of `store_transaction_graph`.
            transactions: path of a table, or a pandas frame; of up to 3,906 rows as the server is
                set, 1,953 where the model scores accounts of both sides.
            id: column of the id of a transaction; every row needs one.
            drop: columns to leave out; `*` is all that the model does not read.
            decimal: the decimal point of numbers in text.
            unlabelled: value of the label that means unknown, as a blank does, where the model
                reads labels; only a blank if None.
            include: as in `score_transactions`.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            Scores of the T transactions in their order, with arrays (T,); `raw["added"]` is how
            many are new. Of accounts `node_ids` are the accounts, one or two of each transaction,
            and `transaction_ids` the transactions.

        Raises:
            InputError: the table does not fit the model.
            MissingLibraryError: pandas or pyarrow is not installed.
            ProblemError: the server refused the request when it was sent, as for an unknown graph.
        """
    def store_transactions(
        self,
        graph: str,
        transactions: Any,
        *,
        id: str = "id",
        drop: str | Sequence[str] = (),
        decimal: str = ".",
        unlabelled: str | None = None,
    ) -> dict[str, Any]:
        """Store transactions in a graph without scoring them, as the past of those to come.

        Sending them twice has the effect of once.

        Args:
            graph: id of a graph of `store_transaction_graph`.
            transactions: path of a table, or a pandas frame; of up to 10,000 rows.
            id: column of the id of a transaction; every row needs one.
            drop: columns to leave out; `*` is all that the model does not read.
            decimal: the decimal point of numbers in text.
            unlabelled: value of the label that means unknown, as a blank does, where the model
                reads labels; only a blank if None.

        Returns:
            `id` of the graph, `added` (how many are new), `num_nodes`, `revision` and `digest`.

        Raises:
            InputError: the table does not fit the model.
            MissingLibraryError: pandas or pyarrow is not installed.
            ProblemError: the server refused the request when it was sent, as for an unknown graph.
        """
    def add_labels(self, graph: str, labels: Mapping[Any, int]) -> dict[str, Any]:
        """Store labels of stored transactions or nodes.

        Those of transactions count for transactions that are stored later, those of nodes for the
        scores of their neighbours from now on.

        Args:
            graph: id of a graph of `store_transaction_graph`, whose model reads labels, or of
                `store_graph` with labels.
            labels: 1 for fraud, 0 for none, by the id, as text, of the transaction or node; up to
                10,000. Nodes whose ids are integers are labelled by `change_graph`.

        Returns:
            `id` of the graph, `changed` (how many had no label, or another one), `revision` and
            `digest`.

        Raises:
            InputError: a label is something else.
            ProblemError: the server refused the request when it was sent, as for an unknown id,
                or a graph without labels.
        """
    def alerts(
        self, graph: str, *, after: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """List alerts of a graph, the oldest first.

        Args:
            graph: id of a graph of transactions, or of one that was stored with `alerts`.
            after: `event_id` of an alert, to list those that follow it; from the first that the
                server still has if None.
            limit: how many at most, 1 to 1000; 100 if None.

        Returns:
            A dict per alert: `node_id`, `score`, `probability`, `threshold`, `model`, `scored_at`,
            `event_id`, and `transaction` or, of a node, `revision` and `digest`.

        Raises:
            InputError: the id is not one that a graph can have.
            ProblemError: the server refused the request when it was sent, as for a graph without
                alerts.
        """
    def graphs(self) -> list[dict[str, Any]]:
        """List the stored graphs.

        Returns:
            A dict per graph, as `store_graph` returns it.

        Raises:
            ProblemError: the server refused the request when it was sent.
        """
    def graph(self, id: str) -> dict[str, Any]:
        """Describe a stored graph.

        Args:
            id: of the graph.

        Returns:
            What `store_graph` returns, and its settings: `alerts` and `scored_revision`, or of a
            graph of transactions `transactions`, `threshold`, `keep` and `webhook`, where they are
            set.

        Raises:
            InputError: the id is not one that a graph can have.
            ProblemError: the server refused the request when it was sent, as for an unknown graph.
        """
    def models(self) -> list[dict[str, Any]]:
        """List the served models.

        Returns:
            A dict per model: `name`, `version`, `sha256`, `architecture`, `task`, `route`,
            `device`, `runtime`, and `default_for`, the routes that take it where a request names no
            model.

        Raises:
            ProblemError: the server refused the request when it was sent.
        """
    def model(self, name: str) -> dict[str, Any]:
        """Describe a model.

        Args:
            name: one of those that `models` lists.

        Returns:
            What `models` lists of it, and `features`, `knobs` (its dynamics in training),
            `metrics`, `limits`, `example` (a request that it answers), and what models of its task
            have besides, such as `edge_features`, `relations` and `threshold`, or `tasks`.

        Raises:
            InputError: the name is not one that a model can have.
            ProblemError: the server refused the request when it was sent, as for an unknown model.
        """
    def ready(self) -> bool:
        """Check that the server has loaded its models.

        Returns:
            True.

        Raises:
            ProblemError: it has not (503), also after the retries.
            UnreachableError: it did not respond.
        """

class AsyncMethods(ABC):
    @abstractmethod
    async def send(self, request: Request[T]) -> T: ...
    async def score(
        self,
        graph: Any,
        targets: Sequence[Any] | None = None,
        *,
        features: Sequence[str] | None = None,
        drop: str | Sequence[str] = (),
        label: str | None = None,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        decision: AlertRule | None = None,
        timeout_s: float | None = None,
    ) -> Scores:
        """Score how suspicious each node of a graph is.

        Columns of tables and attributes of NetworkX graphs are matched with the features of the
        model by name, types of edges with its relations; arrays are taken in the model's order.

        Args:
            graph: a tuple of nodes and edges, each a pandas frame or the path of a table; a
                NetworkX graph; a `torch_geometric.data.Data`; or a `Graph` of arrays. See
                `graphs.to_graph`.
            targets: ids of the nodes to return (rows if the graph has no ids); all nodes if None.
            features: columns or attributes to take as features; all others if None.
            drop: columns or attributes to leave out; `*` is all that the model does not read.
            label: column of the table of nodes with labels that are known, 1 for fraud, blank if
                not known, for a model that reads labels of neighbours; a `Graph` has `labels`.
            model: name of the model; the default of the route if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add: `trace`, `components`, `resonance` to `convergence`; `attention`,
                `memories`, `components` to `tensors`; `explanation` of each target to `raw`.
            decision: which targets get label 1, as {"budget": 50}; those from the model's threshold
                on if None. Keys as in `AlertRule`.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            Scores of the T targets in their order, with arrays (T,).

        Raises:
            TypeError: `graph` has an unsupported type.
            InputError: the graph does not fit the model, or there is no such target.
            MissingLibraryError: pandas or pyarrow is not installed; tables and NetworkX need them.
            ProblemError: the server refused the request when it was sent.
        """
    async def score_transactions(
        self,
        transactions: Any,
        targets: Sequence[Any] | None = None,
        *,
        id: str | None = None,
        drop: str | Sequence[str] = (),
        decimal: str = ".",
        unlabelled: str | None = None,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        decision: AlertRule | None = None,
        timeout_s: float | None = None,
    ) -> Scores:
        """Score transactions, or accounts where the model scores these.

        A transaction is scored by its own row and the rows before it, an account by the rows up to
        its last one.

        Args:
            transactions: path of a table, or a pandas frame, with the columns that the model was
                trained on; earlier rows of the same accounts must come along, of the last two
                longest windows of the model.
            targets: ids of the transactions to return, or their row numbers from 0 where `id` is
                None, or ids of accounts; all if None.
            id: column of the id of a transaction; without ids if None.
            drop: columns to leave out; `*` is all that the model does not read.
            decimal: the decimal point of numbers in text.
            unlabelled: value of the label that means unknown, as a blank does, where the model
                reads labels; only a blank if None.
            model: name of the model; the default of the route if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
                `attention`, `memories` and `explanation` of each target.
            decision: which targets get label 1, as {"budget": 50}; those from the model's threshold
                on if None. Keys as in `AlertRule`.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            Scores of the T targets in their order, with arrays (T,).

        Raises:
            InputError: the table does not fit the model.
            MissingLibraryError: pandas or pyarrow is not installed.
            ProblemError: the server refused the request when it was sent.
        """
    async def classify(
        self,
        inputs: Any,
        *,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        timeout_s: float | None = None,
    ) -> ClassificationResult:
        """Classify molecules or graphs.

        Args:
            inputs: SMILES or RDKit molecules, or graphs (`Graph` or `torch_geometric.data.Data`);
                one or an iterable, such as a list, a Series or a generator. None and NaN among
                SMILES become errors of these items.
            model: name of the model; the default of the route if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
                `attention`, `memories` and `explanation` of each input, with a drawing of a
                molecule.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            One `Prediction` or, of a molecule that cannot be read, `ItemError` per input, in order.

        Raises:
            TypeError: an input has an unsupported type.
            InputError: the arrays of a graph do not fit together.
            ProblemError: the server refused the request when it was sent, as for a malformed graph.
        """
    async def complete(
        self,
        image: ImageInput,
        mask: ImageInput | None = None,
        *,
        mask_mode: Literal["white_fill", "black_fill", "alpha", "soft"] | None = None,
        region: Literal["image", "hole"] | None = None,
        num_samples: int = 1,
        model: str | None = None,
        memory: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        timeout_s: float | None = None,
    ) -> CompletionResult:
        """Fill the part of an image that a mask marks. Needs Pillow.

        Args:
            image: a path, the bytes of a file, an open file, a `PIL.Image`, or an array (H, W) or
                (H, W, 3), of integers from 0 to 255 or floats from 0 to 1. See
                `images.encode_image`.
            mask: an image of the same size; None only with `mask_mode="alpha"`.
            mask_mode: which pixels to fill: `white_fill` the white ones of the mask, `black_fill`
                the black ones, `alpha` the transparent ones, of the image if there is no mask;
                `soft` all that are lighter than black (4 of 255 or more), blended by how white they
                are. `white_fill` if None.
            region: what to return: `image`, or of it the `hole`, the smallest rectangle with all
                that was filled, whose place is `CompletionResult.box`. `image` if None.
            num_samples: how many completions, from 1 to 16, which differ by the seed of their
                noise.
            model: name of the model; the default of the route if None.
            memory: in place of `model`, the id of a memory of images of the size of this one, to
                fill from those whose known pixels are nearest; a larger `beta` attends to fewer.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add: `uncertainty` to the result, of a model that `has_uncertainty`;
                `trace`, `components` and `resonance` to `convergence`; `attention` and `memories`
                to `raw`: of a memory, which of its images came back with what weight.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            The completed images as `PIL.Image`s, with the known pixels as they were.

        Raises:
            InputError: an image has an unsupported type, shape or range, or there is no such file.
            MissingLibraryError: Pillow is not installed.
            ProblemError: the server refused the request when it was sent, as for a mask of another
                size.
        """
    async def classify_images(
        self,
        images: ImageInput | Sequence[ImageInput],
        *,
        fit: Literal["stretch", "crop"] | None = None,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        timeout_s: float | None = None,
    ) -> list[ImageResult]:
        """Tell which of the model's classes each image shows.

        Args:
            images: one image or an iterable of them, each as in `complete`.
            fit: how an image is resized to the model's size: `stretch` uses all of it, `crop` its
                center with the aspect ratio of the model. `stretch` if None.
            model: name of the model; the default of the route if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
                `attention`, `memories` of each image.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            One result per image, in order: the most probable label, and a probability per label.

        Raises:
            InputError: an image has an unsupported type, shape or range, or there is no such file.
            MissingLibraryError: an image is an array, and Pillow is not installed.
            ProblemError: the server refused the request when it was sent, as for too many images.
        """
    async def answer_images(
        self,
        images: ImageInput | Sequence[ImageInput],
        question: str | Mapping[str, str] | Sequence[str | Mapping[str, str]],
        *,
        fit: Literal["stretch", "crop"] | None = None,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        timeout_s: float | None = None,
    ) -> list[ImageResult]:
        """Answer questions about images.

        Args:
            images: one image or an iterable of them, each as in `complete`.
            question: one about all images, as many as there are images, or several about one image.
                Each is a sentence of those that `model` lists, or its parts, as {"asked": "shape of
                the closest", "colour": "red"}.
            fit: how an image is resized to the model's size: `stretch` uses all of it, `crop` its
                center with the aspect ratio of the model. `stretch` if None.
            model: name of the model; the default of the route if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
                `attention`, `memories` of each image.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            One result per image or question, in order; `label` is the answer.

        Raises:
            InputError: an image has an unsupported type, shape or range, or there is no such file.
            MissingLibraryError: an image is an array, and Pillow is not installed.
            ProblemError: the server refused the request when it was sent, as for a question that
                the model does not understand.
        """
    async def sample(
        self,
        memory: str | np.ndarray | Sequence[str],
        *,
        kind: Literal["vectors", "images", "returns"] | None = None,
        timeout_s: float | None = None,
        **params: Any,
    ) -> SampleResult:
        """Draw samples of a memory by Langevin dynamics.

        Args:
            memory: id of a stored memory; an array of patterns: (N, D), or images (N, H, W) or (N,
                H, W, 3) of values from 0 to 1; or aligned sequences.
            kind: what the patterns of an array are; `vectors` if None.
            timeout_s: seconds in which the server must respond; its own limit if None.
            params: fields of `POST /sample`, with these defaults: num_samples=30, chains=30,
                steps=5000, burn_in (two fifths of the steps), thin (a thirtieth of those after it),
                beta="auto" (or a number, or a list), step_size=0.01, method="ula" (or "mala"),
                heads=1, seed=0, init="patterns", clamp=None.

        Returns:
            The samples in the units of the memory, and diagnostics of the chains; a list of each if
            `beta` is a list.

        Raises:
            ProblemError: the server refused the request when it was sent, as for an unknown memory.
        """
    async def store_memory(
        self,
        name: str,
        patterns: np.ndarray | Sequence[str],
        *,
        kind: Literal["vectors", "images", "returns"] | None = None,
        licence: str = "",
        note: str = "",
    ) -> dict[str, Any]:
        """Store patterns or aligned sequences under an id. Replaces a memory of this id.

        Args:
            name: the id, of 1 to 64 lower-case letters, digits, underscores, hyphens and dots.
            patterns: an array as in `sample`, or N sequences of equal length, with `-` for gaps.
            kind: what the patterns of an array are; `vectors` if None.
            licence: under what terms the patterns may be used, at most 200 characters.
            note: what they are and where they come from, at most 2000 characters.

        Returns:
            The description of the memory: `id`, `kind`, `patterns` (how many), `shape`, `dim`,
            `sha256`, `licence`, `note`.

        Raises:
            InputError: the id is not allowed.
            ProblemError: the server refused the request when it was sent.
        """
    async def forget_memory(self, name: str) -> None:
        """Delete a stored memory.

        Args:
            name: its id.

        Raises:
            InputError: the id is not one that a memory can have.
            ProblemError: the server refused the request when it was sent, as for an unknown memory.
        """
    async def memories(self) -> list[dict[str, Any]]:
        """List the stored memories.

        Returns:
            A dict per memory, as `store_memory` returns it.

        Raises:
            ProblemError: the server refused the request when it was sent.
        """
    async def store_graph(
        self,
        id: str,
        graph: Any,
        *,
        features: Sequence[str] | None = None,
        drop: str | Sequence[str] = (),
        label: str | None = None,
        model: str | None = None,
        alerts: AlertOptions | None = None,
    ) -> dict[str, Any]:
        """Store a graph under an id. Replaces a graph of this id.

        Args:
            id: of 1 to 64 lower-case letters, digits, underscores, hyphens and dots.
            graph: as in `score`.
            features: columns or attributes to take as features; all others if None.
            drop: columns or attributes to leave out; `*` is all that the model does not read.
            label: column of the table of nodes with labels that are known, 1 for fraud, blank if
                not known, for a model that reads labels of neighbours; a `Graph` has `labels`. With
                one of these, even if none is known, `add_labels` and `change_graph` may add more.
            model: the model that names the features of nodes and edges, and the relations; the
                default for graphs if None.
            alerts: if given, even as {}, the model scores all nodes, and after each change those
                that it may have touched; `alerts` and `watch_alerts` list those that reach the
                threshold. None raises no alerts. Keys as in `AlertOptions`.

        Returns:
            The description of the graph: `id`, `features`, `edge_features`, `relations`,
            `labels` (whether nodes may have some), `num_nodes`, `num_edges`, `revision`, which each
            change increments, its `digest`, and `model` if it raises alerts.

        Raises:
            TypeError: `graph` has an unsupported type.
            InputError: the graph does not fit the model, or the id is not allowed.
            MissingLibraryError: pandas or pyarrow is not installed; tables and NetworkX need them.
            ProblemError: the server refused the request when it was sent.
        """
    async def change_graph(
        self,
        id: str,
        *,
        nodes: Any = (),
        edges: Any = (),
        delete_nodes: Iterable[Any] = (),
        delete_edges: Any = (),
        labels: Mapping[Any, int | None] | None = None,
    ) -> dict[str, Any]:
        """Change a stored graph atomically. Sending it twice has the effect of once.

        In all, up to 10,000 nodes, edges and labels. Edges are deleted first, then nodes; then
        nodes and edges are added, and labels set.

        Args:
            id: of the graph.
            nodes: to add or replace: a frame with `id` and the features, or a mapping of these per
                node.
            edges: to add: a frame with `source`, `target`, optionally `type`, and the features that
                edges of the graph have, or a mapping of these per edge; without features also a
                tuple. An edge that is there takes the features that come with it.
            delete_nodes: ids of nodes to delete, with their edges.
            delete_edges: as `edges`, of which features are not sent.
            labels: 1 for fraud, 0 for none, None for not known any more, by the id of the node, of
                a graph that was stored with labels.

        Returns:
            The description of the graph, as of `store_graph`.

        Raises:
            TypeError: `delete_nodes` is a single string.
            InputError: a value in a frame is missing or no number, or an id is not allowed.
            ProblemError: the server refused the request when it was sent, as for an edge to an
                unknown node; then nothing is changed.
        """
    async def forget_graph(self, id: str) -> None:
        """Delete a stored graph, with its alerts.

        Args:
            id: of the graph.

        Raises:
            InputError: the id is not one that a graph can have.
            ProblemError: the server refused the request when it was sent, as for an unknown graph.
        """
    async def score_nodes(
        self,
        id: str,
        targets: Sequence[Any],
        *,
        hops: int | None = None,
        max_neighbors: int | None = None,
        seed: int | None = None,
        model: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        decision: AlertRule | None = None,
        timeout_s: float | None = None,
    ) -> Scores:
        """Score nodes of a stored graph from their neighbourhood.

        Args:
            id: of the graph.
            targets: ids of the nodes.
            hops: edges between a target and the farthest nodes that count, 0 to 8; those of the
                model if None.
            max_neighbors: how many neighbours of each node count; those of the model if None.
            seed: of the choice among more neighbours than that; 0 if None.
            model: name of the model; the default for graphs if None.
            dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
            include: what to add: `trace`, `components`, `resonance` to `convergence`; `attention`,
                `memories`, `components` to `tensors`; `explanation` of each target to `raw`.
            decision: which targets get label 1, as {"budget": 50}; those from the model's threshold
                on if None. Keys as in `AlertRule`.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            Scores of the T targets in their order, with arrays (T,).

        Raises:
            InputError: an id is missing or not allowed.
            ProblemError: the server refused the request when it was sent, as for an unknown graph
                or node.
        """
    async def store_transaction_graph(
        self,
        id: str,
        *,
        model: str,
        threshold: float | None = None,
        daily_budget: float | None = None,
        keep: float | None = None,
        webhook: str | None = None,
    ) -> dict[str, Any]:
        """Store a graph of transactions under an id, empty at first. Replaces a graph of this id.

        Args:
            id: of 1 to 64 lower-case letters, digits, underscores, hyphens and dots.
            model: that reads transactions, and scores those that `add_transactions` adds, or their
                accounts.
            threshold: probability from which on a transaction or account raises an alert; that of
                the model if None.
            daily_budget: use instead of `threshold`: about this many alerts a day, estimated on the
                model's validation part.
            keep: transactions that are older than the newest one by more are forgotten, in seconds
                or the unit of their time; four longest windows of the model if None.
            webhook: URL to which each alert is sent, on an origin that the server allows; none if
                None.

        Returns:
            The description of the graph, as of `store_graph`.

        Raises:
            InputError: the id is not allowed.
            ProblemError: the server refused the request when it was sent, as for a model that reads
                no transactions.
        """
    async def add_transactions(
        self,
        graph: str,
        transactions: Any,
        *,
        id: str = "id",
        drop: str | Sequence[str] = (),
        decimal: str = ".",
        unlabelled: str | None = None,
        include: Sequence[Include] = (),
        timeout_s: float | None = None,
    ) -> Scores:
        """Store transactions in a graph, and score them. Sending them twice has the effect of once.

        Those whose probability reaches the threshold of the graph raise alerts. Where the model
        scores accounts, who pays and who is paid are scored, as of each transaction, and raise
        alerts when they reach the threshold.

        Args:
            graph: id of a graph of `store_transaction_graph`.
            transactions: path of a table, or a pandas frame; of up to 3,906 rows as the server is
                set, 1,953 where the model scores accounts of both sides.
            id: column of the id of a transaction; every row needs one.
            drop: columns to leave out; `*` is all that the model does not read.
            decimal: the decimal point of numbers in text.
            unlabelled: value of the label that means unknown, as a blank does, where the model
                reads labels; only a blank if None.
            include: as in `score_transactions`.
            timeout_s: seconds in which the server must respond; its own limit if None.

        Returns:
            Scores of the T transactions in their order, with arrays (T,); `raw["added"]` is how
            many are new. Of accounts `node_ids` are the accounts, one or two of each transaction,
            and `transaction_ids` the transactions.

        Raises:
            InputError: the table does not fit the model.
            MissingLibraryError: pandas or pyarrow is not installed.
            ProblemError: the server refused the request when it was sent, as for an unknown graph.
        """
    async def store_transactions(
        self,
        graph: str,
        transactions: Any,
        *,
        id: str = "id",
        drop: str | Sequence[str] = (),
        decimal: str = ".",
        unlabelled: str | None = None,
    ) -> dict[str, Any]:
        """Store transactions in a graph without scoring them, as the past of those to come.

        Sending them twice has the effect of once.

        Args:
            graph: id of a graph of `store_transaction_graph`.
            transactions: path of a table, or a pandas frame; of up to 10,000 rows.
            id: column of the id of a transaction; every row needs one.
            drop: columns to leave out; `*` is all that the model does not read.
            decimal: the decimal point of numbers in text.
            unlabelled: value of the label that means unknown, as a blank does, where the model
                reads labels; only a blank if None.

        Returns:
            `id` of the graph, `added` (how many are new), `num_nodes`, `revision` and `digest`.

        Raises:
            InputError: the table does not fit the model.
            MissingLibraryError: pandas or pyarrow is not installed.
            ProblemError: the server refused the request when it was sent, as for an unknown graph.
        """
    async def add_labels(self, graph: str, labels: Mapping[Any, int]) -> dict[str, Any]:
        """Store labels of stored transactions or nodes.

        Those of transactions count for transactions that are stored later, those of nodes for the
        scores of their neighbours from now on.

        Args:
            graph: id of a graph of `store_transaction_graph`, whose model reads labels, or of
                `store_graph` with labels.
            labels: 1 for fraud, 0 for none, by the id, as text, of the transaction or node; up to
                10,000. Nodes whose ids are integers are labelled by `change_graph`.

        Returns:
            `id` of the graph, `changed` (how many had no label, or another one), `revision` and
            `digest`.

        Raises:
            InputError: a label is something else.
            ProblemError: the server refused the request when it was sent, as for an unknown id,
                or a graph without labels.
        """
    async def alerts(
        self, graph: str, *, after: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """List alerts of a graph, the oldest first.

        Args:
            graph: id of a graph of transactions, or of one that was stored with `alerts`.
            after: `event_id` of an alert, to list those that follow it; from the first that the
                server still has if None.
            limit: how many at most, 1 to 1000; 100 if None.

        Returns:
            A dict per alert: `node_id`, `score`, `probability`, `threshold`, `model`, `scored_at`,
            `event_id`, and `transaction` or, of a node, `revision` and `digest`.

        Raises:
            InputError: the id is not one that a graph can have.
            ProblemError: the server refused the request when it was sent, as for a graph without
                alerts.
        """
    async def graphs(self) -> list[dict[str, Any]]:
        """List the stored graphs.

        Returns:
            A dict per graph, as `store_graph` returns it.

        Raises:
            ProblemError: the server refused the request when it was sent.
        """
    async def graph(self, id: str) -> dict[str, Any]:
        """Describe a stored graph.

        Args:
            id: of the graph.

        Returns:
            What `store_graph` returns, and its settings: `alerts` and `scored_revision`, or of a
            graph of transactions `transactions`, `threshold`, `keep` and `webhook`, where they are
            set.

        Raises:
            InputError: the id is not one that a graph can have.
            ProblemError: the server refused the request when it was sent, as for an unknown graph.
        """
    async def models(self) -> list[dict[str, Any]]:
        """List the served models.

        Returns:
            A dict per model: `name`, `version`, `sha256`, `architecture`, `task`, `route`,
            `device`, `runtime`, and `default_for`, the routes that take it where a request names no
            model.

        Raises:
            ProblemError: the server refused the request when it was sent.
        """
    async def model(self, name: str) -> dict[str, Any]:
        """Describe a model.

        Args:
            name: one of those that `models` lists.

        Returns:
            What `models` lists of it, and `features`, `knobs` (its dynamics in training),
            `metrics`, `limits`, `example` (a request that it answers), and what models of its task
            have besides, such as `edge_features`, `relations` and `threshold`, or `tasks`.

        Raises:
            InputError: the name is not one that a model can have.
            ProblemError: the server refused the request when it was sent, as for an unknown model.
        """
    async def ready(self) -> bool:
        """Check that the server has loaded its models.

        Returns:
            True.

        Raises:
            ProblemError: it has not (503), also after the retries.
            UnreachableError: it did not respond.
        """
