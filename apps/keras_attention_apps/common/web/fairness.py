"""Fair use of a server: clients take turns with the processor and with a model.

Work is shared equally among the clients that wait, and the share of a client equally
among its requests (hierarchical fair queueing). So a client that sends much keeps
itself waiting, and nobody else. Work that nobody waits for any more is dropped.
"""

import collections
import contextlib
import contextvars
import math
import threading
import time
from concurrent.futures import CancelledError, Future, InvalidStateError

from keras_attention_apps.common.web.guard import Refusal

# The share of a batch that one request, or one client, gets beside others. Its first
# input may exceed it.
SHARE = 1 / 32
# Seconds after the last input of another request, or client, in which a batch leaves
# room for more of them. A longer batch would keep them waiting.
RECENT_SECONDS = 2

# Rest of a client after a turn beside others, relative to the time of the turn: so it
# takes at most a quarter of a processor. A shorter rest is not worth a timer.
REST, SHORTEST_REST = 3, 0.01

# Clients whose use is counted.
MAX_CLIENTS = 10_000

_current: contextvars.ContextVar["Job"] = contextvars.ContextVar("job")


class Dropped(Exception):
    """The job was dropped; its `reason` tells why."""


class Job:
    """The work for one request of a client, in one or several threads.

    Attributes:
        size: Amount of work, in a unit of the program, such as characters.
        reason: Exception that tells why the job was dropped, or `None`.
    """

    def __init__(self, client=None, gate=None, size=0):
        self.client, self.size = client, size
        self.reason: Exception | None = None
        self._gate = gate or Gate(math.inf)
        self._lock = threading.Lock()
        self._futures: set[Future] = set()

    def run(self, function, *args):
        """Return the result of a function, computed when it is the client's turn."""
        token = _current.set(self)
        try:
            with self._gate.entered(self):
                return function(*args)
        finally:
            _current.reset(token)

    def pause(self):
        """Return a context in which this thread waits, and others may compute."""
        return self._gate.left(self)

    def result(self, future):
        """Return the result of a future, or raise `Dropped` once the job is dropped."""
        with self._lock:
            self._futures.add(future)
            if self.reason:
                future.cancel()
        try:
            return future.result()
        except CancelledError:
            raise Dropped from None
        finally:
            with self._lock:
                self._futures.discard(future)

    def check(self):
        """Raise `Dropped` if the job was dropped."""
        if self.reason:
            raise Dropped

    def drop(self, reason):
        """End the work, except for what is being computed."""
        with self._lock:
            self.reason = self.reason or reason
            futures = list(self._futures)
        for future in futures:
            future.cancel()


def current_job():
    """Return the job that this thread works for; a new one if there is none."""
    return _current.get(None) or Job()


class _Turns:
    """Names that take turns: the next one is the one whose turns have cost least.

    A name that comes back begins where the last turn began: nobody saves turns up.

    Attributes:
        members: Dict from the names that wait to what is waiting.
    """

    def __init__(self, make):
        self.members = {}
        self._make, self._costs, self._level = make, {}, 0.0

    def __getitem__(self, name):
        """Return what is waiting for a name, which joins the others."""
        if name not in self.members:
            self.members[name] = self._make()
            self._costs[name] = max(self._costs.get(name, 0.0), self._level)
        return self.members[name]

    def in_order(self):
        """Return the names, in the order of their turns."""
        return sorted(self.members, key=self._costs.__getitem__)

    def begin(self, name):
        self._level = max(self._level, self._costs[name])

    def charge(self, name, cost):
        self._costs[name] = max(self._costs.get(name, 0.0), self._level) + cost

    def remove(self, name):
        del self.members[name]
        if len(self._costs) > 2 * len(self.members) + 100:
            self._costs = {
                name: cost
                for name, cost in self._costs.items()
                if name in self.members or cost > self._level
            }


class FairQueue:
    """Entries of jobs; clients take turns, and so do the jobs of a client."""

    def __init__(self):
        self._clients = _Turns(lambda: _Turns(collections.deque))

    def push(self, job, future, entry, cost):
        """Add an entry, which is discarded once the future is done."""
        self._clients[job.client][job].append((future, entry, cost))

    def pop(self, may_have=lambda job: True):
        """Return the next job that may have a turn, its entry, and the cost of it.

        Returns `None` if there is none.
        """
        for client in self._clients.in_order():
            jobs = self._clients.members[client]
            for job in jobs.in_order():
                if may_have(job) and (next_entry := self._next(jobs, job)):
                    return job, *next_entry
        return None

    def _next(self, jobs, job):
        """Return the next entry of a job and its cost, or `None`."""
        entries, next_entry = jobs.members[job], None
        while entries and not next_entry:
            future, entry, cost = entries.popleft()
            if not future.done():
                next_entry = entry, cost
                self._clients.begin(job.client)
                jobs.begin(job)
                self.charge(job, cost)
        if not entries:
            self._remove(jobs, job)
        return next_entry

    def discard(self, job):
        """Remove the entries of a job."""
        jobs = self._clients.members.get(job.client)
        if jobs and job in jobs.members:
            self._remove(jobs, job)

    def _remove(self, jobs, job):
        jobs.remove(job)
        if not jobs.members:
            self._clients.remove(job.client)

    def charge(self, job, cost):
        """Add to the cost of the turns of a job, and of its client."""
        self._clients.charge(job.client, cost)
        jobs = self._clients.members.get(job.client)
        if jobs and job in jobs.members:
            jobs.charge(job, cost)


class Gate:
    """Lets some threads compute at a time; turns cost the time of the processor.

    Beside others, a client has a quarter of the places, and rests after each turn:
    models compute, too. Alone, it has all but one place, so that another one need not
    wait for it.
    """

    def __init__(self, capacity):
        self._capacity = capacity
        self._lock = threading.Lock()
        self._running: collections.Counter = collections.Counter()
        self._waiting = FairQueue()
        self._resting: set = set()
        self._clients = _Recent()
        self._turn = threading.local()

    @contextlib.contextmanager
    def entered(self, job):
        """Wait for the turn of a job, which lasts as long as the context."""
        self._enter(job)
        try:
            job.check()
            yield
        finally:
            self._leave(job)

    @contextlib.contextmanager
    def left(self, job):
        """Interrupt the turn of a job, for instance while it waits for something."""
        self._leave(job)
        try:
            yield
        finally:
            self._enter(job, again=True)

    def _enter(self, job, again=False):
        admission: Future = Future()
        with self._lock:
            self._clients.see(job.client)
            self._waiting.push(job, admission, admission, 0)
            self._admit()
        # A turn that goes on cannot end here: its context leaves the gate.
        admission.result() if again else job.result(admission)
        self._turn.begin = time.thread_time()

    def _leave(self, job):
        # A thread may pause without a turn.
        now = time.thread_time()
        seconds = now - getattr(self._turn, "begin", now)
        with self._lock:
            self._waiting.charge(job, seconds)
            self._running[job.client] -= 1
            if not self._running[job.client]:
                del self._running[job.client]
            rest = REST * seconds
            if rest >= SHORTEST_REST and self._clients.has_other(job.client):
                self._resting.add(job.client)
                timer = threading.Timer(rest, self._rested, [job.client])
                timer.daemon = True
                timer.start()
            self._admit()

    def _rested(self, client):
        with self._lock:
            self._resting.discard(client)
            self._admit()

    def _admit(self):
        while self._running.total() < self._capacity:
            next_entry = self._waiting.pop(self._has_place)
            if not next_entry:
                return
            job, admission, _ = next_entry
            if admission.set_running_or_notify_cancel():
                self._running[job.client] += 1
                admission.set_result(None)

    def _has_place(self, job):
        if job.client in self._resting:
            return False
        is_alone = not self._clients.has_other(job.client)
        limit = self._capacity - 1 if is_alone else self._capacity / 4
        return self._running[job.client] < max(1, limit)


class Batches:
    """Calls a function with the inputs of all that wait, in a thread of its own.

    `call` takes a list of at most `size` inputs, and returns their results, in order.
    If it fails, it is called again with each input alone, so that one cannot fail
    another. `observe` is called with the size of every batch. `cost` returns the cost
    of an input, about 1 for an ordinary one, by which the clients take turns.
    """

    def __init__(self, call, size, observe, cost=lambda x: 1):
        self._call, self._size, self._observe, self._cost = call, size, observe, cost
        self._waiting = FairQueue()
        self._changed = threading.Condition()
        self._jobs, self._clients = _Recent(), _Recent()
        threading.Thread(target=self._work, name="batches", daemon=True).start()

    def __call__(self, inputs):
        """Return the results of some inputs, a list."""
        job, results = current_job(), _Results(len(inputs))
        if inputs:
            with self._changed:
                self._see(job)
                for i, x in enumerate(inputs):
                    self._waiting.push(
                        job, results.future, (results, i, x), self._cost(x)
                    )
                self._changed.notify()
            try:
                with job.pause():
                    job.result(results.future)
            except Dropped:
                with self._changed:
                    self._waiting.discard(job)
                raise
        return results.values

    def _work(self):
        while True:
            with self._changed:
                while not (batch := self._next()):
                    self._changed.wait()
            self._observe(len(batch))
            self._compute([entry for _, entry, _ in batch])
            with self._changed:
                for job, *_ in batch:
                    self._see(job)

    def _see(self, job):
        self._jobs.see(job)
        self._clients.see(job.client)

    def _next(self):
        """Return the next batch, a list of jobs, entries and costs."""
        batch: list = []
        shares: collections.Counter = collections.Counter()

        def has_share(job):
            return all(
                shares[name] < SHARE * self._size or not seen.has_other(name)
                for seen, name in ((self._jobs, job), (self._clients, job.client))
            )

        while len(batch) < self._size and (entry := self._waiting.pop(has_share)):
            job, _, cost = entry
            shares[job] += cost
            shares[job.client] += cost
            batch.append(entry)
        return batch

    def _compute(self, batch):
        count = 0
        try:
            outputs = self._call([x for _, _, x in batch])
            for (results, i, _), result in zip(batch, outputs, strict=True):
                results.put(i, result)
                count += 1
        except Exception as error:
            if len(batch) == 1:
                batch[0][0].fail(error)
                return
            for item in batch[count:]:
                self._compute([item])


class _Results:
    """The results of some inputs; the `future` ends with the last one."""

    def __init__(self, count):
        self.values = [None] * count
        self.future: Future = Future()
        self._left = count

    def put(self, i, value):
        self.values[i] = value
        self._left -= 1
        if not self._left:
            self._end(self.future.set_result, None)

    def fail(self, error):
        self._end(self.future.set_exception, error)

    def _end(self, end, value):
        # It may be cancelled, or have failed with another input.
        with contextlib.suppress(InvalidStateError):
            end(value)


class Quota:
    """Allowance of a client in a minute (token bucket); `None` for any amount.

    A client may exceed it once, and then waits until the excess has run off.
    """

    def __init__(self, limit, unit):
        self._limit, self._unit = limit, unit
        self._left: collections.OrderedDict = collections.OrderedDict()

    def check(self, client, amount=0):
        """Refuse a request of a client that has used its quota, or nearly so."""
        needed = min(amount, self._limit or 0)
        if self._limit is not None and (left := self._left_of(client)) < needed:
            seconds = math.ceil((needed - left) * 60 / self._limit)
            raise Refusal(
                429,
                f"expected at most {self._limit:,} {self._unit} a minute: try again "
                "later",
                {"retry-after": str(max(seconds, 1))},
            )

    def use(self, client, amount=1):
        """Count an amount, whatever is left."""
        if self._limit is not None:
            left = self._left_of(client) - amount
            self._left.pop(client, None)
            self._left[client] = left, time.monotonic()
            if len(self._left) > MAX_CLIENTS:
                self._left.popitem(last=False)

    def _left_of(self, client):
        now = time.monotonic()
        left, then = self._left.get(client, (self._limit, now))
        return min(left + (now - then) * self._limit / 60, self._limit)


class _Recent:
    """Tells whether another name than a given one was seen lately."""

    def __init__(self):
        self._latest = self._before = (None, -math.inf)

    def see(self, name):
        if name != self._latest[0]:
            self._before = self._latest
        self._latest = name, time.monotonic()

    def has_other(self, name):
        _, seen = self._before if name == self._latest[0] else self._latest
        return time.monotonic() - seen < RECENT_SECONDS
