"""What Redis does for the log of graphs in one step, in Lua."""

from service.storage.graphs.alert_numbers import NUMBERS_PER_S

# A script that fails in the middle has done its first half: so types are checked before.
_REQUIRE_TYPES = """
local function require_types(first, types)
  for i, expected in ipairs(types) do
    local key = KEYS[first + i - 1]
    local type = redis.call('TYPE', key).ok
    if type ~= 'none' and type ~= expected then return 'WRONGTYPE ' .. key end
  end
end
"""
# The tag of a graph by its metadata: nil if there is none, false if they are damaged.
_READ_TAG = """
local function read_tag(heads, id)
  local head = redis.call('HGET', heads, id)
  if not head then return nil end
  local is_json, fields = pcall(cjson.decode, head)
  if not is_json or type(fields) ~= 'table' then return false end
  return fields['tag']
end
"""
# Metadata of an owner, if it and all keys that are to be written are of the types in ARGV; and, if
# the second is a log, its length.
LOOK = f"""{_REQUIRE_TYPES}
local wrong = require_types(1, ARGV)
if wrong then return redis.error_reply(wrong) end
local result = redis.call('HGETALL', KEYS[1])
if ARGV[2] == 'list' then table.insert(result, redis.call('LLEN', KEYS[2])) end
return result
"""
# Only of the graph that raised the alert, and the claim only if it is that of this server.
DELIVERED = f"""{_REQUIRE_TYPES}
local wrong = require_types(1, {{'hash', 'string'}})
if wrong then return redis.error_reply(wrong) end
local webhook = redis.call('HGET', KEYS[1], ARGV[1])
local is_json, fields = pcall(cjson.decode, webhook or '')
if is_json and fields[3] == ARGV[2] then redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
if redis.call('GET', KEYS[2]) == ARGV[4] then redis.call('DEL', KEYS[2]) end
"""
# A stream whose entries are numbered 1, 2, 3, ...; XADD keeps the last id of a trimmed one.
_ADD_ALERTS = """
local function find_last(stream)
  if redis.call('EXISTS', stream) == 1 then
    local info = redis.call('XINFO', 'STREAM', stream)
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then
        return tonumber(string.match(info[i + 1], '^(%d+)'))
      end
    end
  end
  return 0
end
local function add_alerts(stream, kept, alerts, first)
  local last = find_last(stream)
  for i = first, #alerts do
    last = last + 1
    redis.call('XADD', stream, 'MAXLEN', kept, string.format('%d-0', last), 'alert', alerts[i])
  end
end
"""
# One server of several records the alerts of a revision: the one that removes it from the pending
# ones. Where the metadata is damaged it stays: a server may restore it.
RECORD = f"""{_REQUIRE_TYPES}{_READ_TAG}{_ADD_ALERTS}
local wrong = require_types(1, {{'hash', 'stream', 'hash'}})
if wrong then return redis.error_reply(wrong) end
local tag = read_tag(KEYS[3], ARGV[2])
if tag == false then return 0 end
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
if tag ~= ARGV[3] then return 0 end
if #ARGV > 4 then add_alerts(KEYS[2], ARGV[4], ARGV, 5) end
return 1
"""
# The scores of a revision wait until no earlier one of the graph is pending: whether an account
# crosses the threshold depends on the order of its transactions, not on who is done first. A field
# of pending transactions is ARGV[1] .. ARGV[2], the latter a revision and perhaps a digest.
RECORD_ACCOUNTS = f"""{_REQUIRE_TYPES}{_READ_TAG}{_ADD_ALERTS}
local wrong = require_types(1, {{'hash', 'stream', 'hash', 'set', 'hash'}})
if wrong then return redis.error_reply(wrong) end
local tag = read_tag(KEYS[3], ARGV[3])
if tag == false then return -1 end
if redis.call('HDEL', KEYS[1], ARGV[1] .. ARGV[2]) == 0 then return -1 end
if tag ~= ARGV[4] then return -1 end
local function revision_of(name) return tonumber(string.match(name, '^%d+')) or math.huge end
if ARGV[6] ~= '[]' then redis.call('HSET', KEYS[5], ARGV[2], ARGV[6]) end
local first = math.huge
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(name, 1, #ARGV[1]) == ARGV[1] then
    first = math.min(first, revision_of(string.sub(name, #ARGV[1] + 1)))
  end
end
local ready = {{}}
for _, name in ipairs(redis.call('HKEYS', KEYS[5])) do
  if revision_of(name) < first then table.insert(ready, name) end
end
table.sort(ready, function(a, b) return revision_of(a) < revision_of(b) end)
local alerts = {{}}
for _, name in ipairs(ready) do
  local is_json, scores = pcall(cjson.decode, redis.call('HGET', KEYS[5], name))
  for _, score in ipairs(is_json and scores or {{}}) do
    local account, alert = score[1], score[2]
    if alert == cjson.null then
      redis.call('SREM', KEYS[4], account)
    elseif redis.call('SADD', KEYS[4], account) == 1 then
      table.insert(alerts, alert)
    end
  end
  redis.call('HDEL', KEYS[5], name)
end
add_alerts(KEYS[2], ARGV[5], alerts, 1)
return #alerts
"""
ADD = f"{_ADD_ALERTS} add_alerts(KEYS[1], ARGV[1], ARGV, 2)"
# Go on with numbers above all that the stream may have lost.
SKIP_NUMBERS = f"""{_ADD_ALERTS}
local first = redis.call('TIME')[1] * {NUMBERS_PER_S}
if find_last(KEYS[1]) < first then
  local id = redis.call('XADD', KEYS[1], string.format('%d-0', first), 'alert', '')
  redis.call('XDEL', KEYS[1], id)
end
"""
# Take or renew a claim, unless another server has it.
CLAIM = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
