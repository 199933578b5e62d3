import subprocess
import sys

import pytest

from omni_portable.contracts import registry
from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.launcher import Launcher, Role

CLOSED: list[str] = []


class Built:
    def __init__(self, name):
        self.name = name

    def close(self):
        CLOSED.append(self.name)


def build(config, here=None, more=0):
    if config.get("broken"):
        raise ZeroDivisionError
    return here if here is not None else Built(config["name"] + "+" * more)


def role(name, replica=0, **fields):
    return Role(name, f"{__name__}:build", {"name": name} | fields.pop("config", {}), replica, **fields)


@pytest.fixture
def launcher():
    CLOSED.clear()
    return registry.load("launcher", "local")(registry.spec("launcher", "local").options())


def test_it_implements_the_contract(launcher):
    assert isinstance(launcher, Launcher)
    assert launcher.reserve([role("actor")]) is None


def test_the_handle_is_the_role_and_roles_close_in_reverse_order_once(launcher):
    assert launcher.start(role("actor", arguments={"more": 2})).name == "actor++"
    numbers = [1, 2]
    assert launcher.start(role("numbers", here={"here": numbers})) is numbers
    launcher.start(role("rollout"))
    launcher.shutdown()
    launcher.shutdown()
    assert CLOSED == ["rollout", "actor++"]


def test_a_role_starts_once_per_replica_until_it_is_stopped(launcher):
    launcher.start(role("actor"))
    launcher.start(role("actor", replica=1))
    with pytest.raises(LifecycleError, match="'actor-0' was started before"):
        launcher.start(role("actor"))
    launcher.stop(role("actor"))
    launcher.stop(role("actor"))
    assert CLOSED == ["actor"]
    launcher.start(role("actor"))


def test_a_role_that_fails_to_start_leaves_its_name_free(launcher):
    with pytest.raises(ZeroDivisionError):
        launcher.start(role("actor", config={"broken": True}))
    assert launcher.start(role("actor")).name == "actor"


def test_specs_of_backends_load_without_torch_and_without_ray():
    code = (
        "import sys\n"
        "import omni_backends.launch.local, omni_backends.launch.ray\n"
        "import omni_backends.dataplane.local, omni_backends.rollout.native\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
        "assert 'ray' not in sys.modules, 'ray was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
