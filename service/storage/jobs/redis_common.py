"""What the Lua scripts of the job store in Redis have in common.

Each job is a hash, and its id is in one of three sorted sets: `waiting`, by order of arrival with
suspects first; `running`, by the time at which its lease ends; `finished`, by the time it finished.
Those that failed by a fault of the servers are in `dead` too, by that time. `deleted`
has the last ids that were deleted, so that no server that knew them takes them for lost.

A script never fails at an entry that no server wrote (an id without its hash, a key of another
type, a field that is no number), for that entry would stop all others: the job is failed and put
on the list of dead ones, and counters are recomputed.
"""

from __future__ import annotations

from service.storage.jobs.base import MAX_DEAD, OVERHEAD
from service.storage.jobs.job import LOST, POISON_THRESHOLD, Status
from service.storage.jobs.stored_job import DAMAGED
from service.storage.redis_client import PREFIX

JOB = f"{PREFIX}job:"
KEY = f"{PREFIX}jobkey:"
_KEEP_DELETED_S, _MAX_DELETED = 3600, 10_000
SETS = tuple(f"{PREFIX}jobs:{name}" for name in ("waiting", "running", "finished", "dead"))

_CONSTANTS = f"""
local JOB, KEY = '{JOB}', '{KEY}'
local WAITING, RUNNING, FINISHED, DEAD = '{SETS[0]}', '{SETS[1]}', '{SETS[2]}', '{SETS[3]}'
local USAGE, ORDER, DELETED = '{PREFIX}jobs:usage', '{PREFIX}jobs:order', '{PREFIX}jobs:deleted'
local LAST_HEARTBEAT = '{PREFIX}jobs:last-heartbeat'
local KEEP_DELETED, MAX_DELETED = {_KEEP_DELETED_S}, {_MAX_DELETED}
local SUSPECT_FROM, OVERHEAD, MAX_DEAD = {POISON_THRESHOLD}, {OVERHEAD}, {MAX_DEAD}
local STATUS_RUNNING, STATUS_FAILED = '{Status.RUNNING}', '{Status.FAILED}'
local LOST, DAMAGED = '{LOST}', '{DAMAGED}'
"""
_COMMON = """
local damaged = {}  -- key and reason, one after the other

local function report(key, reason)
  table.insert(damaged, key)
  table.insert(damaged, reason)
end

local function now()
  local time = redis.call('TIME')
  return time[1] + time[2] / 1000000
end

local function kind_of(key)
  return redis.call('TYPE', key).ok
end

-- The number that a text is, or nil. Lua takes nan, inf and -inf for numbers.
local function number(text)
  local value = tonumber(text)
  if value and value == value and math.abs(value) < 1e15 then return value end
end

-- A value is computed here rather than by HINCRBY, which fails at what is no number.
local function increase(field, by)
  local value = (number(redis.call('HGET', USAGE, field)) or 0) + by
  if value > 0 then
    redis.call('HSET', USAGE, field, value)
  else
    redis.call('HDEL', USAGE, field)
  end
  if value < 0 then report(USAGE, 'it is negative') end
end

-- USAGE counts the bytes of finished jobs, and the number and bytes of unfinished ones, of all
-- owners and of each.
local function add_usage(is_finished, bytes, owner, count)
  owner = owner or ''
  local name = is_finished and 'finished' or 'unfinished'
  increase(name, bytes)
  increase(name .. ':' .. owner, bytes)
  if not is_finished then increase('count:' .. owner, count) end
end

local function used_bytes(is_finished)
  return number(redis.call('HGET', USAGE, is_finished and 'finished' or 'unfinished')) or 0
end

-- Number and bytes of the unfinished jobs of an owner.
local function unfinished_of(owner)
  local count, bytes = unpack(redis.call('HMGET', USAGE, 'count:' .. owner, 'unfinished:' .. owner))
  return number(count) or 0, number(bytes) or 0
end

local function size_of(id)
  local job = JOB .. id
  return OVERHEAD + redis.call('HSTRLEN', job, 'body') + redis.call('HSTRLEN', job, 'answer')
end

local function remove(set, id)
  if redis.call('ZSCORE', set, id) then redis.call('ZREM', set, id) end
end

-- The id of the job with an Idempotency-Key.
local function job_of(key)
  local kind = kind_of(KEY .. key)
  if kind == 'string' then return redis.call('GET', KEY .. key) end
  if kind ~= 'none' then
    redis.call('DEL', KEY .. key)
    report(KEY .. key, 'it is no string')
  end
  return false
end

local function free_key(id)
  local key = redis.call('HGET', JOB .. id, 'key')
  if not key then return end
  if key ~= '' and job_of(key) == id then redis.call('DEL', KEY .. key) end
  redis.call('HDEL', JOB .. id, 'key')
end

local function delete_job(id)
  local kind = kind_of(JOB .. id)
  if kind == 'hash' then
    local ended, owner = unpack(redis.call('HMGET', JOB .. id, 'ended', 'owner'))
    local size = size_of(id)
    free_key(id)
    redis.call('DEL', JOB .. id)
    add_usage(ended, -size, owner, -1)
  elseif redis.call('DEL', JOB .. id) == 1 then
    report(JOB .. id, 'it is no hash')
  end
  for _, set in ipairs({WAITING, RUNNING, FINISHED, DEAD}) do redis.call('ZREM', set, id) end
  redis.call('ZADD', DELETED, string.format('%.6f', now()), id)
  return kind == 'hash' and 1 or 0
end

local function finish(id, time, dead)
  redis.call('ZADD', FINISHED, time, id)
  if not dead then return end
  redis.call('ZADD', DEAD, time, id)
  redis.call('ZREMRANGEBYRANK', DEAD, 0, -MAX_DEAD - 1)  -- these expire like others
end

-- Fail a job whose entry is damaged. Its key is free, so that its owner can send it again. The
-- first write is one that a full Redis accepts.
local function fail_damaged(id, reason)
  for _, set in ipairs({WAITING, RUNNING, FINISHED, DEAD}) do redis.call('ZREM', set, id) end
  if kind_of(JOB .. id) ~= 'hash' then redis.call('DEL', JOB .. id) end
  free_key(id)
  redis.call('HDEL', JOB .. id, 'holder', 'by', 'code', 'headers', 'answer', 'answer_seal')
  local time = string.format('%.6f', now())
  redis.call('HSET', JOB .. id, 'status', STATUS_FAILED, 'fault', DAMAGED .. reason, 'ended', time)
  finish(id, time, true)
  report(JOB .. id, reason)
end

local function find_fault(id)
  local kind = kind_of(JOB .. id)
  if kind == 'none' then return 'its hash is gone' end
  if kind ~= 'hash' then return 'it is no hash' end
  local starts, order, ended, fault, seal, status =
    unpack(redis.call('HMGET', JOB .. id, 'starts', 'order', 'ended', 'fault', 'seal', 'status'))
  if ended and not number(ended) then return 'its end is no number' end
  if ended and fault then return end  -- another script has failed it
  if not (number(starts) and number(order)) then return 'a number is missing or damaged' end
  if not (seal and status) then return 'a field is missing' end
  if (status == STATUS_RUNNING) == (ended ~= false) then return 'its status is another' end
  local lacks = redis.call('HEXISTS', JOB .. id, 'sent') + redis.call('HEXISTS', JOB .. id, 'body')
  if not ended and lacks < 2 then return 'its request is gone' end
end

local function enqueue(id)
  local starts, order, postponed =
    unpack(redis.call('HMGET', JOB .. id, 'starts', 'order', 'postponed'))
  if tonumber(starts) >= SUSPECT_FROM and not postponed then order = order - 1e12 end
  redis.call('ZADD', WAITING, order, id)
end

-- Put a job into the set where it belongs, a damaged one among the dead. Writes nothing if all is
-- as it should be. Returns whether the job is unfinished.
local function place(id)
  local fault = find_fault(id)
  if fault then
    fail_damaged(id, fault)
    return false
  end
  local ended = redis.call('HGET', JOB .. id, 'ended')
  if ended then
    remove(WAITING, id)
    remove(RUNNING, id)
    if not redis.call('ZSCORE', FINISHED, id) then redis.call('ZADD', FINISHED, ended, id) end
    return false
  end
  remove(FINISHED, id)
  remove(DEAD, id)
  if redis.call('ZSCORE', RUNNING, id) then
    remove(WAITING, id)
  elseif not redis.call('ZSCORE', WAITING, id) then
    enqueue(id)
  end
  return true
end

local function is_unfinished(id)
  return kind_of(JOB .. id) ~= 'none' and place(id)
end

-- Place all jobs, and count them again.
local function mend()
  for _, set in ipairs({WAITING, RUNNING, FINISHED}) do
    for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do place(id) end
  end
  for _, id in ipairs(redis.call('ZRANGE', DEAD, 0, -1)) do
    if kind_of(JOB .. id) ~= 'hash' then redis.call('ZREM', DEAD, id) end
  end
  redis.call('DEL', USAGE)
  local last = number(redis.call('GET', ORDER)) or 0
  for _, set in ipairs({WAITING, RUNNING, FINISHED}) do
    for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do
      local owner, order = unpack(redis.call('HMGET', JOB .. id, 'owner', 'order'))
      add_usage(set == FINISHED, size_of(id), owner, 1)
      if set ~= FINISHED then last = math.max(last, number(order)) end
    end
  end
  redis.call('SET', ORDER, string.format('%d', last))
end

-- Delete keys of another type, and count again where the counts cannot be right.
local function check_keys()
  local kinds = {
    [WAITING] = 'zset', [RUNNING] = 'zset', [FINISHED] = 'zset', [DEAD] = 'zset',
    [DELETED] = 'zset', [USAGE] = 'hash', [ORDER] = 'string', [LAST_HEARTBEAT] = 'string',
  }
  for key, kind in pairs(kinds) do
    local is = kind_of(key)
    if is ~= kind and is ~= 'none' then
      redis.call('DEL', key)
      report(key, 'it is no ' .. kind)
    end
  end
  local order = redis.call('GET', ORDER)
  if order and not (string.match(order, '^%d+$') and number(order)) then
    redis.call('DEL', ORDER)
    report(ORDER, 'it is no number')
  end
  local bytes, finished = unpack(redis.call('HMGET', USAGE, 'unfinished', 'finished'))
  local count = redis.call('ZCARD', WAITING) + redis.call('ZCARD', RUNNING)
  local is_counted = (number(bytes) or 0) >= OVERHEAD * count and (count > 0 or not bytes)
  if not (is_counted and (number(finished) or 0) >= OVERHEAD * redis.call('ZCARD', FINISHED)) then
    report(USAGE, 'its counts cannot be right')
  end
end

local function expire(keep_s)
  local before = '(' .. string.format('%.6f', now() - keep_s)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', FINISHED, '-inf', before)) do
    if redis.call('ZSCORE', DEAD, id) then free_key(id) else delete_job(id) end
  end
end

-- Every process calls this each second, even if it runs no job. If there was no call for half a
-- lease, Redis itself was unavailable: renew the leases of all running jobs. What lies in the
-- future is of a clock that stood elsewhere: a lease is cut, and a job has ended now.
local function renew_leases()
  local time = now()
  local ends = string.format('%.6f', time + LEASE)
  local silence = time - (number(redis.call('GET', LAST_HEARTBEAT)) or 0)
  redis.call('SET', LAST_HEARTBEAT, string.format('%.6f', time))
  local renewed = math.abs(silence) > LEASE / 2 and '-inf' or '(' .. ends
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', RUNNING, renewed, '+inf')) do
    redis.call('ZADD', RUNNING, ends, id)
  end
  redis.call('ZREMRANGEBYSCORE', DELETED, '-inf', time - KEEP_DELETED)
  redis.call('ZREMRANGEBYRANK', DELETED, 0, -MAX_DELETED - 1)
  time = string.format('%.6f', time)
  for _, set in ipairs({FINISHED, DEAD}) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', set, '(' .. time, '+inf')) do
      redis.call('ZADD', set, time, id)
      if kind_of(JOB .. id) == 'hash' then redis.call('HSET', JOB .. id, 'ended', time) end
    end
  end
  return time
end

local function owner_of(id)
  return kind_of(JOB .. id) == 'hash' and redis.call('HGET', JOB .. id, 'owner') or ''
end

-- Delete responses, but not `spare`, until all jobs fit: each time the oldest of the owner that has
-- most bytes, so that no owner loses responses because another has many.
local function make_room(max_bytes, spare)
  if used_bytes(true) + used_bytes(false) <= max_bytes then return end
  local bytes, oldest = {}, {}
  local counts = redis.call('HGETALL', USAGE)
  for i = 1, #counts, 2 do
    local name, owner = string.match(counts[i], '^(%a+):(.*)$')
    if name == 'finished' or name == 'unfinished' then
      bytes[owner] = (bytes[owner] or 0) + (number(counts[i + 1]) or 0)
    end
  end
  for _, id in ipairs(redis.call('ZRANGE', FINISHED, 0, -1)) do
    local owner = owner_of(id)
    oldest[owner] = oldest[owner] or {}
    if id ~= spare then table.insert(oldest[owner], id) end
  end
  while used_bytes(true) + used_bytes(false) > max_bytes do
    local largest
    for owner, ids in pairs(oldest) do
      if #ids > 0 and not (largest and bytes[owner] <= bytes[largest]) then largest = owner end
    end
    if not largest then return end
    local id = table.remove(oldest[largest], 1)
    bytes[largest] = (bytes[largest] or 0) - size_of(id)
    delete_job(id)
  end
end

-- The job that is to run next: a suspect, or the first job of the owner of which fewest run.
local function next_waiting()
  local first = redis.call('ZRANGE', WAITING, 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) < 0 then return first[1] end
  local running = {}
  for _, id in ipairs(redis.call('ZRANGE', RUNNING, 0, -1)) do
    local owner = owner_of(id)
    running[owner] = (running[owner] or 0) + 1
  end
  local best, fewest
  for _, id in ipairs(redis.call('ZRANGE', WAITING, 0, -1)) do
    local count = running[owner_of(id)] or 0
    if not best or count < fewest then best, fewest = id, count end
    if fewest == 0 then break end
  end
  return best
end

local function put_back(id)
  if not place(id) then return end
  enqueue(id)
  redis.call('ZREM', RUNNING, id)
end

local function is_claimed_by(id, holder)
  return is_unfinished(id) and redis.call('HGET', JOB .. id, 'holder') == holder
end
"""
_MAIN = """
check_keys()
if #damaged > 0 then mend() end
local reported = #damaged
local result = main()
if #damaged > reported then mend() end
if result == nil then result = false end  -- a list ends at its first nil
return {result, damaged}
"""


def make_script(main: str, lease_s: float) -> str:
    """Return a script with the body `main`; it returns the result of that, and a list of key and
    reason of each damaged entry."""
    before = f"local LEASE = {lease_s}\n{_CONSTANTS}{_COMMON}local function main()\n"
    return f"{before}{main}\nend\n{_MAIN}"
