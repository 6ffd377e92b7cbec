import json

import numpy as np

from precflow.comparison.detail.as_json import plain_description, plain_detail, plain_record
from precflow.comparison.detail.description import describe
from precflow.comparison.detail.detail import examine
from precflow.comparison.detail.record import RecordDetail


def strict(value):
    return json.loads(json.dumps(value, allow_nan=False))


def test_a_description_has_mean_and_norm():
    told = strict(plain_description(describe([np.array([3.0, -4.0, np.nan])])[0]))
    assert told["extent"]["norm"] == 5
    assert told["extent"]["mean"] == -0.5
    assert "square" not in told["extent"]


def test_nothing_has_null_and_no_infinity():
    extent = strict(plain_description(describe([np.zeros(0)])[0]))["extent"]
    assert (extent["minimum"], extent["maximum"], extent["mean"]) == (None, None, None)


def test_a_detail_is_strict_json():
    told = strict(plain_detail(examine(np.array([1.0, np.nan]), np.array([np.inf, 2.0]))))
    assert told["mismatches"] == 2
    assert told["mismatched"][0]["error"] == "NaN"


def test_a_record_without_detail():
    told = strict(plain_record(RecordDetail("a", "a", None, reason="why")))
    assert (told["detail"], told["reference"], told["reason"]) == (None, None, "why")
