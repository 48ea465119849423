"""The page at /, used in a browser."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.support.api_keys import Ring
from tests.support.paths import REPO

COUNT_PAINTED = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((value, place) => place % 4 === 3 && value).length;
}"""
PHOTO = REPO / "examples" / "photo.jpg"
TABS = ("Molecules", "Pictures", "Graphs", "Energy", "Memories")
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def test_the_index_is_a_page_for_browsers_and_json_for_others(server) -> None:
    with server.client() as client:
        index = client.get("/").json()
        assert index["name"] == "Basin"
        for path in index["links"].values():
            assert client.get(path).status_code == 200
        page = client.get("/", headers=BROWSER)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assets = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page.text)
        assert len(assets) > 3
        for path in assets:
            first = client.get(path)
            assert first.status_code == 200
            again = client.get(path, headers={"if-none-match": first.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            plain = client.get(path, headers={"accept-encoding": "identity"})
            assert "content-encoding" not in plain.headers
            assert plain.content == first.content
        for path in ("/assets/no.js", "/assets/../routes.py", "/assets/%2e%2e/routes.py"):
            assert client.get(path).status_code == 404
        assert client.get("/", headers={"accept": "image/png"}).status_code == 406


def test_without_a_page_browsers_get_the_index(start, wait, answers) -> None:
    server = start(models="et-mnist", default_completion_model="et-mnist", ui=False)
    wait(lambda: answers(server, "/health/ready", 200))
    assert httpx.get(f"{server.url}/", headers=BROWSER).json()["name"] == "Basin"


def wait_until_true(page: Any, script: str) -> None:
    """`page.wait_for_function` evaluates text in the page, which its policy forbids."""
    for _ in range(1200):
        if page.evaluate(script):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {script}")


def classify(page: Any) -> None:
    page.get_by_role("button", name="Classify").click()
    page.wait_for_selector("meter")


def test_molecules_are_classified_and_explained(server, open_page) -> None:
    with open_page(server.url) as page:
        page.get_by_label("SMILES, one a line").fill("O=[N+]([O-])c1ccc(N)cc1 a\nnot-smiles b")
        classify(page)
        rows = page.locator("tbody tr")
        assert rows.count() == 2
        assert "not valid SMILES" in rows.nth(1).inner_text()
        page.get_by_role("button", name="Why? a").click()
        drawing = page.locator("img.drawing")
        drawing.wait_for()
        assert drawing.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
        assert "at random" in page.locator("#panel-molecules").inner_text()
        page.get_by_role("button", name="Copy as Python").click()
        assert 'client.classify(["O=[N+]' in page.locator("#panel-molecules pre").inner_text()
        page.get_by_role("button", name="Copy link").click()
        wait_until_true(
            page, "document.querySelector('#panel-molecules pre').innerText.startsWith('http')"
        )
        link = page.locator("#panel-molecules pre").inner_text()
    with open_page(server.url, link.removeprefix(server.url)) as page:
        page.wait_for_selector("textarea")
        assert page.get_by_label("SMILES, one a line").input_value().startswith("O=[N+]")


def test_a_table_of_molecules_is_read_by_its_header(server, open_page) -> None:
    table = (
        b"\xef\xbb\xbfBatch;Name;SMILES;IC50\n"
        b'A1;"ibuprofen; racemic";CC(C)Cc1ccc(cc1)C(C)C(=O)O;12,5\n'
        b"A2;broken;c1ccccc1(;\n"
    )
    with open_page(server.url, complaints=1) as page:  # the browser notes the 422
        file = {"name": "m.csv", "mimeType": "text/csv", "buffer": table}
        page.get_by_label("or a file").set_input_files([file])
        wait_until_true(page, "document.querySelector('textarea').value.includes('broken')")
        classify(page)
        rows = page.locator("tbody tr")
        assert rows.nth(0).inner_text().startswith("ibuprofen; racemic")
        page.set_viewport_size({"width": 420, "height": 800})
        box = page.get_by_role("button", name="Why? ibuprofen; racemic").bounding_box()
        assert box["x"] + box["width"] <= 420
        with page.expect_download() as downloaded:
            page.get_by_role("button", name="Save as CSV").click()
        head, first, second = downloaded.value.path().read_text().splitlines()
        assert head == "id,smiles,error,active,active.0,active.1"
        assert first.startswith("ibuprofen; racemic,CC(C)Cc1ccc(cc1)C(C)C(=O)O,,0,0.")
        assert second == "broken,c1ccccc1(,not_smiles,,,"
        field = page.get_by_label("SMILES, one a line")
        field.fill("name,canonical_smiles\na,CCO")
        page.get_by_role("button", name="Classify").click()
        page.get_by_text('Rename "canonical_smiles".').wait_for()
        assert rows.count() == 0  # answers of another input
        field.fill("# a comment\nfirst,CCO\nsecond,CCN")  # ids first, without a header
        page.get_by_role("button", name="Classify").click()
        page.locator("tbody .error").first.wait_for()
        assert rows.count() == 2


def decode(text: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"))


@pytest.mark.parametrize("model", ["et-photos", "et-mnist"])
def test_a_painted_hole_is_filled_and_the_rest_stays(server, open_page, model: str) -> None:
    size = {"width": 1200, "height": 1000}
    with open_page(server.url, "/#pictures", viewport=size) as page:
        wait_until_true(page, "document.querySelector('.stage canvas')?.width > 1")
        page.get_by_label("Model").locator("visible=true").select_option(model)
        page.get_by_role("button", name="Example").click()
        page.wait_for_timeout(500)
        if model == "et-photos":
            page.get_by_label("Picture (or drop one below)").set_input_files(PHOTO)
            page.wait_for_timeout(500)
        page.get_by_role("button", name="Clear").click()
        page.locator("form:visible button.main").click()  # nothing is painted
        page.get_by_text("Nothing is painted.").wait_for()
        hole = page.locator(".stage canvas").nth(1)
        hole.scroll_into_view_if_needed()
        box = hole.bounding_box()
        for down in (0.35, 0.45):
            page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + down * box["height"])
            page.mouse.down()
            end = box["x"] + 0.75 * box["width"], box["y"] + (down + 0.15) * box["height"]
            page.mouse.move(*end, steps=5)
            page.mouse.up()
        page.get_by_role("button", name="Complete").click()
        page.get_by_text("Download").wait_for()
        assert page.locator("#panel-pictures .curve canvas").count() == 1
        page.get_by_role("button", name="Copy as curl").click()
        code = page.locator("#panel-pictures pre")
        code.wait_for()
        sent = json.loads(code.inner_text().splitlines()[1])
        with page.expect_download() as downloaded:
            page.get_by_text("Download").click()
        completed = np.asarray(Image.open(downloaded.value.path()).convert("RGB"))
        if model == "et-photos" and (path := os.environ.get("BASIN_SCREENSHOT")):
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=path, type="jpeg", quality=85)
    mask = decode(sent["mask"])[..., 0] > 127
    assert 0 < mask.mean() < 0.5
    before = decode(sent["image"])
    np.testing.assert_array_equal(completed[~mask], before[~mask])
    assert (completed[mask] != before[mask]).any()


def test_a_hole_may_be_painted_by_keys_and_undone(server, open_page) -> None:
    with open_page(server.url, "/#pictures") as page:
        wait_until_true(page, "document.querySelector('.stage canvas')?.width > 1")
        page.wait_for_timeout(300)
        other = {"name": "p.heic", "mimeType": "image/heic", "buffer": b"no picture"}
        page.get_by_label("Picture (or drop one below)").set_input_files([other])
        page.get_by_text("Save it as PNG, JPEG or WebP.").wait_for()
        page.get_by_role("button", name="Clear").click()
        hole = page.locator(".stage canvas").nth(1)
        hole.focus()
        count = COUNT_PAINTED
        assert hole.evaluate(count) == 0
        for key in ("ArrowLeft", "Space", "ArrowUp", "Space"):
            page.keyboard.press(key)
        painted = hole.evaluate(count)
        assert painted > 0
        page.keyboard.press("Control+z")
        assert 0 < hole.evaluate(count) < painted


def test_graphs_of_two_tables_are_ranked_and_explained(server, open_page) -> None:
    with server.client() as client:
        example = client.get("/models/cdat-tolokers").json()["example"]
    nodes, edges = example["nodes"], example["edges"]
    tables = {
        name: "\n".join(
            ",".join(map(str, row)) for row in [rows[0].keys(), *(r.values() for r in rows)]
        )
        for name, rows in (("nodes", nodes), ("edges", edges))
    }
    with open_page(server.url, "/#graphs") as page:
        page.get_by_label("Nodes").wait_for()
        for label, text in (("Nodes", tables["nodes"]), ("Edges", tables["edges"])):
            file = {"name": "t.csv", "mimeType": "text/csv", "buffer": text.encode()}
            page.get_by_label(label).set_input_files([file])
        page.get_by_text(f"{len(nodes)} nodes, {len(edges)} edges.").wait_for()
        page.get_by_role("button", name="Score").click()
        page.wait_for_selector("#panel-graphs tbody tr")
        assert page.locator("#panel-graphs tbody tr").count() == len(nodes)
        threshold = page.get_by_label("Threshold")
        threshold.fill("0")
        page.get_by_text(f"{len(nodes)} of {len(nodes)} are alerts.").wait_for()
        page.locator(".graph canvas").first.wait_for(state="attached")
        page.get_by_role("button", name="n3", exact=True).click()
        page.get_by_text("What moves the score of n3").wait_for()
        with page.expect_download() as downloaded:
            page.get_by_role("button", name="Save as CSV").click()
        saved = downloaded.value.path().read_text().splitlines()
        assert saved[0] == "node_id,score,probability,label,rank"
        assert len(saved) == len(nodes) + 1
        bad_text = ",".join(nodes[0]) + "\na" + ",x" * (len(nodes[0]) - 1)
        bad = {"name": "t.csv", "mimeType": "text/csv", "buffer": bad_text.encode()}
        page.get_by_label("Nodes").set_input_files([bad])
        page.get_by_text('Row 1, column f0: "x" is not a number.').wait_for()
        assert page.locator("#panel-graphs tbody tr").locator("visible=true").count() == 0
        page.get_by_role("button", name="Score").click()  # not of the tables before
        page.get_by_text('The tables cannot be used. Row 1, column f0: "x"').wait_for()
        page.get_by_role("button", name="Example").locator("visible=true").click()
        other = {"name": "t.csv", "mimeType": "text/csv", "buffer": b"account,age\na,1\n"}
        page.get_by_label("Nodes").set_input_files([other])
        page.get_by_text("The table of nodes lacks id, f0, f1,").wait_for()
        page.get_by_label("Model").locator("visible=true").select_option("cdat-payments")
        page.get_by_label("Transactions").wait_for()
        page.get_by_role("button", name="Score").click()
        page.get_by_text("of 4 are alerts.").wait_for()


def test_decimal_commas_of_a_table_are_read_and_thousands_refused(server, open_page) -> None:
    rows = (
        "time;source;target;amount;type\n"
        "2026-01-31T12:00:00Z;a;b;{};card\n"
        "2026-01-31T13:00:00Z;b;c;{};card\n"
    )
    with open_page(server.url, "/#graphs") as page:
        page.get_by_label("Model").locator("visible=true").select_option("cdat-payments")
        field = page.get_by_label("Transactions: a CSV with time, source, target, amount")

        def give(*amounts: str) -> None:
            text = rows.format(*amounts).encode()
            field.set_input_files([{"name": "t.csv", "mimeType": "text/csv", "buffer": text}])

        give("12,5", "7,125")
        page.get_by_text("2 transactions. Taken as missing: device.").wait_for()
        page.get_by_text("With decimal commas: amount.").wait_for()
        with page.expect_request("**/anomaly/score") as sent:
            page.get_by_role("button", name="Score").click()
        amounts = [row["amount"] for row in sent.value.post_data_json["transactions"]]
        assert amounts == [12.5, 7.125]
        page.get_by_text("of 2 are alerts.").wait_for()
        for amounts in (("1,234", "2,000"), ("1.234,50", "7,5"), ("1,234,567", "7,5")):
            give(*amounts)
            page.get_by_text("is not a number. Write a decimal point").wait_for()
            page.get_by_role("button", name="Example").locator("visible=true").click()
            page.get_by_text("values that training has seen").wait_for()


def test_the_energy_of_two_runs_is_drawn(server, open_page) -> None:
    with open_page(server.url, "/#energy") as page:
        page.get_by_role("button", name="Relax").wait_for()
        page.get_by_label("Model").locator("visible=true").select_option("cdat-ames")
        page.get_by_role("button", name="Relax").click()  # which waits for the model
        page.wait_for_selector(".uplot canvas")
        page.get_by_label("Steps of each block").fill("8")
        page.get_by_label("Keep the previous run in the chart").check()
        page.get_by_role("button", name="Relax").click()
        wait_until_true(
            page, "document.querySelectorAll('#panel-energy .scroll tbody tr').length === 2"
        )
        runs = page.locator("#panel-energy .scroll tbody").inner_text()
        assert runs.count("cdat-ames") == 2
        assert "8 steps" in runs
        assert runs.count("never rose") == 1  # as trained; eight steps as long overshoot
        assert runs.count("V rose in ") == 1
        # What was trained with is sent as it is, whatever the sliders can show.
        with server.client() as client:
            trained = client.get("/models/et-mnist").json()["knobs"]["step_size"]
        page.get_by_label("Model").locator("visible=true").select_option("et-mnist")
        with page.expect_request("**/complete") as sent:
            page.get_by_role("button", name="Relax").click()
        assert sent.value.post_data_json["dynamics"]["step_size"] == pytest.approx(
            trained, rel=1e-5
        )
        assert sent.value.post_data_json["dynamics"]["beta_scale"] == 1


def test_a_panel_stays_where_another_model_is_chosen_while_it_loads(server, open_page) -> None:
    """A second choice ends the request of the first, which had taken the panel away with it."""
    slow = """
        const ask = window.fetch;
        window.fetch = async (url, options) => {
          await new Promise((go) => setTimeout(go, String(url).includes("/models/") ? 500 : 0));
          return ask(url, options);
        };
    """
    with open_page(server.url, "/docs") as page:
        page.add_init_script(slow)
        page.goto(f"{server.url}/?slow#energy")
        button = page.get_by_role("button", name="Relax")
        button.wait_for()
        page.get_by_label("Model").locator("visible=true").select_option("cdat-ames")
        button.click()
        page.wait_for_selector(".uplot canvas")
        assert button.is_visible()


def test_the_energy_of_every_model_is_drawn(server, open_page) -> None:
    with server.client() as client:
        models = [model["name"] for model in client.get("/models").json()["models"]]
    with open_page(server.url, "/#energy") as page:
        page.get_by_role("button", name="Relax").wait_for()
        for name in models:
            page.get_by_label("Model").locator("visible=true").select_option(name)
            page.get_by_role("button", name="Relax").click()
            page.locator("#panel-energy .scroll tbody").get_by_text(f"1: {name},").wait_for()
            assert page.locator("#panel-energy .error").inner_text() == ""


def test_memories_are_sampled_and_recalled(server, open_page) -> None:
    with open_page(server.url, "/#memories") as page:
        page.get_by_label("Memory").select_option("mnist-3")
        page.get_by_label("Steps").locator("visible=true").fill("200")
        page.get_by_role("button", name="Sample").click()
        wait_until_true(page, "document.querySelectorAll('#panel-memories canvas').length === 18")
        page.get_by_role("button", name="Recall a half").click()
        recalled = page.locator("img.pattern")
        recalled.wait_for()
        assert recalled.evaluate("image => image.decode().then(() => image.naturalWidth)") == 28


def test_tabs_are_chosen_by_keys(server, open_page) -> None:
    with open_page(server.url) as page:
        page.get_by_role("tab", name=TABS[0]).focus()
        for title in (*TABS[1:], TABS[0]):
            page.keyboard.press("ArrowRight")
            tab = page.get_by_role("tab", name=title)
            assert tab.get_attribute("aria-selected") == "true"
            assert tab.evaluate("tab => tab === document.activeElement")
            page.get_by_role("tabpanel").locator("form").first.wait_for()


@pytest.mark.parametrize("look", ["light", "dark"])
def test_nothing_serious_stands_in_the_way_of_anyone(server, open_page, look: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with open_page(server.url, color_scheme=look, viewport={"width": 420, "height": 800}) as page:
        for title in TABS:
            page.get_by_role("tab", name=title).click()
            main = page.locator("[role=tabpanel]:visible button.main")
            main.wait_for()
            page.wait_for_timeout(300)
            main.click()
            wait_until_true(
                page,
                "!document.querySelector('[role=tabpanel]:not([hidden]) [role=status]').innerText",
            )
            assert page.locator("[role=tabpanel]:visible .error").inner_text() == ""
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 420, title
            violations = axe.run(page).response["violations"]
            serious = [v for v in violations if v["impact"] in ("serious", "critical")]
            assert serious == [], (title, [(v["id"], v["nodes"][0]["html"]) for v in serious])


def test_the_page_asks_for_the_key_and_sends_it(start, wait, answers, tmp_path, open_page) -> None:
    ring = Ring(tmp_path / "keys.json")
    ring.add("someone")
    secret = ring.secrets["someone"]
    server = start(keys=ring.path, models="cdat-ames", default_classify_model="cdat-ames")
    wait(lambda: answers(server, "/health/ready", 200))
    with open_page(server.url, complaints=2) as page:  # the browser notes each 401
        page.get_by_label("API key").fill("basin_wrong")
        page.get_by_role("button", name="Use it").click()
        page.locator("#refusal:not(:empty)").wait_for()
        page.get_by_label("API key").fill(secret)
        page.get_by_role("button", name="Use it").click()
        classify(page)
    with open_page(server.url, "/docs", complaints=1) as page:
        page.get_by_label("API key").fill(secret)
        page.get_by_role("button", name="Show the API reference").click()
        page.wait_for_selector(".opblock-tag")
