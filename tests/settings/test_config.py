"""What `KNNConfig`, `IndexConfig` and `WindowConfig` accept, and how they refuse the rest."""

import math

import numpy as np
import pytest

from knn_logits.errors import ConfigError, KNNLogitsError
from knn_logits.metrics import METRICS, check_metric
from knn_logits.settings.config import IndexConfig, KNNConfig, WindowConfig, index_config

NAN, INF = math.nan, math.inf
NOT_WHOLE = [True, False, 1.0, 2.5, NAN, INF, -INF, "3", [1], np.float64(8.0), np.array([8])]
NOT_REAL = [True, False, NAN, INF, -INF, "0.5", None, [0.5], 1j, 10**400]


def message(kind, **settings):
    with pytest.raises(ConfigError) as caught:
        kind(**settings)
    assert isinstance(caught.value, (KNNLogitsError, ValueError))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "least", "optional"),
    [
        (KNNConfig, "k", 1, False),
        (KNNConfig, "nprobe", 1, True),
        (IndexConfig, "seed", 0, False),
        (WindowConfig, "window", 2, True),
    ],
)
def test_whole_numbers(kind, name, least, optional):
    for value in (least, least + 1, 10**9, np.int64(7)):
        made = getattr(kind(**{name: value}), name)
        assert (made, type(made)) == (value, int)
    for value in (*NOT_WHOLE, least - 1, -7, 2**63):
        assert name in message(kind, **{name: value})
    if optional:
        assert getattr(kind(**{name: None}), name) is None
    else:
        assert name in message(kind, **{name: None})


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("lmbda", (0, 0.0, 1e-300, 0.25, 1, np.float32(0.5)), (-1e-300, -1, 1.0000001, 10**300)),
        ("temperature", (1, 5e-324, 1e300, np.int32(3)), (0, 0.0, -0.0, -1)),
    ],
)
def test_real_numbers(name, right, wrong):
    for value in right:
        made = getattr(KNNConfig(**{name: value}), name)
        assert (made, type(made)) == (value, float)
    for value in (*wrong, *NOT_REAL):
        assert name in message(KNNConfig, **{name: value})


def test_words_and_switches():
    assert KNNConfig(refine=np.True_).refine is True
    for value in (1, 0, None, "yes", NAN):
        assert "refine" in message(KNNConfig, refine=value)
    for metric in METRICS:
        assert check_metric(metric) == IndexConfig(metric=metric).metric == metric
    for metric in ("L2", "", "euclid", 0, ["l2"]):
        assert "metric must be one of l2, ip, cosine" in message(IndexConfig, metric=metric)
    assert "must be 0 to 1 or auto, not 'no'" in message(KNNConfig, infini_gram="no")
    for factory in ("auto", "exact", "IVF64,SQ8"):
        assert IndexConfig(factory=factory).factory == factory
    for factory in ("", "  ", "\t\n", None, 5, True, b"exact"):
        assert "index" in message(IndexConfig, factory=factory)


def test_stride_does_not_exceed_the_window():
    assert WindowConfig(8, 8).stride == 8
    text = message(WindowConfig, window=8, stride=9)
    assert "stride 9 is larger than window 8" in text
    assert WindowConfig(stride=9000).window is None


def test_settings_are_frozen_and_comparable():
    for config in (KNNConfig(), IndexConfig(), WindowConfig()):
        assert config == type(config)()
        assert hash(config) == hash(type(config)())
        with pytest.raises(AttributeError):
            config.k = 3


def test_defaults():
    config = KNNConfig()
    assert (config.k, config.lmbda, config.temperature) == (1024, 0.25, 10.0)
    assert (config.refine, config.nprobe) == (False, None)
    assert IndexConfig() == index_config(None) == IndexConfig("auto", None, None, None, 0)
    assert index_config("exact") == IndexConfig("exact")
    with pytest.raises(ConfigError, match="must be an IndexConfig"):
        index_config(4)
    assert type(config.with_given(k=np.int64(8)).k) is int
