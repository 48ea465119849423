"""What Redis does for the log of graphs in one step, in Lua."""

# Only of the graph that raised the alert, and the claim only if it is that of this server.
DELIVERED = """
local webhook = redis.call('HGET', KEYS[1], ARGV[1])
if webhook and cjson.decode(webhook)[3] == ARGV[2] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
if redis.call('GET', KEYS[2]) == ARGV[4] then redis.call('DEL', KEYS[2]) end
"""
# A stream whose entries are numbered 1, 2, 3, ...; XADD keeps the last id of a trimmed one.
_ADD_ALERTS = """
local function add_alerts(stream, kept, alerts, first)
  local last = 0
  if redis.call('EXISTS', stream) == 1 then
    local info = redis.call('XINFO', 'STREAM', stream)
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then
        last = tonumber(string.match(info[i + 1], '^(%d+)'))
      end
    end
  end
  for i = first, #alerts do
    last = last + 1
    redis.call('XADD', stream, 'MAXLEN', kept, last .. '-0', 'alert', alerts[i])
  end
end
"""
# One server of several records the alerts of a revision: the one that removes it from the pending
# ones.
RECORD = f"""{_ADD_ALERTS}
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
local head = redis.call('HGET', KEYS[3], ARGV[2])
if not head or cjson.decode(head)['tag'] ~= ARGV[3] then return 0 end
if #ARGV > 4 then add_alerts(KEYS[2], ARGV[4], ARGV, 5) end
return 1
"""
# The scores of a revision wait until no earlier one of the graph is pending: whether an account
# crosses the threshold depends on the order of its transactions, not on who is done first.
RECORD_ACCOUNTS = f"""{_ADD_ALERTS}
if redis.call('HDEL', KEYS[1], ARGV[1] .. ARGV[2]) == 0 then return -1 end
local head = redis.call('HGET', KEYS[3], ARGV[3])
if not head or cjson.decode(head)['tag'] ~= ARGV[4] then return -1 end
if ARGV[6] ~= '[]' then redis.call('HSET', KEYS[5], ARGV[2], ARGV[6]) end
local first = math.huge
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(name, 1, #ARGV[1]) == ARGV[1] then
    first = math.min(first, tonumber(string.sub(name, #ARGV[1] + 1)))
  end
end
local ready = {{}}
for _, revision in ipairs(redis.call('HKEYS', KEYS[5])) do
  if tonumber(revision) < first then table.insert(ready, revision) end
end
table.sort(ready, function(a, b) return tonumber(a) < tonumber(b) end)
local alerts = {{}}
for _, revision in ipairs(ready) do
  for _, score in ipairs(cjson.decode(redis.call('HGET', KEYS[5], revision))) do
    local account, alert = score[1], score[2]
    if alert == cjson.null then
      redis.call('SREM', KEYS[4], account)
    elseif redis.call('SADD', KEYS[4], account) == 1 then
      table.insert(alerts, alert)
    end
  end
  redis.call('HDEL', KEYS[5], revision)
end
add_alerts(KEYS[2], ARGV[5], alerts, 1)
return #alerts
"""
ADD = f"{_ADD_ALERTS} add_alerts(KEYS[1], ARGV[1], ARGV, 2)"
# Take or renew a claim, unless another server has it.
CLAIM = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
