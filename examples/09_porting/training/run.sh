#!/usr/bin/env bash
# eight GPUs of one machine
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
export NCCL_DEBUG=WARN
python -m torch.distributed.launch --nproc_per_node 8 train.py --steps 1000 "$@"
