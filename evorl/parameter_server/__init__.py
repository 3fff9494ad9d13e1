"""Distributed training: workers send gradients or parameter changes to a server that stores the parameters."""
