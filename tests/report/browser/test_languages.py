"""A page in two languages: which of them is shown, the switch, and what the script writes."""

import dataclasses

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


def test_the_address_says_the_language_and_the_switch_changes_it(misaligned, show):
    page = show(dataclasses.replace(misaligned, language="both"), "lang=zh&status=fail")
    assert page.run("document.documentElement.lang") == "zh-CN"
    assert page.text("h1") == "未对齐"
    assert page.run("document.title").startswith("✗ 未对齐")
    assert page.text("#table tbody tr [data-label=状态]") == "✗ 超限"
    assert "全部 281" in page.text("#chips")
    assert page.run("document.querySelectorAll('#table, h1').length") == 2
    page.click("#table tbody button.record")
    assert "为阈值 1.53e-5 的 86 倍" in page.text("#detail")
    assert "两侧" in page.text("#detail")
    page.run("document.querySelector('#detail').close()")
    page.run("window.stays = true")
    page.click(".languages [lang=en]")
    page.wait("!window.stays && document.documentElement?.classList.contains('has-script')")
    assert page.text("h1") == "Misaligned"
    assert page.run("location.hash").startswith("#lang=en&")
    assert page.run("location.hash").endswith("status=fail")
    assert page.run("document.querySelector('.languages [aria-current]').lang") == "en"
    assert page.named("Log.entryAdded", "Runtime.exceptionThrown") == []


@pytest.mark.parametrize("name", ["misaligned", "inconclusive", "nasty", "trained", "empty"])
def test_in_chinese_nothing_sticks_out(name, request, show):
    page = show(dataclasses.replace(request.getfixturevalue(name), language="both"), "lang=zh", width=390)
    for width in (390, 1440):
        page.resize(width)
        assert page.run("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert page.named("Log.entryAdded", "Runtime.exceptionThrown") == []


def test_without_javascript_the_first_language_is_shown(misaligned, show):
    page = show(dataclasses.replace(misaligned, language="both"), script=False)
    assert page.text("h1") == "Misaligned"
