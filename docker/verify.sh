#!/usr/bin/env bash
# Builds the images and runs the server's the way docker-compose.yml does, without Docker: non-root,
# without capabilities, on a root that is read-only, as PID 1. For Debian, as root, with buildah,
# debootstrap, curl and python3, and redis-server if it is there. pip's settings, and the folders
# they name, are handed to the build.
#
#   TORCH=torch==2.13.0 TORCH_INDEX= docker/verify.sh [server|training]...    # default: both
#
# BUILDAH_LAYERS=true keeps what did not change, at the price of a copy of the image a step.
set -euo pipefail
cd "$(dirname "$0")/.."

SCRATCH=${SCRATCH:-/var/tmp/basin-images}
PORT=${PORT:-18000}
BASE=localhost/basin-base
UNSHARE= REDIS=
mkdir -p "$SCRATCH"
trap 'for each in $UNSHARE $REDIS; do kill -KILL "$each" 2> /dev/null || true; done' EXIT

b() { buildah --root "$SCRATCH/storage" --runroot "$SCRATCH/run" --storage-driver vfs "$@"; }
say() { printf '%(%T)T  %s\n' -1 "$*"; }
field() { b inspect --type image "$1" | python3 -c "
import json, sys
value = json.load(sys.stdin)['Docker']['config']$2
print(*value if isinstance(value, list) else [value], sep='\n')"; }

base() {
  b inspect --type image $BASE &> /dev/null && return
  say "base: Debian by debootstrap"
  rm -rf "$SCRATCH/base"
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm \
    "$SCRATCH/base" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" > "$SCRATCH/base.log"
  local container
  container=$(b from scratch)
  b copy --quiet "$container" "$SCRATCH/base" / > /dev/null
  b config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
  b commit --quiet --rm "$container" $BASE > /dev/null
  rm -rf "$SCRATCH/base"
}

# The configuration of pip, from files and from the environment, as one file; and the folders in it.
pip_settings() {
  (echo "[global]"; python3 -m pip config list | sed -E "s/^[^=]*\.([^.=]+)='(.*)'$/\1 = \2/" |
    awk -F ' = ' '!seen[$1]++') > "$SCRATCH/pip.conf"
  MOUNTS=()
  for path in $(grep -oE '(file://)?/[^ ]+' "$SCRATCH/pip.conf" | grep -v '^//' | sort -u); do
    # an index of files links to what lies beside it
    [[ $path == file://* ]] && path=$(dirname "${path#file://}")
    [[ -e $path ]] && MOUNTS+=(--volume "$path:$path:ro")
  done
}

build() {
  local name=$1 file=$2 args=(--build-arg "BASE=$BASE") started=$SECONDS
  [[ -v TORCH ]] && args+=(--build-arg "TORCH=$TORCH")
  [[ -v TORCH_INDEX ]] && args+=(--build-arg "TORCH_INDEX=$TORCH_INDEX")
  say "$name: building"
  b build --isolation chroot --format docker --pull-never "${@:3}" "${args[@]}" \
    "${MOUNTS[@]}" --secret "id=pip,src=$SCRATCH/pip.conf" \
    --label "org.opencontainers.image.revision=$(git rev-parse HEAD)" \
    --tag "localhost/$name" --file "$file" . &> "$SCRATCH/$name.log" ||
    { tail -n 30 "$SCRATCH/$name.log"; exit 1; }
  say "$name: built in $((SECONDS - started)) s, $(b images --format '{{.Size}}' "localhost/$name")"
}

# start IMAGE WRITABLE COMMAND...: in the background, PID 1 of namespaces of its own.
start() {
  local image=$1 writable=$2 root=$SCRATCH/root state=$SCRATCH/state
  local user variables
  user=$(field "$image" "['User']")
  mapfile -t variables < <(field "$image" "['Env']")
  [[ $user =~ ^[1-9][0-9]*:[1-9][0-9]*$ ]] || { echo "user $user is not a number, or root"; exit 1; }
  CONTAINER=$(b from --pull-never "localhost/$image")
  rm -rf "$root" "$state"
  mkdir -p "$root" "$state"
  chown "$user" "$state"
  AS=(setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups --no-new-privs
    --bounding-set=-all --inh-caps=-all env -i "${variables[@]}" "BASIN_PORT=$PORT"
    BASIN_OPEN=true ${REDIS_URL:+"BASIN_REDIS_URL=$REDIS_URL"})
  MOUNT=$(b mount "$CONTAINER") ROOT=$root STATE=$state AT=$writable DIR=$(field "$image" "['WorkingDir']") \
    unshare --mount --pid --ipc --uts --fork --kill-child bash -euc '
      mount --bind "$MOUNT" "$ROOT"
      mount -o remount,bind,ro "$ROOT"
      mount -t tmpfs -o size=256m,nosuid,nodev tmpfs "$ROOT/tmp"
      mount --bind "$STATE" "$ROOT$AT"
      mount -t proc proc "$ROOT/proc"
      mount -t tmpfs -o size=64k tmpfs "$ROOT/dev"
      for device in null zero random urandom; do
        touch "$ROOT/dev/$device" && mount --bind "/dev/$device" "$ROOT/dev/$device"
      done
      mkdir "$ROOT/dev/shm" && mount -t tmpfs -o size=64m,mode=1777 tmpfs "$ROOT/dev/shm"
      exec chroot "$ROOT" /usr/bin/env --chdir "$DIR" "$@"' - "${AS[@]}" "${@:3}" &
  UNSHARE=$!
}

# redis: one beside the server, as in docker-compose.yml, where this machine has it.
redis() {
  command -v redis-server > /dev/null || return 0
  redis-server --port $((PORT + 1)) --bind 127.0.0.1 --save "" --dir "$SCRATCH" > "$SCRATCH/redis.log" &
  REDIS=$! REDIS_URL=redis://127.0.0.1:$((PORT + 1))/0
}

# inside COMMAND...: as the server, in its namespaces
inside() { nsenter --target "$PID" --mount --pid --root "${AS[@]}" "$@"; }

server() {
  build basin-server docker/server.Dockerfile --target cpu
  local started=$SECONDS command health url=http://127.0.0.1:$PORT
  mapfile -t command < <(field basin-server "['Cmd']")
  mapfile -t health < <(field basin-server "['Healthcheck']['Test'][1:]")
  redis
  start basin-server /var/lib/basin "${command[@]}" > "$SCRATCH/server.log" 2>&1
  until PID=$(pgrep --parent $UNSHARE) && inside "${health[@]}" 2> /dev/null; do
    kill -0 $UNSHARE && ((SECONDS - started < 180)) || { tail "$SCRATCH/server.log"; exit 1; }
    sleep 0.5
  done
  say "basin-server: HEALTHCHECK passes after $((SECONDS - started)) s"
  grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs)' "/proc/$PID/status" | tr '\n' ' ' && echo
  ! inside touch /app/file 2> /dev/null || { echo "the root can be written"; exit 1; }

  ask "$url/health/ready"
  ask "$url/anomaly/score" --json @examples/tolokers.json
  ask "$url/classify" --json '{"model": "cdat-ames", "smiles": ["CCO", "c1ccccc1N(=O)=O", "not a molecule"]}'
  ask "$url/classify" --json '{"model": "cdat-ames", "smiles": "CCO", "include": ["explanation"]}'
  ask "$url/anomaly/score" -H 'Prefer: respond-async' --json @examples/tolokers.json
  ask "$url/complete" -F image=@examples/photo.jpg -F mask=@examples/mask.png
  ask "$url/memories/verify" -X PUT --json '{"patterns": [[1, 0], [0, 1]]}'
  ask "$url/graphs/verify" -X PUT --json \
    '{"nodes": [{"id": "a", "x": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]}], "edges": [{"source": "a", "target": "a"}]}'
  ask "$url/anomaly/score" --json '{"graph_id": "verify", "targets": ["a"]}'

  started=$(date +%s%N)
  kill -TERM "$PID"
  wait $UNSHARE
  say "basin-server: exit 0, $((($(date +%s%N) - started) / 1000000)) ms after SIGTERM"
  (cd "$SCRATCH/state" && du -a --max-depth 1)
  b rm "$CONTAINER" > /dev/null
}

ask() {
  local status
  status=$(curl -sS -o "$SCRATCH/answer" -w '%{http_code}' "$@")
  say "$status $1 $(head -c 160 "$SCRATCH/answer")"
  [[ $status == 20? ]]
}

training() {
  build basin-training docker/training.Dockerfile
  local command
  mapfile -t command < <(field basin-training "['Entrypoint']")
  start basin-training /app/runs "${command[@]}" classify --help > "$SCRATCH/training.log" 2>&1
  wait $UNSHARE
  say "basin-training: $(grep -m 1 -i usage "$SCRATCH/training.log")"
  b rm "$CONTAINER" > /dev/null
}

base
pip_settings
(($#)) || set -- server training
for image; do "$image"; done
