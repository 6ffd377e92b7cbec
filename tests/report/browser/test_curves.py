"""Curves of the page: pointing, zooming all of them, smoothing, the signed difference, without and with a phone's width."""

import dataclasses

import numpy as np
import pytest

from precflow.curves.outcome import examine
from precflow.curves.series import make_series

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
STEPS = np.arange(200)
LOSS = 2 + np.exp(-STEPS / 50)


@pytest.fixture
def curved(misaligned):
    apart = np.where(STEPS > 120, 0.25, 0.0)
    bent = np.where(STEPS == 150, np.nan, LOSS + apart)
    loss = examine("loss", make_series(STEPS, LOSS), make_series(STEPS, bent), limits={"max_abs_error": 0.5})
    norm = examine("grad_norm", make_series(STEPS, 2 * LOSS), make_series(STEPS, 2 * LOSS), limits={})
    return dataclasses.replace(misaligned, curves=(loss, norm))


def box_of(page, selector):
    page.run(f"document.querySelector('{selector}').scrollIntoView()")
    return page.run(
        f"(({{x, y, width, height}}) => [x, y, width, height])(document.querySelector('{selector}').getBoundingClientRect())"
    )


UPPER = "[data-curve] svg.overlay"


def test_pointing_at_a_step_says_its_numbers(curved, show):
    page = show(curved)
    x, y, width, _ = box_of(page, UPPER)
    page.mouse("mouseMoved", x + 76 + (width - 102) * 140 / 199, y + 60)
    assert page.text("[data-curve] .tip").split("\n") == [
        "step 140",
        "reference 2.06",
        "target 2.31",
        "target − reference 0.25",
    ]
    assert page.run("document.querySelectorAll('[data-curve] .pointed').length") == 2
    page.run(f"document.querySelector('{UPPER}').focus()")
    page.key("ArrowRight")
    page.wait("document.querySelector('[data-curve] .tip').innerText.startsWith('step 141')")


def test_dragging_zooms_every_curve_and_the_address_keeps_it(curved, show):
    page = show(curved)
    x, y, width, _ = box_of(page, UPPER)
    page.mouse("mousePressed", x + 76, y + 60, pressed=1)
    page.mouse("mouseMoved", x + width / 2, y + 60, pressed=1)
    page.mouse("mouseReleased", x + width / 2, y + 60)
    page.wait("location.hash.startsWith('#begin=')")
    ticks = (
        "[...document.querySelectorAll('[data-curve] text[text-anchor=middle]:not(.axis-title)')].map((one) => one.textContent)"
    )
    assert max(map(int, page.run(ticks))) <= 100
    page.run(f"document.querySelector('{UPPER}').dispatchEvent(new MouseEvent('dblclick'))")
    assert page.run("location.hash") == ""
    page = show(curved, "begin=100&end=160")
    assert page.run("document.querySelector('.curve-tools button').hidden") is False


def test_smoothing_keeps_the_raw_lines_and_the_difference_can_have_its_sign(curved, show):
    page = show(curved)
    assert page.run("document.querySelectorAll('.overlay .raw').length") == 0
    page.run(
        "{const put = document.querySelector('.curve-tools input'); put.value = 0.9; put.dispatchEvent(new Event('input'))}"
    )
    assert page.run("document.querySelectorAll('[data-curve=\"0\"] .of-target.raw').length") == 2, "a hole breaks the line"
    page.click(".curve-tools [type=checkbox]")
    assert page.run("document.querySelectorAll('[data-curve=\"0\"] .zero').length") == 1
    assert page.run("document.querySelectorAll('[data-curve=\"0\"] .limit').length") == 3, "both signs, and the legend"
    assert page.named("Log.entryAdded", "Runtime.exceptionThrown") == []


@pytest.mark.parametrize("width", [390, 1440])
def test_letters_have_their_size_and_stay_inside(curved, show, width):
    page = show(curved, width=width)
    outside = """[...document.querySelectorAll('[data-curve] svg.overlay text')].filter((one) => {
      const [own, room] = [one, one.ownerSVGElement].map((each) => each.getBoundingClientRect());
      const small = !one.matches('[transform]') && own.height < 11;
      return own.left < room.left - 1 || own.right > room.right + 1 || own.bottom > room.bottom + 1 || small;
    }).map((one) => one.textContent)"""
    assert page.run(outside) == []
    assert page.run("document.documentElement.scrollWidth") == width


def test_curves_alone_need_no_records(curved, show):
    page = show(dataclasses.replace(curved, rows=(), groups=()))
    assert page.named("Log.entryAdded", "Runtime.exceptionThrown") == []
    assert page.run("document.querySelectorAll('[data-curve] .of-target').length") > 0
