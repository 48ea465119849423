"""Generated pictures against their rules by brute force, and CIFAR-10 on files of its layout."""

from __future__ import annotations

import io
import itertools
import math
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models.inputs.questions import ANSWERS, COLORS, QUESTIONS
from models.tasks.graph_classifier import ClassificationTask
from training.datasets import Split
from training.datasets.cifar import load_cifar10
from training.datasets.clevr import (
    KINDS,
    Scene,
    load_clevr,
    random_question,
    random_scenes,
    render_scene,
)
from training.datasets.labeled_images import LabeledImageDataset
from training.datasets.sources import data_folder
from training.datasets.triangle import is_equilateral, load_triangle, random_triangles, third_corner

FEW = {"train": 30, "val": 10, "test": 10}


def _angle(at: np.ndarray, one: np.ndarray, other: np.ndarray) -> float:
    a, b = one - at, other - at
    return math.degrees(math.acos(np.clip(a @ b / np.linalg.norm(a) / np.linalg.norm(b), -1, 1)))


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return random_triangles(400, 7)


def test_triangles_are_what_their_labels_say(drawn: tuple[np.ndarray, ...]) -> None:
    _, labels, centres = drawn
    assert 150 < labels.sum() < 250
    assert ((centres >= 1) & (centres <= 63)).all()
    for label, three in zip(labels, centres, strict=True):
        sides = sorted(math.dist(a, b) for a, b in itertools.combinations(three, 2))
        if label == 0:  # to the pixel that the third_corner corner is cut to
            assert sides[0] >= 1
            assert sides[2] - sides[0] <= math.sqrt(2) + 1e-9
            x, y = three[0]
            dx, dy = three[1] - three[0]
            half, root = 0.5, math.sqrt(3) / 2
            assert three[2][0] == int(x + half * dx + root * dy + 1e-12)
            assert three[2][1] == int(y - root * dx + half * dy + 1e-12)
        else:
            assert not is_equilateral(three[None]).any()


def test_equilateral_whichever_corner_was_the_third() -> None:
    one, two = np.array([[20, 30]]), np.array([[41, 37]])
    corners = np.stack([one[0], two[0], third_corner(one, two)[0]])
    for order in itertools.permutations(range(3)):
        assert is_equilateral(corners[list(order)][None]).all()
    moved = corners + np.array([[0, 0], [0, 0], [3, 0]])
    assert not is_equilateral(moved[None]).any()


def test_triangles_are_painted_round_their_centres(drawn: tuple[np.ndarray, ...]) -> None:
    pixels, _, centres = drawn
    assert pixels.shape == (400, 1, 64, 64)
    assert set(np.unique(pixels)) == {0, 255}
    y, x = np.mgrid[:64, :64]
    for picture, three in zip(pixels[:, 0], centres, strict=True):
        away = np.min([np.maximum(abs(x - a), abs(y - b)) for a, b in three], 0)
        assert not picture[away > 3].any()
        for a, b in three:  # every point's disc reaches over the centre
            if a < 64 and b < 64:
                assert picture[b, a]
        # Where clusters keep apart and inside, each is symmetric round its centre.
        a, b = three[0]
        if 3 <= a < 61 and 3 <= b < 61 and all(abs(o - three[0]).max() > 6 for o in three[1:]):
            window = picture[b - 3 : b + 4, a - 3 : a + 4]
            assert np.array_equal(window, window[::-1, ::-1])


@pytest.mark.parametrize("load", [load_triangle, load_clevr])
def test_parts_are_drawn_from_seeds_of_their_own(load) -> None:
    first, again = load(FEW, seed=1), load(FEW, seed=1)
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != load(FEW, seed=2).fingerprint
    more = load(FEW | {"train": 40}, seed=1)  # which leaves the other parts as they were
    for part in ("val", "test"):
        one, other = (
            (d.pixels[d.image_ids[s]], d.labels[s])
            for d, s in ((first, first.split.parts()[part]), (more, more.split.parts()[part]))
        )
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    pictures = {picture.tobytes() for picture in first.pixels}
    assert len(pictures) == sum(FEW.values())
    parts = np.concatenate(list(first.split.parts().values()))
    assert np.array_equal(parts, np.arange(len(first.labels)))


def test_scenes_follow_the_rules() -> None:
    for scene in random_scenes(60, 3):
        assert ((scene.centers >= 5) & (scene.centers < 70)).all()
        for a, b in itertools.combinations(scene.centers, 2):
            assert ((a - b) ** 2).sum() >= 100
        picture = render_scene(scene)
        assert picture.shape == (3, 75, 75)
        assert picture.dtype == np.uint8
        x, y = scene.centers[5]  # yellow lies on top
        window = picture[:, y - 5 : y + 6, x - 5 : x + 6]
        yellow = (window == np.array([255, 255, 0])[:, None, None]).all(0)
        i, j = np.mgrid[-5:6, -5:6]
        expected = i**2 + j**2 <= 25 if scene.is_circle[5] else np.ones((11, 11), bool)
        assert np.array_equal(yellow, expected)
        colours = {tuple(colour) for colour in picture.reshape(3, -1).T}
        assert colours <= {
            *((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 156, 0), (128, 128, 128)),
            *((255, 255, 0), (255, 255, 255)),
        }
    circles = np.stack([scene.is_circle for scene in random_scenes(300, 4)])
    assert circles.mean() == pytest.approx(0.5, abs=0.05)


def _answers(scene: Scene, question: np.ndarray) -> set[str]:
    """Every answer that the rules allow, whichever way ties are broken."""
    a = COLORS[question[:6].argmax()]
    kind = list(QUESTIONS)[question[12:15].argmax()]
    asked = QUESTIONS[kind][question[15:].argmax()]
    objects = dict(zip(COLORS, zip(scene.centers, scene.is_circle, strict=True), strict=True))
    at, circle = objects.pop(a)
    shape = {True: "circle", False: "square"}
    distance = {c: math.dist(at, other) for c, (other, _) in objects.items()}
    if kind == "ternary":
        end, _ = objects.pop(COLORS[question[6:12].argmax()])
        others = [other for other, _ in objects.values()]
        if asked == "objects between":
            x, y = sorted([at[0], end[0]]), sorted([at[1], end[1]])
            between = [x[0] <= o[0] <= x[1] and y[0] <= o[1] <= y[1] for o in others]
            return {str(sum(between))}
        if asked == "is any on the line":
            slope = (end[1] - at[1]) / (end[0] - at[0] + 1e-10)
            off = [abs(at[1] + slope * (o[0] - at[0]) - o[1]) for o in others]
            return {"yes" if min(off) <= 12 else "no"}
        largest = [
            max(_angle(*c) for c in ((at, end, o), (end, at, o), (o, at, end))) for o in others
        ]
        return {str(sum(90 - 1e-6 <= angle < 180 - 1e-5 for angle in largest))}
    if asked == "shape":
        return {shape[bool(circle)]}
    if asked == "is left":
        return {"yes" if at[0] < 37.5 else "no"}
    if asked == "is above":
        return {"yes" if at[1] < 37.5 else "no"}
    if asked == "others of its shape":
        return {str(sum(bool(c) == bool(circle) for _, c in objects.values()))}
    wanted = (min if "closest" in asked else max)(distance.values())
    return {shape[bool(objects[c][1])] for c, d in distance.items() if d == wanted}


def test_every_answer_is_the_only_one() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for scene in random_scenes(150, 5):
        for kind in QUESTIONS:
            for _ in range(8):
                question, label = random_question(scene, kind, rng)
                assert _answers(scene, question) == {ANSWERS[label]}
                seen.add((kind, ANSWERS[label]))
    assert {answer for kind, answer in seen if kind == "non-relational"} == set(ANSWERS[:4])
    assert {answer for kind, answer in seen if kind == "relational"} == set(ANSWERS[2:])
    assert {"yes", "no", "0", "1"} <= {answer for kind, answer in seen if kind == "ternary"}


def test_no_question_that_a_tie_leaves_open() -> None:
    """Blue and green are as near to red, of two shapes: what is the closest is not asked."""
    centres = np.array([[35, 35], [45, 35], [25, 35], [60, 60], [10, 65], [65, 10]])
    scene = Scene(centres, np.array([0, 1, 0, 0, 1, 1], bool))
    rng = np.random.default_rng(0)
    asked = [random_question(scene, "relational", rng)[0] for _ in range(300)]
    assert not any(q[0] and q[15] for q in asked)
    assert any(q[0] and q[16] for q in asked)
    assert any(q[0] and q[17] for q in asked)


def test_an_object_far_from_all_others_is_not_its_own_closest() -> None:
    """The reference masks the distance to itself with 999, less than that of far objects."""
    centres = np.array([[5, 5], [69, 69], [69, 58], [58, 69], [58, 58], [69, 47]])
    scene = Scene(centres, np.array([1, 0, 0, 0, 0, 0], bool))
    rng = np.random.default_rng(0)
    labels = [
        label
        for q, label in (random_question(scene, "relational", rng) for _ in range(200))
        if q[0] and q[15]
    ]
    assert labels
    assert {ANSWERS[label] for label in labels} == {"square"}


def test_questions_of_a_dataset() -> None:
    dataset = load_clevr(FEW)
    assert dataset.questions is not None
    assert dataset.kind_ids is not None
    assert dataset.kind_names == KINDS
    assert len(dataset.labels) == 20 * 50
    for picture in range(50):
        mine = dataset.image_ids == picture
        assert np.bincount(dataset.kind_ids[mine]).tolist() == [10, 10]
    assert np.array_equal(dataset.questions[:, 12:15].argmax(1), dataset.kind_ids)
    every = load_clevr(FEW, kinds=tuple(QUESTIONS))
    assert len(every.labels) == 30 * 50


def _files() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    found = {}
    for part, count in (("train", 20), ("test", 3)):
        for shade, name in ((40, "cat"), (200, "dog")):
            for i in range(count):
                pixels = np.clip(shade + rng.integers(-5, 6, (32, 32, 3)), 0, 255).astype(np.uint8)
                buffer = io.BytesIO()
                Image.fromarray(pixels).save(buffer, "JPEG")
                found[f"{part}/{name}/{i:04}.jpg"] = buffer.getvalue()
    return found


def test_cifar_from_its_archive_and_from_what_is_in_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="CIFAR-10-images"):
        load_cifar10(tmp_path)
    packed = tmp_path / "packed" / "images" / "cifar10_jpeg"
    unpacked = tmp_path / "unpacked" / "images" / "cifar10_jpeg" / "CIFAR-10-images"
    packed.mkdir(parents=True)
    with tarfile.open(packed / "CIFAR-10-images.tar.xz", "w:xz") as archive:
        for name, data in reversed(_files().items()):
            member = tarfile.TarInfo(f"CIFAR-10-images/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
            (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
            (unpacked / name).write_bytes(data)
    one, other = (load_cifar10(tmp_path / folder) for folder in ("packed", "unpacked"))
    assert one.fingerprint == other.fingerprint
    assert one.task.labels == ("cat", "dog")
    assert one.pixels.shape == (46, 3, 32, 32)
    parts = {part: np.bincount(one.labels[s]).tolist() for part, s in one.split.parts().items()}
    assert parts == {"train": [18, 18], "val": [2, 2], "test": [3, 3]}
    shades = one.pixels.mean((1, 2, 3))
    assert np.array_equal(shades > 120, one.labels == 1)
    few = load_cifar10(tmp_path / "unpacked", max_per_class=10)
    assert np.bincount(few.labels).tolist() == [13, 13]


def test_cifar_as_it_is() -> None:
    try:
        dataset = load_cifar10(max_per_class=10)
    except FileNotFoundError:
        pytest.skip(f"CIFAR-10 is not in {data_folder()}")
    assert dataset.pixels.shape == (200, 3, 32, 32)
    assert dataset.task.labels[0] == "airplane"
    assert np.bincount(dataset.labels[dataset.split.test]).tolist() == [10] * 10


def test_pictures_and_labels_must_fit() -> None:
    pixels, task = np.zeros((4, 1, 2, 2), np.uint8), ClassificationTask(name="t", labels=("a", "b"))
    split = Split("s", np.arange(2), np.arange(2, 3), np.arange(3, 4))
    labels, every = np.array([0, 1, 0, 1]), np.arange(4)
    LabeledImageDataset("d", pixels, labels, task, split, every)
    for wrong, why in (
        ((pixels / 1.0, labels, task, split, every), "bytes"),
        ((pixels, labels, task, split, every[:3]), "pictures do not fit"),
        ((pixels, labels, task, split, every + 1), "pictures do not fit"),
        ((pixels, labels + 1, task, split, every), "not one of t"),
        ((pixels, labels, task, split, every, np.zeros((3, 2))), "questions do not fit"),
    ):
        with pytest.raises(ValueError, match=why):
            LabeledImageDataset("d", *wrong)  # type: ignore[arg-type]
