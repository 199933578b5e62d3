"""What needs no TransferQueue: counting, and what is refused at start-up."""

from __future__ import annotations

import math
from importlib.metadata import PackageNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_backends.dataplane import transferqueue
from omni_backends.dataplane.transferqueue import TransferQueueOptions
from omni_backends.dataplane.transferqueue.ledger import Ledger
from omni_portable.config.schema import DataConfig, DataPlaneConfig, LauncherConfig, RunConfig, TrainerConfig
from omni_portable.contracts.errors import ConfigError, PluginError


def test_room_is_taken_before_a_row_is_stored_and_given_back_where_it_is_not():
    ledger = Ledger(2, 10)
    assert ledger.reserve("a", 6)
    assert not ledger.reserve("b", 5)
    ledger.settle("a", stored=False)
    assert ledger.reserve("b", 5)
    assert ledger.reserve("c", 5)
    assert not ledger.fits(0), "two rows are all"
    assert "2 of 2 groups" in str(ledger)


def test_what_the_queue_says_counts_unless_something_changed_meanwhile():
    ledger = Ledger(9, 100)
    ledger.reserve("coming", 10)
    before = ledger.changes
    ledger.replace({"of another process": 50}, before)
    assert ledger.fits(40)
    assert not ledger.fits(41)
    ledger.settle("coming", stored=True)
    ledger.replace({}, before)
    assert "coming" in ledger


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 6), st.booleans())))
def test_the_capacity_is_never_exceeded(steps):
    ledger, stored = Ledger(3, 12), {}
    for key, size, keep in steps:
        if key in stored:
            ledger.forget([key])
            del stored[key]
        elif ledger.reserve(key, size):
            ledger.settle(key, stored=keep)
            stored |= {key: size} if keep else {}
        assert len(stored) <= 3
        assert sum(stored.values()) <= 12
        assert ledger.fits(1) == (len(stored) < 3 and sum(stored.values()) < 12)


def test_memory_that_runs_out_before_the_capacity_does_is_no_room_until_something_is_removed(monkeypatch):
    monkeypatch.setattr("omni_backends.dataplane.transferqueue.ledger.FREEING_S", 0.0)
    ledger = Ledger(9, 100)
    for key in ("stored", "too much"):
        ledger.reserve(key, 10)
    ledger.settle("stored", stored=True)
    assert ledger.overflow("too much")
    ledger.settle("too much", stored=False)
    assert not ledger.fits(0)
    assert "object store has no room" in str(ledger)
    ledger.replace({"stored": 10}, ledger.changes)
    assert not ledger.fits(0)
    ledger.replace({}, ledger.changes)
    assert ledger.fits(1), "another process took it"
    ledger.reserve("alone", 10)
    assert not ledger.overflow("alone"), "nothing waits that could be taken out"


def test_memory_of_what_was_removed_just_now_is_waited_for(monkeypatch):
    ledger = Ledger(9, 100)
    ledger.reserve("a", 10)
    ledger.settle("a", stored=True)
    ledger.forget(["a"])
    ledger.reserve("b", 10)
    assert ledger.overflow("b")
    ledger.settle("b", stored=False)
    assert not ledger.fits(0)
    monkeypatch.setattr("omni_backends.dataplane.transferqueue.ledger.time.monotonic", lambda: math.inf)
    assert ledger.fits(0)


def test_a_missing_package_is_named_with_how_to_get_it(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(transferqueue, "version", missing)
    with pytest.raises(
        PluginError, match=r"TransferQueue 0.1.11, which is not installed(.|\n)*omni-portable\[transfer"
    ):
        TransferQueueOptions().check(RunConfig())


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(transferqueue, "version", lambda name: "0.2.0")
    with pytest.raises(PluginError, match="needs TransferQueue 0.1.11; installed is 0.2.0"):
        TransferQueueOptions().check(RunConfig())


def test_everything_that_waits_at_the_same_time_must_find_room(monkeypatch):
    monkeypatch.setattr(transferqueue, "version", lambda name: transferqueue.VERSION)
    config = RunConfig(
        data=DataConfig(train_batch_size=8),
        trainer=TrainerConfig(mode="separate_async"),
        dataplane=DataPlaneConfig(max_staleness=2),
    )
    TransferQueueOptions(capacity_groups=24).check(config)
    with pytest.raises(ConfigError, match="24 groups wait at the same time"):
        TransferQueueOptions(capacity_groups=23).check(config)


@pytest.mark.parametrize("name", ["storage_units", "capacity_groups", "capacity_mib", "answer_timeout_s"])
def test_options_must_be_positive(name):
    with pytest.raises(ConfigError, match=f"dataplane.options.{name}=0") as caught:
        TransferQueueOptions(**{name: 0})
    assert caught.value.remedy.startswith("leave it out for ")


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:70000", "http://head:6379", "a/b:1"])
def test_an_address_is_looked_at_before_anything_starts(address: str) -> None:
    with pytest.raises(ConfigError, match="dataplane.options.address=.* names no host and port"):
        TransferQueueOptions(address=address)


def test_objects_of_less_than_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="objects_from_kib=-1 is below 0"):
        TransferQueueOptions(objects_from_kib=-1)


@pytest.mark.parametrize("queue", ["..", ".", "-x", "_", "a b", "../up", "x" * 129, "line\nbreak", "caf\u00e9", "a/b"])
def test_a_queue_has_a_plain_name(queue: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a queue"):
        TransferQueueOptions(queue=queue)
    TransferQueueOptions(queue="my-run_2.b")


def test_storage_processes_are_not_started_by_the_million() -> None:
    with pytest.raises(ConfigError, match="storage_units=1000000 is above"):
        TransferQueueOptions(storage_units=1_000_000)


def test_a_second_cluster_beside_the_launchers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_backends.dataplane.transferqueue.check_installed", lambda: None)
    config = RunConfig(launcher=LauncherConfig(name="ray", options={"address": "head:6379"}))
    TransferQueueOptions(address="head:6379").check(config)
    with pytest.raises(ConfigError, match="with launcher.name=ray groups wait on the launcher's cluster"):
        TransferQueueOptions(address="other:6379").check(config)
    TransferQueueOptions(address="other:6379").check(RunConfig())
