"""Random histories of clients and faults, over two servers and a worker on one Redis.

`world` has the processes, `proxy` what lies between them and Redis; `steps` draws a history from a
seed; `play` carries it out and `expected` has what must be true of each object; `shrink` finds a
shorter history that fails too. `python -m tests.support.chaos --histories 200 --seed 1`.
"""
