import math

import numpy as np
import pytest

from knn_logits.engine.windows import resolve
from knn_logits.errors import ConfigError, KNNLogitsError
from knn_logits.settings.config import (
    METRICS,
    IndexConfig,
    KNNConfig,
    WindowConfig,
    check_metric,
    check_threads,
    index_config,
)

NAN, INF = math.nan, math.inf
NOT_WHOLE = [True, False, 1.0, 2.5, NAN, INF, -INF, "3", [1]]
NOT_REAL = [True, False, NAN, INF, -INF, "0.5", None, [0.5], 1j, 10**400]


def message(kind, **settings):
    with pytest.raises(ConfigError) as caught:
        kind(**settings)
    assert isinstance(caught.value, KNNLogitsError)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "least", "optional"),
    [
        (KNNConfig, "k", 1, False),
        (KNNConfig, "nprobe", 1, True),
        (IndexConfig, "nprobe", 1, True),
        (IndexConfig, "train_size", 1, True),
        (IndexConfig, "seed", 0, False),
        (WindowConfig, "window", 2, True),
        (WindowConfig, "stride", 1, True),
    ],
)
def test_whole_numbers(kind, name, least, optional):
    for value in (least, least + 1, 10**9):
        assert getattr(kind(**{name: value}), name) == value
    for value in (*NOT_WHOLE, least - 1, -7):
        assert name in message(kind, **{name: value})
    if optional:
        assert getattr(kind(**{name: None}), name) is None
    else:
        assert name in message(kind, **{name: None})


@pytest.mark.parametrize("name", ["lmbda", "temperature"])
@pytest.mark.parametrize("value", NOT_REAL)
def test_what_is_no_finite_number_is_refused(name, value):
    assert name in message(KNNConfig, **{name: value})


def test_lmbda_lies_between_0_and_1():
    for value in (0, 0.0, 1e-300, 0.25, 1, 1.0):
        found = KNNConfig(lmbda=value).lmbda
        assert found == value
        assert type(found) is float
    for value in (-1e-300, -1, 1.0000001, 2, 10**300):
        assert "lmbda" in message(KNNConfig, lmbda=value)


def test_temperature_is_above_0():
    for value in (1, 5e-324, 1e300):
        found = KNNConfig(temperature=value).temperature
        assert found == value
        assert type(found) is float
    for value in (0, 0.0, -0.0, -1):
        assert "temperature" in message(KNNConfig, temperature=value)


@pytest.mark.parametrize("value", [1, 0, None, "yes", NAN])
def test_refine_is_a_bool(value):
    assert KNNConfig(refine=True).refine is True
    assert "refine" in message(KNNConfig, refine=value)


def test_metric():
    for metric in METRICS:
        assert check_metric(metric) == metric
        assert IndexConfig(metric=metric).metric == metric
    for metric in ("L2", "", "euclid", 0, ["l2"]):
        text = message(IndexConfig, metric=metric)
        assert "metric" in text
        assert all(known in text for known in METRICS)


def test_factory():
    for factory in ("auto", "exact", "IVF64,SQ8"):
        assert IndexConfig(factory=factory).factory == factory
    for factory in ("", "  ", "\t\n", None, 5, True, b"exact"):
        assert "index" in message(IndexConfig, factory=factory)


def test_stride_does_not_exceed_the_window():
    assert WindowConfig(8, 8).stride == 8
    text = message(WindowConfig, window=8, stride=9)
    assert "stride 9" in text
    assert "window 8" in text
    assert WindowConfig(stride=9000).window is None


def test_settings_are_frozen_and_comparable():
    for one in (KNNConfig(), IndexConfig(), WindowConfig()):
        assert one == type(one)()
        assert hash(one) == hash(type(one)())
        with pytest.raises(AttributeError):
            one.k = 3


def test_defaults():
    config = KNNConfig()
    assert (config.k, config.lmbda, config.temperature) == (1024, 0.25, 10.0)
    assert config.refine is False
    assert config.nprobe is None
    assert IndexConfig() == IndexConfig("auto", None, None, None, 0)


def test_numbers_of_numpy_are_numbers():
    found = KNNConfig(
        k=np.int64(8), lmbda=np.float32(0.5), temperature=np.int32(3), refine=np.True_
    )
    assert found == KNNConfig(k=8, lmbda=0.5, temperature=3.0, refine=True)
    assert [type(one) for one in (found.k, found.lmbda, found.refine)] == [int, float, bool]
    assert type(IndexConfig(nprobe=np.uint8(4)).nprobe) is int
    assert type(KNNConfig().with_given(k=np.int64(8)).k) is int
    for value in (np.float64(8.0), np.True_, np.array([8]), np.int64(0)):
        assert "k must be" in message(KNNConfig, k=value)


def test_what_no_number_can_hold_is_refused():
    assert "from 0 to" in message(IndexConfig, seed=2**32)
    assert "k must be" in message(KNNConfig, k=2**63)


@pytest.mark.parametrize("value", [0, -1, 100_000, 1.5, "4", True])
def test_threads_that_cannot_be_started_are_refused(value):
    with pytest.raises(ConfigError, match="threads must be"):
        check_threads(value)
    check_threads(None)
    check_threads(np.int64(4))


def test_an_index_may_be_named_by_its_factory():
    assert index_config("exact") == IndexConfig("exact")
    assert index_config(None) == IndexConfig()
    with pytest.raises(ConfigError, match="must be an IndexConfig"):
        index_config(4)
    with pytest.raises(ConfigError, match="must be a WindowConfig"):
        resolve(64, 128)
