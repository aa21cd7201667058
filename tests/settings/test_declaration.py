"""A setting is declared once, and everything else is made from its declaration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

import knn_logits
from knn_logits import KNNConfig
from knn_logits.errors import ConfigError
from knn_logits.mixture.presets import MixtureSettings
from knn_logits.settings.config import SearchSettings
from knn_logits.settings.declaration import Setting, check_fields, documented, setting, settings_of
from knn_logits.settings.registry import check_settings, settings_for, settings_line
from knn_logits.store.records import SettingsRecord


@documented
@dataclass(frozen=True)
class Crane:
    """A crane."""

    load: float = setting(2.0, "What it lifts.", above=0, most=5, limit=3, symbol="L")
    hooks: int | None = setting(None, "Its hooks.", least=1)
    brake: bool | Literal["auto"] = setting("auto", "Whether it brakes.", option="--brake")

    def __post_init__(self):
        check_fields(self)


def test_a_field_becomes_a_check_and_a_docstring():
    assert Crane(load=5, hooks=None) == Crane(5.0)
    for values, message in (
        ({"load": 0}, "load must be above 0 and at most 5, not 0"),
        ({"load": "much"}, "load must be a finite number, not 'much'"),
        ({"hooks": 0}, "hooks must be an integer of at least 1, not 0"),
        ({"brake": "never"}, "brake must be True or False, not 'never'"),
    ):
        with pytest.raises(ConfigError) as refused:
            Crane(**values)
        assert str(refused.value) == message
    assert "load: What it lifts; above 0 and at most 5." in Crane.__doc__
    assert settings_of(Crane)["brake"].check("auto") == "auto"


def test_a_type_that_is_not_checked_cannot_be_declared():
    with pytest.raises(TypeError, match="the setting load has a type"):
        Setting(name="load", annotation=Path | None).check("crate")


def test_a_limit_holds_for_strangers_only():
    load = settings_of(Crane)["load"]
    assert load.check(4) == 4
    with pytest.raises(ConfigError, match="at most 3"):
        load.check(4, limited=True)
    assert check_settings({"k": 10**6}) == {"k": 10**6}
    with pytest.raises(ConfigError, match="k must be an integer from 1 to 4096"):
        check_settings({"k": 10**6}, "request")


def test_what_somebody_gives_is_checked_by_name_and_value():
    assert check_settings({"k": 3, "lmbda": None, "exclude": "a"}) == {"k": 3, "exclude": ("a",)}
    with pytest.raises(ConfigError, match="no setting 'refine'"):
        check_settings({"refine": True}, "request")
    assert set(settings_for("page")) == {"k", "lmbda", "temperature"}


def test_the_types_for_callers_name_the_settings_that_are_declared():
    assert set(SearchSettings.__annotations__) | {"k", "lmbda", "temperature"} == set(
        settings_of(KNNConfig)
    )
    assert set(MixtureSettings.__annotations__) == set(settings_for())


def test_a_manifest_keeps_the_stored_settings():
    config = KNNConfig(3, 0.5, 2.0, retomaton=True, min_knns=7, suffix_weight=4.0)
    record = SettingsRecord(**config.stored_values())
    assert KNNConfig.of(record) == KNNConfig(3, 0.5, 2.0, suffix_weight=4.0)
    assert settings_line(record) == "k 3, lmbda 0.5, temperature 2, suffix weight 4"
    assert settings_line(KNNConfig(), symbols=True) == "k 1024, λ 0.25, τ 10"


def test_public_docstrings_have_every_setting():
    for name in ("KNNConfig", "IndexConfig", "WindowConfig"):
        kind = getattr(knn_logits, name)
        assert all(f"    {one}: " in kind.__doc__ for one in settings_of(kind))


@pytest.mark.parametrize("value", ["9" * 10**6, [["k"] * 1000] * 1000, {"k": "v" * 10**5}])
def test_a_refusal_does_not_repeat_a_long_value(value):
    with pytest.raises(ConfigError, match="k must be") as refused:
        check_settings({"k": value}, "request")
    assert len(str(refused.value)) < 1000
