"""Lua scripts of the job store in Redis: one for each change, so that it is atomic.

The first write of a script is one that a full Redis refuses, so that nothing has changed then;
what restores order is accepted.
"""

from __future__ import annotations

from service.storage.jobs.redis_common import make_script

_ADD = """
local id, size, key, fingerprint = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
expire(ARGV[7])
local known = key ~= '' and job_of(key)
if known and known ~= id and kind_of(JOB .. known) ~= 'none' then  -- else Redis has lost the job
  place(known)
  local first = redis.call('HGET', JOB .. known, 'fingerprint')  -- of a damaged one there is none
  if first and job_of(key) == known then
    return {first == fingerprint and 'known' or 'reused', known}
  end
end
if redis.call('EXISTS', JOB .. id) == 1 then return {'added', ''} end  -- a retry
local count = redis.call('ZCARD', WAITING) + redis.call('ZCARD', RUNNING)
if count >= tonumber(ARGV[5]) or used_bytes(false) + size > tonumber(ARGV[6]) then
  return {'full', count}
end
if ARGV[8] ~= '' then
  local own, bytes = unfinished_of(ARGV[8])
  local max_bytes = math.max(ARGV[6] / 2, size)  -- one job may always wait
  if own >= math.max(ARGV[5] / 2, 1) or bytes + size > max_bytes then return {'half', own} end
end
local order = redis.call('INCR', ORDER)
redis.call('HSET', JOB .. id, 'key', key, 'order', order, 'starts', 0, unpack(ARGV, 9))
if key ~= '' then redis.call('SET', KEY .. key, id) end
redis.call('ZADD', WAITING, order, id)
add_usage(false, size, ARGV[8], 1)
make_room(tonumber(ARGV[6]), '')
return {'added', ''}
"""
_CLAIM = """
local time = renew_leases()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', RUNNING, '-inf', time)) do put_back(id) end
local id = next_waiting()
if id and not place(id) then
  mend()  -- removes all that are no jobs
  id = next_waiting()
end
if not id then return false end
redis.call('HSET', JOB .. id, 'holder', ARGV[1], 'begun', 0)
redis.call('ZADD', RUNNING, time + LEASE, id)
redis.call('ZREM', WAITING, id)
return {id, redis.call('HMGET', JOB .. id, unpack(ARGV, 2))}
"""
_MARK_STARTED = """
if not is_claimed_by(ARGV[1], ARGV[2]) then return false end
if redis.call('HGET', JOB .. ARGV[1], 'begun') == '1' then  -- a retry: the reply was lost
  return tonumber(redis.call('HGET', JOB .. ARGV[1], 'starts'))
end
redis.call('HSET', JOB .. ARGV[1], 'begun', 1)
return redis.call('HINCRBY', JOB .. ARGV[1], 'starts', 1)
"""
_RELEASE = """
local id, job = ARGV[1], JOB .. ARGV[1]
if not is_claimed_by(id, ARGV[2]) then return end
if ARGV[3] == '1' and redis.call('HGET', job, 'begun') == '1' then
  redis.call('HINCRBY', job, 'starts', -1)
end
if ARGV[4] == '1' then
  local count = number(redis.call('HGET', job, 'postponed')) or 0
  redis.call('HSET', job, 'order', redis.call('INCR', ORDER), 'postponed', count + 1)
end
put_back(id)
redis.call('HDEL', job, 'holder')
"""
_HEARTBEAT = """
local gone = {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  if not is_unfinished(id) then
    table.insert(gone, id)
  elseif redis.call('HGET', JOB .. id, 'holder') == ARGV[1] then
    redis.call('HSET', JOB .. id, 'progress', ARGV[i + 1])
    redis.call('ZADD', RUNNING, now() + LEASE, id)
    redis.call('ZREM', WAITING, id)  -- its lease ended, but no other process has claimed it
  end
end
return gone
"""
_COMPLETE = """
local id, keep_s, holder, fault = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
if not is_unfinished(id) then  -- of a retry the reply was lost
  return kind_of(JOB .. id) == 'hash' and redis.call('HGET', JOB .. id, 'by') == holder and 1 or 0
end
local was, owner = size_of(id), redis.call('HGET', JOB .. id, 'owner')
local time = string.format('%.6f', now())
redis.call('HSET', JOB .. id, 'ended', time, 'by', holder, unpack(ARGV, 6))
finish(id, time, fault ~= '')
if fault ~= '' then
  redis.call('HSET', JOB .. id, 'fault', fault)
else
  redis.call('HDEL', JOB .. id, 'body')
end
redis.call('HDEL', JOB .. id, 'holder')
redis.call('ZREM', WAITING, id)
redis.call('ZREM', RUNNING, id)
add_usage(false, -was, owner, -1)
add_usage(true, size_of(id), owner)
expire(keep_s)
make_room(tonumber(ARGV[3]), id)
return 1
"""
_READ = """
local id = ARGV[1]
if kind_of(JOB .. id) == 'none' then return false end
place(id)
local fields = redis.call('HMGET', JOB .. id, 'ended', unpack(ARGV, 3))
if fields[1] and fields[1] + ARGV[2] < now() then return false end
return fields
"""
# Delete Idempotency-Keys whose job is lost.
_FREE_KEYS = """
for _, key in ipairs(ARGV) do
  local id = job_of(key)
  if id and not (kind_of(JOB .. id) == 'hash' and redis.call('HGET', JOB .. id, 'key') == key) then
    redis.call('DEL', KEY .. key)
  end
end
"""
_FAIL_DAMAGED = """
if kind_of(JOB .. ARGV[1]) ~= 'none' then fail_damaged(ARGV[1], ARGV[2]) end
"""
_LIST_DEAD = """
local list = {}
local entries = redis.call('ZREVRANGE', DEAD, 0, -1, 'WITHSCORES')
for i = 1, #entries, 2 do
  local job = JOB .. entries[i]
  if kind_of(job) == 'hash' then
    table.insert(list, {entries[i], entries[i + 1], redis.call('HEXISTS', job, 'body'),
      redis.call('HMGET', job, unpack(ARGV))})
  end
end
return list
"""
_REQUEUE = """
local id = ARGV[1]
if not redis.call('ZSCORE', DEAD, id) or redis.call('HEXISTS', JOB .. id, 'body') == 0 then
  return 0
end
local owner = redis.call('HGET', JOB .. id, 'owner')
add_usage(true, -size_of(id), owner)
redis.call('HDEL', JOB .. id, 'ended', 'by', 'fault', 'code', 'headers', 'answer', 'answer_seal',
  'postponed')
redis.call('HSET', JOB .. id, 'status', ARGV[2], 'starts', 0, 'order', redis.call('INCR', ORDER))
add_usage(false, size_of(id), owner, 1)
return place(id) and 1 or 0
"""
# Whether each job is absent (0), unfinished (1) or finished (2).
_READ_STATES = """
local states = {}
for i, id in ipairs(ARGV) do
  local kind = kind_of(JOB .. id)
  local ended = kind == 'hash' and redis.call('HEXISTS', JOB .. id, 'ended') == 1
  states[i] = kind == 'none' and 0 or ended and 2 or 1
end
return states
"""
# Jobs that Redis acknowledged, and that are absent but not deleted, are lost: they fail, so that
# each server says so to their owners.
_MARK_LOST = """
local count = 0
for i = 1, #ARGV, 5 do
  local id = ARGV[i]
  if kind_of(JOB .. id) == 'none' and not redis.call('ZSCORE', DELETED, id) then
    local time = string.format('%.6f', now())
    redis.call('DEL', JOB .. id)  -- a first write that a full Redis accepts
    redis.call('HSET', JOB .. id, 'route', ARGV[i + 1], 'request_id', ARGV[i + 2],
      'created', ARGV[i + 3], 'owner', ARGV[i + 4], 'status', STATUS_FAILED,
      'fault', LOST, 'ended', time)
    finish(id, time, false)
    add_usage(true, size_of(id), ARGV[i + 4])
    count = count + 1
  end
end
return count
"""
_SCRIPTS = {
    "add": _ADD,
    "claim": _CLAIM,
    "mark started": _MARK_STARTED,
    "release": _RELEASE,
    "heartbeat": _HEARTBEAT,
    "complete": _COMPLETE,
    "read": _READ,
    "fail damaged": _FAIL_DAMAGED,
    "list dead": _LIST_DEAD,
    "requeue": _REQUEUE,
    "read states": _READ_STATES,
    "mark lost": _MARK_LOST,
    "place": "for _, id in ipairs(ARGV) do is_unfinished(id) end",
    "mend": "mend()",
    "free keys": _FREE_KEYS,
    "delete": "expire(ARGV[2])\nreturn delete_job(ARGV[1])",
    "expire": "expire(ARGV[1])\nrenew_leases()",
    "count": "return {redis.call('ZCARD', WAITING) + redis.call('ZCARD', RUNNING),"
    " redis.call('ZCARD', DEAD)}",
}


def make_scripts(lease_s: float) -> dict[str, str]:
    """Return the scripts by name, for leases of `lease_s` seconds."""
    return {name: make_script(main, lease_s) for name, main in _SCRIPTS.items()}
