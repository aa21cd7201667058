"""An answer in a frame of another program, which gives the frame its height and its colours."""

import html
import importlib.util
from pathlib import Path

import pytest
import torch

from knn_logits import KNNLogitsProcessor
from knn_logits_app.views import chat_page as frame

SCRIPT = Path(__file__).parents[2] / "app" / "text_generation_webui" / "script.py"


@pytest.fixture(scope="module")
def document(model, tokenizer, store):
    """The document of an answer."""
    ids = tokenizer("When error code E42 appears, open", return_tensors="pt")["input_ids"]
    with KNNLogitsProcessor(model, store, lmbda=0.9) as knn, torch.no_grad():
        output = model.generate(ids, max_new_tokens=20, do_sample=False, logits_processor=[knn])
        return frame(knn.trace(output, tokenizer)[0])


@pytest.fixture
def fit():
    """The handler with which the extension for text-generation-webui fits its frame."""
    spec = importlib.util.spec_from_file_location("user_ext_knn_logits", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.FIT


def test_a_frame_fits_its_content_also_after_a_click(chromium, document, fit):
    page = chromium.new_page(color_scheme="light")
    page.set_content(
        '<body class="dark"><iframe sandbox="allow-scripts" style="width:900px;height:420px" '
        f'onload="{html.escape(fit)}" srcdoc="{html.escape(document)}"></iframe>'
    )
    inside = page.frame_locator("iframe")
    inside.locator("html[style*=dark]").wait_for()
    word = inside.locator("[data-word]").first
    word.click()
    inside.locator(".kl-panel:visible").wait_for()
    # The frame ends where the answer does, with the document's padding and a few pixels.
    end = "answer => answer.getBoundingClientRect().bottom"
    page.wait_for_function("Number.parseInt(document.querySelector('iframe').style.height) != 420")
    for _ in range(200):
        answer = inside.locator(".kl-out").evaluate(end)
        height = page.locator("iframe").evaluate("frame => frame.clientHeight")
        if 0 <= height - answer < 60:
            break
        page.wait_for_timeout(50)
    assert 0 <= height - answer < 60, (height, answer)
    page.close()
