"""Distributed training: workers send gradients over the network to a server that stores the parameters."""
