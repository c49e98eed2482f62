#!/bin/bash
# configs/clusters/mpi.sh: Open MPI starts the ranks on the machines of the file hosts, which it reaches by ssh. accel
# communicates over Gloo or NCCL, and takes only the numbers of the ranks from MPI.
hosts=$(dirname "$0")/hosts
MASTER_ADDR=$(awk '!/^#/ {print $1; exit}' "$hosts")
ranks=$(awk '!/^#/ {sub("slots=", "", $2); ranks += $2} END {print ranks}' "$hosts")
exec mpirun --hostfile "$hosts" -np "$ranks" -x MASTER_ADDR="$MASTER_ADDR" -x MASTER_PORT=29500 -x OMP_NUM_THREADS=1 ./train "$@"
