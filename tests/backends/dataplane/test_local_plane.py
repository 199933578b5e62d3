import pytest

from omni_backends.dataplane.local import LocalDataPlane
from omni_portable.contracts import registry
from omni_portable.contracts.dataplane import DataPlane, GroupTag
from omni_portable.contracts.errors import DataError
from tests.support.requests import make_group


def filled(*names):
    plane = LocalDataPlane()
    for position, name in enumerate(names):
        plane.put(make_group(name, position, [3, 2]))
    return plane


def test_it_is_registered_and_implements_the_contract():
    plane = registry.load("data_plane", "local")(registry.spec("data_plane", "local").options())
    assert isinstance(plane, DataPlane)


def test_tags_describe_groups_without_reading_them():
    assert filled("a", "b").tags() == [GroupTag("a", 0, 2, 2), GroupTag("b", 1, 2, 2)]


def test_take_returns_the_stored_groups_in_the_order_asked_for():
    plane = filled("a", "b", "c")
    assert [group.group_id for group in plane.take(["c", "a"])] == ["c", "a"]
    assert [tag.group_id for tag in plane.tags()] == ["b"]


@pytest.mark.parametrize("method", ["take", "drop"])
@pytest.mark.parametrize("names", [["a", "x"], ["a", "a"]])
def test_a_bad_id_leaves_everything_in_place(method, names):
    plane = filled("a", "b")
    with pytest.raises(DataError):
        getattr(plane, method)(names)
    assert len(plane.tags()) == 2


def test_drop_removes():
    plane = filled("a", "b")
    plane.drop(["a"])
    assert [tag.group_id for tag in plane.tags()] == ["b"]


def test_a_second_put_of_an_id_is_an_error():
    plane = filled("a")
    with pytest.raises(DataError, match="'a' already"):
        plane.put(make_group("a", 5, [0]))
    assert plane.tags()[0].submission == 0
