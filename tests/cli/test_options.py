"""The decorator that makes options of groups of settings."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from knn_logits import WindowConfig
from knn_logits.cli.options import Settable, Without, command
from knn_logits.errors import ConfigError
from knn_logits.settings.declaration import setting


@dataclass(frozen=True)
class Port:
    name: str = setting("Oldenport", "Its name.")
    piers: int = setting(3, "Its piers.", least=1)
    depth: float = setting(4.0, "Its depth.", above=0)
    open: bool = setting(False, "Whether it is open.", option="--open/--closed")
    hidden: int = setting(1, "Not on the command line.", option="")


@dataclass(frozen=True)
class Coast:
    port: Port
    length: int = setting(9, "Its length.")


@pytest.fixture
def call():
    heard = {}

    @command
    def show(
        place: str,
        coast: Coast,
        windows: Annotated[WindowConfig, Without(("stride",))],
        given: Annotated[dict[str, Any], Settable("build")],
        loud: Annotated[bool, typer.Option("--loud")] = False,
    ) -> None:
        """Shows what it got."""
        heard.update(locals())

    app = typer.Typer(rich_markup_mode=None)
    app.command()(show)

    def called(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        return done, heard

    return called


def test_a_command_gets_whole_groups(call):
    done, heard = call("here", "--piers", 4, "--open", "--window", 8, "--k", 7, "--length", 2)
    assert done.exit_code == 0, done.output
    assert heard["coast"] == Coast(Port(piers=4, open=True), 2)
    assert heard["windows"] == WindowConfig(8)
    assert heard["given"] == {"k": 7}
    assert (heard["place"], heard["loud"]) == ("here", False)
    _, heard = call("here", "--loud", "--closed")
    assert (heard["coast"], heard["given"], heard["loud"]) == (Coast(Port()), {}, True)


def test_wrong_values_are_refused_before_the_command_runs(call):
    assert call("here", "--piers", 0)[0].exit_code == 2
    for words, message in (
        (("--depth", 0), "--depth must be above 0, not 0.0"),
        (("--window", 1), "window must be an integer of at least 2"),
        (("--lmbda", 2), "lmbda must lie between 0 and 1"),
    ):
        done, heard = call("here", *words)
        assert isinstance(done.exception, ConfigError)
        assert message in str(done.exception)
        assert heard == {}


def test_help_has_the_range_and_the_default(call):
    out = " ".join(call("--help")[0].output.split())
    for words in ("Its piers. [default: 3; x>=1]", "Weight of the neighbors in the mixture; 0 to"):
        assert words in out
    assert all(word not in out for word in ("--hidden", "--stride", "--nprobe"))
