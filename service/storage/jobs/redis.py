"""Job store in Redis: any server accepts jobs, any server or worker runs them.

Each job is a hash, and its id is in one of three sorted sets: `waiting`, by order of arrival with
suspects first; `running`, by the time at which its lease ends; `over`, by the time it finished.
Every change is one Lua script, so it is atomic. The first write of a script is the one that a full
Redis refuses, so that nothing has changed then.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, cast, final

import orjson
from starlette.responses import Response

from service.errors import Problem
from service.observability.progress import Progress
from service.storage.jobs.base import OVERHEAD, JobLimits, JobStore, queue_full_error
from service.storage.jobs.job import POISON_THRESHOLD, Job, Status
from service.storage.jobs.request import StoredRequest
from service.storage.redis_client import PREFIX, RedisClient, RedisUnavailableError
from service.storage.sqlite import StoreError

_ABOUT = ("route", "request_id", "created", "owner", "starts", "status", "progress")

_COMMON = f"""
local JOB, KEY = '{PREFIX}job:', '{PREFIX}jobkey:'
local WAITING, RUNNING, OVER = '{PREFIX}jobs:waiting', '{PREFIX}jobs:running', '{PREFIX}jobs:over'
local HELD, ORDER, HEARD = '{PREFIX}jobs:held', '{PREFIX}jobs:order', '{PREFIX}jobs:heard'
local OWNED = '{PREFIX}jobs:owned'
local SUSPECT_FROM = {POISON_THRESHOLD}

local function now()
  local time = redis.call('TIME')
  return time[1] + time[2] / 1000000
end

-- HELD counts the bytes of unfinished jobs and of finished ones, OWNED those of each owner.
local function hold(over, bytes, owner)
  redis.call('HINCRBY', HELD, over and 'over' or 'unfinished', bytes)
  if redis.call('HINCRBY', OWNED, owner, bytes) <= 0 then redis.call('HDEL', OWNED, owner) end
end

local function held(over)
  return tonumber(redis.call('HGET', HELD, over and 'over' or 'unfinished') or 0)
end

local function forget(id)
  local size, key, ended, owner = unpack(
    redis.call('HMGET', JOB .. id, 'size', 'key', 'ended', 'owner'))
  if not size then return 0 end
  if key ~= '' and redis.call('GET', KEY .. key) == id then redis.call('DEL', KEY .. key) end
  redis.call('DEL', JOB .. id)
  for _, set in ipairs({{WAITING, RUNNING, OVER}}) do redis.call('ZREM', set, id) end
  hold(ended, -size, owner)
  return 1
end

local function expire(keep)
  local late = redis.call('ZRANGEBYSCORE', OVER, '-inf', '(' .. string.format('%.6f', now() - keep))
  for _, id in ipairs(late) do forget(id) end
end

-- Every process calls this each second, even if it runs no job. If there was no call for half a
-- lease, Redis itself was unavailable: renew the leases of all running jobs.
local function hear()
  local time = now()
  if time - (redis.call('GET', HEARD) or 0) > LEASE / 2 then
    for _, id in ipairs(redis.call('ZRANGE', RUNNING, 0, -1)) do
      redis.call('ZADD', RUNNING, time + LEASE, id)
    end
  end
  redis.call('SET', HEARD, string.format('%.6f', time))
  return time
end

-- Number and bytes of the unfinished jobs of an owner.
local function begun_by(owner)
  local count, bytes = 0, 0
  for _, set in ipairs({{WAITING, RUNNING}}) do
    for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do
      local whose, size = unpack(redis.call('HMGET', JOB .. id, 'owner', 'size'))
      if whose == owner then count, bytes = count + 1, bytes + size end
    end
  end
  return count, bytes
end

-- Delete responses, but not `spare`, until all jobs fit: each time the oldest of the owner that has
-- most bytes, so that no owner loses responses because another has many.
local function make_room(most, spare)
  if held(true) + held(false) <= most then return end
  local ids, bytes, last = redis.call('ZRANGE', OVER, 0, -1), {{}}, {{}}
  local pairs_of_owned = redis.call('HGETALL', OWNED)
  for i = 1, #pairs_of_owned, 2 do bytes[pairs_of_owned[i]] = tonumber(pairs_of_owned[i + 1]) end
  while held(true) + held(false) > most do
    local largest
    for owner, size in pairs(bytes) do
      if not largest or size > bytes[largest] then largest = owner end
    end
    if not largest then return end
    local i = (last[largest] or 0) + 1
    while ids[i] and (ids[i] == spare or redis.call('HGET', JOB .. ids[i], 'owner') ~= largest) do
      i = i + 1
    end
    last[largest] = i
    if ids[i] then
      bytes[largest] = bytes[largest] - redis.call('HGET', JOB .. ids[i], 'size')
      forget(ids[i])
    else
      bytes[largest] = nil  -- it has no response left
    end
  end
end

local function wait(id)
  local starts, order = unpack(redis.call('HMGET', JOB .. id, 'starts', 'order'))
  if tonumber(starts) >= SUSPECT_FROM then order = order - 1e12 end
  redis.call('ZADD', WAITING, order, id)
  redis.call('ZREM', RUNNING, id)
end

-- The job that is to run next: a suspect, or the first job of the owner of which fewest run.
local function next_waiting()
  local first = redis.call('ZRANGE', WAITING, 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) < 0 then return first[1] end
  local running = {{}}
  for _, id in ipairs(redis.call('ZRANGE', RUNNING, 0, -1)) do
    local owner = redis.call('HGET', JOB .. id, 'owner')
    running[owner] = (running[owner] or 0) + 1
  end
  local best, fewest
  for _, id in ipairs(redis.call('ZRANGE', WAITING, 0, -1)) do
    local count = running[redis.call('HGET', JOB .. id, 'owner')] or 0
    if not best or count < fewest then best, fewest = id, count end
    if fewest == 0 then break end
  end
  return best
end

local function holds(id, holder)
  local mine, ended = unpack(redis.call('HMGET', JOB .. id, 'holder', 'ended'))
  return mine == holder and not ended
end
"""
_ADD = """
local id, size, key, fingerprint = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
expire(ARGV[7])
local known = key ~= '' and redis.call('GET', KEY .. key)
if known and known ~= id then
  local same = redis.call('HGET', JOB .. known, 'fingerprint') == fingerprint
  return {same and 'known' or 'reused', known}
end
if redis.call('EXISTS', JOB .. id) == 1 then return {'added', ''} end
local count = redis.call('ZCARD', WAITING) + redis.call('ZCARD', RUNNING)
if count >= tonumber(ARGV[5]) or held(false) + size > tonumber(ARGV[6]) then
  return {'full', count}
end
if ARGV[8] ~= '' then
  local mine, bytes = begun_by(ARGV[8])
  local most_bytes = math.max(ARGV[6] / 2, size)  -- one job may always wait
  if mine >= math.max(ARGV[5] / 2, 1) or bytes + size > most_bytes then return {'half', mine} end
end
local order = redis.call('INCR', ORDER)
redis.call('HSET', JOB .. id, 'size', size, 'key', key, 'fingerprint', fingerprint,
  'order', order, 'starts', 0, unpack(ARGV, 9))
if key ~= '' then redis.call('SET', KEY .. key, id) end
redis.call('ZADD', WAITING, order, id)
hold(false, size, ARGV[8])
make_room(tonumber(ARGV[6]), '')
return {'added', ''}
"""
_CLAIM = """
local time = hear()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', RUNNING, '-inf', time)) do wait(id) end
local id = next_waiting()
if not id then return false end
redis.call('HSET', JOB .. id, 'holder', ARGV[1], 'begun', 0)
redis.call('ZADD', RUNNING, time + LEASE, id)
redis.call('ZREM', WAITING, id)
return {id, redis.call('HMGET', JOB .. id, unpack(ARGV, 2))}
"""
_BEGIN = """
if not holds(ARGV[1], ARGV[2]) then return false end
if redis.call('HGET', JOB .. ARGV[1], 'begun') == '1' then  -- a retry: the reply was lost
  return tonumber(redis.call('HGET', JOB .. ARGV[1], 'starts'))
end
redis.call('HSET', JOB .. ARGV[1], 'begun', 1)
return redis.call('HINCRBY', JOB .. ARGV[1], 'starts', 1)
"""
_RELEASE = """
if not holds(ARGV[1], ARGV[2]) then return end
if ARGV[3] == '1' and redis.call('HGET', JOB .. ARGV[1], 'begun') == '1' then
  redis.call('HINCRBY', JOB .. ARGV[1], 'starts', -1)
end
wait(ARGV[1])
redis.call('HDEL', JOB .. ARGV[1], 'holder')
"""
_STILL = """
local gone = {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  if redis.call('EXISTS', JOB .. id) == 0 then
    table.insert(gone, id)
  elseif holds(id, ARGV[1]) then
    redis.call('HSET', JOB .. id, 'progress', ARGV[i + 1])
    redis.call('ZADD', RUNNING, now() + LEASE, id)
    redis.call('ZREM', WAITING, id)  -- its lease ended, but no other process has claimed it
  end
end
return gone
"""
_COMPLETE = """
local id, size = ARGV[1], tonumber(ARGV[2])
local was, ended, by, owner = unpack(
  redis.call('HMGET', JOB .. id, 'size', 'ended', 'by', 'owner'))
if ended and by == ARGV[5] then return 1 end  -- a retry: the reply was lost
if not was or ended then return 0 end
local time = string.format('%.6f', now())
redis.call('HSET', JOB .. id, 'ended', time, 'size', size, 'by', unpack(ARGV, 5))
redis.call('ZADD', OVER, time, id)
redis.call('HDEL', JOB .. id, 'body', 'sent', 'holder')
redis.call('ZREM', WAITING, id)
redis.call('ZREM', RUNNING, id)
hold(false, -was, owner)
hold(true, size, owner)
expire(ARGV[3])
make_room(tonumber(ARGV[4]), id)
return 1
"""
_KEPT = """
local found = redis.call('HMGET', JOB .. ARGV[1], 'ended', unpack(ARGV, 3))
if found[1] and found[1] + ARGV[2] < now() then return false end
return redis.call('EXISTS', JOB .. ARGV[1]) == 1 and found
"""


@final
class RedisJobStore(JobStore):
    """Jobs of all servers, which share the limits.

    A job belongs to the process that claimed it while that sends heartbeats; afterwards it can be
    claimed again, which counts as another start. The first response is stored; any process would
    compute the same one.

    Args:
        lease_s: seconds without a heartbeat after which a job can be claimed again.
    """

    def __init__(self, link: RedisClient, limits: JobLimits, lease_s: float = 15.0) -> None:
        self._link, self._limits = link, limits
        self._holder = secrets.token_hex(8)
        scripts = {
            "add": _ADD,
            "claim": _CLAIM,
            "begin": _BEGIN,
            "release": _RELEASE,
            "still": _STILL,
            "complete": _COMPLETE,
            "kept": _KEPT,
            "delete": "expire(ARGV[2])\nreturn forget(ARGV[1])",
            "expire": "hear()\nexpire(ARGV[1])",
            "unfinished": "return redis.call('ZCARD', WAITING) + redis.call('ZCARD', RUNNING)",
        }
        common = f"local LEASE = {lease_s}\n{_COMMON}"
        self._scripts = {
            name: link.blocking_client.register_script(common + script)
            for name, script in scripts.items()
        }

    def open(self) -> None:
        self._run("unfinished")

    def close(self) -> None:
        pass

    def add(
        self, job: Job, sent: StoredRequest, body: bytes, key: str | None, fingerprint: bytes
    ) -> Job:
        size = OVERHEAD + len(body)
        if size > self._limits.max_bytes:
            detail = (
                f"A job may have at most {max(self._limits.max_bytes - OVERHEAD, 0)} bytes of "
                "body (BASIN_MAX_JOB_BYTES). Send less in one request."
            )
            raise Problem("body-too-large", detail)
        headers = [sent.method, sent.path, sent.query.decode("latin-1"), sent.headers]
        fields = {
            "route": job.route,
            "request_id": job.request_id,
            "created": repr(job.created),
            "owner": job.owner,
            "status": job.status,
            "sent": orjson.dumps(headers),
            "body": body,
        }
        limits = (self._limits.max_jobs, self._limits.max_bytes, self._limits.keep_s)
        pairs = [part for pair in fields.items() for part in pair]
        asked = (job.id, size, key or "", fingerprint, *limits, job.owner)
        what, encoded = self._run("add", *asked, *pairs)
        if what in (b"full", b"half"):
            raise queue_full_error(encoded, half=what == b"half")
        if what == b"reused":
            raise Problem(
                "key-reused",
                "This Idempotency-Key was sent with another request. Use a new key for each "
                "request.",
            )
        if what == b"added":
            return job
        if known := self.get(encoded.decode()):
            return known
        raise StoreError("the job of this key has just expired")

    def claim(self) -> Job | None:
        found = self._run("claim", self._holder, *_ABOUT)
        return None if found is None else _job(found[0].decode(), found[1])

    def mark_started(self, id: str) -> int | None:
        return self._run("begin", id, self._holder)

    def release(self, id: str, begun: bool) -> None:
        self._run("release", id, self._holder, int(begun))

    def heartbeat(self, jobs: Sequence[Job]) -> list[str]:
        encoded = [part for job in jobs for part in (job.id, orjson.dumps(asdict(job.progress)))]
        return [id.decode() for id in self._run("still", self._holder, *encoded)] if encoded else []

    def count_unfinished(self) -> int:
        return self._run("unfinished")

    def get_request(self, id: str) -> StoredRequest:
        with _readable():
            method, path, query, headers = orjson.loads(self._field(id, "sent"))
            pairs = tuple((str(name), str(value)) for name, value in headers)
            return StoredRequest(str(method), str(path), query.encode("latin-1"), pairs)

    def get_body(self, id: str) -> bytes:
        return self._field(id, "body")

    def complete(self, job: Job, status: Status, answer: Response) -> bool:
        encoded = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in answer.raw_headers]
        body = bytes(answer.body)
        fields = {
            "status": status,
            "progress": orjson.dumps(asdict(job.progress)),
            "code": answer.status_code,
            "headers": orjson.dumps(encoded),
            "answer": body,
        }
        limits = (self._limits.keep_s, self._limits.max_bytes)
        pairs = [part for pair in fields.items() for part in pair]
        size = OVERHEAD + len(body)
        return self._run("complete", job.id, size, *limits, self._holder, *pairs) == 1

    def get(self, id: str) -> Job | None:
        found = self._kept(id, *_ABOUT)
        return None if found is None else _job(id, found[1:])

    def get_response(self, id: str) -> Response | None:
        found = self._kept(id, "code", "headers", "answer")
        if found is None or found[1] is None:
            return None
        with _readable():
            answer = Response(found[3], int(found[1]))
            answer.raw_headers = [
                (name.encode("latin-1"), value.encode("latin-1"))
                for name, value in orjson.loads(found[2])
            ]
        return answer

    def delete(self, id: str) -> bool:
        return self._run("delete", id, self._limits.keep_s) == 1

    def expire(self) -> None:
        self._run("expire", self._limits.keep_s)

    def _field(self, id: str, name: str) -> bytes:
        found = self._kept(id, name)
        if found is None or found[1] is None:
            raise StoreError("no such job")
        return found[1]

    def _kept(self, id: str, *fields: str) -> list[Any] | None:
        return self._run("kept", id, self._limits.keep_s, *fields)

    def _run(self, name: str, *args: Any) -> Any:
        try:
            with self._link.guard("jobs"):
                return self._scripts[name](args=args)
        except RedisUnavailableError as error:
            raise StoreError(str(error)) from error


def _job(id: str, fields: Sequence[bytes | None]) -> Job:
    with _readable():
        route, request_id, created, owner, starts, status, progress = (
            None if field is None else field.decode() for field in fields
        )
        reached = Progress(**orjson.loads(progress)) if progress else Progress()
        return Job(
            *(cast(str, route), cast(str, request_id), id, float(created or 0), int(starts or 0)),
            *(Status(cast(str, status)), reached, owner or ""),
        )


@contextmanager
def _readable() -> Iterator[None]:
    """Raises `StoreError` where another has written what no job is."""
    try:
        yield
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError("the stored job cannot be parsed") from error
