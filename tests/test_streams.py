"""What goes to a terminal can be read and nothing else; JSON means the same when it is made printable."""

import json
import unicodedata

from precflow import streams

HOSTILE = "a\x1b[31m\x07\x9b\u202e\u2067\u200f\ud800\U000e0001層\u3000é"


def test_json_means_the_same_and_acts_on_nothing():
    every = "".join(map(chr, range(0x3000))) + HOSTILE
    text = streams.printable_json(json.dumps({every: every}, ensure_ascii=False))
    assert json.loads(text) == {every: every}
    assert [letter for letter in text if not letter.isprintable() and unicodedata.category(letter) != "Zs"] == []
    assert "層" in text


def test_lines_stay_lines():
    assert streams.printable_lines("one\x1b\ntwo") == "one\\x1b\ntwo"


def test_what_a_stream_cannot_show_is_replaced(capsys):
    streams.say(HOSTILE)
    streams.write_json({"a": HOSTILE})
    said = capsys.readouterr()
    assert "\x1b" not in said.err
    assert json.loads(said.out) == {"a": HOSTILE}
