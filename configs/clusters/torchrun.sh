#!/bin/bash
# On every machine: configs/clusters/torchrun.sh node0, where node0 is the machine that all others can reach. torchrun
# numbers the machines as they arrive, and starts all ranks again after a failure.
rendezvous=$1
shift
exec torchrun --no-python --nnodes 2 --nproc-per-node 2 --max-restarts 3 --rdzv-id train --rdzv-backend c10d \
  --rdzv-endpoint "$rendezvous:29400" ./train "$@"
