"""Turns of clients: queues, the gate of threads, batches, and dropped work."""

import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from attention_testing.servers import until
from keras_attention_apps.common.web import fairness
from keras_attention_apps.common.web.fairness import (
    Batches,
    Dropped,
    FairQueue,
    Gate,
    Job,
)


def popped(queue, count=10**6, may_have=lambda job: True):
    """Return the entries of the next turns."""
    entries = iter(lambda: queue.pop(may_have), None)
    return [entry for _, entry, _ in itertools.islice(entries, count)]


def push(queue, job, *entries, cost=1):
    for entry in entries:
        queue.push(job, Future(), entry, cost)


def test_clients_take_turns_and_so_do_their_requests():
    queue = FairQueue()
    first, second, other = Job("a"), Job("a"), Job("b")
    push(queue, first, "a1", "a2", "a3")
    push(queue, second, "A1", "A2")
    push(queue, other, "b1", "b2", "b3", "b4")

    turns = ["a1", "b1", "A1", "b2", "a2", "b3", "A2", "b4", "a3"]
    assert popped(queue) == turns
    assert queue.pop() is None


def test_turns_follow_the_cost():
    queue = FairQueue()
    push(queue, Job("long"), "L1", "L2", "L3", cost=5)
    push(queue, Job("short"), *map(str, range(12)), cost=1)

    # Five short ones cost as much as a long one.
    assert "".join(popped(queue)) == "L1" + "01234" + "L2" + "56789" + "L3" + "1011"


def test_who_comes_later_does_not_wait_for_those_before_and_saves_nothing():
    queue = FairQueue()
    push(queue, Job("a"), *range(100))
    assert popped(queue, 50) == [*range(50)]
    push(queue, Job("b"), *"bcdefgh")

    assert popped(queue, 6) == ["b", 50, "c", 51, "d", 52]


def test_a_client_that_comes_back_continues_its_account():
    queue = FairQueue()
    expensive = Job("expensive")
    push(queue, Job("b"), *"bcdefgh")
    push(queue, expensive, "E", cost=3)
    assert popped(queue, 2) == ["b", "E"]
    push(queue, Job("expensive"), "F", cost=3)
    assert popped(queue, 4) == ["c", "d", "e", "F"]


def test_entries_of_futures_that_are_done_are_left_out_and_cost_nothing():
    queue, job, gone = FairQueue(), Job("a"), Future()
    push(queue, Job("b"), "b1", "b2")
    for entry in range(1000):
        queue.push(job, gone, entry, 1)
    push(queue, job, "a1")
    gone.cancel()

    assert popped(queue) == ["b1", "a1", "b2"]


def test_some_jobs_may_have_no_turn():
    queue, first = FairQueue(), Job("a")
    push(queue, first, "a1")
    push(queue, Job("b"), "b1")

    assert popped(queue, may_have=lambda job: job is not first) == ["b1"]
    assert popped(queue) == ["a1"]


def test_accounts_of_clients_that_have_gone_are_forgotten():
    queue = FairQueue()
    push(queue, Job("stays"), *range(10_000))
    for number in range(2000):
        push(queue, Job(number), "x", cost=0.5)
        popped(queue, 2)
    assert len(queue._clients._costs) < 200


@pytest.fixture
def pool():
    with ThreadPoolExecutor(20) as pool:
        yield pool


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        # Alone, a client has all places but one.
        ((["alone"] * 9, ["other"] * 3), ["alone"] * 7 + ["other"]),
        # Beside others, it has a quarter of the places.
        ((["one"], ["many"] * 9, ["two"]), ["one", "many", "many", "two"]),
    ],
)
def test_the_gate_keeps_places_for_other_clients(pool, groups, expected):
    gate, goes_on, running = Gate(8), threading.Event(), []

    def compute(name):
        running.append(name)
        assert goes_on.wait(60)

    try:
        for names in groups:
            count = sum(name in names for name in expected)
            before = len(running)
            for name in names:
                pool.submit(Job(name, gate).run, compute, name)
            until(lambda before=before, count=count: len(running) == before + count)
        time.sleep(0.05)
        assert running == expected
    finally:
        goes_on.set()
    until(lambda: len(running) == sum(map(len, groups)))


def test_who_has_used_the_processor_more_waits_longer(pool):
    gate, order = Gate(1), []
    begun, goes_on = threading.Event(), threading.Event()

    def spend(seconds):
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    def block():
        begun.set()
        assert goes_on.wait(60)

    # A job waits all the time, so that the accounts of the others are kept.
    blocked = pool.submit(Job("first", gate).run, block)
    assert begun.wait(60)
    spends = pool.submit(Job("greedy", gate).run, spend, 0.05)
    until(lambda: gate._waiting._clients.members.keys() == {"greedy"})
    pool.submit(Job("greedy", gate).run, order.append, "greedy")
    pool.submit(Job("modest", gate).run, order.append, "modest")
    until(lambda: gate._waiting._clients.members.keys() == {"greedy", "modest"})
    goes_on.set()
    for future in (blocked, spends):
        future.result()
    until(lambda: len(order) == 2)
    assert order == ["modest", "greedy"]


@pytest.mark.parametrize("is_alone", [True, False])
def test_beside_others_a_client_rests_after_a_turn(pool, is_alone):
    gate, begun = Gate(4), threading.Event()

    def spend(seconds):
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        begun.set()
        return time.monotonic()

    if not is_alone:
        pool.submit(Job("other", gate).run, int).result(60)
    ended = pool.submit(Job("greedy", gate).run, spend, 0.1).result(60)
    until(lambda: not gate._running)
    assert ("greedy" in gate._resting) is not is_alone
    # Others need not wait for it.
    pool.submit(Job("other", gate).run, int).result(60)
    again = pool.submit(Job("greedy", gate).run, time.monotonic).result(60)
    if not is_alone:
        assert again - ended >= 0.9 * fairness.REST * 0.1


def test_a_thread_that_waits_leaves_its_place(pool):
    gate, goes_on, order = Gate(1), Future(), []

    def waits():
        job = fairness.current_job()
        with job.pause():
            job.result(goes_on)
        order.append("waited")

    waiting = pool.submit(Job("a", gate).run, waits)
    pool.submit(Job("b", gate).run, order.append, "computed").result(60)
    goes_on.set_result(None)
    waiting.result(60)
    assert order == ["computed", "waited"]


@pytest.mark.parametrize("place", ["before", "gate", "batches"])
def test_work_that_is_dropped_ends(pool, place):
    reason, computed = ValueError("gone"), []
    goes_on, begun = threading.Event(), threading.Event()

    def call(inputs):
        begun.set()
        assert goes_on.wait(60)
        computed.extend(inputs)
        return inputs

    gate = Gate(1)
    batches = Batches(call, 1, lambda size: None)
    other, job = Job("a", gate), Job("b", gate)
    try:
        if place == "before":
            job.drop(reason)
        first = (lambda: goes_on.wait(60)) if place == "gate" else batches
        running = pool.submit(other.run, first, *[[0]] * (place != "gate"))
        until(lambda: gate._running or begun.is_set())
        dropped = pool.submit(job.run, batches, [1, 2, 3])
        if place != "before":
            waiting = gate if place == "gate" else batches
            until(lambda: "b" in waiting._waiting._clients.members)
            job.drop(reason)
        with pytest.raises(Dropped):
            dropped.result(60)
        assert job.reason is reason
        assert "b" not in batches._waiting._clients.members
    finally:
        goes_on.set()
    running.result(60)
    assert Job("c", gate).run(batches, [4]) == [4]
    # What is computed by now is complete; the rest is not.
    assert computed == ([4] if place == "gate" else [0, 4])


class Recorded:
    """Batches whose first call waits, so that inputs gather behind it."""

    def __init__(self, pool, **options):
        self.batches, self._pool = [], pool
        self._goes_on, self._begun = threading.Event(), threading.Event()
        self._call = Batches(self._compute, 64, lambda size: None, **options)
        self._submitted = [self.submit(Job("first"), ["first"])]
        assert self._begun.wait(60)

    def submit(self, job, inputs):
        return self._pool.submit(job.run, self._call, inputs)

    def _compute(self, inputs):
        self._begun.set()
        assert self._goes_on.wait(60)
        self.batches.append(inputs)
        return inputs

    def ask(self, *asked):
        """Ask for the inputs of jobs, one after the other, and return the batches."""
        futures = []
        for job, inputs in asked:
            futures.append(self.submit(job, inputs))
            until(lambda job=job: self._has(job))
        self._goes_on.set()
        for future, (_, inputs) in zip(futures, asked, strict=True):
            assert future.result(60) == inputs
        assert self.batches.pop(0) == ["first"]
        return self.batches

    def _has(self, job):
        jobs = self._call._waiting._clients.members.get(job.client)
        return jobs and job in jobs.members


def test_a_batch_has_a_share_of_each_request(pool):
    many, single, pair = Job("many"), Job("one"), Job("two")
    inputs = [f"m{i}" for i in range(40)]
    batches = Recorded(pool).ask((many, inputs), (single, ["x"]), (pair, ["y", "z"]))

    assert sorted(batches[0]) == ["m0", "m1", "x", "y", "z"]
    assert batches[1] == ["m2", "m3"]


def test_a_batch_has_a_share_of_each_client(pool):
    jobs = [(Job("many"), [f"{name}{i}" for i in range(9)]) for name in "abcdefgh"]
    batches = Recorded(pool).ask(*jobs, (Job("one"), ["x"]))

    assert sorted(text[0] for text in batches[0]) == [*"abx"]
    assert sorted(text[0] for text in batches[1]) == [*"cd"]


def test_a_request_alone_has_whole_batches(pool, monkeypatch):
    monkeypatch.setattr(fairness, "RECENT_SECONDS", -1)
    inputs = [str(i) for i in range(100)]
    batches = Recorded(pool).ask((Job("many"), inputs))

    assert batches == [inputs[:64], inputs[64:]]


def test_an_expensive_input_has_a_batch_of_its_own(pool):
    expensive = ["x" * 90, "y" * 90]
    asked = (Job("a"), expensive), (Job("b"), ["b"])
    batches = Recorded(pool, cost=len).ask(*asked)

    assert [sorted(map(len, batch)) for batch in batches] == [[1, 90], [90]]


def test_a_request_ends_with_its_first_failure():
    calls = []

    def call(inputs):
        calls.append(inputs)
        return [1 / x for x in inputs]

    batches = Batches(call, 2, lambda size: None)
    with pytest.raises(ZeroDivisionError):
        batches([0, *range(1, 1000)])
    assert batches([2]) == [0.5]
    assert len(calls) < 10


def test_no_inputs_have_no_results():
    assert Batches(list, 2, lambda size: None)([]) == []
