"""A process of its own for what strangers wrote: it answers, it ends alone, and the next request has a new one."""

import copy
import os
import pickle
import threading

import pytest

from tinytf.errors import CheckpointError, UsageError
from tinytf.text.template import render_template
from tinytf.text.worker import Worker


def test_a_request_is_answered_by_another_process_that_stays():
    apart = Worker("the number")
    first = apart(os.getpid)
    assert first != os.getpid()
    assert apart(os.getpid) == first


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_a_process_of_its_own(copied):
    apart = Worker("the number")
    assert copied(apart)(os.getpid) not in (apart(os.getpid), os.getpid())


def test_what_is_raised_there_is_raised_here():
    with pytest.raises(UsageError, match="refuses this conversation: no"):
        Worker("the template")(render_template, "{{ raise_exception('no') }}", {})


@pytest.mark.parametrize(("work", "given"), [(os._exit, (3,)), (os.abort, ()), (bytearray, (2**40,))])
def test_one_that_ends_is_told_and_the_next_request_has_another(work, given):
    apart = Worker("the file x")
    with pytest.raises(CheckpointError, match=r"^the file x .*, and was stopped"):
        apart(work, *given)
    assert apart(len, "abc") == 3


def test_what_cannot_begin_is_told():
    with pytest.raises(CheckpointError, match="the file x"):
        Worker("the file x", os.abort)(len, "abc")


def test_requests_of_several_threads_have_each_their_own_answer():
    apart, found = Worker("the number"), {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: apart(abs, -n)})) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: n for n in range(8)}


def test_what_cannot_be_sent_is_told():
    with pytest.raises(UsageError, match="the template cannot take this"):
        Worker("the template")(len, lambda: 0)


FORGED = """
import os, pickle
class Forged:
    def __reduce__(self): return os.system, ("touch {marker}",)
for number in range(3, 99):
    try: os.write(number, pickle.dumps((True, Forged())))
    except OSError: pass
"""


def test_an_answer_that_is_forged_there_runs_nothing_here(tmp_path):
    apart, marker = Worker("the file x"), tmp_path / "ran"
    with pytest.raises(CheckpointError, match="the file x gives an invalid answer, and was stopped"):
        apart(exec, FORGED.format(marker=marker), {})
    assert not marker.exists()
    assert apart(len, "abc") == 3
