"""Sources that differ stand line by line on the page, in Markdown and in result.json."""

import dataclasses
import json

from precflow.environment.program import SourceDifference
from precflow.report import html, markdown, result_json

LINES = ("--- reference", "+++ target", "@@ -1 +1 @@", "-y = <b>relu</b>(x)", "+y = gelu(x)")


def test_every_form_has_the_lines(misaligned):
    sources = (SourceDifference("models/net.py", "differs", LINES, 3), SourceDifference("new.py", "target only"))
    model = dataclasses.replace(misaligned, sources=sources)
    page, text = html.render(model), markdown.render(model)
    assert '<span class="removed">-y = &lt;b&gt;relu&lt;/b&gt;(x)' in page
    assert '<span class="added">+y = gelu(x)' in page
    assert "and 3 more lines" in page
    assert "    +y = gelu(x)" in text
    assert "new.py` (target only)" in text
    plain = result_json.render(model)
    assert json.loads(plain)["sources"][0]["lines"] == list(LINES)
    assert result_json.parse(plain.encode(), "here").sources == sources
    assert 'id="sources"' not in html.render(misaligned)
