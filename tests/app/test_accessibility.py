"""axe on every tab, wide and narrow, light and dark; and nothing that reaches past the edge."""

import pytest

OPTIONS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"], "resultTypes": ["violations"]}
TABS = ("Generate", "Explain", "Evaluate")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_no_finding_and_no_overflow(visit, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    one = visit(width, scheme)
    # The numbers are seen too, in a sheet on a phone.
    one.page.get_by_label("fixed").dispatch_event("click")
    one.tab("Explain")
    one.page.locator("#explain-text textarea").fill("The remedy for E272 is to test the fuse.")
    one.page.locator("#explain").click()
    one.fresh("#explained", ".kl-foot span")
    found = []
    for tab in TABS:
        one.tab(tab)
        for violation in axe.run(one.page, options=OPTIONS).response["violations"]:
            nodes = [node["html"][:150] for node in violation["nodes"][:3]]
            found.append((tab, violation["id"], nodes))
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    assert not found, "\n".join(map(str, found))
