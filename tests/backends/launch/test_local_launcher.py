import subprocess
import sys

import pytest

from omni_portable.contracts import registry
from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.launcher import Launcher


class Role:
    def __init__(self, name, closed):
        self.name, self.closed = name, closed

    def close(self):
        self.closed.append(self.name)


@pytest.fixture
def launcher():
    return registry.load("launcher", "local")(registry.spec("launcher", "local").options())


def test_it_implements_the_contract(launcher):
    assert isinstance(launcher, Launcher)


def test_the_handle_is_the_role_and_roles_close_in_reverse_order_once(launcher):
    closed: list[str] = []
    actor = launcher.start("actor", lambda: Role("actor", closed))
    launcher.start("numbers", lambda: [1, 2])
    launcher.start("rollout", lambda: Role("rollout", closed))
    assert actor.name == "actor"
    launcher.shutdown()
    launcher.shutdown()
    assert closed == ["rollout", "actor"]


def test_a_role_starts_once(launcher):
    launcher.start("actor", list)
    with pytest.raises(LifecycleError, match="'actor' was started before"):
        launcher.start("actor", list)


def test_a_role_that_fails_to_start_leaves_its_name_free(launcher):
    with pytest.raises(ZeroDivisionError):
        launcher.start("actor", lambda: 1 // 0)
    assert launcher.start("actor", lambda: 5) == 5


def test_specs_of_in_process_backends_load_without_torch():
    code = (
        "import sys\n"
        "import omni_backends.launch.local, omni_backends.dataplane.local, omni_backends.rollout.native\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
