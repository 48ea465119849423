"""Scripts that restore memories in Redis, which is the arbiter: of two versions the later stays."""

# Of an entry its digest and its revision, and of a score the revision of the deletion; -1 if it is
# absent or no server wrote it (`Version.from_entry` and `parse_score` have the same rules).
PARSE = """
local function parse(entry)
  local digest, revision = string.match(entry or '', '^(%x+) ?(%d*)$')
  if not digest or #digest ~= 64 or #revision > 15 then return '', -1 end
  return digest, tonumber(revision) or 0
end
local function parse_score(score)
  local revision = tonumber(score or '') or -1
  if revision < 0 or revision >= 1e15 or revision % 1 ~= 0 then return -1 end
  return revision
end
"""
# A revision for now, by the clock of Redis, later than these also where that clock went back.
LATER = """
local function later_than(...)
  local now = redis.call('TIME')
  local revision = now[1] * 1000 + math.floor(now[2] / 1000)
  for _, other in ipairs({...}) do revision = math.max(revision, other + 1) end
  return string.format('%.0f', revision)
end
"""
# KEYS: index, deletions, wanted. ARGV: field, entry, file, prefix of files, and an entry that is
# known to be damaged, which is replaced in any case, or ''.
RESTORE = f"""{PARSE}
local digest, revision = parse(ARGV[2])
local entry = redis.call('HGET', KEYS[1], ARGV[1])
local deleted = parse_score(redis.call('ZSCORE', KEYS[2], ARGV[1]))
redis.call('SISMEMBER', KEYS[3], ARGV[1])  -- fails before anything is written, if it is no set
if deleted >= revision then return 0 end
local other, latest = parse(entry)
if entry ~= ARGV[5] and (latest > revision or (latest == revision and other ~= digest)) then
  return 0
end
redis.call('SET', ARGV[4] .. ARGV[1], ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('SREM', KEYS[3], ARGV[1])
return 1
"""
# KEYS: index, deletions, wanted. ARGV: prefix of files, then fields and the revisions of their
# deletions. Returns how many memories were deleted again.
DELETE_AGAIN = f"""{PARSE}
local deleted = 0
redis.call('ZCARD', KEYS[2])
redis.call('SCARD', KEYS[3])
for i = 2, #ARGV, 2 do
  local field, revision = ARGV[i], tonumber(ARGV[i + 1])
  local entry = redis.call('HGET', KEYS[1], field)
  local _, latest = parse(entry)
  if not entry or (latest >= 0 and latest <= revision) then
    redis.call('DEL', ARGV[1] .. field)
    deleted = deleted + redis.call('HDEL', KEYS[1], field)
    if parse_score(redis.call('ZSCORE', KEYS[2], field)) < revision then
      redis.call('ZADD', KEYS[2], ARGV[i + 1], field)
    end
    redis.call('SREM', KEYS[3], field)
  end
end
return deleted
"""
# KEYS: index, wanted. ARGV: field, entry. Asks servers with a good copy to restore it.
WANT = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('SADD', KEYS[2], ARGV[1])
return 1
"""
# KEYS: keys, ARGV: their types. Deletes those of another type, and returns their indices.
REPAIR = """
local damaged = {}
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= ARGV[i] and kind ~= 'none' then
    redis.call('DEL', key)
    table.insert(damaged, i)
  end
end
return damaged
"""
