"""The interactive explainer in a browser: weights are dragged, contexts switched, position bias comes and goes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import sync_playwright

from isolayer import Grid, IsotonicLayer

PAGE = Path(__file__).parents[1] / "docs" / "explainer.html"
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: pytest.fail(str(error)))
    page.goto(PAGE.as_uri())
    yield page
    page.close()


def test_it_fetches_nothing_and_fits_a_phone(page):
    assert page.asked == [PAGE.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_bar_dragged_below_zero_makes_the_curve_flat_and_never_fall(page):
    box = page.locator('[data-bucket="3"]').bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 2, steps=4)
    page.mouse.up()
    assert float(page.locator('[data-bucket="3"]').get_attribute("aria-valuenow")) < 0
    assert "flat in 1 of 8 buckets; it falls in none" in page.locator("#said").inner_text()


def test_arrow_keys_move_a_weight_and_contexts_keep_their_own(page):
    page.locator('[data-bucket="0"]').focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.locator('[data-bucket="0"]').get_attribute("aria-valuenow") == "1.20"
    page.get_by_role("button", name="search").click()
    assert page.locator('[data-bucket="0"]').get_attribute("aria-valuenow") == "1.40"
    page.get_by_role("button", name="feed").click()
    assert page.locator('[data-bucket="0"]').get_attribute("aria-valuenow") == "1.20"


def test_its_curve_is_that_of_the_layer(page):
    weights = [0.5, 2.0, -1.0, 0.0, 1.5, 3.0, -0.2, 0.7]
    layer = IsotonicLayer(grid=Grid(-4, 4, 1)).double()
    scores = np.linspace(-4, 4, 33)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, *weights], dtype=torch.float64).reshape(layer.weight.shape))
        want = layer(torch.from_numpy(scores)).numpy().ravel()
    code = "([weights, scores]) => scores.map((score) => explainer.valueAt(weights, score))"
    np.testing.assert_allclose(page.evaluate(code, [weights, scores.tolist()]), want, atol=1e-6)


def test_position_bias_appears_and_vanishes(page):
    def ndcg(bias):
        page.locator("#bias").evaluate(
            "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')) }", bias
        )
        return float(page.locator("#ndcg").inner_text())

    assert ndcg(0) == 1.0
    assert ndcg(2) < ndcg(0.5) < 1.0
    page.locator("#explained").check()
    assert ndcg(2) == 1.0
